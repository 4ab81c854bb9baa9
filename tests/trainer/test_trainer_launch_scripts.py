"""The launch scripts are valid shell, and do what they say when their programs are replaced by stand-ins."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest


FOLDER = Path(__file__).parents[2] / "recipes" / "launch"
SCRIPTS = sorted([*FOLDER.glob("*.sh"), *FOLDER.glob("*.sbatch")])


def stand_in(folder, name, text):
    path = folder / name
    path.write_text(f"#!/usr/bin/env bash\n{text}\n")
    path.chmod(0o755)


def run(script, arguments, folder, **environment):
    path = os.pathsep.join([str(folder), os.environ["PATH"]])
    return subprocess.run(
        ["bash", str(FOLDER / script), *arguments],
        env={"PATH": path, **environment},
        capture_output=True,
        text=True,
        timeout=20,
    )


def test_all_are_there_and_explained():
    assert {path.name for path in SCRIPTS} == {"slurm.sbatch", "multinode_torchrun.sh", "multinode_accelerate.sh"}
    assert all(f"`{path.name}`" in (FOLDER / "README.md").read_text() for path in SCRIPTS)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.name)
def test_the_shell_reads_it(path):
    assert subprocess.run(["bash", "-n", str(path)], check=False).returncode == 0
    if shutil.which("shellcheck"):
        found = subprocess.run(["shellcheck", "--shell=bash", str(path)], capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stdout


@pytest.mark.parametrize(("code", "requeued"), [(0, False), (2, False), (1, False), (138, True), (143, True)])
def test_slurm_requeues_what_was_interrupted_and_nothing_else(tmp_path, code, requeued):
    # srun runs its command as task 3 of 4; python says what it got and ends with the code.
    stand_in(tmp_path, "srun", 'shift; export SLURM_PROCID=3 SLURM_LOCALID=1 SLURM_NTASKS=4; exec "$@"')
    stand_in(tmp_path, "python", f'echo "rank $RANK of $WORLD_SIZE, $MASTER_ADDR: $*"; exit {code}')
    stand_in(tmp_path, "scontrol", f'if [ "$1" = show ]; then echo node7; else echo "$@" > {tmp_path}/asked; fi')
    result = run(
        "slurm.sbatch", ["a b.yaml", "--set", "seed=1"], tmp_path, SLURM_JOB_ID="42", SLURM_JOB_NODELIST="node[7-8]"
    )
    said = "rank 3 of 4, node7: -m hf_pretrain.scripts.pretrain --config a b.yaml --set seed=1"
    assert said in result.stdout, result.stderr
    assert (tmp_path / "asked").exists() == requeued
    assert result.returncode == (0 if requeued else code)
    if requeued:
        assert (tmp_path / "asked").read_text() == "requeue 42\n"


def test_the_others_hand_on_what_is_set(tmp_path):
    for name in ("torchrun", "accelerate"):
        stand_in(tmp_path, name, f'echo {name} "$@"')
    sizes = {"MASTER_ADDR": "first", "NODES": "2", "GPUS": "8"}
    said = run("multinode_torchrun.sh", ["s.yaml"], tmp_path, **sizes).stdout
    assert "--nnodes 2 --nproc_per_node 8" in said and "first:29500" in said and "--config s.yaml" in said
    said = run("multinode_accelerate.sh", ["c.yaml", "s.yaml"], tmp_path, **sizes, NODE_RANK="1").stdout
    assert "--config_file c.yaml --num_machines 2 --num_processes 16 --machine_rank 1" in said
    refused = run("multinode_accelerate.sh", ["c.yaml", "s.yaml"], tmp_path, **sizes)
    assert refused.returncode != 0 and "set NODE_RANK" in refused.stderr

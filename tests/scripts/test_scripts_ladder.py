"""`hf-pretrain ladder`: what it writes, and that its recipes are real ones."""

import json

import pytest
from testing_utils import write_corpus_stage

from hf_pretrain.planning.ladder_points import read_points
from hf_pretrain.scripts.ladder import main
from hf_pretrain.scripts.recipe import load_recipe


LADDER = """
corpus: {corpus}
run_dir: {run_dir}
vocab_size: 512
sizes: [100k, 300k]
tokens: [250k, 500k, 1M]
held_out: [{{size: 1M, tokens: 1M}}]
training: {{seq_length: 64, global_batch_size: 4, per_device_train_batch_size: 4}}
"""


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    """`--json` and `--quiet` set this for the whole process."""
    monkeypatch.setenv("HF_PRETRAIN_QUIET", "")


@pytest.fixture
def ladder(tmp_path):
    (tmp_path / "corpus" / "tokens").mkdir(parents=True)
    file = tmp_path / "ladder.yaml"
    file.write_text(LADDER.format(corpus=tmp_path / "corpus", run_dir=tmp_path / "runs"), encoding="utf-8")
    return file


def test_recipes_that_pass_the_dry_run(ladder, tmp_path, capsys):
    assert main([str(ladder)]) == 0
    assert "7 rungs" in capsys.readouterr().out
    folders = sorted((tmp_path / "runs" / "recipes").iterdir())
    assert len(folders) == 7
    (stage,) = load_recipe(folders[0])
    assert stage.kind == "pretrain" and stage.run_dir == tmp_path / "runs" / "rungs" / folders[0].name
    assert stage.config["corpus"] == str(tmp_path / "corpus")
    record = json.loads((tmp_path / "runs" / "ladder.json").read_text(encoding="utf-8"))
    assert [rung["held_out"] for rung in record["rungs"]] == [False] * 6 + [True]


def test_nothing_is_written_by_a_dry_run(ladder, tmp_path, capsys):
    assert main([str(tmp_path), "--dry-run", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rungs"]) == 7
    assert not (tmp_path / "runs").exists()


def test_a_script_for_slurm(ladder, tmp_path):
    script = tmp_path / "submit.sh"
    options = ["--sbatch=--partition=gpu", "--sbatch=--gpus=1", "--at-once", "4"]
    assert main([str(ladder), "--quiet", "--slurm", str(script), *options]) == 0
    text = script.read_text(encoding="utf-8")
    assert text.startswith("#!/bin/bash\n#SBATCH --job-name=")
    assert "#SBATCH --array=0-6%4" in text and "#SBATCH --partition=gpu" in text and "#SBATCH --gpus=1" in text
    assert text.count("recipes/n") == 7
    assert 'srun hf-pretrain run "${recipes[$SLURM_ARRAY_TASK_ID]}"' in text


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        (("seq_length", "seq_lenght"), [], "seq_lenght"),
        (("sizes", "sizse"), [], "Did you mean 'sizes'"),
        (("corpus: ", "corpus: /nowhere"), [], "there is no file"),
        (("sizes: [100k, 300k]", "sizes: [100, 300]"), [], "sizes = '100'; a unit is needed"),
        (("", ""), ["--sbatch", "rm", "--slurm", "x"], "one option of sbatch is expected"),
        (("", ""), ["--budget", "1e15"], "give a folder with ladder.yaml, or --budget"),
    ],
)
def test_mistakes_are_one_line_and_write_nothing(ladder, tmp_path, capsys, change, options, message):
    ladder.write_text(ladder.read_text(encoding="utf-8").replace(*change, 1), encoding="utf-8")
    assert main([str(ladder), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_budget_instead_of_a_file(tmp_path, capsys):
    (tmp_path / "corpus" / "tokens").mkdir(parents=True)
    corpus, run_dir = str(tmp_path / "corpus"), str(tmp_path / "runs")
    assert main(["--budget", "1e18", "--corpus", corpus]) == 2
    assert "--vocab-size, --run-dir missing" in capsys.readouterr().err
    assert main(["--budget", "1e18", "--corpus", corpus, "--vocab-size", "32000", "--run-dir", run_dir, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["rungs"]) == 16


@pytest.mark.slow
def test_a_ladder_runs_and_is_fitted(tmp_path, capsys):
    """Written, run, held against its plan, skipped the second time, and read by the fit."""
    write_corpus_stage(tmp_path / "corpus")
    file = tmp_path / "ladder.yaml"
    file.write_text(
        f"corpus: {tmp_path / 'corpus' / '1_corpus'}\nrun_dir: {tmp_path / 'runs'}\nvocab_size: 128\n"
        "sizes: [30k, 120k]\ntokens: [3k, 6k, 12k]\nlearning_rate: 2e-3\n"
        "training: {seq_length: 32, global_batch_size: 8, per_device_train_batch_size: 8, max_epochs: 100}\n",
        encoding="utf-8",
    )
    assert main([str(file), "--run"]) == 0
    assert "rung 6/6" in capsys.readouterr().out
    points = read_points([tmp_path / "runs"], "non_embedding")
    assert len(points) == 6 and all(0 < point.loss < 10 for point in points)
    page = (tmp_path / "runs" / "rungs" / points[0].name / "report.html").read_text(encoding="utf-8")
    assert "Plan and measured" in page
    assert main([str(file), "--run"]) == 0
    assert "Nothing to do" in capsys.readouterr().out

"""Two and three processes by torchrun are one: loss, gradient, weights, router counts, spikes, order of data."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from data_parallel_worker import SEQUENCES, STEPS


WORKER = Path(__file__).with_name("data_parallel_worker.py")


def launch(folder, world):
    folder.mkdir()
    paths = os.pathsep.join(str(path) for path in (WORKER.parents[2], WORKER.parents[1]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    finished = subprocess.run(
        [*command, str(WORKER), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return records, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.slow
def test_two_and_three_processes_are_one(tmp_path):
    (one,), (weights,) = launch(tmp_path / "1", 1)
    assert len(one["lines"]) == STEPS
    spikes = [line["spike/count"] for line in one["lines"]]
    assert 0 < spikes[-1] < STEPS  # both decisions happened
    assert any(value.abs().max() > 0 for name, value in weights.items() if "correction_bias" in name)
    for world in (2, 3):
        records, parts = launch(tmp_path / str(world), world)
        for line, expected in zip(records[0]["lines"], one["lines"], strict=True):
            assert line.keys() == expected.keys()
            for key, value in expected.items():
                found = line[key]
                if key == "router/load":
                    found, value = sum(found, []), sum(value, [])
                assert found == pytest.approx(value, abs=2e-5, rel=1e-5), (world, key)
        for part in parts:  # every rank went the same way
            for name, value in weights.items():
                torch.testing.assert_close(part[name], value, atol=2e-5, rtol=0)
        share = SEQUENCES // world
        for step in range(STEPS):
            asked = [set(record["asked"][step * share : (step + 1) * share]) for record in records]
            assert set.union(*asked) == set(range(step * SEQUENCES, (step + 1) * SEQUENCES))
            assert sum(map(len, asked)) == SEQUENCES

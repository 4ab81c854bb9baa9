"""Z-loss in a stock Trainer under DDP: two gloo processes are one, with unlike numbers of targets and with none."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from z_loss_ddp_worker import ALL_EMPTY, ONE_RANK_EMPTY, STEPS


WORKER = Path(__file__).with_name("z_loss_ddp_worker.py")


def launch(folder, world):
    folder.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    finished = subprocess.run(
        [*command, str(WORKER), str(folder)], env=environment, capture_output=True, text=True, timeout=120
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    records = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(world)]
    return records, [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path):
    (one,), (weights,) = launch(tmp_path / "1", 1)
    records, parts = launch(tmp_path / "2", 2)

    first, second = (record["targets"] for record in records)
    assert [a + b for a, b in zip(first, second, strict=True)] == one["targets"]  # the same global batches
    assert all(a != b for step, (a, b) in enumerate(zip(first, second, strict=True)) if step != ALL_EMPTY)
    assert first[ONE_RANK_EMPTY] > 0 and second[ONE_RANK_EMPTY] == 0
    assert first[ALL_EMPTY] == second[ALL_EMPTY] == 0

    assert len(one["lines"]) == len(records[0]["lines"]) == STEPS
    for step, (line, expected) in enumerate(zip(records[0]["lines"], one["lines"], strict=True)):
        assert (expected["z_loss"] > 0) == (step != ALL_EMPTY)
        for key in ("loss", "ce_loss", "z_loss", "lse_mean", "lse_max"):
            assert line.get(key) == (pytest.approx(expected[key], abs=1e-5) if key in expected else None), (step, key)

    for record in (one, *records):  # no optimizer step without a target, all others are taken; ranks count alike
        assert record["num_empty_steps"] == 1
        assert record["nothing_moved"]
        assert record["steps_that_moved"] == STEPS - 2
    for part in parts:
        assert part.keys() == weights.keys()
        for name, value in weights.items():
            torch.testing.assert_close(part[name], value, atol=1e-5, rtol=0, msg=name)

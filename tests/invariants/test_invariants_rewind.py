"""A rewind holds: over a kill right after it, and on two processes of which one alone saw the spike."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_training import equal_weights

from hf_pretrain.data.order import DataOrder
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint


WORKER = Path(__file__).with_name("rewind_worker.py")


def launch(folder, result, *more, world=1, dropout=0.0):
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1", "DROPOUT": str(dropout)}
    start = [sys.executable]
    if world > 1:
        start += ["-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={world}"]
    finished = subprocess.run(
        [*start, str(WORKER), str(folder), str(result), *map(str, more)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    return finished.returncode, finished.stderr[-3000:]


def results(path, world=1):
    records = [json.loads(Path(f"{path}.{rank}.json").read_text()) for rank in range(world)]
    return records, [torch.load(f"{path}.{rank}.pt", weights_only=True) for rank in range(world)]


@pytest.mark.slow
def test_a_kill_right_after_a_rewind_changes_no_bit(tmp_path):
    code, errors = launch(tmp_path / "straight", tmp_path / "straight_result", dropout=0.3)
    assert code == 0, errors
    folder, result = tmp_path / "run", tmp_path / "run_result"
    for kill_at in (19, 22):  # before any checkpoint knows of the rewind
        code, _ = launch(folder, result, kill_at, dropout=0.3)
        assert code == -9
        assert latest_complete_checkpoint(folder).name == "checkpoint-18"
        assert DataOrder.read(folder).skips.to_json() == [[144, 160]]
    code, errors = launch(folder, result, dropout=0.3)
    assert code == 0, errors
    (straight,), (expected,) = results(tmp_path / "straight_result")
    (resumed,), (found,) = results(result)
    assert equal_weights(expected, found)
    assert resumed == straight and resumed["skipped"] == [[144, 160]]


@pytest.mark.slow
def test_two_processes_go_back_together(tmp_path):
    records, parts = {}, {}
    for world in (1, 2):
        code, errors = launch(tmp_path / f"{world}", tmp_path / f"{world}_result", world=world)
        assert code == 0, errors
        records[world], parts[world] = results(tmp_path / f"{world}_result", world)
    first, second = records[2]
    assert first["rewinds"] == second["rewinds"] and len(first["rewinds"]) == 1
    assert first["skipped"] == second["skipped"] == records[1][0]["skipped"] == [[144, 160]]
    assert equal_weights(*parts[2])
    assert first["losses"] == pytest.approx(second["losses"], abs=1e-5)
    assert first["losses"] == pytest.approx(records[1][0]["losses"], abs=1e-3)

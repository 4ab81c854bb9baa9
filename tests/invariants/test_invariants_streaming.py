"""Two processes over streams, with workers or without, read the global batches of one; a resume on one goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from streaming_worker import SEQUENCES, STEPS, make


WORKER = Path(__file__).with_name("streaming_worker.py")


def launch(folder, dispatch, workers):
    folder.mkdir()
    paths = os.pathsep.join(str(path) for path in (WORKER.parents[2], WORKER.parents[1]))
    environment = {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(WORKER)]
    command += [str(folder), str(dispatch), str(workers)]
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=180)
    assert finished.returncode == 0, finished.stderr[-3000:]
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.slow
@pytest.mark.parametrize(("dispatch", "workers"), [(True, 0), (True, 2), (False, 2)])
def test_two_processes_read_the_batches_of_one(tmp_path, dispatch, workers):
    trainer, one = make(tmp_path / "one", 1)
    trainer.train()
    assert len(one) == STEPS * SEQUENCES
    ranks = launch(tmp_path / "two", dispatch, workers)
    # Micro-batches of one row go to the processes in turn.
    assert [row for rows in zip(*ranks, strict=True) for row in rows] == one
    later, rest = make(tmp_path / "two", 1)
    later.train(tmp_path / "two" / "run" / "checkpoint-3")
    assert rest == one[3 * SEQUENCES :]

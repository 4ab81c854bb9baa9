"""Two gloo processes: one loss, one set of metrics, one decision (bugs L6, S3)."""

import os
import subprocess
import sys
from pathlib import Path


WORKER = Path(__file__).with_name("two_rank_worker.py")


def test_two_processes(tmp_path):
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2]), "OMP_NUM_THREADS": "1"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(WORKER), str(rank), str(tmp_path / "store")],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [one.communicate(timeout=120)[0] for one in workers]
    finally:
        for one in workers:
            one.kill()
    assert [one.returncode for one in workers] == [0, 0], "\n".join(outputs)

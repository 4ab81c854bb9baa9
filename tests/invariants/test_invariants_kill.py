"""A killed run goes on as if nothing had happened: bit by bit, at any moment, and on other numbers of ranks."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from tiny_training import equal_weights

from hf_pretrain.data.order import DataOrder
from hf_pretrain.trainer.checkpoint import list_checkpoints


WORKER = Path(__file__).with_name("resume_worker.py")
ROOT = WORKER.parents[2]


def start(folder, result, steps=0, micro=8, ranks=1):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    processes = []
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    for rank in range(ranks):
        launch = (
            {
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(ranks),
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": port,
            }
            if ranks > 1
            else {}
        )
        command = [sys.executable, str(WORKER), str(folder), str(result), str(steps), str(micro)]
        processes.append(
            subprocess.Popen(command, env={**environment, **launch}, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        )
    return processes


def finish(processes):
    outputs = [one.communicate(timeout=240)[1].decode() for one in processes]
    assert [one.returncode for one in processes] == [0] * len(processes), "\n".join(outputs)


@pytest.mark.slow
def test_two_hard_kills_at_any_moment_change_no_bit(tmp_path):
    finish(start(tmp_path / "straight", tmp_path / "straight_result"))
    generator = random.Random(0)
    folder, result = tmp_path / "run", tmp_path / "run_result"
    kills = 0
    for least in (2, 7):
        (process,) = start(folder, result)
        while process.poll() is None:
            found = list_checkpoints(folder)
            if found and int(found[-1].name.split("-")[1]) >= least:
                # Anywhere: in a step, in the middle of a save.
                time.sleep(generator.random() * 0.2)
                break
            time.sleep(0.005)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills == 2
    finish(start(folder, result))
    straight, resumed = (
        torch.load(f"{path}.pt", weights_only=True) for path in (tmp_path / "straight_result", result)
    )
    assert equal_weights(straight, resumed)


@pytest.mark.slow
def test_one_two_and_one_rank_read_the_same_samples(tmp_path):
    folder = tmp_path / "run"
    seen = {}
    for number, (steps, micro, ranks) in enumerate([(4, 8, 1), (9, 2, 2), (0, 4, 1)]):
        finish(start(folder, tmp_path / f"part{number}", steps, micro, ranks))
        for rank in range(ranks):
            part = json.loads((tmp_path / f"part{number}.{rank}.json").read_text())
            for step, samples in part.items():
                seen.setdefault(int(step), {})[rank] = samples
    last = {4: 1, 9: 2, 16: 1}
    order = DataOrder.read(folder)
    for step in range(1, 17):
        ranks = last[min(key for key in last if step <= key)]
        read = [sample for rank in range(ranks) for sample in seen[step][rank]]
        assert sorted(read) == list(range((step - 1) * 8, step * 8))
        span = order.span_of_step(step)
        for row, sample in enumerate(order.samples_of_step(step)):
            rank, own_row = span.rank_of(row)
            assert seen[step][rank][own_row] == sample

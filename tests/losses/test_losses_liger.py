"""Liger's kernels against the plain loss: in Triton's interpreter on CPU, compiled on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


pytest.importorskip("liger_kernel")

WORKER = Path(__file__).with_name("liger_parity_worker.py")
ROOT = WORKER.parents[2]


def run(device: str, dtype: str) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"  # read when liger is imported first: hence the process of its own
    done = subprocess.run(
        [sys.executable, str(WORKER), device, dtype], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok") == 17


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_pair_of_options_in_the_interpreter(dtype):
    run("cpu", dtype)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_pair_of_options_compiled(dtype):
    run("cuda", dtype)

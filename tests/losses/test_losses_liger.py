"""Liger's kernels against the plain loss (bugs Z2, Z3): in Triton's interpreter on CPU, compiled on a GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch


pytest.importorskip("liger_kernel")

WORKER = Path(__file__).with_name("liger_parity_worker.py")
ROOT = WORKER.parents[2]
# Every pair of {z, smoothing, softcap, count, ignore_index}; the plain kernel has two reductions and no count.
CASES = {"fused": 17, "ce": 24, "rope": 3}
DTYPES = ["float32", "bfloat16"]


def run(kernel: str, device: str, dtype: str, head: str = "untied") -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"  # read when liger is imported first: hence the process of its own
    command = [sys.executable, str(WORKER), kernel, device, dtype, head]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok") == CASES[kernel]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_every_pair_of_options_in_the_interpreter(head, dtype):
    run("fused", "cpu", dtype, head)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["ce", "rope"])
def test_cross_entropy_and_rope_in_the_interpreter(kernel, dtype):
    run(kernel, "cpu", dtype)


gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_every_pair_of_options_compiled(head, dtype):
    run("fused", "cuda", dtype, head)


@gpu
@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", ["ce", "rope"])
def test_cross_entropy_and_rope_compiled(kernel, dtype):
    run(kernel, "cuda", dtype)

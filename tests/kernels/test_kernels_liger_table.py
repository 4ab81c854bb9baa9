"""Strata in Liger's table: `use_liger_kernel=True` patches it, with z-loss, in training and evaluation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from hf_pretrain.kernels.liger_table import apply_liger_kernel_to_strata
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.utils.errors import UserError


WORKER = Path(__file__).with_name("liger_trainer_worker.py")


def run(device, folder):
    pytest.importorskip("liger_kernel")
    environment = {**os.environ, "PYTHONPATH": str(WORKER.parents[2])}
    environment.pop("TRITON_INTERPRET", None)
    if device == "cpu":
        environment["TRITON_INTERPRET"] = "1"
    done = subprocess.run(
        [sys.executable, str(WORKER), device, str(folder)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("ok") == 4


@pytest.mark.slow
def test_strata_through_the_trainer_in_the_interpreter(tmp_path):
    run("cpu", tmp_path)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_strata_through_the_trainer_on_a_gpu(tmp_path):
    run("cuda", tmp_path)


def test_what_cannot_be_is_named(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = StrataForCausalLM(StrataConfig.preset("tiny", vocab_size=32, num_hidden_layers=1))
    with pytest.raises(UserError, match="Strata is patched one model at a time"):
        apply_liger_kernel_to_strata()
    with pytest.raises(UserError, match="takes fused_linear_cross_entropy=True instead"):
        apply_liger_kernel_to_strata(cross_entropy=True, model=model)
    with pytest.raises(UserError, match="use_liger_kernel = True; .*(on a CPU|not installed)"):
        apply_liger_kernel_to_strata(model=model)
    off = dict.fromkeys(("rope", "rms_norm", "swiglu", "fused_linear_cross_entropy"), False)
    with pytest.raises(UserError, match="lse_square_scale = 0.1, .* leave fused_linear_cross_entropy on"):
        apply_liger_kernel_to_strata(**off, lse_square_scale=0.1, model=model)
    apply_liger_kernel_to_strata(**off, model=model)
    assert "_loss_function" not in vars(model)

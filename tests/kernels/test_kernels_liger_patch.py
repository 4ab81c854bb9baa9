"""Patching a model with Liger's kernels: the report, the self-check, the way back."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from hf_pretrain.kernels import liger_patch
from hf_pretrain.kernels.liger_patch import patch_with_liger
from hf_pretrain.utils.errors import UserError


WORKER = Path(__file__).with_name("liger_patch_worker.py")


def tiny():
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=32,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    )


def test_nothing_is_patched_on_a_cpu(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    model = tiny()
    report = patch_with_liger(model, swiglu=False)
    assert report.patched == {} and set(report.skipped) == {"rope", "rms_norm"}
    assert "the model is on a CPU" in str(report)
    assert not any("forward" in vars(one) for one in model.modules())
    report.undo()
    with pytest.raises(UserError, match=r"fused kernels were required, but rope: not patched \(the model is on a CPU"):
        patch_with_liger(model, required=True)


def test_missing_liger_names_the_pip_line(monkeypatch):
    monkeypatch.setattr(liger_patch, "is_available", lambda module: False)
    assert 'pip install "hf-pretrain[liger]"' in str(patch_with_liger(tiny()))


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["plain", "mended"])
def test_real_models_in_the_interpreter(mode):
    pytest.importorskip("liger_kernel")
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(WORKER.parents[2])}
    done = subprocess.run(
        [sys.executable, str(WORKER), mode], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_all_three_kernels_on_a_gpu():
    pytest.importorskip("liger_kernel")
    model = tiny().cuda()
    ids = torch.randint(0, 32, (2, 8), device="cuda")
    plain = model(input_ids=ids).logits
    report = patch_with_liger(model, required=True)
    assert set(report.patched) == {"rope", "rms_norm", "swiglu"}
    torch.testing.assert_close(model(input_ids=ids).logits, plain, rtol=1e-4, atol=1e-4)
    report.undo()
    assert torch.equal(model(input_ids=ids).logits, plain)

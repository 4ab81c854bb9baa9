"""FusedKernelsCallback on a CPU: the fused loss acts, the kernels say why they do not, all is undone."""

import pytest
import torch
from stock_training import lines, make_trainer, tiny_llama, tiny_strata
from transformers import GPT2Config, GPT2LMHeadModel, TrainerCallback

from hf_pretrain.callbacks.fused_kernels import FusedKernelsCallback
from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.kernels import liger_table
from hf_pretrain.utils.errors import UserError


@pytest.fixture(autouse=True)
def no_interpreter(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)


def test_strata_trains_the_same_without_logits(tmp_path):
    plain = make_trainer(tmp_path, tiny_strata(num_experts=4), [])
    plain.train()
    callback = FusedKernelsCallback()
    trainer = make_trainer(tmp_path, tiny_strata(num_experts=4), [callback])
    trainer.train()
    assert callback.report.patched == {"fused_ce": "chunked_causal_lm_loss"}
    assert set(callback.report.skipped) == {"rope", "rms_norm", "swiglu"}
    assert [line["loss"] for line in lines(trainer)] == pytest.approx(
        [line["loss"] for line in lines(plain)], rel=1e-4
    )
    assert "_loss_function" not in vars(trainer.model)
    assert trainer.model(input_ids=torch.zeros(1, 3, dtype=torch.long)).logits is not None


@pytest.mark.parametrize("order", [1, -1])
def test_with_z_loss_in_any_order(tmp_path, order):
    callbacks = [FusedKernelsCallback(), ZLossCallback(coef=1e-2)][::order]
    trainer = make_trainer(tmp_path, tiny_strata(), callbacks, steps=2)
    trainer.train()
    assert lines(trainer)[0]["z_loss"] > 0
    assert "_loss_function" not in vars(trainer.model)


@pytest.mark.parametrize("order", [1, -1])
def test_stock_model_trains_the_same_without_logits(tmp_path, order):
    pytest.importorskip("liger_kernel")
    seen = []

    class Spy(TrainerCallback):
        def on_train_begin(self, args, state, control, **kwargs):
            kwargs["model"].register_forward_hook(lambda m, i, out: seen.append(out.logits))

    plain = make_trainer(tmp_path, tiny_llama(), [ZLossCallback(coef=1e-2)], accumulation=2)
    plain.train()
    callback = FusedKernelsCallback(rope=False, rms_norm=False, swiglu=False, required=True)
    callbacks = [callback, ZLossCallback(coef=1e-2)][::order]
    trainer = make_trainer(tmp_path, tiny_llama(), [*callbacks, Spy()], accumulation=2)
    trainer.train()
    assert len(seen) == 20 and all(one is None for one in seen)
    for key in ("loss", "ce_loss", "z_loss", "lse_max"):
        assert [line[key] for line in lines(trainer)] == pytest.approx([line[key] for line in lines(plain)], rel=1e-4)
    assert "forward" not in vars(trainer.model) and "_loss_function" not in vars(trainer.model)
    assert trainer.model(input_ids=torch.zeros(1, 3, dtype=torch.long)).logits is not None


def test_without_z_loss_too(tmp_path):
    pytest.importorskip("liger_kernel")
    plain = make_trainer(tmp_path, tiny_llama(), [])
    plain.train()
    callback = FusedKernelsCallback()
    trainer = make_trainer(tmp_path, tiny_llama(), [callback])
    trainer.train()
    assert callback.report.patched == {"fused_ce": "chunked_causal_lm_loss"}
    assert [line["loss"] for line in lines(trainer)] == pytest.approx(
        [line["loss"] for line in lines(plain)], rel=1e-4
    )
    assert "forward" not in vars(trainer.model)


def test_family_without_a_fused_forward_says_so(tmp_path, monkeypatch):
    pytest.importorskip("liger_kernel")
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    callback = FusedKernelsCallback()
    make_trainer(tmp_path, model, [callback], steps=1).train()
    assert "Liger has no forward for 'gpt2'" in callback.report.skipped["fused_ce"]
    callback = FusedKernelsCallback(rope=False, rms_norm=False, swiglu=False, required=True)
    with pytest.raises(
        UserError, match="fused_ce = 'auto' was required, but GPT2LMHeadModel builds its logits itself"
    ):
        make_trainer(tmp_path, model, [callback]).train()
    monkeypatch.setattr(liger_table, "is_available", lambda module: False)
    assert 'pip install "hf-pretrain[liger]"' in liger_table.install_fused_forward(tiny_llama())


def test_required_refuses_before_the_first_step(tmp_path):
    model = tiny_llama()
    with pytest.raises(UserError, match="fused kernels were required, but rope: not patched"):
        make_trainer(tmp_path, model, [FusedKernelsCallback(required=True)]).train()
    with pytest.raises(UserError, match="Triton has no driver for device 'cpu'"):
        make_trainer(tmp_path, tiny_strata(), [FusedKernelsCallback(fused_ce="liger")]).train()
    with pytest.raises(UserError, match="Unknown fused_ce 'on'"):
        FusedKernelsCallback(fused_ce="on")


def test_state_rebuilds():
    callback = FusedKernelsCallback(rope=False, fused_ce="off")
    assert FusedKernelsCallback.from_state(callback.state()).state() == callback.state()

"""ZLossCallback through stock Trainers: it acts, does not depend on accumulation, is undone, or refuses."""

import json
import logging

import pytest
import torch
from stock_training import Rows, lines, make_trainer, tiny_llama, tiny_strata
from transformers import GPT2Config, GPT2LMHeadModel, Trainer

from hf_pretrain.callbacks import z_loss
from hf_pretrain.callbacks.fused_kernels import FusedKernelsCallback
from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.kernels import liger_table
from hf_pretrain.utils.errors import UserError


def parameters(model):
    return [one.detach().clone() for one in model.parameters()]


@pytest.mark.parametrize("make", [tiny_llama, tiny_strata], ids=["llama", "strata"])
def test_logs_add_up_and_the_effect_is_real_and_undone(tmp_path, make):
    plain = make_trainer(tmp_path, make(), [])
    plain.train()
    zero = make_trainer(tmp_path, make(), [ZLossCallback(coef=0.0)])
    zero.train()
    assert [line["loss"] for line in lines(zero)] == pytest.approx([line["loss"] for line in lines(plain)], rel=1e-4)
    if make is tiny_llama:
        assert [line["ce_loss"] for line in lines(zero)] == pytest.approx(
            [line["loss"] for line in lines(zero)], rel=1e-6
        )
    trainer = make_trainer(tmp_path, make(), [ZLossCallback(coef=1e-2)])
    trainer.train()
    for line in lines(trainer):
        assert line["loss"] == pytest.approx(line["ce_loss"] + line["z_loss"], rel=1e-4)
        assert line["lse_max"] > line["lse_mean"] > 0
        assert line["z_loss"] >= 1e-2 * line["lse_mean"] ** 2 * (1 - 1e-6)
    assert lines(trainer)[-1]["lse_mean"] < lines(zero)[-1]["lse_mean"]
    assert "_loss_function" not in vars(trainer.model)
    assert not torch.equal(next(plain.model.parameters()), next(trainer.model.parameters()))


@pytest.mark.parametrize("make", [tiny_llama, tiny_strata], ids=["llama", "strata"])
def test_accumulation_changes_nothing(tmp_path, make):
    histories, weights = [], []
    for batch, accumulation in ((8, 1), (2, 4), (1, 8)):
        trainer = make_trainer(
            tmp_path, make(), [ZLossCallback(coef=1e-2)], steps=5, batch=batch, accumulation=accumulation
        )
        trainer.train()
        histories.append([[line[key] for key in ("ce_loss", "z_loss", "lse_mean", "loss")] for line in lines(trainer)])
        weights.append(torch.cat([one.flatten() for one in parameters(trainer.model)]))
    for other in (1, 2):
        assert torch.tensor(histories[other]).allclose(torch.tensor(histories[0]), rtol=1e-4)
        torch.testing.assert_close(weights[other], weights[0], rtol=1e-3, atol=1e-4)


def test_evaluation_is_cross_entropy_alone(tmp_path):
    results = []
    for coef in (0.0, 1.0):
        trainer = make_trainer(
            tmp_path,
            tiny_llama(),
            [ZLossCallback(coef=coef)],
            steps=1,
            learning_rate=0.0,
            eval_strategy="steps",
            eval_rows=Rows(16),
        )
        trainer.train()
        results.append(next(line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line))
    assert results[0] == results[1]


def test_evaluation_without_logits_must_be_one_that_needs_none(tmp_path):
    """Bugs Z6: a stock Trainer hides compute_metrics from callbacks; prediction_loss_only rules it out."""
    with pytest.raises(UserError, match="fused_evaluation = True; .* set prediction_loss_only=True"):
        make_trainer(tmp_path, tiny_strata(), [ZLossCallback(fused_evaluation=True)])
    results = []
    for fused in (False, True):
        model, shapes = tiny_strata(), []
        model.register_forward_hook(lambda module, _, out, shapes=shapes: shapes.append(out.logits))
        trainer = make_trainer(
            tmp_path,
            model,
            [ZLossCallback(fused_evaluation=fused)],
            steps=1,
            eval_strategy="steps",
            eval_rows=Rows(16),
            prediction_loss_only=True,
        )
        trainer.train()
        assert shapes[0] is None and (shapes[-1] is None) is fused
        results.append(next(line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line))
    assert results[0] == pytest.approx(results[1], rel=1e-5)


@pytest.mark.parametrize("known", [False, True])
def test_a_name_the_trainer_does_not_know(tmp_path, known, caplog):
    """GPT2LMHeadModel has no loss type, so the stock Trainer divides by too many targets (bugs L3)."""
    torch.manual_seed(0)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    if known:
        model.loss_type = "ForCausalLM"
    trainer = make_trainer(tmp_path, model, [ZLossCallback(coef=1e-2)], steps=1, rows=Rows(ignored=False))
    with caplog.at_level(logging.WARNING, logger=z_loss.__name__):
        trainer.train()
    line = lines(trainer)[0]
    right = line["ce_loss"] + line["z_loss"]
    assert line["loss"] == pytest.approx(right if known else right * 9 / 10, rel=1e-4)
    assert ("set model.loss_type = 'ForCausalLM' before making the Trainer" in caplog.text) is not known
    assert model.loss_type == ("ForCausalLM" if known else None)


def test_state_is_json_and_rebuilds():
    callback = ZLossCallback(coef=1e-3, implementation="chunked", label_smoothing=0.1)
    again = ZLossCallback.from_state(json.loads(json.dumps(callback.state())))
    assert again.state() == callback.state()


def test_a_trainer_that_goes_round_the_model_is_refused_before_the_first_update(tmp_path):
    def loss_outside(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits[:, :-1].reshape(-1, 32)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1))

    model = tiny_llama()
    before = parameters(model)
    trainer = make_trainer(tmp_path, model, [ZLossCallback()])
    trainer.compute_loss_func = loss_outside
    with pytest.raises(UserError, match="loss_function was not called"):
        trainer.train()
    assert all(torch.equal(a, b) for a, b in zip(before, parameters(model), strict=True))


def test_known_bypasses_are_refused_by_name(tmp_path):
    trainer = make_trainer(tmp_path, tiny_llama(), [ZLossCallback()], label_smoothing_factor=0.1)
    with pytest.raises(UserError, match=r"label_smoothing_factor = 0.1.*ZLossCallback\(label_smoothing"):
        trainer.train()

    class NotAModel(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.head = torch.nn.Linear(2, 2)

    with pytest.raises(UserError, match="has no loss_function"):
        trainer.args.label_smoothing_factor = 0.0
        ZLossCallback().on_train_begin(trainer.args, trainer.state, trainer.control, model=NotAModel())


def test_a_run_that_failed_leaves_nothing_for_the_next(tmp_path):
    class Failing(Trainer):
        def training_step(self, *arguments, **options):
            if self.state.global_step == 2:
                raise RuntimeError("broken")
            return super().training_step(*arguments, **options)

    callback = ZLossCallback(coef=1e-2)
    trainer = make_trainer(tmp_path, tiny_llama(), [callback], kind=Failing)
    with pytest.raises(RuntimeError, match="broken"):
        trainer.train()
    trainer = make_trainer(tmp_path, trainer.model, [callback], steps=2)
    trainer.train()
    assert "_loss_function" not in vars(trainer.model)


def test_liger_missing_is_one_error_when_the_trainer_is_made(tmp_path, monkeypatch):
    monkeypatch.setattr(liger_table, "is_available", lambda module: False)
    for callback in (ZLossCallback(), FusedKernelsCallback()):
        with pytest.raises(UserError, match=r'use_liger_kernel = True; .* `pip install "hf-pretrain\[liger\]"`'):
            make_trainer(tmp_path, tiny_llama(), [callback], use_liger_kernel=True)


def test_two_places_for_one_option_are_refused(tmp_path):
    pytest.importorskip("liger_kernel")
    options = {"rope": False, "rms_norm": False, "swiglu": False}
    for name, own in (("lse_square_scale", "coef"), ("label_smoothing", "label_smoothing")):
        config = {**options, name: 1e-3}
        trainer = make_trainer(
            tmp_path, tiny_llama(), [ZLossCallback()], use_liger_kernel=True, liger_kernel_config=config
        )
        with pytest.raises(UserError, match=rf"liger_kernel_config\['{name}'\] = 0.001; .*ZLossCallback\({own}=0.001"):
            trainer.train()


def test_bad_options_are_refused_at_once():
    with pytest.raises(UserError, match="z_loss_coef = 2"):
        ZLossCallback(coef=2)
    with pytest.raises(UserError, match="Unknown loss implementation"):
        ZLossCallback(implementation="fast")

"""Held-out evaluation builds no logits where only the loss is wanted, and has them where metrics need them (Z6)."""

import pytest
import torch
from tiny_training import BATCH, LENGTH, tiny_llama, tiny_mixture, tiny_strata, trainer
from transformers import TrainerCallback

from hf_pretrain.callbacks.fused_kernels import FusedKernelsCallback
from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.utils.errors import UserError


class Logits(TrainerCallback):
    """Keeps the shape of what each forward returned as logits, by mode."""

    def __init__(self):
        self.seen = {True: [], False: []}

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        model.register_forward_hook(
            lambda module, _, out: self.seen[module.training].append(None if out.logits is None else out.logits.shape)
        )


def run(folder, model, watch, **more):
    callbacks = more.pop("callbacks", [])
    made = trainer(
        folder,
        model,
        steps=2,
        eval_dataset=torch.utils.data.Subset(tiny_mixture(2), range(BATCH)),
        eval_strategy="steps",
        eval_steps=2,
        callbacks=[*callbacks, watch],
        **more,
    )
    made.train()
    return [line["eval_loss"] for line in made.state.log_history if "eval_loss" in line]


@pytest.mark.parametrize("make", [tiny_strata, tiny_llama], ids=["strata", "llama"])
def test_no_logits_where_only_the_loss_is_wanted(tmp_path, make):
    watch, plain = Logits(), Logits()
    callbacks = []
    if make is tiny_llama:  # Liger's forward can do without logits, the stock one cannot
        pytest.importorskip("liger_kernel")
        callbacks = [FusedKernelsCallback(rope=False, rms_norm=False, swiglu=False)]
    fused = run(tmp_path / "1", make(), watch, callbacks=callbacks)
    assert watch.seen[True] and watch.seen[False] and {*watch.seen[True], *watch.seen[False]} == {None}

    def mean_top(prediction):
        return {"top": float(prediction.predictions.max(axis=-1).mean())}

    stock = run(tmp_path / "2", make(), plain, compute_metrics=mean_top, callbacks=callbacks)
    assert plain.seen[False] and all(shape[1] == LENGTH for shape in plain.seen[False])
    assert fused == pytest.approx(stock, rel=1e-5)


def test_a_fused_evaluation_with_metrics_is_refused_when_the_trainer_is_made(tmp_path):
    def metrics(prediction):
        return {}

    with pytest.raises(UserError, match="fused_evaluation = True in ZLossCallback; .* compute_metrics needs"):
        trainer(tmp_path, callbacks=[ZLossCallback(fused_evaluation=True)], compute_metrics=metrics)
    model = tiny_strata()
    CausalLMObjective().attach(model)
    with pytest.raises(UserError, match="fused_evaluation = True in CausalLMObjective"):
        trainer(tmp_path, model, compute_metrics=metrics)
    with pytest.raises(UserError, match="prediction_loss_only = True; compute_metrics is given"):
        trainer(tmp_path, prediction_loss_only=True, compute_metrics=metrics)

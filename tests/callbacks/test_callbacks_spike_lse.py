"""The largest logsumexp is watched too: a step whose logits run away is a spike though its loss is not."""

import math

import torch
from stock_training import make_trainer, tiny_llama

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.callbacks.z_loss import ZLossCallback


def test_the_largest_logsumexp_of_a_step_is_judged(tmp_path):
    seen = []
    callback, objective = LossSpikeCallback(action="skip_update", min_values=4), ZLossCallback()
    observe = callback.lse_detector.observe
    callback.lse_detector.observe = lambda value: seen.append(value) or observe(value)
    trainer = make_trainer(tmp_path, tiny_llama(), [objective, callback], steps=10, batch=2, accumulation=4)

    def shift(module, inputs, output):
        # The same number on every logit: the loss does not change, its logsumexp does.
        return output + (60.0 if trainer.state.global_step == 6 else 0.0)

    trainer.model.lm_head.register_forward_hook(shift)
    objective.coef = 0.0
    trainer.train()
    assert len(seen) == 10 and all(math.isfinite(one) for one in seen)
    logged = [line["lse_max"] for line in trainer.state.log_history if "loss" in line]
    assert torch.allclose(torch.tensor(seen), torch.tensor(logged), atol=1e-5)
    assert [(event["step"], event["kind"]) for event in callback.events] == [(7, "lse_max")]
    assert callback.events[0]["value"] > callback.events[0]["mean"] + 50

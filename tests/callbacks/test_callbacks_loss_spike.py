"""LossSpikeCallback through a stock Trainer: what it sees, and what a skipped step leaves untouched."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from stock_training import lines, make_trainer, tiny_llama
from transformers import LlamaForCausalLM, TrainerCallback

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.utils.errors import UserError


class Faulty(LlamaForCausalLM):
    """Adds to the loss of chosen forwards."""

    faults: dict = {}

    def forward(self, input_ids=None, labels=None, **options):
        output = super().forward(input_ids=input_ids, labels=labels, **options)
        count = getattr(self, "forwards", 0) + 1
        self.forwards = count
        if count in self.faults:
            output.loss = output.loss + self.faults[count]
        return output


def faulty(faults):
    model = tiny_llama(kind=Faulty)
    model.loss_type = "ForCausalLM"
    model.faults = faults
    return model


class Snapshots(TrainerCallback):
    """Weights and optimizer state after every step."""

    def __init__(self):
        self.taken = []

    def on_step_end(self, args, state, control, **kwargs):
        moments = [
            {name: torch.as_tensor(value).clone() for name, value in entry.items()}
            for entry in kwargs["optimizer"].state.values()
        ]
        self.taken.append(([one.detach().clone() for one in kwargs["model"].parameters()], moments))


def equal(one, other):
    weights = all(torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
    moments = all(all(torch.equal(a[name], b[name]) for name in a) for a, b in zip(one[1], other[1], strict=True))
    return weights and moments


@pytest.mark.parametrize(("batch", "accumulation"), [(8, 1), (2, 4)])
def test_sees_the_steps_loss(tmp_path, batch, accumulation):
    seen = []
    callback = LossSpikeCallback()
    observe = callback.detector.observe
    callback.detector.observe = lambda value: seen.append(value) or observe(value)
    trainer = make_trainer(tmp_path, tiny_llama(), [callback], batch=batch, accumulation=accumulation)
    trainer.train()
    assert seen == pytest.approx([line["loss"] for line in lines(trainer)], rel=1e-3)
    assert callback.events == [] and lines(trainer)[-1]["spike/count"] == 0
    assert not trainer.model._forward_hooks


def test_log_records_and_trains_on(tmp_path):
    callback = LossSpikeCallback(min_values=4)
    trainer = make_trainer(tmp_path, faulty({8: 5.0}), [callback])
    trainer.train()
    assert [event["step"] for event in callback.events] == [8]
    event = callback.events[0]
    assert event["kind"] == "loss" and event["value"] > event["mean"] + 4.5 and event["z_score"] > 6
    assert lines(trainer)[-1]["spike/count"] == 1
    assert lines(trainer)[-1]["spike/loss_score"] == pytest.approx(0.1)
    assert trainer.state.global_step == 10
    json.dumps(callback.events, allow_nan=False)


def test_skipped_step_changes_no_bit(tmp_path):
    """Bugs S6: weights, exp_avg, exp_avg_sq and the optimizer's step stay; later steps go on."""
    snapshots, callback = Snapshots(), LossSpikeCallback(action="skip_update", min_values=4)
    trainer = make_trainer(tmp_path, faulty({7: 5.0}), [callback, snapshots], weight_decay=0.1)
    trainer.train()
    assert [event["step"] for event in callback.events] == [7]
    assert equal(snapshots.taken[5], snapshots.taken[6])
    assert not equal(snapshots.taken[6], snapshots.taken[7])
    assert [int(entry["step"]) for entry in snapshots.taken[9][1]][0] == 9
    rates = [line["learning_rate"] for line in lines(trainer)]
    assert rates == sorted(rates, reverse=True) and len(set(rates)) == 10  # the schedule moves on


@pytest.mark.parametrize("fault", [math.nan, math.inf])
def test_not_finite_at_the_first_step_is_skipped(tmp_path, fault):
    """Bugs S2; the Trainer itself would log 0 and poison the weights."""
    callback = LossSpikeCallback(action="skip_update")
    trainer = make_trainer(tmp_path, faulty({1: fault}), [callback], steps=3)
    trainer.train()
    assert callback.events[0]["step"] == 1 and callback.events[0]["value"] in ("nan", "inf")
    assert callback.num_spikes == 1
    assert all(one.isfinite().all() for one in trainer.model.parameters())


def test_gradients_that_are_not_finite_are_seen(tmp_path):
    model = tiny_llama()
    calls = []

    def poison(gradient):
        calls.append(1)
        return gradient * math.nan if len(calls) == 2 else gradient

    model.lm_head.weight.register_hook(poison)
    callback = LossSpikeCallback(action="skip_update")
    make_trainer(tmp_path, model, [callback], steps=4).train()
    assert [(event["step"], event["kind"]) for event in callback.events] == [(2, "grad_norm")]
    assert all(one.isfinite().all() for one in model.parameters())


def test_stop_keeps_the_last_good_weights(tmp_path):
    snapshots = Snapshots()
    trainer = make_trainer(tmp_path, faulty({6: math.nan}), [LossSpikeCallback(action="stop"), snapshots])
    trainer.train()
    assert trainer.state.global_step == 6
    assert equal(snapshots.taken[4], snapshots.taken[5])


def test_endless_skipping_stops(tmp_path):
    callback = LossSpikeCallback(action="skip_update", max_consecutive=3)
    trainer = make_trainer(tmp_path, faulty(dict.fromkeys(range(3, 99), math.nan)), [callback], steps=20)
    trainer.train()
    assert trainer.state.global_step == 5 and callback.num_spikes == 3


def test_grad_norm_from_the_trainer_is_judged():
    """The seam for trainers that know the norm before clipping."""
    callback = LossSpikeCallback(min_values=4)
    model = torch.nn.Linear(2, 2)
    for one in model.parameters():
        one.grad = torch.ones_like(one)

    class State:
        global_step = 0

    for norm in [1.0, 1.1, 0.9, 1.0, 1.05, 1.9, 30.0]:
        callback.on_step_begin(None, State, None)
        callback._loss, callback._micro_batches = torch.tensor(2.0), 1
        callback.observe_grad_norm(norm)
        callback.on_pre_optimizer_step(None, State, None, model=model)
        State.global_step += 1
    assert [(event["step"], event["kind"]) for event in callback.events] == [(7, "grad_norm")]


def test_loss_outside_the_model(tmp_path):
    def loss_outside(outputs, labels, num_items_in_batch=None):
        logits = outputs.logits[:, :-1].reshape(-1, 32)
        return torch.nn.functional.cross_entropy(logits, labels[:, 1:].reshape(-1))

    callback = LossSpikeCallback(min_values=4)
    trainer = make_trainer(tmp_path, tiny_llama(), [callback])
    trainer.compute_loss_func = loss_outside
    trainer.train()
    assert len(callback.detector.state()["accepted"]) == 10  # taken from the log lines
    trainer = make_trainer(tmp_path, tiny_llama(), [LossSpikeCallback(action="stop")])
    trainer.compute_loss_func = loss_outside
    with pytest.raises(UserError, match="returns no loss in this Trainer"):
        trainer.train()


def test_state_resumes_through_the_trainer(tmp_path):
    callback = LossSpikeCallback(min_values=4)
    trainer = make_trainer(
        tmp_path, faulty({5: 5.0}), [callback], steps=6, save_strategy="steps", save_steps=6, save_only_model=False
    )
    trainer.train()
    fresh = LossSpikeCallback(min_values=4)
    again = make_trainer(tmp_path, faulty({}), [fresh], steps=8, restore_callback_states_from_checkpoint=True)
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-6"))
    restored = next(one for one in again.callback_handler.callbacks if isinstance(one, LossSpikeCallback))
    assert [event["step"] for event in restored.events] == [5]
    assert restored.num_spikes == 1 and restored.num_steps == 8
    assert restored.detector.state()["accepted"][:5] == callback.detector.state()["accepted"]


def test_bad_options():
    with pytest.raises(UserError, match="Unknown spike action 'rewind'"):
        LossSpikeCallback(action="rewind")
    with pytest.raises(UserError, match="max_consecutive = 0"):
        LossSpikeCallback(max_consecutive=0)
    with pytest.raises(UserError, match="threshold = 0"):
        LossSpikeCallback(threshold=0)


def test_overflow_of_the_fp16_scale_is_no_spike_until_it_stays():
    model = torch.nn.Linear(2, 2)
    callback = LossSpikeCallback(action="log")

    def step(number, fp16, gradient):
        for one in model.parameters():
            one.grad = torch.full_like(one, gradient)
        callback._loss, callback._micro_batches = torch.tensor(2.0), 1
        args, state = SimpleNamespace(fp16=fp16), SimpleNamespace(global_step=number)
        callback.on_pre_optimizer_step(args, state, None, model=model, optimizer=None)
        callback._forget_step()
        return len(callback.events)

    assert [step(number, True, math.inf) for number in range(19)] == [0] * 19
    assert step(19, True, math.inf) == 1  # the scale would be below one: the gradients are the trouble
    assert step(20, True, 1.0) == 1 and step(21, True, math.inf) == 1
    assert step(22, False, math.inf) == 2  # without a scaler the first is one

"""Going back from spikes: what is restored, what is left out, what changes when it does not help."""

import json
import shutil

import pytest
import torch
from faulty_data import rewinding, samples_of_steps
from tiny_training import BATCH, arguments, equal_weights, losses, tiny_llama, tiny_mixture, trainer, weights

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.data.order import DataOrder
from hf_pretrain.trainer.checkpoint import checkpoint_step, list_checkpoints
from hf_pretrain.trainer.recovery import RewindCallback
from hf_pretrain.trainer.rewind_journal import Rewind, abandoned_after, rate_factor, read_journal
from hf_pretrain.utils.errors import TrainingStopped, UserError


def moments(run):
    return [value for entry in run.optimizer.state_dict()["state"].values() for value in entry.values()]


def steps_of(folder):
    return [checkpoint_step(path) for path in list_checkpoints(folder)]


@pytest.mark.parametrize(("step", "extra", "back_to"), [(20, 5.0, 18), (7, float("nan"), 6), (2, float("inf"), 0)])
def test_a_rewound_run_is_one_that_never_read_those_samples(tmp_path, step, extra, back_to):
    """Bugs S4, S5: weights, moments, detector and rates, bit by bit."""
    run = rewinding(tmp_path / "run", samples_of_steps(step), extra=extra, model=tiny_llama(attention_dropout=0.3))
    start = weights(run)
    run.train()
    window = [back_to * BATCH, step * BATCH]
    assert run.train_dataset.skips.to_json() == [window]
    assert [(one.spike_step, one.to_step, list(one.skipped)) for one in run.recovery.rewinds] == [
        (step, back_to, window)
    ]
    assert run.state.global_step == 24 and len(losses(run)) == 24

    dataset = tiny_mixture(24)
    dataset.skips = dataset.skips.with_range(*window)
    other = trainer(
        tmp_path / "other",
        tiny_llama(attention_dropout=0.3),
        steps=24,
        train_dataset=dataset,
        save_strategy="steps",
        save_steps=6,
        spike_action="rewind",
        save_total_limit=None,
    )
    if back_to:
        before = rewinding(
            tmp_path / "before",
            samples_of_steps(step),
            extra=0.0,
            model=tiny_llama(attention_dropout=0.3),
            save_total_limit=None,
        )
        before.train()
        shutil.copytree(tmp_path / f"before/checkpoint-{back_to}", tmp_path / f"other/checkpoint-{back_to}")
        other.train(str(tmp_path / f"other/checkpoint-{back_to}"))
    else:
        other.model.load_state_dict(start)
        other.train()
    assert equal_weights(weights(run), weights(other))
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(moments(run), moments(other), strict=True)
    )
    detectors = [one.find_callback(RewindCallback).detector.state() for one in (run, other)]
    assert detectors[0] == detectors[1] and run.find_callback(RewindCallback).num_spikes == 0
    assert losses(run)[back_to:] == losses(other)[back_to:]


def test_trace_log_and_a_later_resume_know_of_the_rewind(tmp_path):
    run = rewinding(tmp_path, samples_of_steps(20), save_total_limit=None)
    run.train()
    order = DataOrder.read(tmp_path)
    assert order.samples_of_step(18) == list(range(136, 144))
    assert order.samples_of_step(19) == list(range(160, 168))
    assert order.step_of_sample(152) is None
    steps = [json.loads(line)["step"] for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert steps == [*range(1, 25), 24]
    final = weights(run)
    again = rewinding(tmp_path, samples_of_steps(20))
    again.train(str(tmp_path / "checkpoint-18"))
    assert equal_weights(final, weights(again)) and again.recovery.rewinds == run.recovery.rewinds


def test_a_spike_that_comes_again_changes_the_strategy_and_then_stops(tmp_path):
    """Whatever the data, update 19 is bad: further back, more left out, lower rate, then the end."""
    run = rewinding(
        tmp_path, range(192), within=lambda: run.state.global_step == 18, save_total_limit=None, rewind_skip_batches=2
    )
    with pytest.raises(TrainingStopped, match=r"spike of step 19: the same spike came back after 3.*checkpoint-18"):
        run.train()
    made = run.recovery.rewinds
    assert [(one.attempt, one.to_step, one.lr_factor) for one in made] == [(1, 18, 1.0), (2, 12, 1.0), (3, 6, 0.5)]
    # 2 batches from step 18 on; 7 of steps 13 to 19, which read around the first window; 13 around the second.
    assert [one.skipped for one in made] == [(144, 160), (96, 168), (48, 224)]
    assert steps_of(tmp_path) == [0, 6, 12, 18]
    assert read_journal(tmp_path) == (run.run_id, made)


def test_a_lower_rate_holds_for_the_rest_and_after_a_resume(tmp_path):
    run = rewinding(tmp_path, samples_of_steps(20), rewind_lr_factor=0.25, decay_fraction=0.0, save_total_limit=None)
    run.train()
    rates = [entry["learning_rate"] for entry in run.state.log_history if "loss" in entry]
    assert rates == [1e-3] * 18 + [0.25e-3] * 6
    again = rewinding(tmp_path, [], rewind_lr_factor=0.25, decay_fraction=0.0)
    again.train(str(tmp_path / "checkpoint-18"))
    assert [entry["learning_rate"] for entry in again.state.log_history if "loss" in entry] == rates
    assert equal_weights(weights(run), weights(again))


def test_two_spikes_far_apart_are_two(tmp_path):
    run = rewinding(tmp_path, samples_of_steps(2, 20), extra=float("nan"), save_steps=4)
    run.train()
    assert [(one.spike_step, one.attempt) for one in run.recovery.rewinds] == [(2, 1), (18, 1)]
    assert run.train_dataset.skips.to_json() == [[0, 16], [144, 160]]
    limited = rewinding(tmp_path / "limited", samples_of_steps(2, 20), extra=float("nan"), save_steps=4, max_rewinds=1)
    with pytest.raises(TrainingStopped, match=r"max_rewinds = 1 are used up; the last good checkpoint is .*-16"):
        limited.train()


def test_a_run_killed_between_journal_and_clean_up_goes_on_from_the_target(tmp_path):
    """The newest checkpoint may be one of the line that was left."""
    run = rewinding(tmp_path, samples_of_steps(20), save_total_limit=None)
    run.train()
    final = weights(run)
    stale = tmp_path / "checkpoint-24" / "checkpoint_manifest.json"
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "num_rewinds": 0}))
    again = rewinding(tmp_path, samples_of_steps(20))
    again.train(resume_from_checkpoint=True)
    assert equal_weights(final, weights(again))
    stale.write_text(json.dumps({**json.loads(stale.read_text()), "num_rewinds": 0}))
    shutil.rmtree(tmp_path / "checkpoint-18")
    with pytest.raises(UserError, match="went back from there to .*checkpoint-18, which is gone"):
        rewinding(tmp_path, []).train(resume_from_checkpoint=True)
    for path in list_checkpoints(tmp_path):
        shutil.rmtree(path)
    with pytest.raises(UserError, match="went back to step 18, and no checkpoint is left"):
        rewinding(tmp_path, []).train()


@pytest.mark.slow
def test_rotation_keeps_what_the_run_went_back_to(tmp_path):
    """K2: until the run is past the spike its target stays, however many checkpoints come after it."""
    run = rewinding(tmp_path, samples_of_steps(20), save_steps=1, rewind_skip_batches=2, save_total_limit=2)
    run.train()
    assert run.recovery.rewinds[0].to_step == 19
    assert steps_of(tmp_path) == [23, 24]
    kept = rewinding(tmp_path / "kept", samples_of_steps(20), save_steps=1, rewind_skip_batches=9, save_total_limit=2)
    kept.train()
    assert steps_of(tmp_path / "kept") == [19, 23, 24]


def test_a_gradient_alone_costs_its_update_and_three_in_a_row_a_rewind(tmp_path):
    def poisoned(folder, *steps):
        run = rewinding(tmp_path / folder, [])
        clip, left = run._clip_grad_norm, list(steps)

        def inf(model):
            if run.state.global_step + 1 in left:
                left.remove(run.state.global_step + 1)
                model.lm_head.weight.grad[0, 0] = float("inf")
            return clip(model)

        run._clip_grad_norm = inf
        run.train()
        return run

    run = poisoned("one", 9, 11)
    events = run.find_callback(RewindCallback).events
    assert [(one["step"], one["kind"], one["action"]) for one in events] == [
        (9, "grad_norm", "skip_update"),
        (11, "grad_norm", "skip_update"),
    ]
    assert run.recovery.rewinds == [] and run.state.global_step == 24
    assert [int(entry["step"]) for entry in run.optimizer.state_dict()["state"].values()][0] == 22
    run = poisoned("three", 8, 9, 10)
    assert [(one.spike_step, one.to_step) for one in run.recovery.rewinds] == [(10, 6)]


def test_journal_rules():
    first, second = Rewind(20, 18, (144, 160), 1, 1.0), Rewind(9, 6, (48, 72), 1, 0.5)
    assert abandoned_after([first], 0, 18) is None and abandoned_after([first], 0, 19) == 18
    assert abandoned_after([first], 1, 24) is None and abandoned_after([first, second], 1, 12) == 6
    assert [rate_factor([first, second], done) for done in (5, 6, 30)] == [1.0, 0.5, 0.5]


def test_what_cannot_rewind_is_an_error_before_the_first_step(tmp_path):
    for options, message in (
        ({"rewind_lr_factor": 1.5, "spike_action": "rewind"}, "rewind_lr_factor = 1.5; allowed is above 0 up to 1"),
        ({"spike_threshold": float("inf")}, "spike_threshold = inf; a finite number is expected"),
        ({"spike_threshold": 0.0}, "spike_threshold = 0.0"),
        ({"spike_window": 8}, "spike_window = 8; allowed are whole numbers from 16"),
        ({"rewind_skip_batches": 4}, "it acts with spike_action: rewind, and that is log"),
        ({"spike_action": "rewind"}, "save_strategy = 'no'"),
        ({"spike_action": "rewind", "save_strategy": "steps", "save_total_limit": 1}, "save_total_limit = 1"),
        ({"spike_action": "rewind", "save_strategy": "steps", "save_only_model": True}, "save_only_model = true"),
        ({"spike_action": "rewind", "save_strategy": "steps", "max_rewinds": 0}, "max_rewinds = 0"),
    ):
        with pytest.raises(UserError, match=message):
            arguments(tmp_path, **options)
    with pytest.raises(UserError, match="samples can be left out of a MixtureDataset, and this is a list"):
        trainer(tmp_path, train_dataset=[], spike_action="rewind", save_strategy="steps")
    with pytest.raises(UserError, match="Unknown spike action 'rewind'"):
        LossSpikeCallback("rewind")
    (tmp_path / "rewinds.json").write_text("{")
    with pytest.raises(UserError, match="rewinds.json is damaged"):
        trainer(tmp_path).train()

import pytest
import torch
from tiny_training import BATCH, arguments, equal_weights, losses, memory_source, tiny_mixture, trainer, weights

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.trainer.resume_rules import Rewarm, choose_resume, lr_with_rewarm, settings_of
from hf_pretrain.utils.errors import UserError


def one_source(steps):
    # With one source the order does not depend on the length of the run.
    schedule = MixtureSchedule.from_weights({"a": 1.0}, steps * BATCH)
    return MixtureDataset([memory_source("a", 300)], schedule, 32, 1, max_epochs=100)


def wsd(folder, steps, **options):
    defaults = {
        "save_strategy": "steps",
        "save_steps": 2,
        "save_total_limit": 10,
        "warmup_steps": 2,
        "decay_fraction": 0.5,
        "train_dataset": one_source(steps),
    }
    return trainer(folder, steps=steps, **{**defaults, **options})


def rates(run):
    return {entry["step"]: entry["learning_rate"] for entry in run.state.log_history if "loss" in entry}


def manifest(folder, steps, **options):
    return {"settings": settings_of(arguments(folder, steps, warmup_steps=2, decay_fraction=0.5, **options))}


def test_a_wsd_run_made_longer_before_its_decay_is_the_long_run(tmp_path):
    straight = wsd(tmp_path / "straight", 12)
    straight.train()
    wsd(tmp_path / "run", 8).train()
    longer = wsd(tmp_path / "run", 12)
    longer.train(str(tmp_path / "run" / "checkpoint-4"))  # the first update of the old decay would be the fifth
    assert rates(longer) == rates(straight)
    assert losses(longer) == losses(straight)
    assert equal_weights(weights(longer), weights(straight))


def test_inside_the_decay_a_longer_run_has_to_warm_up_again(tmp_path):
    wsd(tmp_path, 8, learning_rate=0.01).train()
    checkpoint = str(tmp_path / "checkpoint-6")
    with pytest.raises(UserError, match="inside its decay, which began after step 4 and brought the rate to 0.5"):
        wsd(tmp_path, 20, learning_rate=0.01).train(checkpoint)
    with pytest.raises(UserError, match="inside its decay"):
        wsd(tmp_path, 20, learning_rate=0.01, resume_changes=["max_steps"]).train(checkpoint)
    with pytest.raises(UserError, match="from step 6 on they reach beyond step 10"):
        wsd(tmp_path, 20, learning_rate=0.01, rewarm_steps=5).train(checkpoint)
    again = wsd(tmp_path, 20, learning_rate=0.01, rewarm_steps=2)
    again.train(checkpoint)
    found = rates(again)
    expected = {6: 0.005, 7: 0.0075, 8: 0.01, 9: 0.01, 10: 0.01, 11: 0.009, 20: 0.0}
    assert {step: found[step] for step in expected} == pytest.approx(expected)
    # Killed inside the second warm-up: the same file goes on bit by bit.
    resumed = wsd(tmp_path, 20, learning_rate=0.01, rewarm_steps=2)
    resumed.train(str(tmp_path / "checkpoint-8"))
    assert rates(resumed) == found
    assert equal_weights(weights(resumed), weights(again))


def test_a_second_warm_up_that_nothing_needs_is_refused(tmp_path):
    with pytest.raises(UserError, match="rewarm_steps = 3; only a wsd run that is made longer"):
        wsd(tmp_path, 8, rewarm_steps=3).train()
    saved = manifest(tmp_path, 8)
    args = arguments(tmp_path, 12, warmup_steps=2, decay_fraction=0.5, rewarm_steps=3)
    with pytest.raises(UserError, match="has not begun its decay"):
        choose_resume(args, saved, tmp_path, 3)


def test_lengths_that_do_not_fit_are_refused(tmp_path):
    saved = manifest(tmp_path, 8)
    with pytest.raises(UserError, match="max_steps = 2; .* has made 4 already"):
        choose_resume(arguments(tmp_path, 2, warmup_steps=1), saved, tmp_path, 4)
    shorter = arguments(tmp_path, 6, warmup_steps=2, decay_fraction=0.5)
    with pytest.raises(UserError, match="the decay would begin after step 3"):
        choose_resume(shorter, saved, tmp_path, 4)
    assert choose_resume(shorter, saved, tmp_path, 3).changed == ("max_steps",)
    share = {"settings": settings_of(arguments(tmp_path, 10, warmup_fraction=0.2))}
    with pytest.raises(UserError, match="at step 1 of a warm-up of 2 updates, which would now have 4: set warmup_st"):
        choose_resume(arguments(tmp_path, 20, warmup_fraction=0.2), share, tmp_path, 1)
    cosine = {"settings": settings_of(arguments(tmp_path, 8, schedule="cosine"))}
    with pytest.raises(UserError, match="max_steps = 9; .* was trained with 8"):
        choose_resume(arguments(tmp_path, 9, schedule="cosine"), cosine, tmp_path, 4)
    with pytest.raises(UserError, match="resume_changes: Unknown setting 'learning_rte'. Did you mean"):
        choose_resume(arguments(tmp_path, 8, resume_changes=["learning_rte"]), {}, None, 0)


@pytest.mark.parametrize(
    ("name", "value", "key"),
    [("learning_rate", 5e-3, "lr"), ("weight_decay", 0.3, "weight_decay"), ("adam_beta2", 0.5, "betas")],
)
def test_a_change_that_is_meant_takes_effect(tmp_path, name, value, key):
    # R8: the stack goes on with the rate, decay and betas that the checkpoint's optimizer holds.
    base = {"schedule": "constant", "decay_fraction": 0.0, "warmup_steps": 0, "save_steps": 2}
    wsd(tmp_path, 4, **base).train()
    changed = wsd(tmp_path, 4, **base, **{name: value}, resume_changes=[name])
    changed.train(str(tmp_path / "checkpoint-2"))
    group = changed.optimizer.param_groups[0]
    assert (group[key][1] if key == "betas" else group[key]) == value
    if name == "learning_rate":
        assert {step: rate for step, rate in rates(changed).items() if step > 2} == {3: value, 4: value}
    else:
        assert set(rates(changed).values()) == {1e-3}


def test_second_warm_up_is_a_straight_line():
    factor = lr_with_rewarm(lambda done: 1.0, Rewarm(10, 0.2, 4))
    assert [factor(done) for done in range(9, 15)] == pytest.approx([1.0, 0.4, 0.6, 0.8, 1.0, 1.0])


@pytest.mark.parametrize("anneal", [None, {"b": 1.0}])
def test_a_longer_mixture_keeps_its_past_and_repeats_nothing(tmp_path, anneal):
    def run(steps, **options):
        return wsd(tmp_path, steps, train_dataset=tiny_mixture(steps), anneal_weights=anneal, save_steps=1, **options)

    first = run(6)
    first.train()
    longer = run(9)
    longer.train(str(tmp_path / "checkpoint-3"))
    old, new = first.train_dataset.schedule, longer.train_dataset.schedule
    assert [new.locate(index) for index in range(3 * BATCH)] == [old.locate(index) for index in range(3 * BATCH)]
    draws = {}
    for index in range(9 * BATCH):
        source, draw = new.locate(index)
        draws.setdefault(source, []).append(draw)
    assert all(sorted(found) == list(range(len(found))) for found in draws.values())
    # A kill of the longer run changes nothing.
    again = run(9)
    again.train(str(tmp_path / "checkpoint-5"))
    assert again.train_dataset.schedule == new
    assert equal_weights(weights(again), weights(longer))
    assert DataOrder.read(tmp_path).schedule == new


def test_other_weights_from_a_step_on_are_an_explicit_choice(tmp_path):
    def run(mix, **options):
        return wsd(tmp_path, 6, train_dataset=tiny_mixture(6, mix), save_steps=1, **options)

    first = run({"a": 0.7, "b": 0.3})
    first.train()
    other = {"a": 0.25, "b": 0.75}
    with pytest.raises(UserError, match=r"say that the change is meant with resume_changes: \[mixture\]"):
        run(other).train(str(tmp_path / "checkpoint-3"))
    changed = run(other, resume_changes=["mixture"])
    changed.train(str(tmp_path / "checkpoint-3"))
    schedule = changed.train_dataset.schedule
    read = 3 * BATCH
    assert schedule.same_until(first.train_dataset.schedule, read)
    after = [schedule.locate(index) for index in range(read, 2 * read)]
    assert sum(source == 1 for source, _ in after) == round(0.75 * read)
    draws = [schedule.locate(index) for index in range(2 * read)]
    assert len(set(draws)) == len(draws)
    again = run(other)
    again.train(str(tmp_path / "checkpoint-4"))
    assert equal_weights(weights(again), weights(changed))
    assert not any(torch.isnan(value).any() for value in weights(again).values())

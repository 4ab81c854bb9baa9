import pytest

from hf_pretrain.data.continuation import continued_from
from hf_pretrain.data.schedule import MixtureSchedule


@pytest.mark.parametrize("changes", [[7], [10, 23], [1, 2, 3, 50], [60]])
def test_a_mix_that_changes_repeats_no_draw_and_loses_none(changes):
    mixes = [{"a": 0.7, "b": 0.3}, {"b": 0.5, "c": 0.5}, {"a": 0.1, "b": 0.2, "c": 0.7}, {"c": 1.0}, {"a": 1.0}]
    schedule = MixtureSchedule.from_weights(mixes[0], 60)
    for number, start in enumerate(changes):
        longer = MixtureSchedule.from_weights(mixes[number + 1], 60 + 10 * (number + 1))
        changed = continued_from(longer, schedule, start)
        assert changed.same_until(schedule, start)
        before = [schedule.locate(index) for index in range(start)]
        assert [changed.locate(index) for index in range(start)] == before
        schedule = changed
    assert schedule.num_samples == 60 + 10 * len(changes)
    drawn = sorted((schedule.sources[source], draw) for source, draw in map(schedule.locate, range(len_of(schedule))))
    counts = schedule.counts(len_of(schedule))
    assert drawn == [(name, draw) for name in sorted(counts) for draw in range(counts[name])]
    assert MixtureSchedule.from_json(schedule.to_json()) == schedule


def len_of(schedule):
    return schedule.num_samples


def test_ramps_go_on_and_the_rest_follows_the_new_weights():
    config = {
        "phases": [
            {"name": "first", "fraction": 0.5, "weights": {"a": 1.0}},
            {"name": "second", "fraction": 0.5, "weights": {"b": 1.0}, "ramp_fraction": 0.5},
        ]
    }
    short, long = (MixtureSchedule.from_config(config, count, 16) for count in (80, 160))
    joined = continued_from(long, short, 20)
    assert [(phase.start, phase.stop, phase.ramp) for phase in joined.phases] == [
        (0, 20, 0),
        (20, 80, 0),
        (80, 160, 40),
    ]
    inside = continued_from(long, short, 50)
    assert inside.num_samples == 160
    assert inside.same_until(short, 50)


def test_the_same_mix_in_another_order_is_told_from_another_mix():
    short, long = (MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, count) for count in (50, 80))
    assert long.same_mix_until(short, 40)
    assert not long.same_until(short, 40)
    assert not long.same_mix_until(MixtureSchedule.from_weights({"a": 0.6, "b": 0.4}, 80), 40)
    annealed = short.with_phase("anneal", 30, {"b": 1.0})
    assert annealed.same_mix_until(long, 30)
    assert not annealed.same_mix_until(long, 31)
    started = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, 80, start_draws={"a": 3})
    assert not long.same_mix_until(started, 40)

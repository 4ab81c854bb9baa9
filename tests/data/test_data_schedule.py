import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hf_pretrain.data.schedule import MixtureSchedule, Phase
from hf_pretrain.utils.errors import UserError


def names(count):
    return [f"s{index}" for index in range(count)]


def drawn(schedule, stop):
    """Checks that draws count up without a gap, and returns the source of every sample."""
    seen, order = [0] * len(schedule.sources), []
    for index in range(stop):
        source, draw = schedule.locate(index)
        assert draw == seen[source]
        seen[source] += 1
        order.append(source)
    return order


@pytest.mark.parametrize("count", [2, 5, 10, 20])
def test_every_prefix_is_within_three_samples_of_its_share(count):
    generator = random.Random(count)
    for trial in range(6):
        weights = {name: round(generator.random() ** (1 + trial) + 1e-4, 6) for name in names(count)}
        total = sum(weights.values())
        schedule = MixtureSchedule.from_weights(weights, 700)
        seen = dict.fromkeys(weights, 0)
        for index, source in enumerate(drawn(schedule, 700)):
            seen[f"s{source}"] += 1
            for name, weight in weights.items():
                assert abs(seen[name] - (index + 1) * weight / total) < 3


def test_prefixes_keep_the_share_through_phases_and_ramps():
    schedule = MixtureSchedule.from_config(
        {
            "phases": [
                {"name": "stable", "fraction": 0.6, "weights": {"a": 0.7, "b": 0.2, "c": 0.1}},
                {"name": "decay", "weights": {"a": 0.1, "b": 0.3, "c": 0.6}, "ramp_fraction": 0.5},
            ]
        },
        num_samples=1001,
        seq_length=8,
    )
    seen = [0, 0, 0]
    for index, source in enumerate(drawn(schedule, 1001)):
        seen[source] += 1
        shares = schedule.shares(index + 1)
        assert all(abs(seen[j] - (index + 1) * shares[name]) < 3 for j, name in enumerate("abc"))
    assert schedule.counts(1001) == dict(zip("abc", seen, strict=True))
    # The ramp is linear: half of 400 samples at the mean of both mixes, half at the new one.
    expected = [(600 * old + 200 * (old + new) / 2 + 201 * new) for old, new in ((0.7, 0.1), (0.2, 0.3), (0.1, 0.6))]
    assert all(abs(count - want) < 3 for count, want in zip(seen, expected, strict=True))


@settings(max_examples=60, deadline=None)
@given(
    weights=st.lists(st.floats(0.001, 1.0), min_size=1, max_size=8),
    later=st.lists(st.floats(0.001, 1.0), min_size=8, max_size=8),
    length=st.integers(2, 300),
    cut=st.floats(0.01, 0.99),
    ramp=st.floats(0, 1),
)
def test_a_later_change_keeps_the_past_and_loses_no_draw(weights, later, length, cut, ramp):
    schedule = MixtureSchedule.from_weights(dict(zip(names(8), weights, strict=False)), length)
    start = min(max(int(cut * length), 1), length - 1)
    new = dict(zip(schedule.sources, later, strict=False))
    changed = schedule.with_phase("anneal", start, new, ramp)
    assert drawn(changed, length)[:start] == drawn(schedule, length)[:start]
    assert changed.same_until(schedule, start)
    assert changed.phase_at(start - 1).name == "stable"
    assert changed.phase_at(start).name == "anneal"
    assert MixtureSchedule.from_json(changed.to_json()) == changed
    assert sum(changed.counts(length).values()) == length


def test_no_sample_of_a_phase_is_drawn_before_it():
    # X5: annealing data used from step 0.
    schedule = MixtureSchedule.from_weights({"old": 1.0}, 20).with_phase("anneal", 10, {"new": 1.0})
    assert schedule.phase_at(9).name == "stable"
    assert schedule.phase_at(10).name == "anneal"
    assert [schedule.sources[source] for source in drawn(schedule, 20)] == ["old"] * 10 + ["new"] * 10


def test_a_changed_past_is_noticed():
    schedule = MixtureSchedule.from_weights({"a": 0.5, "b": 0.5}, 100)
    assert not MixtureSchedule.from_weights({"a": 0.6, "b": 0.4}, 100).same_until(schedule, 10)
    assert not schedule.with_phase("x", 50, {"a": 1.0}).same_until(schedule, 60)
    assert not MixtureSchedule.from_weights({"a": 0.5, "b": 0.5}, 100, start_draws={"a": 1}).same_until(schedule, 10)


def test_later_stages_go_on_counting():
    first = MixtureSchedule.from_weights({"a": 0.5, "b": 0.5}, 10)
    second = MixtureSchedule.from_weights({"b": 1.0}, 5, start_draws={"b": first.counts(10)["b"]})
    assert [second.locate(index)[1] for index in range(5)] == [5, 6, 7, 8, 9]


def test_samples_beyond_the_run_go_on_without_repeating_a_draw():
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, 10)
    order = drawn(schedule, 35)
    assert order[10:20] == order[:10]


def test_schedule_of_a_billion_samples_is_built_and_read_at_once():
    schedule = MixtureSchedule.from_weights({name: 0.05 + 0.01 * i for i, name in enumerate(names(10))}, 10**9)
    source, draw = schedule.locate(987_654_321)
    assert abs(draw - 987_654_321 * schedule.shares()[f"s{source}"]) < 3


def test_decimal_weights_are_exact():
    assert MixtureSchedule.from_weights({"a": 0.1, "b": 0.2, "c": 0.7}, 10).counts(10) == {"a": 1, "b": 2, "c": 7}


def test_phase_lengths_in_three_units():
    phases = [
        {"weights": {"a": 1.0}, "tokens": 160},
        {"weights": {"a": 1.0}, "samples": 5},
        {"weights": {"a": 1.0}, "fraction": 0.5},
        {"weights": {"a": 1.0}},
    ]
    schedule = MixtureSchedule.from_config({"phases": phases}, num_samples=40, seq_length=16)
    assert [(phase.start, phase.stop) for phase in schedule.phases] == [(0, 10), (10, 15), (15, 35), (35, 40)]
    thirds = [{"weights": {"a": 1.0}, "fraction": 0.333}, {"weights": {"a": 1.0}, "fraction": 0.667}]
    assert MixtureSchedule.from_config({"phases": thirds}, 1000, 16).num_samples == 1000


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"a": 0.0}, "all weights are 0"),
        ({"a": -1.0, "b": 2.0}, "weights.a = -1.0; allowed are finite numbers"),
        ({"a": float("nan")}, "weights.a = nan"),
        ({"a": True}, "weights.a = True"),
        ({"phases": []}, "phases is empty"),
        ({"phases": [{"weights": {"a": 1.0}}], "a": 1.0}, "mixture.a: beside `phases`"),
        ({"phases": [{"weight": {"a": 1.0}}]}, "Unknown key 'weight'. Did you mean 'weights'"),
        ({"phases": [{"weights": {"a": 1.0}, "fraction": 0.5}]}, "cover 50 of the run's 100 samples"),
        ({"phases": [{"weights": {"a": 1.0}}, {"weights": {"a": 1.0}}]}, r"phases\[0\] has no length"),
        ({"phases": [{"weights": {"a": 1.0}, "fraction": 0.5, "tokens": 3}]}, "fraction and tokens both"),
        ({"phases": [{"weights": {"a": 1.0}, "fraction": 1.5}]}, "fraction = 1.5; allowed"),
        (
            {"phases": [{"weights": {"a": 1.0}, "samples": 200}, {"weights": {"a": 1.0}}]},
            "beyond the end of the run, which has 100",
        ),
        ({"phases": [{"weights": {"a": 1.0}, "ramp_fraction": 0.5}]}, "has nothing to ramp from"),
        ({"phases": [{"weights": {"a": 1.0}, "samples": 9}, {"weights": {}}]}, "give a share for each source"),
    ],
)
def test_bad_configurations_name_the_field(config, message):
    with pytest.raises(UserError, match=message):
        MixtureSchedule.from_config(config, num_samples=100, seq_length=16)


def test_phases_must_join():
    with pytest.raises(UserError, match="leaves a gap"):
        MixtureSchedule(["a"], [Phase("x", 0, 5, {"a": 1.0}), Phase("y", 6, 9, {"a": 1.0})])
    with pytest.raises(UserError, match="overlaps"):
        MixtureSchedule(["a"], [Phase("x", 0, 5, {"a": 1.0}), Phase("y", 4, 9, {"a": 1.0})])
    with pytest.raises(UserError, match="Unknown source 'wbe'. Did you mean 'web'"):
        MixtureSchedule(["web"], [Phase("x", 0, 5, {"wbe": 1.0})])
    with pytest.raises(UserError, match="starts at sample 10; the run has 10"):
        MixtureSchedule.from_weights({"a": 1.0}, 10).with_phase("x", 10, {"a": 1.0})

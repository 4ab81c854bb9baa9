"""Ladders: shapes, rungs, budgets, and what is refused."""

import pytest

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.planning.ladder import LadderConfig, plan_ladder, rung_counts, stage_keys, strata_shape, time_left
from hf_pretrain.utils.errors import UserError


def config(**changes):
    values = {
        "corpus": "1_corpus",
        "run_dir": "runs/x",
        "vocab_size": 2048,
        "sizes": ["100k", "300k", "1M"],
        "tokens": ["250k", "1M"],
        **changes,
    }
    return LadderConfig(**values)


@pytest.mark.parametrize("wanted", [1e5, 3e5, 1e6, 3e6, 1e8, 1e9, 7e9])
def test_shapes_come_near_the_wanted_size(wanted):
    shape = strata_shape(wanted, 32000)
    assert rung_counts(shape, 32000).non_embedding == pytest.approx(wanted, rel=0.15)
    assert shape["hidden_size"] == shape["head_dim"] * shape["num_attention_heads"]
    assert 15 < shape["hidden_size"] / shape["num_hidden_layers"] < 250


def test_counts_are_those_of_the_model():
    shape = strata_shape(3e5, 512)
    counts = StrataForCausalLM(StrataConfig(vocab_size=512, **shape)).parameter_counts()
    ours = rung_counts(shape, 512)
    assert (ours.total, ours.non_embedding) == (counts.total, counts.non_embedding)


def test_given_fields_win():
    shape = strata_shape(1e6, 2048, num_hidden_layers=8, tie_word_embeddings=False)
    assert shape["num_hidden_layers"] == 8 and shape["tie_word_embeddings"] is False
    assert rung_counts(shape, 2048).non_embedding == pytest.approx(1e6, rel=0.35)


def test_a_size_without_a_shape_is_refused():
    with pytest.raises(UserError, match="size = 10; no dense model"):
        strata_shape(10, 2048)


def test_every_pair_is_a_rung_and_the_cheapest_comes_first():
    rungs = plan_ladder(config(held_out=[{"size": "3M", "tokens": "2M"}]))
    assert len(rungs) == 7
    assert [rung.flops for rung in rungs[:-1]] == sorted(rung.flops for rung in rungs[:-1])
    assert rungs[-1].held_out and not rungs[0].held_out
    assert rungs[-1].name == "n3m_d2m" and rungs[0].name == "n101k_d250k"
    assert all(rung.flops == 6 * rung.counts.total * rung.tokens for rung in rungs)


def test_learning_rates_by_the_law_up_to_a_limit():
    rungs = plan_ladder(config(sizes=["3M", "10M", "30M"], tokens=["1M", "8M"], max_learning_rate=1e-3))
    assert max(rung.learning_rate for rung in rungs) == 1e-3
    large = next(rung for rung in rungs if rung.counts.non_embedding > 2e7 and rung.tokens == 1e6)
    assert large.learning_rate == pytest.approx(1.79 * large.counts.non_embedding**-0.713 * 1e6**0.307, rel=0.01)
    assert {rung.learning_rate for rung in plan_ladder(config(learning_rate=2e-3))} == {2e-3}
    assert config(learning_rate="2e-3").learning_rate == 2e-3


def test_costly_pairs_are_left_out():
    assert len(plan_ladder(config(max_flops="6e12"))) == 5
    with pytest.raises(UserError, match="has 2 rungs within max_flops = 1e12"):
        plan_ladder(config(max_flops="1e12"))


@pytest.mark.parametrize("budget", ["1e15", "1e18", 1e21])
def test_a_budget_is_nearly_spent(budget):
    rungs = plan_ladder(config(sizes=None, tokens=None, budget=budget))
    assert len(rungs) == 16
    assert sum(rung.flops for rung in rungs) == pytest.approx(float(budget), rel=0.25)
    sizes = sorted({rung.counts.non_embedding for rung in rungs})
    assert sizes[-1] / sizes[0] == pytest.approx(30, rel=0.3)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"budget": "1e18"}, "give the two lists, or the one budget"),
        ({"tokens": None}, "give the two lists, or the one budget"),
        ({"sizes": ["7", "8"]}, "sizes = '7'; a unit is needed"),
        ({"learning_rate": "steplaw"}, "learning_rate = 'steplaw'; a number or step_law"),
        ({"training": {"train_tokens": 5}}, "training.train_tokens: the ladder sets it"),
        ({"held_out": [{"size": "3M"}]}, "an entry is {size: 3M, tokens: 2M}"),
        ({"held_out": [{"size": "1M", "tokens": "1M"}]}, "n931k_d1m is there twice"),
        ({"sizes": None, "tokens": None, "budget": "1e10"}, "the smallest ladder costs"),
    ],
)
def test_nonsense_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        plan_ladder(config(**changes))


def test_a_rung_as_the_keys_of_a_stage():
    ladder = config(training={"seq_length": 128})
    keys = stage_keys(plan_ladder(ladder)[0], ladder, "runs/x/1_corpus", "runs/x/rungs/a")
    assert list(keys)[:3] == ["stage", "run_dir", "corpus"]
    assert keys["train_tokens"] == 250_000 and keys["seq_length"] == 128


def test_time_left_by_the_work_done():
    assert time_left([], [], [1e12]) is None
    assert time_left([1e12, 3e12], [10.0, 30.0], [2e12, 6e12]) == pytest.approx(80)

"""Shapes of a size, and the steps, stages and memory of a plan."""

import pytest

from hf_pretrain.planning.compute import training_flops_per_token
from hf_pretrain.planning.cost import Cluster
from hf_pretrain.planning.counting import count_parameters
from hf_pretrain.planning.run_plan import make_plan
from hf_pretrain.planning.shapes import design_shape
from hf_pretrain.planning.training_plan import make_training_plan
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize("size", [1e6, 5e6, 2e7, 1.25e8, 3.5e8, 1e9, 2.78e9, 7e9, 3e10, 7e10, 4e11])
def test_shapes_have_the_size(size):
    shape = design_shape(size)
    assert count_parameters(shape).total == pytest.approx(size, rel=0.03)
    assert shape["num_attention_heads"] % shape["num_key_value_heads"] == 0
    assert shape["num_attention_heads"] * shape["head_dim"] == shape["hidden_size"]
    assert 2 <= shape["intermediate_size"] / shape["hidden_size"] <= 4.5


def test_shapes_are_strata():
    from hf_pretrain.models.strata.configuration_strata import StrataConfig

    shape = design_shape(1e8, vocab_size=16384)
    built = StrataConfig(**{key: value for key, value in shape.items() if key != "model_type"})
    assert count_parameters(built.to_dict()).total == count_parameters(shape).total
    with pytest.raises(UserError, match="no shape has so many with a vocabulary of 1000000"):
        design_shape(1e6, vocab_size=1_000_000)


def test_steps_and_stages():
    model = design_shape(1e9)
    run = make_plan(parameters=1e9, tokens=2e10)
    plan = make_training_plan(run, model, long_context=32768, long_share=0.1, anneal=0.2)
    assert plan.steps == -(-2e10 // (plan.global_batch * 4096))
    rates = [one.learning_rate for one in run.step_sizes if one.learning_rate]
    assert plan.learning_rate == min(rates)
    assert [round(stage.tokens / 1e9, 6) for stage in plan.stages] == [14.4, 3.6, 2.0]
    long = plan.stages[2]
    assert long.compute_share == pytest.approx(
        2e9 * training_flops_per_token(model, 32768) / plan.flops_with_attention
    )
    assert plan.memory is not None and plan.layouts is None
    step_law = next(one for one in run.step_sizes if one.law == "step_law")
    assert plan.global_batch * 4096 == pytest.approx(step_law.batch_tokens, rel=0.5)


def test_devices_divide_the_batch():
    plan = make_training_plan(
        make_plan(parameters=1e9, tokens=2e10), design_shape(1e9), Cluster.parse("24xH100"), seq_length=2048
    )
    assert plan.global_batch % 24 == 0 and plan.memory is None and plan.layouts.launchable is not None


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"anneal": 1.0}, "anneal = 1.0; a share"),
        ({"long_share": -0.1}, "long_share = -0.1"),
        ({"global_batch": 0}, "global_batch = 0"),
        ({"seq_length": -1}, "seq_length = -1"),
        ({"long_context": 4096}, "it must be longer"),
    ],
)
def test_bad_input(more, message):
    with pytest.raises(UserError, match=message):
        make_training_plan(make_plan(parameters=1e9, tokens=2e10), design_shape(1e9), **more)

"""Plans: the split of what is given, and what they warn of."""

import json

import pytest

from hf_pretrain.planning.chinchilla import EPOCH
from hf_pretrain.planning.cost import Cluster
from hf_pretrain.planning.data_constrained import data_constrained_optimum
from hf_pretrain.planning.run_plan import make_plan
from hf_pretrain.utils.errors import UserError


def test_llama_3_8b():
    plan = make_plan(parameters=8e9, tokens=15e12, cluster=Cluster.parse("64xH100"), mfu=0.5, goodput=1.0, price=2.0)
    assert plan.flops == pytest.approx(7.2e23) and plan.flop_convention == "6n_total"
    assert plan.tokens_per_parameter == 1875 and plan.loss == pytest.approx(2.022063, abs=6e-7)
    assert plan.overtraining_premium == pytest.approx(5.51, abs=6e-3)
    assert plan.estimate.hours == pytest.approx(404_449, abs=1)
    assert plan.estimate.cost == pytest.approx(808_898, abs=2)
    assert any("640" in warning for warning in plan.warnings)


def test_what_is_missing_is_found():
    best = EPOCH.optimum(1e21)
    for given in ({"flops": 1e21}, {"parameters": best.parameters}, {"tokens": best.tokens}):
        plan = make_plan(**given)
        assert (plan.parameters, plan.tokens) == pytest.approx((best.parameters, best.tokens), rel=1e-6)
        assert plan.overtraining_premium == pytest.approx(1.0, abs=1e-6)
    assert make_plan(parameters=1e9, flops=1e21).tokens == pytest.approx(1e21 / 6e9)
    assert make_plan(tokens=1e11, flops=1e21).parameters == pytest.approx(1e21 / 6e11)
    cluster = Cluster.parse("8xH100")
    assert make_plan(cluster=cluster, days=7).flops == pytest.approx(cluster.flops_in(7))
    assert make_plan(cluster=cluster, days=7).estimate.days == pytest.approx(7)


def test_band_and_step_sizes():
    plan = make_plan(flops=1e21)
    ratios = {item.law: item.tokens_per_parameter for item in plan.band}
    assert ratios["epoch"] == pytest.approx(21.59, abs=6e-3)
    assert ratios["hoffmann_rounded"] == pytest.approx(50.08, abs=6e-3)
    sizes = {item.law: item for item in plan.step_sizes}
    assert sizes["deepseek"].learning_rate == pytest.approx(7.394e-4, rel=1e-4)
    exact = make_plan(parameters=1.1e9, tokens=2e10, non_embedding_parameters=1e9)
    assert {item.law: item for item in exact.step_sizes}["step_law"].batch_tokens == pytest.approx(4.419e5, rel=2e-4)
    assert not exact.non_embedding_estimated and plan.non_embedding_estimated


def test_repeats():
    plan = make_plan(flops=1e22, unique_tokens=25e9, law="muennighoff_c4")
    best = data_constrained_optimum(1e22, 25e9)
    assert (plan.parameters, plan.loss) == (pytest.approx(best.parameters), pytest.approx(best.loss))
    assert plan.repeats.epochs == pytest.approx(9.488, abs=1e-3) and plan.repeats.level == "warn"
    assert any("more than 4 epochs" in warning for warning in plan.warnings)
    plenty = make_plan(parameters=1e9, tokens=2e10, unique_tokens=1e12)
    assert plenty.repeats.level == "ok" and plenty.loss == EPOCH.loss(1e9, 2e10) and plenty.warnings == ()
    assert "nothing is gained" in " ".join(make_plan(parameters=1e9, tokens=2e10, unique_tokens=1e8).warnings)


def test_lifetime():
    best = EPOCH.optimum_for_parameters(13e9)
    plan = make_plan(parameters=13e9, inference_tokens=2e12)
    assert plan.tokens == best.tokens and plan.lifetime.saving == pytest.approx(0.2896, abs=6e-5)
    short = make_plan(parameters=13e9, inference_tokens=2e12, unique_tokens=3e11)
    assert any("more than there are" in warning for warning in short.warnings)


def test_warnings():
    assert any("embeddings" in warning for warning in make_plan(parameters=1e8, tokens=2e9).warnings)
    assert any("'epoch' refits" in warning for warning in make_plan(flops=1e21, law="hoffmann_rounded").warnings)
    assert any("swapped" in warning for warning in make_plan(parameters=15e12, tokens=8e9).warnings)
    tpu = make_plan(flops=1e21, cluster=Cluster.parse("8xTPU v4"), mfu=0.6)
    assert any("no price is known" in text for text in tpu.warnings)
    assert any("published runs" in text for text in tpu.warnings)


def test_plain_json():
    plan = make_plan(8e9, 15e12, cluster=Cluster.parse("H100"), unique_tokens=5e12, inference_tokens=1e12)
    data = json.loads(json.dumps(plan.to_dict(), allow_nan=False))
    assert data["band"][0]["tokens_per_parameter"] == plan.band[0].tokens_per_parameter
    assert data["estimate"]["price_high"] == 5.0 and data["lifetime"]["saving"] == plan.lifetime.saving


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "nothing to plan from"),
        ({"unique_tokens": 1e9}, "nothing to plan from"),
        ({"parameters": 1e9, "tokens": 1e10, "flops": 1e20}, "two of them decide the third"),
        ({"flops": -1.0}, "flops = -1.0"),
        ({"parameters": 1e9, "tokens": 0.0}, "tokens = 0.0"),
        ({"parameters": 8e18, "tokens": 15e12}, "look at the units"),
        ({"parameters": 8.0, "tokens": 15e12}, "look at the units"),
        ({"flops": 1e21, "unique_tokens": 0.0}, "unique_tokens = 0.0"),
        ({"flops": 1e21, "inference_tokens": 0.0}, "inference_tokens = 0.0"),
        ({"flops": 1e21, "days": 7.0}, "they need gpus, and no flops"),
        ({"flops": 1e21, "price": 2.0}, "it needs gpus"),
        ({"parameters": 1e9, "non_embedding_parameters": 2e9}, "part of parameters"),
        ({"flops": 1e21, "law": "chinchila"}, "Unknown law 'chinchila'"),
    ],
)
def test_bad_input(given, message):
    with pytest.raises(UserError, match=message):
        make_plan(**given)

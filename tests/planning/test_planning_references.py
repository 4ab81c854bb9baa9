"""Reference points, approaches 1 to 3, uncertainty: what is left of science sections 1.2, 1.4, 1.6, 1.8 and 11."""

import math

import pytest

from hf_pretrain.planning.chinchilla import (
    EPOCH,
    EPOCH_UNCERTAINTY,
    HOFFMANN_ISOFLOP,
    HOFFMANN_ROUNDED,
    HOFFMANN_TABLE3,
    HOFFMANN_TEX,
    MINICPM,
)
from hf_pretrain.planning.hyperparameters import transfer_weight_decay
from hf_pretrain.planning.lifetime import inference_optimum, lifetime_cost
from hf_pretrain.planning.moe_laws import ludziejewski_loss, sparse_loss
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.planning.references import (
    EXPONENT_BY_CORRECTION,
    EXPONENT_BY_DATA,
    REFERENCE_MODELS,
    nearest_references,
)
from hf_pretrain.planning.schedule_laws import TissueLaw, annealing_areas
from hf_pretrain.utils.errors import UserError


MODELS = {model.name: model for model in REFERENCE_MODELS}


def test_compute_of_published_models():
    assert MODELS["Gopher 280B"].flops == pytest.approx(5.04e23)
    assert MODELS["Chinchilla 70B"].flops == pytest.approx(5.88e23)
    assert MODELS["GPT-3 175B"].flops == pytest.approx(3.15e23)
    assert MODELS["Llama-3-8B"].flops == pytest.approx(7.22724e23, rel=1e-5)


def test_tokens_a_parameter_of_published_models():
    ratios = {name: model.tokens_per_parameter for name, model in MODELS.items()}
    assert ratios["GPT-3 175B"] == pytest.approx(1.714, abs=5e-4)
    assert ratios["Llama-2-7B"] == pytest.approx(296.8, abs=0.05)
    assert ratios["Llama-3-8B"] == pytest.approx(1867.9, abs=0.05)
    assert ratios["Chinchilla 70B"] == 20
    near = nearest_references(25)
    assert "Chinchilla 70B" in {model.name for model in near} and len(near) == 3
    assert [model.tokens_per_parameter for model in near] == sorted(model.tokens_per_parameter for model in near)


def test_three_approaches_and_their_intervals():
    """Exponents of tokens: approach 1 within (.501, .512), approach 2 at .51; approach 3 by its TeX constants."""
    assert 0.501 <= HOFFMANN_TABLE3.exponent <= 0.512
    assert HOFFMANN_ISOFLOP.exponent == pytest.approx(0.51, abs=5e-4)
    assert HOFFMANN_TEX.a == pytest.approx(0.4565, abs=5e-5)
    rows = [(4e8, 7.7e9), (1e9, 20e9), (1e10, 219.5e9), (67e9, 1.7e12), (175e9, 4.3e12), (280e9, 7.1e12)]
    for parameters, tokens in [*rows, (520e9, 13.4e12), (1e12, 26.5e12), (1e13, 292e12)]:
        best = HOFFMANN_ISOFLOP.optimum(6 * parameters * tokens)
        assert best.tokens == pytest.approx(tokens, rel=0.035) and best.parameters == pytest.approx(
            parameters, rel=0.035
        )
        assert best.loss is None


def test_minicpm_is_a_ratio():
    for flops in (1e20, 1e24):
        assert MINICPM.optimum(flops).tokens_per_parameter == pytest.approx(192)
    assert 100 * (1e20 / 6) ** 0.10 > 8000  # its formula with C in FLOPs: nobody means that


def test_how_well_epoch_is_known():
    for name, known in EPOCH_UNCERTAINTY.items():
        assert known.low < getattr(EPOCH, name) < known.high
        assert known.high - known.low == pytest.approx(2 * 1.96 * known.standard_error, rel=0.25) or name == "B"
    assert EPOCH_UNCERTAINTY["B"].standard_error == 1293.0


def test_rounding_an_exponent_moves_the_data_term():
    """ln(1e11) is about 25, so 0.0049 in beta is 13 %."""
    assert 1e11 ** (HOFFMANN_TEX.beta - HOFFMANN_ROUNDED.beta) - 1 == pytest.approx(0.13, abs=5e-3)


def test_what_moved_the_exponent():
    assert list(EXPONENT_BY_CORRECTION.values()) == [0.835, 0.706, 0.602, 0.571, 0.497]
    assert list(EXPONENT_BY_DATA.values()) == [0.450, 0.524, 0.578]


@pytest.mark.parametrize(
    ("parameters", "served", "size", "tokens"), [(70e9, 2e12, 4.81e10, 1.989e12), (7e9, 1e11, 5.599e9, 1.841e11)]
)
def test_inference_aware_sizes(parameters, served, size, tokens):
    best = inference_optimum(EPOCH, EPOCH.optimum_for_parameters(parameters).loss, served)
    assert (best.parameters, best.tokens) == (pytest.approx(size, rel=6e-4), pytest.approx(tokens, rel=6e-4))


def test_figure_1_with_the_rounded_constants():
    base = HOFFMANN_ROUNDED.optimum_for_parameters(13e9)
    before = lifetime_cost(13e9, base.tokens, 2e12)
    after = lifetime_cost(7e9, HOFFMANN_ROUNDED.tokens_for_loss(7e9, base.loss), 2e12)
    assert before - after == pytest.approx(1.18e22, rel=5e-3)


def test_sparse_rule():
    active = ModelSize(1e9, "active")
    assert sparse_loss(EPOCH, active, 2e10, 1) == EPOCH.loss(1e9, 2e10)
    ratio = ludziejewski_loss(1e9, 2e10, 8) / ludziejewski_loss(1e9, 2e10, 1)
    assert sparse_loss(EPOCH, active, 2e10, 8) == pytest.approx(2.530050 * ratio, abs=1e-6)
    with pytest.raises(UserError, match="counts active"):
        sparse_loss(EPOCH, ModelSize(1e9, "total"), 2e10, 8)


def test_tissue_law():
    law = TissueLaw(2.0, 5.0, 0.5, 1e-3)
    linear = [1.0] * 800 + [1 - step / 200 for step in range(1, 201)]
    assert law.loss(linear) == pytest.approx(2.0 + 5.0 * 899.5**-0.5 - 1e-3 * 94.150903, abs=1e-6)
    rates = [1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0]
    brute = sum(sum((rates[k - 1] - rates[k]) * 0.9 ** (i - k) for k in range(1, i + 1)) for i in range(1, len(rates)))
    assert annealing_areas(rates, 0.9)[1] == pytest.approx(brute, abs=1e-12)
    with pytest.raises(UserError, match="decay = 1"):
        TissueLaw(2.0, 5.0, 0.5, 1e-3, 1.0)
    with pytest.raises(UserError, match="alpha = 0"):
        TissueLaw(2.0, 5.0, 0, 1e-3)


def test_weight_decay_keeps_the_shrinkage():
    assert transfer_weight_decay(0.1, 1e-2, 1000, 1e-3, 5000) == pytest.approx(0.2)
    assert math.isclose(0.1 * 1e-2 * 1000, 0.2 * 1e-3 * 5000)

"""MoE laws, learning rate and batch laws, schedules: science sections 1.8 to 1.10."""

import math

import pytest

from hf_pretrain.planning.hyperparameters import (
    GradientNoiseScale,
    batch_trade_off,
    deepseek_allocation,
    deepseek_flops_per_token,
    deepseek_step_sizes,
    minicpm_batch,
    step_law,
    transfer_width,
)
from hf_pretrain.planning.moe_laws import (
    abnar_loss,
    clark_loss,
    effective_experts,
    experts_loss_ratio,
    krajewski_dense_loss,
    krajewski_loss,
    ludziejewski_learning_rate,
    ludziejewski_loss,
)
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.planning.schedule_laws import MULTI_POWER_400M, annealing_areas
from hf_pretrain.utils.errors import UserError


def test_krajewski():
    losses = [krajewski_loss(3.7e9, 1e11, granularity) for granularity in (1, 2, 4, 8, 16)]
    assert losses == pytest.approx([2.8172, 2.7621, 2.7252, 2.7005, 2.6839], abs=6e-5)
    assert krajewski_dense_loss(3.7e9, 1e11) == pytest.approx(
        0.47 + 16.3 / 3.7e9**0.126 + 26.7 / 1e11**0.127, abs=1e-12
    )


def test_abnar():
    losses = [abnar_loss(1e10, 1e11, sparsity) for sparsity in (0, 0.5, 0.75, 0.9, 0.98)]
    assert losses == pytest.approx([2.10054, 2.10193, 2.11485, 2.14984, 2.26286], abs=6e-6)


def test_ludziejewski():
    experts = (1, 2, 4, 8, 16, 32)
    losses = [ludziejewski_loss(1e9, 2e10, number) for number in experts]
    assert losses == pytest.approx([2.61414, 2.57937, 2.54575, 2.51323, 2.48177, 2.45134], abs=6e-6)
    assert losses == sorted(losses, reverse=True)
    flat = [  # the formula written without its fraction bars: loss would rise with experts
        35.91 * number**0.2285 / 1e9 ** (0.1889 - 0.0098 * math.log(number)) for number in experts
    ]
    assert flat == sorted(flat)
    assert ludziejewski_learning_rate(1e9, 1) == pytest.approx(2.258e-4, rel=3e-4)
    assert ludziejewski_learning_rate(1e9, 8) == pytest.approx(1.343e-4, rel=3e-4)
    assert experts_loss_ratio(1e9, 2e10, 8) == pytest.approx(2.51323 / 2.61414, abs=1e-5)
    assert experts_loss_ratio(1e9, 2e10, 1) == 1.0


def test_clark():
    losses = [clark_loss(1.3e9, experts) for experts in (1, 8, 128)]
    assert losses == pytest.approx([2.2374, 2.1496, 2.0217], abs=6e-5)
    assert effective_experts(1, 1.847, 314.478) == pytest.approx(1.847)
    assert effective_experts(1e9, 1.847, 314.478) == pytest.approx(314.478, rel=1e-3)


def test_sparse_laws_refuse():
    total, active = ModelSize(1e9, "total"), ModelSize(1e9, "active")
    with pytest.raises(UserError, match="'ludziejewski' counts active"):
        ludziejewski_loss(total, 2e10, 8)
    with pytest.raises(UserError, match="'abnar' counts total"):
        abnar_loss(active, 2e10, 0.5)
    with pytest.raises(UserError, match="'krajewski' counts total"):
        krajewski_loss(active, 2e10, 2)
    with pytest.raises(UserError, match="sparsity = 1"):
        abnar_loss(total, 2e10, 1)
    with pytest.raises(UserError, match="granularity = 0.5; at least 1"):
        krajewski_loss(total, 2e10, 0.5)


def test_deepseek():
    for flops, rate, batch in ((1e20, 9.860e-4, 1.017e6), (1e21, 7.394e-4, 2.160e6)):
        advice = deepseek_step_sizes(flops)
        assert (advice.learning_rate, advice.batch_tokens) == (
            pytest.approx(rate, rel=6e-5),
            pytest.approx(batch, rel=6e-4),
        )
    split = deepseek_allocation(1e20)
    assert (split.flops_per_token, split.tokens) == (
        pytest.approx(5.251e9, rel=1e-4),
        pytest.approx(1.905e10, rel=3e-4),
    )
    assert split.flops_per_token * split.tokens / 1e20 == pytest.approx(1.0001, abs=6e-5)
    assert split.param_convention == "nonemb_flops_per_token"
    size = deepseek_flops_per_token(32, 4096, 4096)
    assert size.value == 45_097_156_608 and size.convention == "nonemb_flops_per_token"


@pytest.mark.parametrize(
    ("parameters", "tokens", "rate", "batch"),
    [(1e9, 2e10, 9.960e-4, 4.419e5), (1e9, 1e11, 1.6325e-3, 1.1077e6), (7e9, 1.4e12, 9.166e-4, 4.999e6)],
)
def test_step_law(parameters, tokens, rate, batch):
    advice = step_law(parameters, tokens)
    assert advice.learning_rate == pytest.approx(rate, rel=1e-4)
    assert advice.batch_tokens == pytest.approx(batch, rel=2e-4)
    with pytest.raises(UserError, match="'step_law' counts non_embedding"):
        step_law(ModelSize(parameters, "total"), tokens)


def test_minicpm_takes_a_loss():
    assert minicpm_batch(3.0).batch_tokens == pytest.approx(1.2771e6, rel=1e-4)
    assert minicpm_batch(2.5).batch_tokens == pytest.approx(3.9836e6, rel=1e-4)
    assert minicpm_batch(4096).batch_tokens < 1  # read as a sequence length, as one copy has it, it is nonsense


def test_gradient_noise_scale():
    scale = GradientNoiseScale(32, 1024, decay=0.9)
    assert scale.batch is None and scale.signal is None
    for _ in range(3):
        scale.update(0.665, 0.05953125)
        assert (scale.signal, scale.noise, scale.batch) == (
            pytest.approx(0.04),
            pytest.approx(20.0),
            pytest.approx(500.0),
        )
    noisy = GradientNoiseScale(32, 1024)
    noisy.update(1.0, 0.01)
    assert noisy.signal < 0 and noisy.batch is None
    # The averages are divided, not the ratios averaged.
    mixed = GradientNoiseScale(32, 1024, decay=0.0)
    mixed.update(0.665, 0.05953125)
    assert mixed.batch == pytest.approx(500.0)
    with pytest.raises(UserError, match="small_batch = 64; it must be below"):
        GradientNoiseScale(64, 64)


def test_batch_trade_off():
    for batch, expected in ((50, (11, 1.1)), (500, (2, 2)), (5000, (1.1, 11))):
        steps, samples = batch_trade_off(batch, 500)
        assert (steps, samples) == pytest.approx(expected)
        assert (steps - 1) * (samples - 1) == pytest.approx(1)


def test_width_transfer():
    wide = transfer_width(1e-2, 0.02, 256, 4096, base_depth=8, depth=32)
    assert (wide.hidden_learning_rate, wide.hidden_std, wide.logit_multiplier) == pytest.approx(
        (6.25e-4, 0.005, 1 / 16)
    )
    assert (wide.embedding_learning_rate, wide.attention_scale_over_head_dim) == (1e-2, 8.0)
    assert wide.residual_multiplier == pytest.approx(0.5)
    assert transfer_width(1e-2, 0.02, 1, 1, 8, 32, depth_exponent=1).residual_multiplier == pytest.approx(0.25)


def test_annealing_areas():
    assert annealing_areas([1.0] * 1000) == (1000.0, 0.0)
    linear = [1.0] * 800 + [1 - step / 200 for step in range(1, 201)]
    assert annealing_areas(linear) == pytest.approx((899.5, 94.150903), abs=1e-5)
    cosine = [0.5 * (1 + math.cos(math.pi * step / 1000)) for step in range(1, 1001)]
    assert annealing_areas(cosine) == pytest.approx((499.5, 379.432153), abs=1e-4)
    first, second = annealing_areas([1, 1, 1, 0.8, 0.6, 0.4, 0.2, 0], 0.9)
    assert (first, second) == pytest.approx((5.0, 2.62882), abs=1e-6)
    with pytest.raises(UserError, match="learning_rates is empty"):
        annealing_areas([])


def schedules():
    peak, end, warm, total = 3e-4, 3e-5, 2160, 24000
    rise = [peak * step / (warm - 1) for step in range(warm)]
    cosine = [
        end + (peak - end) / 2 * (1 + math.cos(math.pi * step / (total - warm))) for step in range(1, total - warm + 1)
    ]
    hold, fall = [peak] * (20000 - warm), range(1, total - 20000 + 1)
    exponential = [peak * (end / peak) ** (step / 4000) for step in fall]
    linear = [peak + (end - peak) * step / 4000 for step in fall]
    constant = [peak] * (total - warm)
    return [rise + constant, rise + cosine, rise + hold + exponential, rise + hold + linear]


def test_multi_power_law():
    losses = [MULTI_POWER_400M.loss(rates) for rates in schedules()]
    assert losses == pytest.approx([2.816840, 2.757069, 2.699813, 2.699350], abs=3e-5)
    # Without the increments of the warm-up the constants predict a loss about 0.15 lower.
    assert losses[0] - MULTI_POWER_400M.loss([3e-4] * 21840) == pytest.approx(0.15, abs=0.03)
    with pytest.raises(UserError, match="no positive rate"):
        MULTI_POWER_400M.loss([0.0, 0.0])

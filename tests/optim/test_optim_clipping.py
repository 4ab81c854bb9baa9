"""Clipping vectors of the papers, and what they make of steps that are not finite."""

import math

import pytest
import torch

from hf_pretrain.optim.clipping import AdaGC, ZClipStatistics, clip_factor
from hf_pretrain.utils.errors import UserError


def test_global_norm():
    assert clip_factor(2.5, 1.0) == pytest.approx(0.39999984, abs=1e-8)
    assert clip_factor(0.5, 1.0) == 1.0


def test_zclip_statistics():
    """Science section 3: mean 1, variance .01, threshold 2.5, momentum .97; the clipped value enters."""
    statistics = ZClipStatistics(mean=1.0, variance=0.01)
    rows = [
        (1.1, 1.1, 1.003, 0.00998227),
        (1.2, 1.2, 1.00891, 0.01077826),
        (1.5, 1.1460840333, 1.01302522, 0.01098606),
    ]
    for value, clipped, mean, variance in rows:
        assert statistics.observe(value) == pytest.approx(clipped, rel=1e-6)
        assert (statistics.mean, statistics.variance) == pytest.approx((mean, variance), rel=1e-6)
    assert statistics.observe(3.0) == pytest.approx(1.0475820256, rel=1e-6)
    assert statistics.observe(1.0) == 1.0
    assert (statistics.mean, statistics.variance) == pytest.approx((1.01364007, 0.01037506), rel=1e-6)


def test_zclip_warms_up_and_refuses_what_is_not_finite():
    statistics = ZClipStatistics(warmup=4)
    assert [statistics.observe(one) for one in (1.0, 2.0, 3.0, 2.0)] == [1.0, 2.0, 3.0, 2.0]
    assert (statistics.mean, statistics.variance) == pytest.approx((2.0, 0.5))
    before = statistics.state()
    assert statistics.observe(math.inf) == statistics.mean and statistics.state() == before
    again = ZClipStatistics(warmup=4)
    again.load_state(before)
    assert again.observe(9.0) == statistics.observe(9.0) < 9.0
    with pytest.raises(UserError, match="momentum = 1"):
        ZClipStatistics(momentum=1)


def test_adagc_vector():
    clipper = AdaGC(warmup=1)
    assert clipper.observe(torch.tensor([0.5]), 1.0).item() == 1.0  # gamma starts at the smallest warm-up norm
    expected = [(0.5, 1.0, 0.5), (0.6, 0.875, 0.5005), (2.0, 0.2627625, 0.5010005), (0.4, 1.0, 0.49898049)]
    for norm, factor, gamma in expected:
        assert clipper.observe(torch.tensor([norm]), 1.0).item() == pytest.approx(factor, abs=1e-6)
        assert clipper.gamma.item() == pytest.approx(gamma, abs=1e-6)


def test_adagc_warm_up_clips_the_global_norm_and_keeps_the_smallest():
    clipper = AdaGC(warmup=2)
    assert torch.allclose(clipper.observe(torch.tensor([3.0, 4.0]), 1.0), torch.tensor([0.2, 0.2]), atol=1e-6)
    assert torch.allclose(clipper.gamma, torch.tensor([0.6, 0.8]), atol=1e-6)
    assert torch.equal(clipper.observe(torch.tensor([0.3, 0.9]), 1.0), torch.tensor([1.0, 1.0]))
    assert torch.allclose(clipper.gamma, torch.tensor([0.3, 0.8]), atol=1e-6)


@pytest.mark.parametrize("bad", [math.inf, math.nan, 0.0])
def test_adagc_is_not_moved_by_a_step_without_a_finite_gradient(bad):
    clipper = AdaGC(warmup=1)
    clipper.observe(torch.tensor([0.5, 0.5]), 1.0)
    before = clipper.gamma.clone()
    clipper.observe(torch.tensor([bad, 0.0]), 1.0)
    assert torch.equal(clipper.gamma, before)


def test_adagc_takes_up_a_parameter_at_its_first_gradient():
    clipper = AdaGC(warmup=1)
    clipper.observe(torch.tensor([0.5, 0.0]), 1.0)
    assert clipper.state()["gamma"] == [0.5, None]
    again = AdaGC(warmup=1)
    again.load_state(clipper.state())
    assert torch.equal(again.observe(torch.tensor([0.5, 7.0]), 1.0), torch.tensor([1.0, 1.0]))
    assert again.gamma.tolist() == pytest.approx([0.5, 7.0])


@pytest.mark.parametrize(
    ("options", "message"),
    [({"relative": 0.9}, "relative = 0.9"), ({"beta": 1.0}, "beta = 1.0"), ({"warmup": 0}, "warmup = 0")],
)
def test_adagc_refuses(options, message):
    with pytest.raises(UserError, match=message):
        AdaGC(**options)

"""The pure detector: science section 3, bugs S1 and S2."""

import math
import random

import pytest

from hf_pretrain.callbacks.detector import SpikeDetector, spike_flags, spike_score
from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.utils.errors import UserError


def test_spikes_do_not_poison_the_window():
    """Bugs S1: a constant window has deviation 0, so the least rise decides."""
    detector = SpikeDetector()
    assert not any(detector.observe(2.0).is_spike for _ in range(16))
    assert not detector.observe(2.001).is_spike
    assert detector.observe(6.0).is_spike
    after = detector.observe(2.0)
    assert not after.is_spike and after.mean == pytest.approx(2.0, abs=1e-3)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_is_a_spike_from_the_first_step(value):
    """Bugs S2: NaN passes every `>`."""
    detector = SpikeDetector()
    verdict = detector.observe(value)
    assert verdict.is_spike and verdict.z_score == math.inf
    assert math.isnan(detector.statistics()[0])
    assert not detector.observe(2.0).is_spike


def published_series():
    series = [2.01 if index % 2 else 1.99 for index in range(1200)]
    series[1050], series[1100] = 2.5, 2.05
    return series


def test_olmo_paper_definition():
    """The first spike inflates the deviation, so 7 sigma over 1000 misses the second."""
    series = published_series()
    flags = spike_flags(series)
    assert [index for index, flag in enumerate(flags) if flag] == [1050]
    assert spike_score(flags) == pytest.approx(1 / 1200)
    before = series[100:1100]
    mean = sum(before) / 1000
    std = math.sqrt(sum((one - mean) ** 2 for one in before) / 1000)
    assert std == pytest.approx(0.018699, abs=1e-6)
    assert (2.05 - mean) / std == pytest.approx(2.6477, abs=1e-3)


def test_our_window_keeps_its_sensitivity():
    detector = SpikeDetector(window=1000, threshold=4.0, min_rise=0.0, min_values=1000)
    verdicts = [detector.observe(one) for one in published_series()]
    assert [index for index, one in enumerate(verdicts) if one.is_spike] == [1050, 1100]
    assert verdicts[1050].z_score == pytest.approx(50.0, abs=0.01)
    assert verdicts[1100].z_score == pytest.approx(5.0, abs=0.01)


def test_olmo_core_definition_is_one_sided_and_skips_constant_windows():
    series = [1.0 + 0.01 * (-1) ** index for index in range(200)]
    series[150], series[170] = 0.5, 1.2
    flags = spike_flags(series, window=128, threshold=6.0, two_sided=False)
    # the fall at 150 is no spike, and by widening the deviation it hides the rise at 170
    assert not any(flags)
    assert spike_flags(series[:151], window=128, threshold=6.0)[150]
    assert not any(spike_flags([1.0] * 130 + [9.0], window=128, threshold=6.0, two_sided=False))
    assert spike_flags([1.0, math.nan])[1]


def test_falls_are_no_spikes_and_drifts_are_followed():
    detector = SpikeDetector()
    generator = random.Random(0)
    losses = [10 * (1 + step) ** -0.3 + 0.02 * generator.gauss(0, 1) for step in range(3000)]
    losses += [losses[-1] + 0.0001 * step + 0.02 * generator.gauss(0, 1) for step in range(1000)]
    assert not any(detector.observe(one).is_spike for one in losses)
    assert detector.observe(losses[-1] + 0.5).is_spike


def test_a_lasting_step_is_accepted_in_the_end():
    detector = SpikeDetector(reset_after=10)
    for _ in range(50):
        detector.observe(2.0)
    verdicts = [detector.observe(3.0).is_spike for _ in range(30)]
    assert verdicts == [True] * 10 + [False] * 20


def test_robust_statistics_shrug_off_outliers():
    values = [2.0 + 0.01 * (index % 5) for index in range(40)] + [2.6, 2.7, 2.8]
    plain, robust = SpikeDetector(min_rise=10.0), SpikeDetector(min_rise=10.0, robust=True)
    for one in values:
        plain.observe(one)
        robust.observe(one)
    assert plain.statistics()[1] > 0.1
    assert robust.statistics()[1] == pytest.approx(1.4826 * 0.01, rel=0.01)


def test_state_goes_on_exactly():
    generator = random.Random(1)
    values = [2 + 0.1 * generator.random() + (index == 60) for index in range(100)]
    whole = SpikeDetector(window=32)
    expected = [whole.observe(one) for one in values]
    first = SpikeDetector(window=32)
    for one in values[:50]:
        first.observe(one)
    second = SpikeDetector(window=32)
    second.load_state(first.state())
    assert [second.observe(one) for one in values[50:]] == expected[50:]
    assert expected[60].is_spike


def test_a_spike_is_seen_though_the_loss_still_falls():
    """The fall within the long window hides half a nat; the last sixteen values do not."""
    curve = [10 * (1 + step) ** -0.3 + 0.02 * (-1) ** step for step in range(260)]
    plain, ours = SpikeDetector(), SpikeDetector(short_min_rise=0.4)
    assert not any(plain.observe(one).is_spike or ours.observe(one).is_spike for one in curve)
    high = curve[-1] + 0.55
    assert not plain.observe(high).is_spike
    verdict = ours.observe(high)
    assert verdict.is_spike and verdict.mean == pytest.approx(sum(curve[-16:]) / 16)
    assert verdict.z_score == pytest.approx((high - verdict.mean) / verdict.std)
    with pytest.raises(UserError, match="short_min_rise = -1"):
        SpikeDetector(short_min_rise=-1)


def test_curves_of_published_shapes():
    """No false alarm and no miss above 0.5 nats; a million steps of more shapes in benchmarks/chaos.py."""
    generator = random.Random(3)
    power = [1.8 + 9.0 * (1 + step) ** -0.35 for step in range(4000)]
    shapes = {
        "decay": [value - 0.25 * max(0.0, step / 800 - 4) ** 0.5 for step, value in enumerate(power)],
        "mixtures": [value - 0.06 * (step // 1000 % 2) for step, value in enumerate(power)],
        "drift": [value + 0.1 * math.sin(step / 500) for step, value in enumerate(power)],
    }
    for name, shape in shapes.items():
        curve = [value + 0.02 * generator.gauss(0, 1) for value in shape]
        detector = LossSpikeCallback().detector
        assert not any(detector.observe(one).is_spike for one in curve), name
        detector = LossSpikeCallback().detector
        verdicts = [
            detector.observe(one + 0.55 * (step % 50 == 49 and step >= 128)).is_spike for step, one in enumerate(curve)
        ]
        assert [step for step, flag in enumerate(verdicts) if flag] == list(range(149, 4000, 50)), name


def test_bad_options():
    with pytest.raises(UserError, match="threshold = 0"):
        SpikeDetector(threshold=0)
    with pytest.raises(UserError, match="min_values = 200; the window holds 128"):
        SpikeDetector(min_values=200)
    with pytest.raises(UserError, match="threshold = nan"):
        SpikeDetector(threshold=math.nan)
    with pytest.raises(UserError, match="window = True"):
        SpikeDetector(window=True)

"""Fitting scaling laws: science section 1.3 and bug N3."""

import math
import subprocess
import sys

import numpy as np
import pytest

from hf_pretrain.planning.chinchilla import EPOCH, HOFFMANN_ROUNDED, HOFFMANN_TEX, ParametricLaw
from hf_pretrain.planning.fitting import (
    LadderPoint,
    _Data,
    bootstrap_parametric,
    fit_downstream_error,
    fit_parametric,
    isoflop_minimum,
)
from hf_pretrain.planning.lifetime import downstream_error
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.utils.errors import UserError


def ladder(law, sizes, tokens, noise=0.0, seed=0):
    random = np.random.default_rng(seed)
    return [
        LadderPoint(size, count, law.loss(size, count) * math.exp(noise * random.standard_normal()))
        for size in sizes
        for count in tokens(size)
    ]


def small_grid(law=HOFFMANN_ROUNDED):
    return ladder(law, (1e8, 3e8, 1e9, 3e9), lambda size: (2e9, 6e9, 2e10, 6e10))


def noisy_grid(seed=0):
    ratios = (2, 5, 10, 20, 50, 100, 200)
    return ladder(EPOCH, np.logspace(7.7, 10, 10).tolist(), lambda n: [n * m for m in ratios], 0.005, seed)


def test_noise_free_constants_come_back():
    fit = fit_parametric(small_grid())
    found = (fit.law.E, fit.law.alpha, fit.law.beta, fit.law.A, fit.law.B)
    assert found == pytest.approx((1.69, 0.34, 0.28, 406.4, 410.7), rel=1e-4)
    best = fit.law.optimum(1e21)
    assert (best.parameters, best.tokens) == (pytest.approx(1.824e9, rel=1e-3), pytest.approx(9.136e10, rel=1e-3))
    assert best.tokens_per_parameter == pytest.approx(50, abs=0.5)
    assert fit.warnings == () and fit.objective < 1e-12 and fit.num_points == 16


@pytest.mark.parametrize("law", [EPOCH, HOFFMANN_TEX, ParametricLaw("test", 400, 2000, 1.5, 0.45, 0.25)])
def test_other_surfaces_come_back(law):
    fit = fit_parametric(small_grid(law)).law
    assert (fit.E, fit.alpha, fit.beta) == pytest.approx((law.E, law.alpha, law.beta), rel=1e-4)


def test_the_mean_with_default_tolerances_stops_early():
    """What the fit of the paper did: plausible constants, far from the optimum."""
    from scipy.optimize import minimize

    points = small_grid()
    data = _Data.read(points, "total", 1e-3)
    start = data.vector(ParametricLaw("start", math.exp(5), math.exp(5), 1.0, 0.5, 0.5))
    early = minimize(
        lambda v: tuple(part / (1e3 * len(points)) for part in data.objective(v)), start, jac=True, method="L-BFGS-B"
    )
    law = data.law(early.x, "early", "total")
    assert abs(law.alpha - 0.34) > 0.01 or abs(law.beta - 0.28) > 0.01
    assert data.objective(early.x)[0] / 1e3 > 1e3 * fit_parametric(points).objective


def test_huber_and_log_sum_exp():
    data = _Data(np.log([1e9]), np.log([2e10]), np.log([2.60]), 1e-3)
    value, _ = data.objective(data.vector(HOFFMANN_ROUNDED))
    assert value / 1e3 == pytest.approx(7.203491e-6, rel=1e-6)
    for residual, expected in ((5e-4, 1.25e-7), (1e-3, 5e-7), (1e-2, 9.5e-6)):
        shifted = _Data(data.log_size, data.log_tokens, np.array([0.947807953892 - residual]), 1e-3)
        assert shifted.objective(data.vector(HOFFMANN_ROUNDED))[0] / 1e3 == pytest.approx(expected, rel=1e-6)


def test_gradient_is_the_slope():
    data = _Data.read(noisy_grid()[::4], "total", 1e-3)
    vector = data.vector(EPOCH) + np.array([0.1, -0.05, 0.02, 0.03, -0.02])
    _, gradient = data.objective(vector)
    for index in range(5):
        step = np.zeros(5)
        step[index] = 1e-6
        slope = (data.objective(vector + step)[0] - data.objective(vector - step)[0]) / 2e-6
        assert gradient[index] == pytest.approx(slope, rel=1e-5, abs=1e-8)


def test_noisy_runs_within_the_bands():
    points = noisy_grid()
    fit = fit_parametric(points)
    assert (fit.law.alpha, fit.law.beta) == (pytest.approx(0.3478, abs=0.03), pytest.approx(0.3658, abs=0.03))
    assert fit.law.a == pytest.approx(EPOCH.a, abs=0.03)
    assert fit.gradient_norm < 1e-5 and fit.warnings == ()
    truth = _Data.read(points, "total", 1e-3)
    assert fit.objective <= truth.objective(truth.vector(EPOCH))[0] / 1e3
    spread = bootstrap_parametric(points, fit, resamples=20, seed=1)
    low, high = spread.interval("a", 0.95)
    assert low < fit.law.a < high and 0.001 < spread.standard_error("alpha") < 0.05
    low, high = spread.interval("parameters", flops=1e22)
    assert low < fit.law.optimum(1e22).parameters < high
    spread.check_extrapolation(1e22)
    with pytest.raises(UserError, match="too wide to extrapolate: add runs"):
        spread.check_extrapolation(1e22, max_ratio=1.001)
    again = bootstrap_parametric(points, fit, resamples=20, seed=1)
    assert again.laws == spread.laws


def test_outliers_hardly_matter():
    points = small_grid()
    points[5] = LadderPoint(points[5].parameters, points[5].tokens, points[5].loss * 1.2)
    law = fit_parametric(points).law
    assert (law.alpha, law.beta) == (pytest.approx(0.34, abs=0.02), pytest.approx(0.28, abs=0.02))


@pytest.mark.parametrize(
    ("law", "expected"),
    [
        (EPOCH, (0.9990, 0.9961, 0.9912, 0.9844)),
        (HOFFMANN_TEX, (1.0030, 1.0119, 1.0270, 1.0485)),
        (ParametricLaw("test", 400, 2000, 1.8, 0.45, 0.25), (1.0110, 1.0445, 1.1025, 1.1883)),
        (ParametricLaw("even", 400, 2000, 1.8, 0.35, 0.35), (1.0, 1.0, 1.0, 1.0)),
    ],
)
def test_bias_of_approach_2(law, expected):
    best = law.optimum(1e21)
    for reach, ratio in zip((2, 4, 8, 16), expected, strict=True):
        sizes = [best.parameters * reach ** (step / 7) for step in range(-7, 8)]
        losses = [law.loss(size, 1e21 / (6 * size)) for size in sizes]
        assert isoflop_minimum(sizes, losses) / best.parameters == pytest.approx(ratio, abs=6e-5)


def test_approach_2_refuses():
    with pytest.raises(UserError, match="no minimum in N"):
        isoflop_minimum([1e8, 2e8, 4e8], [3.0, 3.2, 3.0])
    with pytest.raises(UserError, match="at least 3 sizes"):
        isoflop_minimum([1e8, 2e8], [3.0, 3.2])


def test_downstream_error_comes_back():
    losses = np.linspace(2.2, 4.0, 8)
    errors = [downstream_error(loss, 0.85, 2.08, 0.756) for loss in losses]
    assert fit_downstream_error(losses, errors) == pytest.approx((0.85, 2.08, 0.756), rel=1e-4)
    with pytest.raises(UserError, match="at least 4 pairs"):
        fit_downstream_error([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])


def changed(**values):
    points = small_grid()
    point = points[3]
    data = {"parameters": point.parameters, "tokens": point.tokens, "loss": point.loss} | values
    return [*points[:3], LadderPoint(**data), *points[4:]]


@pytest.mark.parametrize(
    ("points", "message"),
    [
        (small_grid()[:4], "4 runs; five constants need at least 5"),
        (ladder(EPOCH, [1e9], lambda size: [1e9 * k for k in range(1, 9)]), r"parameters \(N\) span a factor of 1.00"),
        (ladder(EPOCH, [1e8 * k for k in range(1, 9)], lambda size: [1e10]), r"tokens \(D\) span a factor of 1.00"),
        (ladder(EPOCH, [1e8 * k for k in range(1, 9)], lambda size: [20 * size]), "N and D change together"),
        (small_grid()[:5] * 0 + [small_grid()[0]] * 3 + [small_grid()[15]] * 4, "too alike"),
        (changed(loss=float("nan")), "loss of run 3 = nan"),
        (changed(loss=35.0), "is this a perplexity"),
        (changed(tokens=-1.0), "tokens of run 3 = -1.0"),
        (changed(parameters=ModelSize(1e8, "non_embedding")), "counts total"),
        ([LadderPoint(p.parameters / 1e9, p.tokens, p.loss) for p in small_grid()], "are these billions"),
    ],
)
def test_runs_that_say_too_little(points, message):
    with pytest.raises(UserError, match=message):
        fit_parametric(points)


def test_convention_travels():
    points = [LadderPoint(ModelSize(p.parameters, "non_embedding"), p.tokens, p.loss) for p in small_grid()]
    law = fit_parametric(points, param_convention="non_embedding").law
    with pytest.raises(UserError, match="counts non_embedding"):
        law.loss(ModelSize(1e9, "total"), 1e10)


def test_importing_needs_no_numpy():
    code = "import sys, hf_pretrain.planning.fitting; sys.exit(any(m in sys.modules for m in ('numpy', 'scipy')))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.slow
def test_200_refits_of_240_runs_take_less_than_20_seconds():
    import time

    points = [point for seed in range(4) for point in noisy_grid(seed)][:240]
    fit = fit_parametric(points)
    begin = time.process_time()
    spread = bootstrap_parametric(points, fit, resamples=200)
    assert time.process_time() - begin < 20 and len(spread.laws) == 200

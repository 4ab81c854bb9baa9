"""Fitting L = E + A / N^alpha + B / D^beta to finished runs (approach 3 of arXiv 2203.15556), with intervals.

    min  sum_i Huber(LSE(a - alpha ln N_i, b - beta ln D_i, e) - ln L_i),   A = exp(a), B = exp(b), E = exp(e)

Stopping early is the classic error: the mean instead of the sum, or default tolerances, end far from the optimum with
plausible constants (arXiv 2404.10102). Here ln N and ln D are centred, which removes most of the ill-conditioning; for
each pair of exponents the other three are solved linearly (arXiv 2603.22339), the best of these starts are refined
with analytic gradients and tight tolerances, and the gradient at the end is reported.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hf_pretrain.planning.chinchilla import ParametricLaw
from hf_pretrain.planning.quantities import ModelSize, positive, size_under
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    import numpy as np

HUBER_DELTA = 1e-3
MIN_POINTS = 5
MIN_SPREAD = 2.0  # largest over smallest N, and D
_EXPONENTS = (0.1, 0.2, 0.3, 0.4, 0.6, 0.9, 1.4, 2.0)
_BOUNDS = (0.005, 4.0)
_SCALE = 1e3  # keeps the objective in the range for which the optimizer's tolerances were made
_REFINED = 6
_LARGE_GRADIENT = 1e-5


@dataclass(frozen=True)
class LadderPoint:
    """One finished run.

    Args:
        parameters (`ModelSize` or `float`): N; a bare number is total parameters.
        tokens (`float`): D.
        loss (`float`): Final loss in nats a token, its schedule decayed at D.
    """

    parameters: ModelSize | float
    tokens: float
    loss: float


@dataclass(frozen=True)
class ParametricFit:
    """A fitted law and how well the search ended.

    Args:
        law (`ParametricLaw`): The constants.
        objective (`float`): Sum of Huber losses at the end.
        gradient_norm (`float`): Largest component of its gradient there; near 0 at an optimum.
        num_points (`int`): Runs used.
        warnings (`tuple[str, ...]`): What to distrust.
    """

    law: ParametricLaw
    objective: float
    gradient_norm: float
    num_points: int
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Bootstrap:
    """Fits of resampled runs.

    Args:
        laws (`tuple[ParametricLaw, ...]`): One a resample.
        skipped (`int`): Resamples without enough spread, drawn again.
    """

    laws: tuple[ParametricLaw, ...] = field(repr=False)
    skipped: int = 0

    def interval(self, name: str, level: float = 0.8, flops: float | None = None) -> tuple[float, float]:
        """Percentile interval of a constant or of the optimum.

        Args:
            name (`str`): `"A"`, `"B"`, `"E"`, `"alpha"`, `"beta"`, `"a"`, `"b"` or `"G"`; with `flops` also
                `"parameters"`, `"tokens"`, `"tokens_per_parameter"` or `"loss"` of the optimum.
            level (`float`, *optional*, defaults to 0.8): Share of the resamples inside.
            flops (`float`, *optional*): Budget of the optimum.

        Returns:
            `tuple[float, float]`: Low and high.
        """
        import numpy as np

        if not 0 < level < 1:
            raise UserError(f"level = {level!r}; a share between 0 and 1 is needed.")
        values = [getattr(law if flops is None else law.optimum(flops), name) for law in self.laws]
        low, high = np.quantile(values, [(1 - level) / 2, (1 + level) / 2])
        return float(low), float(high)

    def standard_error(self, name: str) -> float:
        """Standard deviation of a constant over the resamples.

        Args:
            name (`str`): As in [`interval`], without the optimum.

        Returns:
            `float`: Standard error.
        """
        import numpy as np

        return float(np.std([getattr(law, name) for law in self.laws], ddof=1))

    def check_extrapolation(self, flops: float, level: float = 0.8, max_ratio: float = 4.0) -> None:
        """Refuses a budget for which the runs do not say how large the model should be.

        Args:
            flops (`float`): Budget.
            level (`float`, *optional*, defaults to 0.8): Of the interval.
            max_ratio (`float`, *optional*, defaults to 4.0): Largest accepted high / low of N_opt.

        Raises:
            UserError: If the interval is wider.
        """
        low, high = self.interval("parameters", level, flops)
        if high > max_ratio * low:
            raise UserError(
                f"flops = {flops:g}; the {level:.0%} interval of the best model size is {low:.3g} to {high:.3g}, too "
                "wide to extrapolate: add runs of larger models or more tokens, or aim at a smaller budget."
            )


def fit_parametric(
    points: Sequence[LadderPoint],
    name: str = "fit",
    delta: float = HUBER_DELTA,
    param_convention: str = "total",
) -> ParametricFit:
    """Fits the five constants to runs.

    Args:
        points (`Sequence[LadderPoint]`): The runs: at least 5, with spread in N and in D.
        name (`str`, *optional*, defaults to `"fit"`): Name of the law.
        delta (`float`, *optional*, defaults to 1e-3): Where Huber's loss turns linear, in ln L.
        param_convention (`str`, *optional*, defaults to `"total"`): What the runs' N counts.

    Returns:
        `ParametricFit`: The best of all starts.

    Raises:
        UserError: If the runs cannot determine the law, or a value cannot be right.
    """
    data = _Data.read(points, param_convention, delta)
    ends = sorted((data.refine(start) for start in data.starts()), key=lambda end: end[1])
    best, objective, gradient = ends[0]
    # A fresh start forgets the curvature it had collected; near the end that finds the last digits.
    for _ in range(5):
        again, value, slope = data.refine(best)
        if value >= objective * (1 - 1e-10):
            break
        best, objective, gradient = again, value, slope
    warnings = []
    if gradient > _LARGE_GRADIENT:
        warnings.append(f"the search stopped with a gradient of {gradient:.1e}: the constants are not at an optimum.")
    if min(best[3:]) <= _BOUNDS[0] * 1.01 or max(best[3:]) >= _BOUNDS[1] * 0.99:
        warnings.append("an exponent ended at its bound: the runs do not show how the loss falls with N or with D.")
    law = data.law(best, name, param_convention)
    if law.E < 1e-3:
        warnings.append("E ended at zero: the runs are too short to see the irreducible loss.")
    return ParametricFit(law, objective, gradient, len(points), tuple(warnings))


def bootstrap_parametric(
    points: Sequence[LadderPoint],
    fit: ParametricFit,
    resamples: int = 1000,
    seed: int = 0,
    delta: float = HUBER_DELTA,
) -> Bootstrap:
    """Fits resampled runs, each from the full fit's constants.

    Args:
        points (`Sequence[LadderPoint]`): The runs.
        fit (`ParametricFit`): Fit of all of them.
        resamples (`int`, *optional*, defaults to 1000): How many.
        seed (`int`, *optional*, defaults to 0): Of the draws.
        delta (`float`, *optional*, defaults to 1e-3): As for the fit.

    Returns:
        `Bootstrap`: The laws.

    Raises:
        UserError: If hardly any resample has enough spread.
    """
    import numpy as np

    if resamples < 2:
        raise UserError(f"resamples = {resamples}; at least 2 are needed.")
    random = np.random.default_rng(seed)
    convention = fit.law.param_convention
    data = _Data.read(points, convention, delta)
    laws: list[ParametricLaw] = []
    skipped = 0
    while len(laws) < resamples:
        chosen = random.integers(0, len(points), len(points))
        if not data.spread_enough(chosen):
            skipped += 1
            if skipped > 10 * resamples:
                raise UserError("the runs are too few to resample; add runs of other sizes and lengths.")
            continue
        sample = data.take(chosen)
        laws.append(sample.law(sample.refine(sample.vector(fit.law))[0], fit.law.name, convention))
    return Bootstrap(tuple(laws), skipped)


def isoflop_minimum(parameters: Sequence[float], losses: Sequence[float]) -> float:
    """Approach 2 for one budget: the minimum of a parabola through loss against ln N.

    On the true surface it is off by up to a few percent, more the wider the grid: a cross-check of approach 3.

    Args:
        parameters (`Sequence[float]`): N of runs of equal compute, at least 3 different ones.
        losses (`Sequence[float]`): Their losses.

    Returns:
        `float`: N where the parabola is lowest.

    Raises:
        UserError: If there are too few runs, or the parabola has no minimum.
    """
    import numpy as np

    logs = np.log([positive("parameters", value) for value in parameters])
    if len(set(logs.tolist())) < 3 or len(logs) != len(losses):
        raise UserError(f"{len(logs)} model sizes and {len(losses)} losses; at least 3 sizes with a loss each needed.")
    center = logs.mean()
    curvature, slope, _ = np.polyfit(logs - center, np.asarray(losses, dtype=float), 2)
    if not curvature > 0:
        raise UserError("the losses of this budget have no minimum in N; add smaller and larger models.")
    return float(np.exp(center - slope / (2 * curvature)))


def fit_downstream_error(losses: Sequence[float], errors: Sequence[float]) -> tuple[float, float, float]:
    """Fits Err(L) = epsilon - k exp(-gamma L) from several starts (arXiv 2403.08540).

    Args:
        losses (`Sequence[float]`): Nats a token, at least 4.
        errors (`Sequence[float]`): Average top-1 errors.

    Returns:
        `tuple[float, float, float]`: epsilon, k and gamma.

    Raises:
        UserError: If the points are too few.
    """
    import numpy as np
    from scipy.optimize import least_squares

    x, y = np.asarray(losses, dtype=float), np.asarray(errors, dtype=float)
    if len(x) < 4 or len(x) != len(y) or np.ptp(x) <= 0 or not np.isfinite([x, y]).all():
        raise UserError(f"{len(x)} losses and {len(y)} errors; at least 4 pairs of finite numbers with spread needed.")
    best = None
    for gamma in (0.1, 0.3, 1.0, 3.0):
        columns = np.stack([np.ones_like(x), -np.exp(-gamma * x)], axis=1)
        epsilon, k = np.linalg.lstsq(columns, y, rcond=None)[0]
        end = least_squares(
            lambda c: c[0] - c[1] * np.exp(-c[2] * x) - y, [epsilon, k, gamma], xtol=1e-14, ftol=1e-14, gtol=1e-14
        )
        if best is None or end.cost < best.cost:
            best = end
    epsilon, k, gamma = best.x
    return float(epsilon), float(k), float(gamma)


class _Data:
    """Runs as centred logarithms, the objective on them, and the searches."""

    def __init__(self, log_size: "np.ndarray", log_tokens: "np.ndarray", log_loss: "np.ndarray", delta: float) -> None:
        self.log_size, self.log_tokens, self.log_loss, self.delta = log_size, log_tokens, log_loss, delta
        self.mean_size, self.mean_tokens = float(log_size.mean()), float(log_tokens.mean())
        self.x, self.y = log_size - self.mean_size, log_tokens - self.mean_tokens

    @classmethod
    def read(cls, points: Sequence[LadderPoint], convention: str, delta: float) -> "_Data":
        import numpy as np

        positive("delta", delta)
        if len(points) < MIN_POINTS:
            raise UserError(f"{len(points)} runs; five constants need at least {MIN_POINTS}, and better 12 or more.")
        rows = [
            (
                size_under(point.parameters, convention, "fit"),
                positive(f"tokens of run {index}", point.tokens),
                positive(f"loss of run {index}", point.loss),
            )
            for index, point in enumerate(points)
        ]
        sizes, tokens, losses = np.array(rows, dtype=float).T
        for name, values in (("parameters", sizes), ("tokens", tokens)):
            if values.max() < 1e4:
                raise UserError(f"{name} = {values.max():g} at most; are these billions? Give them in full, as 1e9.")
        if losses.max() > 20:
            raise UserError(f"loss = {losses.max():g}; nats a token are needed: is this a perplexity?")
        data = cls(np.log(sizes), np.log(tokens), np.log(losses), delta)
        for name, values in (("parameters (N)", data.log_size), ("tokens (D)", data.log_tokens)):
            if np.ptp(values) < math.log(MIN_SPREAD) * (1 - 1e-9):
                raise UserError(
                    f"the runs' {name} span a factor of {math.exp(np.ptp(values)):.2f}; at least {MIN_SPREAD:g} is "
                    "needed to see an exponent: add runs."
                )
        if not data.spread_enough(np.arange(len(rows))):
            raise UserError(
                f"the runs are too alike: fewer than {MIN_POINTS} different ones, or N and D change together in all "
                "of them: add runs with other tokens per parameter."
            )
        return data

    def take(self, chosen: "np.ndarray") -> "_Data":
        return _Data(self.log_size[chosen], self.log_tokens[chosen], self.log_loss[chosen], self.delta)

    def spread_enough(self, chosen: "np.ndarray") -> bool:
        """Whether enough different runs are there, and N and D vary apart from each other."""
        import numpy as np

        logs = np.stack([self.log_size[chosen], self.log_tokens[chosen]])
        if len({tuple(pair) for pair in logs.T.tolist()}) < MIN_POINTS:
            return False
        if min(np.ptp(logs, axis=1)) < math.log(MIN_SPREAD) * (1 - 1e-9):
            return False
        return abs(float(np.corrcoef(logs)[0, 1])) < 0.9999

    def starts(self) -> list["np.ndarray"]:
        """For pairs of exponents, the other three by non-negative least squares; the best few of them."""
        import numpy as np
        from scipy.optimize import nnls

        loss = np.exp(self.log_loss)
        found = []
        for alpha in _EXPONENTS:
            for beta in _EXPONENTS:
                columns = np.stack([np.exp(-alpha * self.x), np.exp(-beta * self.y), np.ones_like(self.x)], axis=1)
                weights, _ = nnls(columns / loss[:, None], np.ones_like(loss))
                floor = 1e-3 * float(loss.min())
                vector = np.array([*np.log(np.maximum(weights, floor)), alpha, beta])
                found.append((self.objective(vector)[0], len(found), vector))
        return [vector for _, _, vector in sorted(found)[:_REFINED]]

    def objective(self, vector: "np.ndarray") -> "tuple[float, np.ndarray]":
        """Sum of Huber losses times the scale, and its gradient."""
        import numpy as np

        a, b, e, alpha, beta = vector
        terms = np.stack([a - alpha * self.x, b - beta * self.y, np.full_like(self.x, e)])
        top = terms.max(axis=0)
        parts = np.exp(terms - top)
        total = parts.sum(axis=0)
        residual = top + np.log(total) - self.log_loss
        size = np.abs(residual)
        value = np.where(size <= self.delta, 0.5 * residual**2, self.delta * (size - 0.5 * self.delta)).sum()
        pull = np.clip(residual, -self.delta, self.delta) * (parts / total)
        gradient = [*pull.sum(axis=1), -(pull[0] @ self.x), -(pull[1] @ self.y)]
        return _SCALE * float(value), _SCALE * np.array(gradient)

    def refine(self, start: "np.ndarray") -> "tuple[np.ndarray, float, float]":
        """Runs the search from a start; returns where it ended, the objective and the largest slope, unscaled."""
        import numpy as np
        from scipy.optimize import minimize

        lowest = self.log_loss.min() - 20.0
        bounds = [(lowest, None), (lowest, None), (lowest, None), _BOUNDS, _BOUNDS]
        end = minimize(
            self.objective,
            start,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options={"ftol": 1e-15, "gtol": 1e-10, "maxiter": 5000, "maxfun": 20000, "maxcor": 20},
        )
        return end.x, end.fun / _SCALE, float(np.abs(end.jac).max()) / _SCALE

    def vector(self, law: ParametricLaw) -> "np.ndarray":
        """A law's constants, as the search sees them."""
        import numpy as np

        a = math.log(law.A) - law.alpha * self.mean_size
        b = math.log(law.B) - law.beta * self.mean_tokens
        return np.array([a, b, math.log(law.E), law.alpha, law.beta])

    def law(self, vector: "np.ndarray", name: str, convention: str) -> ParametricLaw:
        """The constants that the search found."""
        a, b, e, alpha, beta = (float(value) for value in vector)
        return ParametricLaw(
            name=name,
            A=math.exp(a + alpha * self.mean_size),
            B=math.exp(b + beta * self.mean_tokens),
            E=math.exp(e),
            alpha=alpha,
            beta=beta,
            source="fitted to runs",
            param_convention=convention,
        )

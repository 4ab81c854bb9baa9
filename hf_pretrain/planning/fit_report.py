"""What a ladder says: the law with its intervals, how well it predicts runs it has not seen, the split of a budget.

The law is fitted to the runs that are not held out. Where none is, the costliest is predicted from the others as a
test, and then all are fitted.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hf_pretrain.planning.fitting import (
    MIN_POINTS,
    Bootstrap,
    ParametricFit,
    bootstrap_parametric,
    fit_parametric,
)
from hf_pretrain.planning.isoflop import IsoFlopFit, fit_isoflop
from hf_pretrain.planning.ladder_points import RunPoint, check_points
from hf_pretrain.planning.repetition import WARN_ABOVE_EPOCHS
from hf_pretrain.utils.errors import UserError


CONSTANTS = ("E", "A", "B", "alpha", "beta", "a", "b", "G")
_OPTIMUM = ("parameters", "tokens", "tokens_per_parameter", "loss")
_WIDE_EXPONENT = 0.3
_FAR = 100.0


@dataclass(frozen=True)
class Prediction:
    """A run and what the law says of it.

    Args:
        name (`str`): The run.
        parameters (`float`): N.
        tokens (`float`): D.
        measured (`float`): Its loss.
        predicted (`float`): By the law.
        error (`float`): (predicted - measured) / measured.
        interval (`tuple[float, float]`, *optional*): Of the prediction, over the resamples.
    """

    name: str
    parameters: float
    tokens: float
    measured: float
    predicted: float
    error: float
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Target:
    """The best split of a budget.

    Args:
        flops (`float`): C = 6 N D.
        parameters (`float`): N.
        tokens (`float`): D.
        tokens_per_parameter (`float`): D / N.
        loss (`float`): Nats a token.
        intervals (`dict[str, tuple[float, float]]`): Of the four, over the resamples.
        isoflop_parameters (`float`, *optional*): N by approach 2.
    """

    flops: float
    parameters: float
    tokens: float
    tokens_per_parameter: float
    loss: float
    intervals: dict[str, tuple[float, float]]
    isoflop_parameters: float | None = None


@dataclass(frozen=True)
class FitReport:
    """A fit and all that is needed to judge it.

    Args:
        count (`str`): What N counts.
        fit (`ParametricFit`): Approach 3.
        bootstrap (`Bootstrap`): Its resamples.
        level (`float`): Of all intervals.
        intervals (`dict[str, tuple[float, float]]`): Of the constants.
        standard_errors (`dict[str, float]`): Of the constants.
        fitted (`tuple[Prediction, ...]`): The runs of the fit.
        held_out (`tuple[Prediction, ...]`): Runs it has not seen.
        isoflop (`IsoFlopFit`, *optional*): Approach 2.
        target (`Target`, *optional*): For the budget asked for.
        warnings (`tuple[str, ...]`): What to mind.
    """

    count: str
    fit: ParametricFit
    bootstrap: Bootstrap
    level: float
    intervals: dict[str, tuple[float, float]]
    standard_errors: dict[str, float]
    fitted: tuple[Prediction, ...]
    held_out: tuple[Prediction, ...]
    isoflop: IsoFlopFit | None
    target: Target | None
    warnings: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON.

        Returns:
            `dict[str, Any]`: Everything but the resamples.
        """
        law = self.fit.law
        return {
            "count": self.count,
            "flop_convention": f"6 N D with {self.count} parameters",
            "law": {name: getattr(law, name) for name in CONSTANTS},
            "intervals": {name: list(values) for name, values in self.intervals.items()},
            "standard_errors": self.standard_errors,
            "level": self.level,
            "resamples": len(self.bootstrap.laws),
            "objective": self.fit.objective,
            "gradient_norm": self.fit.gradient_norm,
            "fitted": [asdict(item) for item in self.fitted],
            "held_out": [asdict(item) for item in self.held_out],
            "isoflop": None if self.isoflop is None else asdict(self.isoflop),
            "target": None if self.target is None else asdict(self.target),
            "warnings": list(self.warnings),
        }


def make_fit_report(
    points: Sequence[RunPoint],
    count: str = "total",
    target_flops: float | None = None,
    resamples: int = 1000,
    level: float = 0.8,
    seed: int = 0,
) -> FitReport:
    """Fits a ladder.

    Args:
        points (`Sequence[RunPoint]`): The runs; at least 5 that are not held out, with spread in N and D.
        count (`str`, *optional*, defaults to `"total"`): What their N counts.
        target_flops (`float`, *optional*): Budget to find the best split for.
        resamples (`int`, *optional*, defaults to 1000): Of the bootstrap.
        level (`float`, *optional*, defaults to 0.8): Of the intervals.
        seed (`int`, *optional*, defaults to 0): Of the bootstrap.

    Returns:
        `FitReport`: The law and how far to trust it.

    Raises:
        UserError: If the runs are too few or too alike, or the target is so far that its interval says nothing.
    """
    if not 0 < level < 1:
        raise UserError(f"level = {level!r}; a share between 0 and 1 is needed.")
    check_points(points)
    chosen = [point for point in points if not point.held_out]
    tested = [point for point in points if point.held_out]
    fit, bootstrap = _fit(chosen, count, resamples, seed)
    held_out = [_predict(point, fit, bootstrap, level) for point in tested]
    if not tested:
        held_out = _leave_costliest_out(chosen, count, resamples, level, seed)
    warnings = list(fit.warnings)
    intervals = {name: bootstrap.interval(name, level) for name in CONSTANTS}
    low, high = intervals["a"]
    if high - low > _WIDE_EXPONENT:
        warnings.append(
            f"the exponent of N_opt lies anywhere from {low:.2f} to {high:.2f}: these runs do not say how to split a "
            "budget; add sizes at equal tokens, and tokens at equal size, on both sides of the optimum."
        )
    repeated = [point.name for point in points if (point.epochs or 0.0) > WARN_ABOVE_EPOCHS]
    if repeated:
        warnings.append(
            f"{', '.join(repeated)}: more than {WARN_ABOVE_EPOCHS:g} epochs over a source; D counts them as fresh."
        )
    isoflop = None
    try:
        isoflop = fit_isoflop(chosen)
    except UserError as error:
        warnings.append(f"approach 2 left out: {error}")
    target = None
    if target_flops is not None:
        target = _target(target_flops, fit, bootstrap, level, isoflop)
        largest = max(point.flops for point in chosen)
        if target_flops > _FAR * largest:
            warnings.append(
                f"the target is {target_flops / largest:.0f} times the costliest run; climb with rungs in between."
            )
    return FitReport(
        count=count,
        fit=fit,
        bootstrap=bootstrap,
        level=level,
        intervals=intervals,
        standard_errors={name: bootstrap.standard_error(name) for name in CONSTANTS},
        fitted=tuple(_predict(point, fit) for point in chosen),
        held_out=tuple(held_out),
        isoflop=isoflop,
        target=target,
        warnings=tuple(warnings),
    )


def _fit(points: Sequence[RunPoint], count: str, resamples: int, seed: int) -> tuple[ParametricFit, Bootstrap]:
    ladder = [point.ladder_point(count) for point in points]
    fit = fit_parametric(ladder, param_convention=count)
    return fit, bootstrap_parametric(ladder, fit, resamples, seed)


def _predict(
    point: RunPoint, fit: ParametricFit, bootstrap: Bootstrap | None = None, level: float = 0.8
) -> Prediction:
    predicted = fit.law.loss(point.parameters, point.tokens)
    interval = None
    if bootstrap is not None:
        import numpy as np

        losses = [law.loss(point.parameters, point.tokens) for law in bootstrap.laws]
        low, high = np.quantile(losses, [(1 - level) / 2, (1 + level) / 2])
        interval = (float(low), float(high))
    error = (predicted - point.loss) / point.loss
    return Prediction(point.name, point.parameters, point.tokens, point.loss, predicted, error, interval)


def _leave_costliest_out(
    points: Sequence[RunPoint], count: str, resamples: int, level: float, seed: int
) -> list[Prediction]:
    """Predicts the costliest run from the others, where those are enough for a fit."""
    *others, last = sorted(points, key=lambda point: point.flops)
    if len(others) < MIN_POINTS:
        return []
    try:
        fit, bootstrap = _fit(others, count, min(resamples, 200), seed)
    except UserError:
        return []  # all its spread was in that run
    return [_predict(last, fit, bootstrap, level)]


def _target(
    flops: float, fit: ParametricFit, bootstrap: Bootstrap, level: float, isoflop: IsoFlopFit | None
) -> Target:
    bootstrap.check_extrapolation(flops, level)
    best = fit.law.optimum(flops)
    return Target(
        flops=flops,
        parameters=best.parameters,
        tokens=best.tokens,
        tokens_per_parameter=best.tokens_per_parameter,
        loss=best.loss,
        intervals={name: bootstrap.interval(name, level, flops) for name in _OPTIMUM},
        isoflop_parameters=None if isoflop is None else isoflop.parameters(flops),
    )

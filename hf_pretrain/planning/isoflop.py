"""Approach 2 of arXiv 2203.15556: for each budget the size with the lowest loss, then N_opt = k C^a through those.

Parabolas on the true surface are off by up to a few percent, more the wider the grid, so this is a cross-check of the
parametric fit. Where a ladder has no runs of equal compute, losses are read between the runs of each size, along ln C.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hf_pretrain.planning.fitting import isoflop_minimum
from hf_pretrain.planning.ladder_points import RunPoint
from hf_pretrain.utils.errors import UserError


_SAME_BUDGET = 1.1  # budgets within this factor are one
_MIN_SIZES = 3
_INTERPOLATED = 8


@dataclass(frozen=True)
class Budget:
    """One IsoFLOP curve.

    Args:
        flops (`float`): C = 6 N D.
        parameters (`tuple[float, ...]`): Sizes, rising.
        losses (`tuple[float, ...]`): Their losses.
        optimum (`float`): N at the lowest point of the parabola.
    """

    flops: float
    parameters: tuple[float, ...]
    losses: tuple[float, ...]
    optimum: float


@dataclass(frozen=True)
class IsoFlopFit:
    """N_opt = k C^a.

    Args:
        exponent (`float`): a.
        coefficient (`float`): k.
        budgets (`tuple[Budget, ...]`): What it goes through.
        interpolated (`bool`): Whether the losses were read between runs.
    """

    exponent: float
    coefficient: float
    budgets: tuple[Budget, ...]
    interpolated: bool

    def parameters(self, flops: float) -> float:
        """The best size for a budget.

        Args:
            flops (`float`): C.

        Returns:
            `float`: N_opt.
        """
        return self.coefficient * flops**self.exponent


def fit_isoflop(points: Sequence[RunPoint]) -> IsoFlopFit:
    """Fits the frontier through the minima of IsoFLOP parabolas.

    Args:
        points (`Sequence[RunPoint]`): The runs.

    Returns:
        `IsoFlopFit`: The frontier.

    Raises:
        UserError: If fewer than two budgets have a minimum within their sizes.
    """
    curves, interpolated = _equal_budgets(points), False
    if len(curves) < 2:
        curves, interpolated = _interpolated_budgets(points), True
    budgets = []
    for flops, pairs in curves:
        sizes, losses = zip(*sorted(pairs), strict=True)
        try:
            best = isoflop_minimum(sizes, losses)
        except UserError:
            continue  # a valley is not in sight: this budget says nothing of its optimum
        if sizes[0] <= best <= sizes[-1]:
            budgets.append(Budget(flops, sizes, losses, best))
    if len(budgets) < 2 or budgets[-1].flops < 1.5 * budgets[0].flops:
        raise UserError(
            f"{len(budgets)} of {len(curves)} budgets have their lowest loss within the sizes that were run; two, 1.5 "
            "times apart, are needed: add runs of smaller and larger models at equal compute."
        )
    x = [math.log(item.flops) for item in budgets]
    y = [math.log(item.optimum) for item in budgets]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    slope = sum((u - mean_x) * (v - mean_y) for u, v in zip(x, y, strict=True)) / sum((u - mean_x) ** 2 for u in x)
    return IsoFlopFit(slope, math.exp(mean_y - slope * mean_x), tuple(budgets), interpolated)


def _equal_budgets(points: Sequence[RunPoint]) -> list[tuple[float, list[tuple[float, float]]]]:
    groups: list[list[RunPoint]] = []
    for point in sorted(points, key=lambda item: item.flops):
        if groups and point.flops <= _SAME_BUDGET * groups[-1][0].flops:
            groups[-1].append(point)
        else:
            groups.append([point])
    found = []
    for group in groups:
        # Two runs of one size: the longer one is as good.
        pairs = {point.parameters: point.loss for point in group}
        if len(pairs) >= _MIN_SIZES:
            flops = math.exp(sum(math.log(point.flops) for point in group) / len(group))
            found.append((flops, list(pairs.items())))
    return found


def _interpolated_budgets(points: Sequence[RunPoint]) -> list[tuple[float, list[tuple[float, float]]]]:
    by_size: dict[float, list[tuple[float, float]]] = {}
    for point in points:
        by_size.setdefault(point.parameters, []).append((math.log(point.flops), point.loss))
    curves = {size: sorted(values) for size, values in by_size.items() if len(values) > 1}
    if len(curves) < _MIN_SIZES:
        return []
    low = min(values[0][0] for values in curves.values())
    high = max(values[-1][0] for values in curves.values())
    found = []
    for index in range(4 * _INTERPOLATED + 1):
        place = low + (high - low) * index / (4 * _INTERPOLATED)
        pairs = [(size, value) for size, values in curves.items() if (value := _between(values, place)) is not None]
        if len(pairs) >= _MIN_SIZES:
            found.append((math.exp(place), pairs))
    return found[:: max(1, len(found) // _INTERPOLATED)]


def _between(values: list[tuple[float, float]], place: float) -> float | None:
    """Loss at ln C between the runs of a size; `None` outside them."""
    for (x0, y0), (x1, y1) in zip(values, values[1:], strict=False):
        if x0 <= place <= x1:
            return y0 + (y1 - y0) * (place - x0) / (x1 - x0) if x1 > x0 else y0
    return None

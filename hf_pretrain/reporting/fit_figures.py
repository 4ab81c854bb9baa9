"""Charts of a scaling-law fit: loss over tokens for each size with the fitted law, and the frontier with its band.

Both axes that span decades are logarithmic. `standalone` turns a chart into a file that needs no page around it.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hf_pretrain.reporting.canvas import Canvas, Scale, spread, tick_label
from hf_pretrain.reporting.figures import CATEGORICAL, NARROW, WIDE
from hf_pretrain.reporting.page import THEME


_STYLE = """
.chart { font-family: system-ui, sans-serif; background: var(--ground); }
.chart text { font-size: 13px; fill: var(--ink); }
.chart .tick, .chart .axis-title { font-size: 12px; fill: var(--soft); }
.chart .grid { stroke: var(--rule); stroke-width: 1; }
.chart .axis { stroke: var(--faint); stroke-width: 1; }
.chart .curve { fill: none; stroke-width: 2; stroke-linejoin: round; }
.chart .hollow { fill: var(--ground); stroke-width: 2; }
.chart .band { opacity: 0.18; }
"""


def standalone(svg: str) -> str:
    """Puts colours and fonts into a chart, so that it stands alone, light or dark as the reader's system is.

    Args:
        svg (`str`): One `<svg>` element.

    Returns:
        `str`: The content of an SVG file.
    """
    light = "; ".join(f"--{name}: {values[0]}" for name, values in THEME.items())
    dark = "; ".join(f"--{name}: {values[1]}" for name, values in THEME.items())
    style = f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}{_STYLE}"
    head, mark, rest = svg.partition(">")
    return f"{head}{mark}<style>{style}</style>{rest}\n"


def log_ticks(low: float, high: float, most: int) -> list[float]:
    """Round values of a logarithmic axis.

    Args:
        low (`float`): Smallest value shown.
        high (`float`): Largest value shown.
        most (`int`): At most so many.

    Returns:
        `list[float]`: 1, 2, 5 times powers of ten, or those powers, or every other of them.
    """
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for steps in ((1, 2, 5), (1, 3), (1,)):
        ticks = [step * 10.0**power for power in range(first, last + 1) for step in steps]
        ticks = [value for value in ticks if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
        if len(ticks) <= most:
            return ticks
    return ticks[:: math.ceil(len(ticks) / most)]


def loss_chart(variant: str, report: Mapping[str, Any]) -> str:
    """Losses of the runs over tokens, and the law's curve of each size.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        report (`Mapping[str, Any]`): From `FitReport.to_dict`.

    Returns:
        `str`: An `<svg>` element.
    """
    law = report["law"]
    runs = [(item, False) for item in report["fitted"]] + [(item, True) for item in report["held_out"]]
    sizes = sorted({item["parameters"] for item, _ in runs})
    low, high = min(item["tokens"] for item, _ in runs), max(item["tokens"] for item, _ in runs)
    low, high = low / 1.15, high * 1.15
    places = [low * (high / low) ** (step / 60) for step in range(61)]

    def loss(size: float, tokens: float) -> float:
        return law["E"] + law["A"] / size ** law["alpha"] + law["B"] / tokens ** law["beta"]

    curves = {size: [loss(size, place) for place in places] for size in sizes}
    values = [value for curve in curves.values() for value in curve] + [item["measured"] for item, _ in runs]
    pad = 0.05 * (max(values) - min(values))
    chart = _LogChart(
        variant,
        "Loss of the runs over tokens, with the fitted law of each size",
        (low, high),
        (min(values) - pad, max(values) + pad),
        "tokens",
        "held-out loss, nats a token",
        log_y=False,
    )
    colors = {size: CATEGORICAL[index % len(CATEGORICAL)] for index, size in enumerate(sizes)}
    for size in sizes:
        chart.curve(places, curves[size], colors[size])
    for item, held_out in runs:
        title = f"{item['name']}: measured {item['measured']:.4f}, predicted {item['predicted']:.4f}"
        chart.dot(item["tokens"], item["measured"], colors[item["parameters"]], held_out, title)
    chart.names([(curves[size][-1], tick_label(float(f"{size:.3g}")), colors[size]) for size in sizes])
    return chart.canvas.render()


def frontier_chart(
    variant: str,
    report: Mapping[str, Any],
    flops: Sequence[float],
    band: Sequence[tuple[float, float]],
    optimum: Callable[[float], float],
) -> str:
    """The best size over the budget with its band, the runs, and approach 2 where it could be had.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        report (`Mapping[str, Any]`): From `FitReport.to_dict`.
        flops (`Sequence[float]`): Rising budgets.
        band (`Sequence[tuple[float, float]]`): Interval of the best size at each.
        optimum (`Callable[[float], float]`): The best size by the law.

    Returns:
        `str`: An `<svg>` element.
    """
    runs = [(item, False) for item in report["fitted"]] + [(item, True) for item in report["held_out"]]
    best = [optimum(value) for value in flops]
    sizes = [item["parameters"] for item, _ in runs]
    every = [*best, *sizes, *(value for pair in band for value in pair)]
    # A band that covers everything would leave no room for the runs.
    low, high = max(min(every), min(sizes) / 100), min(max(every), max([*sizes, *best]) * 100)
    chart = _LogChart(
        variant,
        "Best model size over the budget, with its interval",
        (flops[0], flops[-1]),
        (low / 1.3, high * 1.3),
        "FLOPs",
        f"parameters ({str(report['count']).replace('_', ' ')})",
        log_y=True,
    )
    lower = [min(max(pair[0], low), high) for pair in band]
    upper = [min(max(pair[1], low), high) for pair in band]
    chart.area(flops, lower, upper, "c1")
    chart.curve(flops, [min(max(value, low), high) for value in best], "c1")
    for item, held_out in runs:
        place = 6 * item["parameters"] * item["tokens"]
        if flops[0] <= place <= flops[-1]:
            chart.dot(place, item["parameters"], "c8", held_out, f"{item['name']}: loss {item['measured']:.4f}")
    for budget in (report["isoflop"] or {}).get("budgets", ()):
        chart.dot(budget["flops"], budget["optimum"], "c2", False, f"parabola: {budget['optimum']:.3g}")
    target = report["target"]
    if target is not None:
        chart.dot(target["flops"], target["parameters"], "c1", True, f"target: {target['parameters']:.3g}")
    return chart.canvas.render()


class _LogChart:
    """Axes, horizontally logarithmic and vertically so if asked for."""

    def __init__(
        self,
        variant: str,
        label: str,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str,
        y_label: str,
        log_y: bool,
    ) -> None:
        wide = variant == "wide"
        width, height = (WIDE, 360.0) if wide else (NARROW, 300.0)
        self.canvas = Canvas(width, height, label, variant)
        self.right = width - (78.0 if wide else 60.0)
        self.log_y = log_y
        self._x = Scale(math.log10(x[0]), math.log10(x[1]), 52.0, self.right)
        self._y = Scale(*(math.log10(value) if log_y else value for value in y), height - 40.0, 36.0)
        ticks = log_ticks(*y, 6) if log_y else self._y.ticks(5)
        for value in ticks:
            self.canvas.line(52.0, self.y(value), self.right, self.y(value), "grid")
            self.canvas.text(44.0, self.y(value) + 4, tick_label(value), "end", "tick")
        for value in log_ticks(*x, 8 if wide else 4):
            self.canvas.line(self.x(value), height - 40.0, self.x(value), height - 36.0, "axis")
            text = tick_label(value) if value < 1e10 else f"{value:.0e}".replace("+", "")
            self.canvas.text(self.x(value), height - 22.0, text, "middle", "tick")
        self.canvas.line(52.0, height - 40.0, self.right, height - 40.0, "axis")
        self.canvas.text(0, 12, y_label, "start", "axis-title")
        self.canvas.text(self.right, height - 6.0, x_label, "end", "axis-title")

    def x(self, value: float) -> float:
        return self._x(math.log10(value))

    def y(self, value: float) -> float:
        return self._y(math.log10(value) if self.log_y else value)

    def curve(self, x: Sequence[float], y: Sequence[float], color: str) -> None:
        self.canvas.polyline([(self.x(u), self.y(v)) for u, v in zip(x, y, strict=True)], color)

    def area(self, x: Sequence[float], low: Sequence[float], high: Sequence[float], color: str) -> None:
        border = [(self.x(u), self.y(v)) for u, v in zip(x, low, strict=True)]
        border += [(self.x(u), self.y(v)) for u, v in zip(reversed(x), reversed(high), strict=True)]
        self.canvas.polygon(border, color, "band")

    def dot(self, x: float, y: float, color: str, hollow: bool, title: str) -> None:
        self.canvas.circle(self.x(x), self.y(y), 5.0 if hollow else 4.0, color, "hollow" if hollow else "dot", title)

    def names(self, items: Sequence[tuple[float, str, str]]) -> None:
        places = spread([self.y(value) for value, _, _ in items], 15.0, 36.0, self._y.start)
        for place, (_, name, color) in zip(places, items, strict=True):
            self.canvas.text(self.right + 6, place + 4, name, "start", "label", color)

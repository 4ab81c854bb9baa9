"""Scales, ticks and SVG text, as little as the figures need.

Colours are names of CSS variables of the page; texts are escaped here and nowhere else.
"""

import html
import math
from collections.abc import Iterable, Sequence


def nice_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Chooses round values inside a range.

    Args:
        low (`float`): Lower end.
        high (`float`): Upper end.
        count (`int`, *optional*, defaults to 5): About how many; the result has at most one more.

    Returns:
        `list[float]`: Multiples of 1, 2, 2.5 or 5 times a power of ten, rising.
    """
    if not high > low:
        return [low]
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    steps = [factor * power for factor in (0.5, 1, 2, 2.5, 5, 10)]
    place = next((i for i, step in enumerate(steps) if step >= raw * (1 - 1e-9)), len(steps) - 1)
    ticks = _multiples(low, high, steps[place])
    # A range may hold a single round value; an axis needs two to be read.
    return ticks if len(ticks) > 1 or not place else _multiples(low, high, steps[place - 1])


def _multiples(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def tick_label(value: float) -> str:
    """Writes an axis value shortly.

    Args:
        value (`float`): The value.

    Returns:
        `str`: `0`, `250k`, `1.5M`, `0.003`, `2e-05`.
    """
    if value == 0:
        return "0"
    size = abs(value)
    for limit, suffix in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if size >= limit:
            return f"{value / limit:.4g}{suffix}"
    return f"{value:.4g}"


class Scale:
    """A linear map from data to pixels.

    Args:
        low (`float`): Data value at `start`.
        high (`float`): Data value at `stop`; equal to `low` counts as a range around it.
        start (`float`): Pixel of `low`.
        stop (`float`): Pixel of `high`.
    """

    def __init__(self, low: float, high: float, start: float, stop: float) -> None:
        if not high > low:
            margin = abs(low) * 0.5 or 1.0
            low, high = low - margin, high + margin
        self.low, self.high, self.start, self.stop = low, high, start, stop

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.stop - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values on the scale.

        Args:
            count (`int`, *optional*, defaults to 5): About how many.

        Returns:
            `list[float]`: Rising values.
        """
        return nice_ticks(self.low, self.high, count)


class Canvas:
    """Collects SVG elements.

    Args:
        width (`float`): Width in CSS pixels.
        height (`float`): Height in CSS pixels.
        label (`str`): What the drawing shows, for those who cannot see it.
        variant (`str`): `"wide"` or `"narrow"`; the page shows one of them.
    """

    def __init__(self, width: float, height: float, label: str, variant: str) -> None:
        self.width, self.height = width, height
        self._parts = [
            f'<svg class="chart {variant}" viewBox="0 0 {width:g} {height:g}" role="img" '
            f'aria-label="{html.escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        ]

    def line(self, x1: float, y1: float, x2: float, y2: float, css: str = "grid", color: str | None = None) -> None:
        """Draws a straight line.

        Args:
            x1 (`float`): Start, horizontally.
            y1 (`float`): Start, vertically.
            x2 (`float`): End, horizontally.
            y2 (`float`): End, vertically.
            css (`str`, *optional*, defaults to `"grid"`): Class.
            color (`str`, *optional*): Variable of the stroke.
        """
        self._parts.append(
            f'<line class="{css}"{_style("stroke", color)} x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'
        )

    def polyline(self, points: Iterable[tuple[float, float]], color: str, css: str = "curve") -> None:
        """Draws a curve through points.

        Args:
            points (`Iterable[tuple[float, float]]`): Pixels.
            color (`str`): Variable of the stroke.
            css (`str`, *optional*, defaults to `"curve"`): Class.
        """
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polyline class="{css}"{_style("stroke", color)} points="{path}"/>')

    def polygon(self, points: Iterable[tuple[float, float]], color: str, css: str = "area") -> None:
        """Fills an area.

        Args:
            points (`Iterable[tuple[float, float]]`): Pixels of its border.
            color (`str`): Variable of the fill.
            css (`str`, *optional*, defaults to `"area"`): Class.
        """
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
        self._parts.append(f'<polygon class="{css}"{_style("fill", color)} points="{path}"/>')

    def rect(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        color: str,
        opacity: float = 1.0,
        title: str = "",
        css: str = "",
    ) -> None:
        """Draws a rectangle.

        Args:
            x (`float`): Left.
            y (`float`): Top.
            width (`float`): Width.
            height (`float`): Height.
            color (`str`): Variable of the fill.
            opacity (`float`, *optional*, defaults to 1.0): Opacity of the fill.
            title (`str`, *optional*): Shown when pointed at.
            css (`str`, *optional*): Class.
        """
        inner = f"<title>{html.escape(title)}</title>" if title else ""
        self._parts.append(
            f'<rect{_class(css)}{_style("fill", color)} fill-opacity="{opacity:.3g}" x="{x:.1f}" y="{y:.1f}" '
            f'width="{max(width, 0):.1f}" height="{max(height, 0):.1f}">{inner}</rect>'
        )

    def circle(self, x: float, y: float, radius: float, color: str, css: str = "dot", title: str = "") -> None:
        """Draws a dot.

        Args:
            x (`float`): Centre, horizontally.
            y (`float`): Centre, vertically.
            radius (`float`): Radius.
            color (`str`): Variable of the colour.
            css (`str`, *optional*, defaults to `"dot"`): Class; `hollow` shows the ground inside.
            title (`str`, *optional*): Shown when pointed at.
        """
        attribute = "stroke" if css == "hollow" else "fill"
        inner = f"<title>{html.escape(title)}</title>" if title else ""
        self._parts.append(
            f'<circle class="{css}"{_style(attribute, color)} cx="{x:.1f}" cy="{y:.1f}" '
            f'r="{radius:g}">{inner}</circle>'
        )

    def text(
        self, x: float, y: float, text: str, anchor: str = "start", css: str = "label", color: str | None = None
    ) -> None:
        """Writes a text; its baseline stands at `y`.

        Args:
            x (`float`): Where it is anchored.
            y (`float`): Baseline.
            text (`str`): The text, not escaped yet.
            anchor (`str`, *optional*, defaults to `"start"`): `"start"`, `"middle"` or `"end"`.
            css (`str`, *optional*, defaults to `"label"`): Class.
            color (`str`, *optional*): Variable of the colour.
        """
        self._parts.append(
            f'<text class="{css}"{_style("fill", color)} x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">'
            f"{html.escape(text)}</text>"
        )

    def render(self) -> str:
        """The drawing.

        Returns:
            `str`: One `<svg>` element.
        """
        return "".join([*self._parts, "</svg>"])


def spread(positions: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves labels apart so that they do not overlap.

    Args:
        positions (`Sequence[float]`): Where the labels would like to stand.
        gap (`float`): Least distance.
        low (`float`): Smallest position allowed.
        high (`float`): Largest position allowed.

    Returns:
        `list[float]`: New positions in the order given, at least `gap` apart where the room allows it.
    """
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    gap = min(gap, (high - low) / max(len(order) - 1, 1))
    placed: list[float] = []
    for index in order:
        placed.append(max(positions[index], placed[-1] + gap if placed else low))
    ceiling = high
    for place in range(len(placed) - 1, -1, -1):
        placed[place] = min(placed[place], ceiling)
        ceiling = placed[place] - gap
    result = [0.0] * len(positions)
    for place, index in enumerate(order):
        result[index] = placed[place]
    return result


def _style(attribute: str, color: str | None) -> str:
    return f' style="{attribute}:var(--{color})"' if color else ""


def _class(css: str) -> str:
    return f' class="{css}"' if css else ""

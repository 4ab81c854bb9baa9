"""The charts of the report, as SVG text.

Every function draws for one variant, wide (720 pixels) or narrow (358); `both` calls it for the two. Lines carry their
names at their ends where there is room, else the page's legend names them; axes say their unit; nothing is drawn that
is not in the data.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hf_pretrain.reporting.canvas import Canvas, Scale, spread, tick_label


WIDE, NARROW = 720.0, 358.0
CATEGORICAL = tuple(f"c{number}" for number in range(1, 9))


@dataclass(frozen=True)
class Series:
    """A named curve.

    Args:
        name (`str`): Its name.
        x (`Sequence[float]`): Rising positions.
        y (`Sequence[float]`): Values.
        color (`str`): Variable of its colour.
        faint (`Sequence[float]`, *optional*): The same values before smoothing, drawn thin behind it.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    color: str
    faint: Sequence[float] | None = None


@dataclass(frozen=True)
class Mark:
    """A border on the horizontal axis.

    Args:
        x (`float`): Where.
        label (`str`): What begins there.
    """

    x: float
    label: str


def both(draw: Callable[[str], str]) -> str:
    """Draws a chart for wide and narrow screens.

    Args:
        draw (`Callable[[str], str]`): Draws one variant, given its name.

    Returns:
        `str`: Both drawings; the page shows the one that fits.
    """
    return draw("wide") + draw("narrow")


def smooth(values: Sequence[float], window: int) -> list[float]:
    """Centred running median, which a single spike does not move; towards the ends over a narrower window.

    Args:
        values (`Sequence[float]`): The values.
        window (`int`): How many to look at, odd.

    Returns:
        `list[float]`: As many values.
    """
    result = []
    for index in range(len(values)):
        half = min(window // 2, index, len(values) - 1 - index)
        result.append(statistics.median(values[index - half : index + half + 1]))
    return result


def thin(values: Sequence[float], most: int) -> list[int]:
    """Chooses points to draw so that peaks survive.

    Args:
        values (`Sequence[float]`): The values.
        most (`int`): About how many points to keep.

    Returns:
        `list[int]`: Rising indices: first, last, and of each stretch its smallest and largest value.
    """
    if len(values) <= most:
        return list(range(len(values)))
    size = len(values) / (most / 2)
    chosen = {0, len(values) - 1}
    for stretch in range(most // 2):
        places = range(int(stretch * size), min(int((stretch + 1) * size), len(values)))
        if places:
            chosen |= {min(places, key=values.__getitem__), max(places, key=values.__getitem__)}
    return sorted(chosen)


def _frame(variant: str, height: float, right: float, left: float = 52.0) -> tuple[float, float, float, float, float]:
    """Width, and the inner borders: left, right, top, bottom."""
    if variant == "wide":
        return WIDE, left, WIDE - right, 36.0, height - 40.0
    return NARROW, 40.0, NARROW - 10.0, 36.0, height - 38.0


def _axes(canvas: Canvas, x: Scale, y: Scale, x_label: str, y_label: str, variant: str) -> None:
    for value in y.ticks(4):
        canvas.line(x.start, y(value), x.stop, y(value), "grid")
        canvas.text(x.start - 8, y(value) + 4, tick_label(value), "end", "tick")
    for value in x.ticks(6 if variant == "wide" else 3):
        canvas.line(x(value), y.start, x(value), y.start + 4, "axis")
        canvas.text(x(value), y.start + 18, tick_label(value), "middle", "tick")
    canvas.line(x.start, y.start, x.stop, y.start, "axis")
    canvas.text(0, 12, y_label, "start", "axis-title")
    canvas.text(x.stop, y.start + 33, x_label, "end", "axis-title")


def _marks(canvas: Canvas, marks: Sequence[Mark], x: Scale, top: float, bottom: float, variant: str) -> None:
    for number, mark in enumerate(marks):
        if number:
            canvas.line(x(mark.x), top - 6, x(mark.x), bottom, "mark")
        place = max(x(mark.x), x.start)
        following = x(marks[number + 1].x) if number + 1 < len(marks) else canvas.width
        # A label is left out rather than drawn over its neighbour; the table below names every stage.
        if following - place > 6.6 * len(mark.label) + 8:
            canvas.text(place + 5, top + 4, mark.label, "start", "mark-label")


def line_chart(
    variant: str,
    series: Sequence[Series],
    label: str,
    x_label: str,
    y_label: str,
    marks: Sequence[Mark] = (),
    height: float = 300.0,
    from_zero: bool = False,
    name_ends: bool = True,
) -> str:
    """Curves over one axis.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        series (`Sequence[Series]`): The curves.
        label (`str`): What the chart shows.
        x_label (`str`): Name and unit of the horizontal axis.
        y_label (`str`): Name and unit of the vertical axis.
        marks (`Sequence[Mark]`, *optional*): Borders of stages.
        height (`float`, *optional*, defaults to 300.0): Height in pixels.
        from_zero (`bool`, *optional*, defaults to `False`): Whether the vertical axis begins at 0.
        name_ends (`bool`, *optional*, defaults to `True`): Whether several curves are named at their ends, where
            there is room.

    Returns:
        `str`: An `<svg>` element.
    """
    height = height if variant == "wide" else height * 0.86
    named = name_ends and len(series) > 1
    width, left, right, top, bottom = _frame(variant, height, 104.0 if named else 16.0)
    canvas = Canvas(width, height, label, variant)
    every = [value for one in series for value in (*one.y, *(one.faint or ()))]
    low, high = min(every), max(every)
    if from_zero:
        low = min(low, 0.0)
    pad = (high - low) * 0.06
    x = Scale(min(one.x[0] for one in series), max(one.x[-1] for one in series), left, right)
    y = Scale(low if from_zero else low - pad, high + pad, bottom, top + 8)
    _axes(canvas, x, y, x_label, y_label, variant)
    _marks(canvas, marks, x, top - 4, bottom, variant)
    most = 320 if variant == "wide" else 160
    for one in series:
        if one.faint is not None:
            places = thin(one.faint, most * 2)
            canvas.polyline([(x(one.x[i]), y(one.faint[i])) for i in places], one.color, "curve faint")
        places = thin(one.y, most)
        canvas.polyline([(x(one.x[i]), y(one.y[i])) for i in places], one.color)
    if named and variant == "wide":
        ends = spread([y(one.y[-1]) for one in series], 15.0, top, bottom)
        for one, place in zip(series, ends, strict=True):
            canvas.text(x(one.x[-1]) + 8, place + 4, one.name, "start", "name", one.color)
    return canvas.render()


def stacked_shares(
    variant: str,
    x_values: Sequence[float],
    shares: dict[str, Sequence[float]],
    colors: dict[str, str],
    label: str,
    x_label: str,
    marks: Sequence[Mark] = (),
    height: float = 240.0,
) -> str:
    """Shares of a whole over time, stacked.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        x_values (`Sequence[float]`): Borders of the stretches, one more than there are shares.
        shares (`dict[str, Sequence[float]]`): For each name its share in each stretch, from 0 to 1.
        colors (`dict[str, str]`): Variable of the colour by name.
        label (`str`): What the chart shows.
        x_label (`str`): Name and unit of the horizontal axis.
        marks (`Sequence[Mark]`, *optional*): Borders of stages.
        height (`float`, *optional*, defaults to 240.0): Height in pixels.

    Returns:
        `str`: An `<svg>` element.
    """
    height = height if variant == "wide" else height * 0.86
    width, left, right, top, bottom = _frame(variant, height, 16.0)
    canvas = Canvas(width, height, label, variant)
    x, y = Scale(x_values[0], x_values[-1], left, right), Scale(0.0, 1.0, bottom, top + 8)
    count = len(x_values) - 1
    base = [0.0] * count
    for name, values in shares.items():
        upper = [low + share for low, share in zip(base, values, strict=True)]
        # Steps, not slopes: a share belongs to its whole stretch.
        outline = [(x(x_values[i + side]), y(upper[i])) for i in range(count) for side in (0, 1)]
        outline += [(x(x_values[i + side]), y(base[i])) for i in reversed(range(count)) for side in (1, 0)]
        canvas.polygon(outline, colors[name])
        base = upper
    for value in (0.0, 0.25, 0.5, 0.75, 1.0):
        canvas.text(left - 8, y(value) + 4, f"{value:.0%}", "end", "tick")
    for value in x.ticks(6 if variant == "wide" else 3):
        canvas.line(x(value), bottom, x(value), bottom + 4, "axis")
        canvas.text(x(value), bottom + 18, tick_label(value), "middle", "tick")
    canvas.text(0, 12, "share of tokens", "start", "axis-title")
    canvas.text(right, bottom + 33, x_label, "end", "axis-title")
    _marks(canvas, marks, x, top - 4, top + 2, variant)
    for mark in marks[1:]:
        canvas.line(x(mark.x), top + 8, x(mark.x), bottom, "mark over")
    return canvas.render()


def heat_map(variant: str, rows: Sequence[Sequence[float]], label: str, row_name: str, column_name: str) -> str:
    """Values around 1 as a grid of cells: deeper is larger, hatched by a frame is none at all.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        rows (`Sequence[Sequence[float]]`): Values by row and column; 1 is balanced.
        label (`str`): What the chart shows.
        row_name (`str`): What a row is, e.g. `"layer"`.
        column_name (`str`): What a column is, e.g. `"expert"`.

    Returns:
        `str`: An `<svg>` element.
    """
    columns = max(len(row) for row in rows)
    width = WIDE if variant == "wide" else NARROW
    left, top = 64.0 if variant == "wide" else 52.0, 26.0
    cell_width = (width - left - 4) / columns
    cell_height = min(34.0, max(16.0, cell_width * 0.5)) if variant == "wide" else 26.0
    canvas = Canvas(width, top + cell_height * len(rows) + 4, label, variant)
    step = max(1, columns // (16 if variant == "wide" else 8))
    for column in range(0, columns, step):
        canvas.text(left + (column + 0.5) * cell_width, top - 8, str(column), "middle", "tick")
    canvas.text(0, top - 8, column_name, "start", "axis-title")
    show_values = cell_width >= 34
    largest = max((value for row in rows for value in row), default=1.0) or 1.0
    for number, row in enumerate(rows):
        above = top + number * cell_height
        canvas.text(left - 10, above + cell_height / 2 + 4, f"{row_name} {number}", "end", "tick")
        for column, value in enumerate(row):
            place = left + column * cell_width
            depth = 0.08 + 0.84 * value / max(largest, 2.0)
            canvas.rect(
                place + 1,
                above + 1,
                cell_width - 2,
                cell_height - 2,
                "c1",
                depth if value else 0.0,
                f"{row_name} {number}, {column_name} {column}: {value:.2f}",
                "cell",
            )
            if show_values:
                canvas.text(
                    place + cell_width / 2,
                    above + cell_height / 2 + 4,
                    f"{value:.2f}",
                    "middle",
                    "cell-value deep" if depth > 0.8 else "cell-value",
                )
    return canvas.render()


def dumbbells(
    variant: str,
    rows: Sequence[tuple[str, Sequence[float]]],
    names: Sequence[str],
    colors: Sequence[str],
    label: str,
    x_label: str,
) -> str:
    """One line a row, from the first value to the last, with a dot for each.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        rows (`Sequence[tuple[str, Sequence[float]]]`): Name of the row and its values, one for each of `names`.
        names (`Sequence[str]`): What the values are, in order; the first is drawn hollow.
        colors (`Sequence[str]`): Variable of the colour for each of `names`.
        label (`str`): What the chart shows.
        x_label (`str`): Name and unit of the horizontal axis.

    Returns:
        `str`: An `<svg>` element.
    """
    wide = variant == "wide"
    pitch, top = 34.0, 10.0
    width = WIDE if wide else NARROW
    left = min(140.0 if wide else 96.0, 14.0 + 7.2 * max(len(name) for name, _ in rows))
    bottom = top + pitch * len(rows)
    canvas = Canvas(width, bottom + 40, label, variant)
    values = [value for _, row in rows for value in row]
    low, high = min(values), max(values)
    margin = (high - low) * 0.05 or 0.1
    x = Scale(low - margin, high + margin, left, width - (12 if wide else 10))
    for value in x.ticks(6 if wide else 3):
        canvas.line(x(value), top, x(value), bottom, "grid")
        canvas.text(x(value), bottom + 18, tick_label(value), "middle", "tick")
    canvas.text(x.stop, bottom + 34, x_label, "end", "axis-title")
    for number, (name, row) in enumerate(rows):
        middle = top + pitch * (number + 0.5)
        canvas.text(left - 12, middle + 4, name, "end", "label strong" if name == "all" else "label")
        canvas.line(x(max(row)), middle, x(min(row)), middle, "span")
        for place, value in enumerate(row):
            css = "hollow" if place == 0 and len(row) > 1 else "dot"
            radius = 5.5 if place in (0, len(row) - 1) else 4.0
            canvas.circle(x(value), middle, radius, colors[place], css, f"{names[place]}: {value:.3f}")
    return canvas.render()


def intervals(
    variant: str,
    rows: Sequence[tuple[str, Sequence[tuple[float, float, float, str]]]],
    label: str,
    x_label: str,
) -> str:
    """Values with their intervals, the ones that belong together on one row.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        rows (`Sequence[tuple[str, Sequence[tuple[float, float, float, str]]]]`): Name of a row, and for each of its
            values: the value, lower end, upper end, variable of the colour.
        label (`str`): What the chart shows.
        x_label (`str`): Name and unit of the horizontal axis.

    Returns:
        `str`: An `<svg>` element.
    """
    wide = variant == "wide"
    pitch, apart, top = 38.0, 12.0, 4.0
    width = WIDE if wide else NARROW
    left = min(150.0 if wide else 104.0, 14.0 + 7.2 * max(len(name) for name, _ in rows))
    bottom = top + pitch * len(rows)
    canvas = Canvas(width, bottom + 40, label, variant)
    low = min(value[1] for _, values in rows for value in values)
    high = max(value[2] for _, values in rows for value in values)
    margin = (high - low) * 0.06 or 0.1
    x = Scale(low - margin, high + margin, left, width - 12)
    for value in x.ticks(6 if wide else 3):
        canvas.line(x(value), top, x(value), bottom, "grid")
        canvas.text(x(value), bottom + 18, tick_label(value), "middle", "tick")
    canvas.text(x.stop, bottom + 34, x_label, "end", "axis-title")
    for number, (name, values) in enumerate(rows):
        middle = top + pitch * (number + 0.5)
        canvas.text(left - 12, middle + 4, name, "end")
        for place, (value, lower, upper, color) in enumerate(values):
            height = middle + apart * (place - (len(values) - 1) / 2)
            canvas.line(x(lower), height, x(upper), height, "interval", color)
            canvas.circle(x(value), height, 4.5, color, "dot", f"{value:.3f} ({lower:.3f} to {upper:.3f})")
    return canvas.render()


def bars(variant: str, rows: Sequence[tuple[str, float, float | None, str, str]], label: str) -> str:
    """Horizontal bars with their values written at the end.

    Args:
        variant (`str`): `"wide"` or `"narrow"`.
        rows (`Sequence[tuple[str, float, float | None, str, str]]`): Name, length, length of the outline behind it (or
            `None`), text at the end, variable of the colour.
        label (`str`): What the chart shows.

    Returns:
        `str`: An `<svg>` element.
    """
    wide = variant == "wide"
    width = WIDE if wide else NARROW
    # On a narrow screen name and value stand above the bar.
    pitch, thick = (28.0, 17.0) if wide else (42.0, 13.0)
    left = min(210.0, 14.0 + 7.2 * max(len(row[0]) for row in rows)) if wide else 0.0
    canvas = Canvas(width, pitch * len(rows) + 4, label, variant)
    longest = max(max(row[1], row[2] or 0.0) for row in rows) or 1.0
    room = width - left - (14.0 + 7.2 * max(len(row[3]) for row in rows) if wide else 4.0)
    for number, (name, value, outline, note, color) in enumerate(rows):
        above = pitch * number + 2
        length = max(room * value / longest, 1.0 if value else 0.0)
        behind = room * (outline or 0.0) / longest
        if wide:
            canvas.text(left - 12, above + thick - 4, name, "end")
            canvas.text(left + max(length, behind) + 8, above + thick - 4, note, "start", "value")
        else:
            canvas.text(0, above + 12, name, "start")
            canvas.text(width - 4, above + 12, note, "end", "value")
            above += 18
        if behind:
            canvas.rect(left, above, behind, thick, color, 0.22, css="bar")
        canvas.rect(left, above, length, thick, color, css="bar", title=f"{name}: {note}")
    return canvas.render()

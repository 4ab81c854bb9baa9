"""Charts are valid SVG, draw what the data say, and survive odd data."""

import re
import xml.etree.ElementTree as ElementTree

import pytest

from hf_pretrain.reporting import figures
from hf_pretrain.reporting.figures import Mark, Series


SVG = "{http://www.w3.org/2000/svg}"
VARIANTS = ["wide", "narrow"]


def parse(svg):
    assert "nan" not in svg and "inf" not in svg
    return ElementTree.fromstring(svg)


def texts(root):
    return [element.text for element in root.iter(f"{SVG}text")]


@pytest.mark.parametrize("variant", VARIANTS)
def test_line_chart_maps_values_to_heights(variant):
    series = [Series("a", [0, 1, 2], [1.0, 3.0, 2.0], "c1"), Series("b", [0, 1, 2], [2.0, 2.0, 2.0], "c2")]
    root = parse(figures.line_chart(variant, series, "x", "tokens", "loss", [Mark(0, "s"), Mark(1, "t")]))
    first, second = root.iter(f"{SVG}polyline")
    heights = [float(point.split(",")[1]) for point in first.attrib["points"].split()]
    assert heights[1] < heights[2] < heights[0]
    flat = {point.split(",")[1] for point in second.attrib["points"].split()}
    assert flat == {f"{heights[2]:.1f}"}
    assert {"tokens", "loss"} <= set(texts(root))
    assert ("a" in texts(root)) == (variant == "wide")


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e-9, 1e9], [-3.0, -2.0]])
def test_line_chart_survives_odd_values(variant, values):
    x = list(range(len(values)))
    parse(figures.line_chart(variant, [Series("a", x, values, "c1", values)], "x", "t", "y"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_shares_fill_the_whole(variant):
    shares = {"a": [0.25, 0.5], "b": [0.75, 0.5]}
    root = parse(figures.stacked_shares(variant, [0, 1, 2], shares, {"a": "c1", "b": "c2"}, "x", "tokens"))
    lower, upper = (
        [tuple(map(float, point.split(","))) for point in polygon.attrib["points"].split()]
        for polygon in root.iter(f"{SVG}polygon")
    )
    height = max(y for _, y in lower) - min(y for _, y in upper)
    first = max(y for _, y in lower) - lower[0][1]
    assert first / height == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("variant", VARIANTS)
def test_heat_map_is_deeper_for_more_and_empty_for_none(variant):
    root = parse(figures.heat_map(variant, [[0.0, 1.0, 2.0]], "x", "layer", "expert"))
    depth = [float(rect.attrib["fill-opacity"]) for rect in root.iter(f"{SVG}rect")]
    assert depth[0] == 0 < depth[1] < depth[2] <= 1
    parse(figures.heat_map(variant, [[1.0] * 64] * 3, "x", "layer", "expert"))


@pytest.mark.parametrize("variant", VARIANTS)
def test_rows_of_dots_bars_and_intervals(variant):
    root = parse(figures.dumbbells(variant, [("s", [3.0, 2.0])], ["m", "n"], ["c8", "c1"], "x", "bits"))
    assert [circle.attrib["class"] for circle in root.iter(f"{SVG}circle")] == ["hollow", "dot"]
    root = parse(
        figures.bars(
            variant, [("all", 10, None, "10", "c8"), ("half", 5, None, "5", "c1"), ("none", 0, None, "0", "c1")], "x"
        )
    )
    widths = [float(rect.attrib["width"]) for rect in root.iter(f"{SVG}rect")]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.2) and widths[2] == 0
    root = parse(figures.intervals(variant, [("m", [(2.0, 1.0, 3.0, "c1"), (2.0, 1.5, 2.5, "c2")])], "x", "bits"))
    spans = [line for line in root.iter(f"{SVG}line") if line.attrib["class"] == "interval"]
    lengths = [float(line.attrib["x2"]) - float(line.attrib["x1"]) for line in spans]
    assert lengths[0] == pytest.approx(2 * lengths[1], abs=0.2)


def test_median_ignores_a_spike_and_keeps_the_ends():
    values = [float(v) for v in range(20)]
    values[10] = 900.0
    smoothed = figures.smooth(values, 5)
    assert max(smoothed) < 20
    assert (smoothed[0], smoothed[-1]) == (0.0, 19.0)


def test_thinning_keeps_peaks_and_ends():
    values = [0.0] * 5000
    values[1234] = 7.0
    places = figures.thin(values, 100)
    assert {0, 1234, 4999} <= set(places) and len(places) <= 104
    assert figures.thin([1.0, 2.0], 100) == [0, 1]


def test_both_variants_are_drawn():
    svg = figures.both(lambda variant: figures.bars(variant, [("a", 1, 2, "1", "c1")], "x"))
    assert re.findall(r'class="chart (\w+)"', svg) == ["wide", "narrow"]

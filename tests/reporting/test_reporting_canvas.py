"""Scales, ticks and the few SVG elements."""

import xml.etree.ElementTree as ElementTree

import pytest

from hf_pretrain.reporting.canvas import Canvas, Scale, nice_ticks, spread, tick_label


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (0, 10, [0, 2, 4, 6, 8, 10]),
        (3.9, 8.4, [4, 5, 6, 7, 8]),
        (0, 3e-3, [0, 0.001, 0.002, 0.003]),
        (-1, 1, [-1, -0.5, 0, 0.5, 1]),
        (2, 2, [2]),
    ],
)
def test_ticks_are_round_and_inside(low, high, expected):
    assert nice_ticks(low, high) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (250_000, "250k"), (1.5e6, "1.5M"), (0.003, "0.003"), (2e-5, "2e-05"), (-3, "-3")]
)
def test_tick_labels_are_short(value, text):
    assert tick_label(value) == text


def test_scale_maps_ends_and_survives_a_single_value():
    scale = Scale(2.0, 4.0, 100.0, 0.0)
    assert (scale(2.0), scale(3.0), scale(4.0)) == (100.0, 50.0, 0.0)
    assert Scale(5.0, 5.0, 0.0, 10.0)(5.0) == 5.0
    assert Scale(0.0, 0.0, 0.0, 10.0)(0.0) == 5.0


def test_labels_are_moved_apart_within_bounds():
    placed = spread([50, 50, 52, 10], gap=12, low=0, high=100)
    ordered = sorted(placed)
    assert all(b - a >= 12 - 1e-9 for a, b in zip(ordered[:-1], ordered[1:], strict=True))
    assert placed[3] == min(placed) and 0 <= ordered[0] and ordered[-1] <= 100
    crowded = spread([99] * 30, gap=12, low=0, high=100)
    assert min(crowded) >= -1e-9 and max(crowded) <= 100 + 1e-9


def test_texts_are_escaped():
    canvas = Canvas(10, 10, '"><script>', "wide")
    canvas.text(0, 0, "<b>&")
    canvas.rect(0, 0, 1, 1, "c1", title="</title><script>")
    canvas.circle(0, 0, 1, "c1", title="<i>")
    svg = canvas.render()
    assert "<script>" not in svg and "<b>" not in svg and "<i>" not in svg
    root = ElementTree.fromstring(svg)
    assert root.attrib["aria-label"] == '"><script>'

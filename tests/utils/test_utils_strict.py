"""YAML mappings become dataclasses strictly."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


@dataclass
class Inner:
    name: str
    weight: float = 1.0


@dataclass
class Outer:
    size: int = 1
    rate: float = 0.1
    on: bool = False
    mode: Literal["fast", "slow"] = "fast"
    either: int | str = 0
    maybe: float | None = None
    inner: Inner = field(default_factory=lambda: Inner("default"))
    many: list[Inner] = field(default_factory=list)
    shares: dict[str, float] = field(default_factory=dict)
    pair: tuple[int, int] = (0, 0)
    folder: Path = Path(".")
    free: dict[str, Any] = field(default_factory=dict)


def test_values_of_the_right_type_pass() -> None:
    outer = build(
        Outer,
        {
            "size": 3,
            "rate": 1,
            "on": True,
            "mode": "slow",
            "either": "auto",
            "maybe": None,
            "inner": {"name": "a", "weight": 2},
            "many": [{"name": "b"}],
            "shares": {"web": 1},
            "pair": [1, 2],
            "folder": "runs",
            "free": {"x": [1]},
        },
        "file.yaml",
    )
    assert outer.rate == 1.0 and isinstance(outer.rate, float)
    assert outer.inner == Inner("a", 2.0) and outer.many == [Inner("b")]
    assert outer.pair == (1, 2) and outer.folder == Path("runs")


@pytest.mark.parametrize("text, value", [("2e-4", 2e-4), ("1_000", 1000.0)])
def test_numbers_that_yaml_reads_as_text(text: str, value: float) -> None:
    assert build(Outer, {"rate": text}, "f").rate == value


@pytest.mark.parametrize(
    "mapping, message",
    [
        ({"rate": True}, "rate = True; a number is expected"),
        ({"size": True}, "size = True; a whole number is expected"),
        ({"size": 1.5}, "size = 1.5; a whole number is expected"),
        ({"size": "abc"}, "size = 'abc'; a whole number is expected"),
        ({"on": 1}, "on = 1; true or false is expected"),
        ({"on": "yes"}, "on = 'yes'; true or false is expected"),
        ({"rate": float("nan")}, "a finite number is expected"),
        ({"rate": None}, "rate = None; a number is expected"),
        ({"mode": "fsat"}, "Did you mean 'fast'"),
        ({"sise": 2}, "f: Unknown key 'sise'. Did you mean 'size'"),
        ({"inner": {"nmae": "x"}}, "f: inner: Unknown key 'nmae'. Did you mean 'name'"),
        ({"inner": {}}, "inner: the key 'name' is missing"),
        ({"many": {"name": "b"}}, "many = .*a list is expected"),
        ({"many": [{"name": 3}]}, r"many\[0\]: name = 3; text is expected"),
        ({"shares": {"web": "lots"}}, "shares.web = 'lots'; a number is expected"),
        ({"pair": [1]}, "pair has 1 items; 2 are expected"),
        ({"either": 1.5}, "whole number or text is expected"),
    ],
)
def test_mistakes_are_named(mapping: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(Outer, mapping, "f")


def test_a_list_is_no_mapping() -> None:
    with pytest.raises(UserError, match="a mapping of keys to values"):
        build(Outer, [1], "f")

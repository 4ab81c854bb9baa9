"""The worth of repeated data: science section 1.5."""

import math
import subprocess
import sys

import pytest

from hf_pretrain.planning.repetition import (
    effective_parameters,
    effective_tokens,
    parse_sources,
    repeat_value,
    repeats_by_source,
    repetition_advice,
)
from hf_pretrain.utils.errors import UserError


EPOCHS = (1, 2, 3, 4, 5, 8, 10, 16, 20, 40, 44, 59, 100)
WORTH = (1, 1.9682, 2.8755, 3.7257, 4.5224, 6.6241, 7.8141, 10.5825, 11.9113, 15.1675, 15.4468, 16.0328, 16.3630)
MARGINAL = (1, 0.9371, 0.8781, 0.8229, 0.7711, 0.6345, 0.5572, 0.3773, 0.2909, 0.0793, 0.0611, 0.0231, 0.0016)


@pytest.mark.parametrize(("epochs", "worth", "marginal"), list(zip(EPOCHS, WORTH, MARGINAL, strict=True)))
def test_table(epochs, worth, marginal):
    assert effective_tokens(epochs * 25e9, 25e9) / 25e9 == pytest.approx(worth, abs=5.1e-5)
    assert repeat_value(epochs) == pytest.approx(marginal, abs=5.1e-5)


def test_limits():
    assert effective_tokens(1e30, 1.0) == pytest.approx(16.3878, abs=5e-5)
    assert effective_tokens(0.5, 1.0) == 0.5
    assert repeat_value(0.3) == 1.0
    assert repeat_value(16.387756) == pytest.approx(1 / math.e)


@pytest.mark.parametrize(("ratio", "expected"), [(2, 1.9115), (4, 3.2919), (8, 4.8890), (16, 5.9948), (1, 1)])
def test_excess_parameters(ratio, expected):
    assert effective_parameters(ratio * 1e9, 1e9) / 1e9 == pytest.approx(expected, abs=5e-5)


def test_advice():
    levels = [repetition_advice(epochs)[0] for epochs in (1, 4, 4.1, 16, 17, 40, 41)]
    assert levels == ["ok", "ok", "warn", "warn", "diminishing", "diminishing", "refuse"]
    assert "4.0 epochs are worth 3.73 of fresh data" in repetition_advice(4)[1]


def test_bad_input():
    with pytest.raises(UserError, match="unique_tokens = 0"):
        effective_tokens(1.0, 0)
    with pytest.raises(UserError, match="tokens = nan"):
        effective_tokens(float("nan"), 1.0)


def test_planning_needs_no_heavy_package():
    code = (
        "import sys; from hf_pretrain.planning import compute, counting, hardware, repetition; "
        "sys.exit(any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'datatrove')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_share_of_fresh_value():
    """D' / D of science section 1.5."""
    kept = (1, 0.9841, 0.9585, 0.9314, 0.9045, 0.8280, 0.7814, 0.6614, 0.5956, 0.3792, 0.3511, 0.2717, 0.1636)
    for epochs, share in zip(EPOCHS, kept, strict=True):
        assert effective_tokens(epochs * 1e9, 1e9) / (epochs * 1e9) == pytest.approx(share, abs=5.1e-5)


def test_each_source():
    held, shares = parse_sources("web=4T:0.7, code=300B:0.3")
    assert held == {"web": 4e12, "code": 3e11} and shares == {"web": 0.7, "code": 0.3}
    web, code = repeats_by_source(2e12, held, shares)
    assert (web.epochs, web.level) == (pytest.approx(0.35), "ok")
    assert (code.epochs, code.level, code.effective_tokens) == (
        pytest.approx(2),
        "ok",
        pytest.approx(1.9682 * 3e11, rel=1e-4),
    )
    even = repeats_by_source(8.6e12, *parse_sources("web=4T,code=300B"))
    assert [row.epochs for row in even] == pytest.approx([2, 2])
    # Science section 8: a share of 0.3 of 1e12 tokens from 5e10 are 6 epochs.
    assert repeats_by_source(1e12, {"a": 5e10, "b": 1e12}, {"a": 0.3, "b": 0.7})[0].epochs == pytest.approx(6)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("web", "write each source once"),
        ("web=1T,web=2T", "write each source once"),
        ("web=4", "a unit is needed"),
        ("web=1T:x", "is no number"),
        ("web=1T:0.5,code=1T", "all of them a share, or none"),
        ("web=1T:0.5,code=1T:0.6", "add up to 1.1"),
        ("web=1T:1,code=1T:0", "share of code = 0"),
    ],
)
def test_bad_sources(text, message):
    with pytest.raises(UserError, match=message):
        repeats_by_source(1e12, *parse_sources(text))
    with pytest.raises(UserError, match="every source needs"):
        repeats_by_source(1e12, {"a": 1e9}, {"b": 1.0})

"""The worth of repeated data: science section 1.5."""

import math
import subprocess
import sys

import pytest

from hf_pretrain.planning.repetition import (
    effective_parameters,
    effective_tokens,
    repeat_value,
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

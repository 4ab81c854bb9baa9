import pytest

from hf_pretrain.utils.duration import parse_duration
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize(
    ("text", "seconds"), [("3h50m", 13800), ("90m", 5400), ("45s", 45), ("1d2h", 93600), ("0.5s", 0.5)]
)
def test_durations(text, seconds):
    assert parse_duration("max_runtime", text) == seconds


@pytest.mark.parametrize("text", ["", "3", "3x", "50m3h", "1h1h", "0s", "-1h", "3h 50m", "h"])
def test_what_is_no_duration_is_refused(text):
    with pytest.raises(UserError, match="max_runtime = .*; a duration such as 3h50m"):
        parse_duration("max_runtime", text)

"""How card and report write numbers: shortly, and in one way, so that each can be found in the facts again."""

from typing import Any

from hf_pretrain.utils.progress import format_count, format_duration


def number(value: Any, digits: int = 3) -> str:
    """Writes a measured number.

    Args:
        value (`Any`): A number, or `None`.
        digits (`int`, *optional*, defaults to 3): Decimals of a float.

    Returns:
        `str`: Integers with thousands separated; `-` for what is not there.
    """
    if value is None or isinstance(value, bool) or not isinstance(value, (int, float)):
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{digits}f}"


def count(value: Any) -> str:
    """Writes a count shortly.

    Args:
        value (`Any`): A number, or `None`.

    Returns:
        `str`: `734`, `12.3k`, `4.56M`; `-` for what is not there.
    """
    return format_count(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"


def duration(value: Any) -> str:
    """Writes a time.

    Args:
        value (`Any`): Seconds, or `None`.

    Returns:
        `str`: `4.2s`, `48s`, `3:07`, `2:05:09`; `-` for what is not there.
    """
    return format_duration(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else "-"


def size(value: Any) -> str:
    """Writes bytes shortly.

    Args:
        value (`Any`): Bytes, or `None`.

    Returns:
        `str`: In bytes, kB, MB or GB, powers of ten; `-` for what is not there.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return "-"
    for limit, unit, digits in ((1e9, "GB", 2), (1e6, "MB", 1), (1e3, "kB", 0)):
        if value >= limit:
            return f"{value / limit:.{digits}f} {unit}"
    # Not "B": beside counts that reads as billions.
    return f"{value:.0f} bytes"

"""Durations as people write them: `3h50m`, `90s`, `1d2h`."""

import re

from hf_pretrain.utils.errors import UserError


_UNITS = {"d": 86400.0, "h": 3600.0, "m": 60.0, "s": 1.0}
_PART = re.compile(r"(\d+(?:\.\d+)?)([dhms])")


def parse_duration(name: str, text: str) -> float:
    """Reads a duration.

    Args:
        name (`str`): The field it comes from, for the message.
        text (`str`): Numbers with the units `d`, `h`, `m` and `s`, the largest first; each at most once.

    Returns:
        `float`: Seconds, above 0.

    Raises:
        UserError: If it is no duration.

    Example:

        >>> parse_duration("max_runtime", "3h50m")
        13800.0
    """
    parts = _PART.findall(text)
    order = ["dhms".index(unit) for _, unit in parts]
    seconds = sum(float(number) * _UNITS[unit] for number, unit in parts)
    whole = "".join(number + unit for number, unit in parts)
    if whole != text or not order or order != sorted(set(order)) or seconds <= 0:
        raise UserError(f"{name} = {text!r}; a duration such as 3h50m, 90m or 45s is needed, above 0")
    return seconds

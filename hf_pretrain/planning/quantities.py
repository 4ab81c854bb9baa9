"""Numbers with their meaning: model sizes under a named convention, "8B" and "15T", and a search in one dimension.

Laws disagree on what N is: Kaplan counts without embeddings, Chinchilla with them, Ludziejewski the active weights,
DeepSeek FLOPs a token. A [`ModelSize`] carries its convention, and a law refuses one of another convention; a bare
number is read in the law's own.
"""

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

from hf_pretrain.planning.counting import ParameterCount
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


PARAM_CONVENTIONS = ("total", "non_embedding", "active", "nonemb_flops_per_token")

_UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
# Below this a number without a unit is taken for a slip ("7" for seven billion), above it for an exact count.
_EXACT_FROM = 100_000


@dataclass(frozen=True)
class ModelSize:
    """A model's size and what it counts.

    Args:
        value (`float`): Parameters, or FLOPs a token for `"nonemb_flops_per_token"`.
        convention (`str`): One of `PARAM_CONVENTIONS`.

    Raises:
        UserError: If the value is not positive, or the convention unknown.
    """

    value: float
    convention: str

    def __post_init__(self) -> None:
        if self.convention not in PARAM_CONVENTIONS:
            raise UserError(unknown_name_message("parameter convention", self.convention, PARAM_CONVENTIONS))
        positive("model size", self.value)

    @classmethod
    def from_counts(cls, counts: ParameterCount, convention: str) -> "ModelSize":
        """Takes the number a law wants from a model's counts.

        Args:
            counts (`ParameterCount`): From [`count_parameters`].
            convention (`str`): `"total"`, `"non_embedding"` or `"active"`.

        Returns:
            `ModelSize`: The size.

        Raises:
            UserError: If the counts do not hold it.
        """
        values = {"total": counts.total, "non_embedding": counts.non_embedding, "active": counts.active}
        if convention not in values:
            raise UserError(unknown_name_message("parameter convention of a count", convention, values))
        return cls(values[convention], convention)


def size_under(size: ModelSize | float, convention: str, law: str) -> float:
    """Reads a model size under a law's convention, and refuses one of another.

    Args:
        size (`ModelSize` or `float`): A bare number is read in the law's own convention.
        convention (`str`): What the law counts.
        law (`str`): Its name, for the message.

    Returns:
        `float`: The value.

    Raises:
        UserError: If the conventions differ, or the number is not positive.
    """
    if isinstance(size, ModelSize):
        if size.convention != convention:
            raise UserError(
                f"model size = {size.value:g} {size.convention}; the law '{law}' counts {convention}: convert it "
                "(ModelSize.from_counts) instead of mixing conventions."
            )
        return float(size.value)
    return positive("parameters", size)


def positive(name: str, value: float) -> float:
    """Checks a number that must be finite and above 0.

    Args:
        name (`str`): For the message.
        value (`float`): The number.

    Returns:
        `float`: The number.

    Raises:
        UserError: If it is not.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= 0:
        raise UserError(f"{name} = {value!r}; a positive number is needed.")
    return float(value)


def not_negative(name: str, value: float) -> float:
    """Checks a number that must be finite and at least 0.

    Args:
        name (`str`): For the message.
        value (`float`): The number.

    Returns:
        `float`: The number.

    Raises:
        UserError: If it is not.
    """
    return 0.0 if value == 0 and not isinstance(value, bool) else positive(name, value)


def parse_count(text: str, name: str = "parameters") -> float:
    """Reads a count of parameters or tokens; a unit is needed.

    Args:
        text (`str`): `"8B"`, `"8b"`, `"350M"`, `"8e9"`, or every digit of it (`"8030261248"`).
        name (`str`, *optional*, defaults to `"parameters"`): For the message.

    Returns:
        `float`: The count.

    Raises:
        UserError: If it cannot be read, has no unit, or is not positive.

    Example:

        >>> parse_count("7b"), parse_count("7e9")
        (7000000000.0, 7000000000.0)
    """
    match = re.fullmatch(r"([+-]?[0-9][0-9_]*\.?[0-9]*|[+-]?\.[0-9]+)(e[+-]?[0-9]+)?([kmbt])?", text.strip(), re.I)
    if match is None:
        raise UserError(f"{name} = {text!r}; write it like 7B, 350M, 15T or 7e9.")
    number, exponent, unit = match.groups()
    value = positive(name, float(number.replace("_", "") + (exponent or "")) * _UNITS.get((unit or "").upper(), 1.0))
    if not unit and not exponent and value < _EXACT_FROM:
        shown = f"{value:g}"
        raise UserError(f"{name} = {text!r}; a unit is needed: {shown}B for {shown} billion, {shown}M, or {shown}e9.")
    return value


def parse_flops(text: str) -> float:
    """Reads a compute budget.

    Args:
        text (`str`): For example `"1e21"`.

    Returns:
        `float`: FLOPs.

    Raises:
        UserError: If it cannot be read, or is so small that the exponent was surely forgotten.
    """
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"flops = {text!r}; write it like 1e21.") from None
    if positive("flops", value) < 1e9:
        raise UserError(f"flops = {text!r}; write all of it with an exponent, like 1e21.")
    return value


def format_count(value: float) -> str:
    """Writes a count as people do.

    Args:
        value (`float`): For example 8e9.

    Returns:
        `str`: For example `"8.00B"`.
    """
    for unit, size in reversed(_UNITS.items()):
        if value >= 0.9995 * size:
            scaled = value / size
            return f"{scaled:.{2 if scaled < 9.995 else 1 if scaled < 99.95 else 0}f}{unit}"
    return f"{value:.3g}"


def minimise(function: Callable[[float], float], low: float, high: float, scan: int = 64) -> float:
    """Finds the minimum of a smooth function of one variable: a scan, then golden sections around the best point.

    Args:
        function (`Callable`): Of one number; infinite where it is not defined.
        low (`float`): Lower end.
        high (`float`): Upper end.
        scan (`int`, *optional*, defaults to 64): Intervals of the scan.

    Returns:
        `float`: Where the minimum is, to about 1e-8 of the interval.
    """
    points = [low + (high - low) * index / scan for index in range(scan + 1)]
    best = min(range(scan + 1), key=lambda index: function(points[index]))
    left, right = points[max(best - 1, 0)], points[min(best + 1, scan)]
    ratio = (math.sqrt(5) - 1) / 2
    first, second = right - ratio * (right - left), left + ratio * (right - left)
    value_first, value_second = function(first), function(second)
    while right - left > 1e-10 * max(abs(left), abs(right), 1.0):
        if value_first < value_second:
            right, second, value_second = second, first, value_first
            first = right - ratio * (right - left)
            value_first = function(first)
        else:
            left, first, value_first = first, second, value_second
            second = left + ratio * (right - left)
            value_second = function(second)
    return (left + right) / 2

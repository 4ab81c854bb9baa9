"""Checks of single settings, shared by the config files of the room: the field, its value, what is allowed."""

from __future__ import annotations

from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


def choice(where: str, value: Any, allowed: tuple[str, ...]) -> None:
    """
    Raise if a value is none of those allowed.

    Args:
        where (`str`): The field, for the message.
        value (`Any`): Its value.
        allowed (`tuple[str, ...]`): What it may be.

    Raises:
        UserError: If it is something else.
    """
    if value not in allowed:
        raise UserError(f"{where} = {value!r}; {unknown_name_message('value', str(value), allowed)}")


def between(where: str, value: float | None, low: float, high: float) -> None:
    """
    Raise if a number lies outside a range.

    Args:
        where (`str`): The field, for the message.
        value (`float`, *optional*): Its value; `None` passes.
        low (`float`): Smallest value allowed.
        high (`float`): Largest value allowed.

    Raises:
        UserError: If it lies outside.
    """
    if value is not None and not low <= value <= high:
        raise UserError(f"{where} = {value!r}; allowed is {low} to {high}")


def at_least(where: str, value: float | None, low: float) -> None:
    """
    Raise if a number is too small.

    Args:
        where (`str`): The field, for the message.
        value (`float`, *optional*): Its value; `None` passes.
        low (`float`): Smallest value allowed.

    Raises:
        UserError: If it is smaller.
    """
    if value is not None and value < low:
        raise UserError(f"{where} = {value!r}; allowed is {low} or more")

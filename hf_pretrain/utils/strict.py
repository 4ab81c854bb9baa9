"""A YAML mapping to a dataclass, strictly.

YAML is generous: `true` passes for a number, a typing error in a key is a key nobody reads. Here an unknown key, a
missing key and a wrong type are errors that name file and field and say what was probably meant. Conversions are few:
an `int` for a `float`, `"2e-4"` (a YAML quirk: text) for a `float`, `256_000` (also text) for an `int`.
"""

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, TypeVar, Union

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


T = TypeVar("T")


def build(cls: type[T], mapping: Mapping[str, Any] | None, where: str) -> T:
    """Makes a dataclass instance of a mapping.

    Args:
        cls (`type`): A dataclass. Nested dataclasses, `list`, `tuple`, `dict`, `Literal` and unions are followed.
        mapping (`Mapping`): What was read; `None` counts as empty.
        where (`str`): Where it was read, for messages, e.g. `"recipes/tiny_cpu/1_corpus.yaml"`.

    Returns:
        `cls`: The instance.

    Raises:
        UserError: If a key is unknown or missing, or a value has the wrong type.
    """
    if mapping is None:
        mapping = {}
    if not isinstance(mapping, Mapping):
        raise UserError(f"{where} = {mapping!r}; a mapping of keys to values is expected here.")
    hints = typing.get_type_hints(cls)
    fields = {field.name: field for field in dataclasses.fields(cls) if field.init}
    for key in mapping:
        if key not in fields:
            raise UserError(f"{where}: {unknown_name_message('key', str(key), fields)}")
    values = {key: convert(hints[key], value, f"{where}: {key}") for key, value in mapping.items()}
    missing = [
        name
        for name, field in fields.items()
        if name not in values and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    if missing:
        raise UserError(f"{where}: the key '{missing[0]}' is missing; add it.")
    try:
        return cls(**values)
    except UserError as error:
        raise UserError(f"{where}: {error}") from error


def convert(hint: Any, value: Any, where: str) -> Any:
    """Checks a value against a type annotation.

    Args:
        hint (`Any`): The annotation.
        value (`Any`): What was read.
        where (`str`): File and field, for messages.

    Returns:
        `Any`: The value, converted where the annotation asks for it.

    Raises:
        UserError: If the value does not fit.
    """
    if hint is Any or hint is dataclasses.MISSING:
        return value
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_union(arguments, value, where)
    if origin is Literal:
        # `True == 1` in Python, so the type is compared as well.
        if any(value == option and type(value) is type(option) for option in arguments):
            return value
        if isinstance(value, str):
            raise UserError(f"{where} = {value!r}; {unknown_name_message('value', value, map(str, arguments))}")
        raise UserError(f"{where} = {value!r}; one of {', '.join(map(repr, arguments))} is expected.")
    if origin in (list, tuple, set, frozenset) or hint in (list, tuple, set, frozenset):
        return _convert_sequence(origin or hint, arguments, value, where)
    if origin is dict or hint is dict:
        if not isinstance(value, Mapping):
            raise UserError(f"{where} = {value!r}; a mapping is expected.")
        if not arguments:
            return dict(value)
        return {
            convert(arguments[0], key, f"{where} (a key)"): convert(arguments[1], item, f"{where}.{key}")
            for key, item in value.items()
        }
    if dataclasses.is_dataclass(hint):
        return value if isinstance(value, hint) else build(hint, value, where)
    return _convert_scalar(hint, value, where)


def _convert_union(arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if value is None:
        if type(None) in arguments:
            return None
        raise UserError(f"{where} is empty; {_describe(arguments)} is expected.")
    options = [argument for argument in arguments if argument is not type(None)]
    # An exact type first, so that "3" stays text in `int | str`.
    options.sort(key=lambda option: not (isinstance(option, type) and type(value) is option))
    problems = []
    for option in options:
        try:
            return convert(option, value, where)
        except UserError as error:
            problems.append(error)
    if len(options) == 1:
        raise problems[0]
    raise UserError(f"{where} = {value!r}; {_describe(arguments)} is expected.")


def _convert_sequence(kind: type, arguments: tuple[Any, ...], value: Any, where: str) -> Any:
    if isinstance(value, (str, bytes, Mapping)) or not isinstance(value, (list, tuple, set, frozenset)):
        raise UserError(f"{where} = {value!r}; a list is expected.")
    items = list(value)
    if not arguments:
        return kind(items)
    if kind is tuple and len(arguments) > 1 and arguments[1] is not Ellipsis:
        if len(items) != len(arguments):
            raise UserError(f"{where} has {len(items)} items; {len(arguments)} are expected.")
        return tuple(
            convert(hint, item, f"{where}[{index}]")
            for index, (hint, item) in enumerate(zip(arguments, items, strict=True))
        )
    return kind(convert(arguments[0], item, f"{where}[{index}]") for index, item in enumerate(items))


def _convert_scalar(hint: Any, value: Any, where: str) -> Any:
    if hint is type(None) and value is None:
        return None
    if hint is bool and isinstance(value, bool):
        return value
    if hint is str and isinstance(value, str):
        return value
    if hint in (int, float) and not isinstance(value, bool):
        if isinstance(value, str):
            number = _number(value)
            value = value if number is None else number
        if hint is int and isinstance(value, int):
            return value
        if hint is int and isinstance(value, float) and value.is_integer():
            return int(value)
        if hint is float and isinstance(value, (int, float)):
            if not math.isfinite(value):
                raise UserError(f"{where} = {value}; a finite number is expected.")
            return float(value)
    if isinstance(hint, type) and hint not in (bool, str, int, float):
        if isinstance(value, hint):
            return value
        if isinstance(value, str) and hasattr(hint, "__fspath__"):
            return hint(value)
    raise UserError(f"{where} = {value!r}; {_describe((hint,))} is expected.")


def _number(text: str) -> int | float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def _describe(arguments: tuple[Any, ...]) -> str:
    names = {bool: "true or false", int: "a whole number", float: "a number", str: "text", type(None): "nothing"}
    words = [names.get(argument, getattr(argument, "__name__", str(argument))) for argument in arguments]
    return " or ".join(words)

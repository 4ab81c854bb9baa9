"""Short names for "this configuration on these inputs".

A fingerprint is 16 hexadecimal digits of a SHA-256: equal fingerprints mean that a finished step need not run again.
"""

import dataclasses
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import sha256_file


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return _plain(dataclasses.asdict(value))
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(item) for item in value), key=repr)
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    raise TypeError(f"A fingerprint needs plain data, got {type(value).__name__}: {value!r}")


def fingerprint(value: Any) -> str:
    """Fingerprints plain data: the same content gives the same digits, whatever the order of keys.

    Args:
        value (`Any`): Dataclasses, dictionaries, lists, sets, paths, strings, numbers, `None`.

    Returns:
        `str`: 16 hexadecimal digits.

    Raises:
        TypeError: If something else is inside; its text could hold an address and change at every run.
    """
    text = json.dumps(_plain(value), sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def fingerprint_files(paths: Iterable[str | os.PathLike]) -> str:
    """Fingerprints files by name, size and content, in the order of their names.

    Args:
        paths (`Iterable[str | os.PathLike]`): The files.

    Returns:
        `str`: 16 hexadecimal digits.
    """
    files = sorted(Path(path) for path in paths)
    return fingerprint([[file.name, file.stat().st_size, sha256_file(file)] for file in files])

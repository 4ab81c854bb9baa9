"""`facts.json`: every number a run has earned.

Card, report and README take their numbers from this file and from nowhere else. Each stage replaces its own section;
a lock file keeps two writers apart, and a write is atomic.
"""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import UserError


SCHEMA = 1


def _check_finite(value: Any, where: str) -> None:
    if isinstance(value, bool) or value is None or isinstance(value, (str, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{where} = {value}; facts hold finite numbers: leave the key out or record a reason.")
        return
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"{where} has the key {key!r}; facts have text keys.")
            _check_finite(item, f"{where}.{key}")
        return
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            _check_finite(item, f"{where}[{index}]")
        return
    raise TypeError(f"{where} is a {type(value).__name__}; facts hold plain JSON data.")


class Facts:
    """The facts of one run folder.

    Args:
        run_dir (`str` or `os.PathLike`): The run folder; it is made when the first fact is recorded.
    """

    def __init__(self, run_dir: str | os.PathLike) -> None:
        self.path = Path(run_dir) / "facts.json"

    def load(self) -> dict[str, Any]:
        """Reads all facts.

        Returns:
            `dict`: `{"schema": 1, "stages": {}}` plus whatever was recorded.

        Raises:
            UserError: If the file is not a facts file of this schema.
        """
        try:
            facts = read_json(self.path)
        except FileNotFoundError:
            return {"schema": SCHEMA, "stages": {}}
        except ValueError as error:  # no JSON, or no text at all
            raise UserError(f"{self.path} is no JSON ({error}); move it away to start a new record.") from error
        if not isinstance(facts, dict) or facts.get("schema") != SCHEMA:
            raise UserError(
                f"{self.path} has schema {facts.get('schema') if isinstance(facts, dict) else None!r}; "
                f"this version reads schema {SCHEMA}: use another run folder."
            )
        if not isinstance(facts.get("stages"), dict):
            raise UserError(f"{self.path} has no stages; move it away to start a new record.")
        return facts

    def record(self, section: str, payload: Any) -> None:
        """Replaces one top-level section.

        Args:
            section (`str`): Its name, e.g. `"environment"`.
            payload (`Any`): Plain JSON data with finite numbers.

        Raises:
            ValueError: If a number is not finite.
            TypeError: If something is not plain JSON data.
        """
        _check_finite(payload, section)
        with self._locked():
            facts = self.load()
            facts[section] = payload
            write_json(self.path, facts)

    def record_stage(self, name: str, kind: str, payload: dict[str, Any]) -> None:
        """Replaces the facts of one stage.

        Args:
            name (`str`): The stage's name, e.g. `"2_pretrain"`.
            kind (`str`): What it is, e.g. `"pretrain"`.
            payload (`dict`): Plain JSON data with finite numbers.

        Raises:
            ValueError: If a number is not finite.
            TypeError: If something is not plain JSON data.
        """
        _check_finite(payload, name)
        with self._locked():
            facts = self.load()
            facts["stages"][name] = {"kind": kind, **payload}
            write_json(self.path, facts)

    def annotate_stage(self, name: str, **extra: Any) -> None:
        """Adds to the facts of a stage, keeping the rest.

        Args:
            name (`str`): The stage's name.
            extra (`Any`): Plain JSON data.

        Raises:
            ValueError: If a number is not finite.
            TypeError: If something is not plain JSON data.
        """
        _check_finite(extra, name)
        with self._locked():
            facts = self.load()
            facts["stages"].setdefault(name, {}).update(extra)
            write_json(self.path, facts)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with open(self.path.with_name(".facts.lock"), "w") as stream:
            try:
                import fcntl
            except ImportError:  # Windows: one writer is the rule there.
                yield
                return
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield

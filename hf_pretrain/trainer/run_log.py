"""`log.jsonl`: one JSON line for every line the Trainer logs, safe to read while a run goes on."""

import json
import math
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import write_text


LOG_FILE = "log.jsonl"


def plain(value: Any) -> Any:
    """Makes a logged value plain JSON data.

    Args:
        value (`Any`): A number, text, list, mapping or something with `item()` such as a tensor.

    Returns:
        `Any`: The value; a number that is not finite becomes `None`, which JSON can hold.
    """
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


class RunLog:
    """The log file of one run.

    Args:
        folder (`str` or `Path`): The stage's folder.
    """

    def __init__(self, folder: str | Path) -> None:
        self.path = Path(folder) / LOG_FILE

    def restart(self, history: Iterable[dict[str, Any]]) -> None:
        """Writes the lines of the steps a run goes on from; later ones of an interrupted run are dropped.

        Args:
            history (`Iterable[dict]`): The Trainer's `log_history`.
        """
        write_text(self.path, "".join(self._line(entry) for entry in history))

    def append(self, entry: dict[str, Any]) -> None:
        """Adds a line.

        Args:
            entry (`dict`): The logged values with their `step`.
        """
        with open(self.path, "a", encoding="utf-8") as stream:
            stream.write(self._line(entry))

    @staticmethod
    def _line(entry: dict[str, Any]) -> str:
        return json.dumps(plain(entry), allow_nan=False) + "\n"

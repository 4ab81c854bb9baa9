"""Instruction rows of the common shapes, brought to one: a list of turns with a role and a text.

Three shapes are read: `messages` (role/content), `conversations` (from/value, as ShareGPT has them, or role/content)
and `prompt`/`completion` (texts, or lists of turns). What cannot be read at all is the user's mistake and raises with
file and line; what can be read but cannot be trained on is set aside with a reason and counted.
"""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.utils.errors import UserError


ROLES = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
}
SHAPES = "`messages`, `conversations`, or `prompt` and `completion`"


class UnusableRow(ValueError):
    """A row that reads well but cannot be trained on.

    Args:
        reason (`str`): A short name to count it under, e.g. `"empty_turn"`.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


@dataclass(frozen=True)
class Conversation:
    """One training example and where it is from.

    Args:
        messages (`tuple[dict[str, str], ...]`): Turns with `role` and `content`; the last one is the assistant's.
        source (`str`): Name of its source.
        id (`str`): Name within the source.
        license (`str`, *optional*): Licence of the text.
        language (`str`, *optional*): Two-letter code, where the source says it.
    """

    messages: tuple[dict[str, str], ...]
    source: str
    id: str
    license: str | None = None
    language: str | None = None

    @property
    def prompt(self) -> str:
        """All that the user and the system say, in order, one turn a line."""
        return "\n".join(turn["content"] for turn in self.messages if turn["role"] != "assistant")

    @property
    def answer(self) -> str:
        """All that the assistant says, in order, one turn a line."""
        return "\n".join(turn["content"] for turn in self.messages if turn["role"] == "assistant")


@dataclass
class ReadResult:
    """What a folder or file of rows held.

    Args:
        conversations (`list[Conversation]`): Usable rows, in file order.
        rows (`dict[str, int]`): Rows read, by source.
        unusable (`dict[str, dict[str, int]]`): Rows set aside, by source and reason.
    """

    conversations: list[Conversation] = field(default_factory=list)
    rows: dict[str, int] = field(default_factory=dict)
    unusable: dict[str, dict[str, int]] = field(default_factory=dict)


def to_messages(row: Mapping[str, Any], where: str = "row") -> tuple[dict[str, str], ...]:
    """Brings one row to checked turns.

    Args:
        row (`Mapping`): A row of one of the three shapes.
        where (`str`, *optional*, defaults to `"row"`): File and line, for messages.

    Returns:
        `tuple[dict[str, str], ...]`: An optional system turn, then user and assistant in turn; the assistant is last.
        User turns after the last answer are left out.

    Raises:
        UserError: If the row has none of the three shapes, or a turn has no role or no text.
        UnusableRow: If a turn is empty, the order of turns is wrong, or the assistant says nothing.
    """
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is a {type(row).__name__}; an object with {SHAPES} is expected.")
    if "messages" in row:
        turns = _turns(row["messages"], f"{where}: messages")
    elif "conversations" in row:
        turns = _turns(row["conversations"], f"{where}: conversations")
    elif "prompt" in row and "completion" in row:
        turns = _side(row["prompt"], "user", f"{where}: prompt")
        turns += _side(row["completion"], "assistant", f"{where}: completion")
    else:
        keys = ", ".join(sorted(map(str, row))) or "no keys"
        raise UserError(f"{where} has {keys}; {SHAPES} is expected.")
    return _checked(turns)


def _side(value: Any, role: str, where: str) -> list[dict[str, str]]:
    if isinstance(value, str):
        return [{"role": role, "content": value}]
    return _turns(value, where)


def _turns(value: Any, where: str) -> list[dict[str, str]]:
    if not isinstance(value, (list, tuple)):
        raise UserError(f"{where} is a {type(value).__name__}; a list of turns is expected.")
    turns = []
    for index, turn in enumerate(value):
        if not isinstance(turn, Mapping):
            raise UserError(
                f"{where}[{index}] is a {type(turn).__name__}; an object with role and content is expected."
            )
        name = turn.get("role", turn.get("from"))
        text = turn.get("content", turn.get("value"))
        if not isinstance(name, str) or name not in ROLES:
            raise UserError(f"{where}[{index}]: role = {name!r}; one of {', '.join(ROLES)} is expected.")
        if not isinstance(text, str):
            raise UserError(f"{where}[{index}]: content = {text!r}; text is expected.")
        turns.append({"role": ROLES[name], "content": text})
    return turns


def _checked(turns: list[dict[str, str]]) -> tuple[dict[str, str], ...]:
    while turns and turns[-1]["role"] != "assistant":
        turns = turns[:-1]
    if not turns:
        raise UnusableRow("no_assistant_turn")
    body = turns[1:] if turns[0]["role"] == "system" else turns
    if any(turn["role"] != ("user", "assistant")[index % 2] for index, turn in enumerate(body)):
        raise UnusableRow("turn_order")
    if any(not turn["content"].strip() for turn in turns):
        raise UnusableRow("empty_turn")
    return tuple(turns)


def iterate_rows(path: str | Path) -> Iterator[tuple[str, Any]]:
    """Reads a JSON-lines file line by line.

    Args:
        path (`str` or `Path`): The file, UTF-8.

    Yields:
        `tuple[str, Any]`: `file:line` and the value of the line; blank lines are passed over.

    Raises:
        UserError: If the file is missing, is not UTF-8, or a line is no JSON.
    """
    path = Path(path)
    try:
        with open(path, encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if not line.strip():
                    continue
                where = f"{path}:{number}"
                try:
                    yield where, json.loads(line)
                except json.JSONDecodeError as error:
                    raise UserError(f"{where} is no JSON ({error}); one object a line is expected.") from error
                except RecursionError as error:
                    raise UserError(f"{where} is JSON nested too deeply; one flat object is expected.") from error
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; give a .jsonl file or a folder of them.") from error
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path} is no UTF-8 text ({error.reason} at byte {error.start}); convert it first."
        ) from error


def read_conversations(path: str | Path) -> ReadResult:
    """Reads a JSON-lines file, or every `*.jsonl` of a folder in the order of names.

    A row may say `source` (else the file's name counts), `id`, `license` and `language`.

    Args:
        path (`str` or `Path`): File or folder.

    Returns:
        `ReadResult`: Conversations and counts.

    Raises:
        UserError: If nothing is there or a row cannot be read.
    """
    path = Path(path)
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise UserError(f"{path} holds no .jsonl files; put instruction rows there or name a file.")
    result, rows, unusable = ReadResult(), Counter(), {}
    for file in files:
        for number, (where, row) in enumerate(iterate_rows(file)):
            source = str(row.get("source") or file.stem) if isinstance(row, Mapping) else file.stem
            rows[source] += 1
            try:
                messages = to_messages(row, where)
            except UnusableRow as problem:
                unusable.setdefault(source, Counter())[problem.reason] += 1
                continue
            result.conversations.append(
                Conversation(
                    messages,
                    source,
                    str(row.get("id", f"{file.stem}/{number}")),
                    row.get("license"),
                    row.get("language"),
                )
            )
    result.rows = dict(rows)
    result.unusable = {source: dict(reasons) for source, reasons in unusable.items()}
    return result

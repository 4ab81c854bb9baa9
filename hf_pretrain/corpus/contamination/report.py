"""Benchmark files in, contamination report out.

The report says for every benchmark how many items it has, how many could be checked and how many were found, and for
every found item in which documents (id, url, source) and how much of it. It is `contamination.json`:

    {"schema": 1, "settings": {...}, "index": "<fingerprint>", "action": "drop",
     "benchmarks": {name: {"revision", "published", "items", "checked", "unchecked", "contaminated", "documents"}},
     "items": [{"benchmark", "item_id", "documents": [{"id", "url", "source", "field", "longest_run", "coverage"}]}]}

`items` lists the contaminated ones alone; every other checked item of a benchmark is clean.
"""

import gzip
import json
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.contamination.index import BenchmarkItem, ContaminationIndex, Match
from hf_pretrain.utils.errors import UserError


@dataclass
class BenchmarkConfig:
    """One benchmark to protect.

    Args:
        name (`str`): Its name; the copy is `benchmarks/<name>.jsonl`.
        path (`str`, *optional*, defaults to `"sample"`): A JSONL file, or `"sample"` for the sample's of that name.
        fields (`list[str]`, *optional*, defaults to `["question"]`): Fields whose texts must not be in the corpus.
        id_key (`str`, *optional*, defaults to `"id"`): Field with the id of an item; without it the row number is
            used.
        revision (`str`, *optional*): Revision of the benchmark; a row's own `revision` goes before it.
        published (`str`, *optional*): Date of publication, ISO; a row's own `published` goes before it.
    """

    name: str
    path: str = "sample"
    fields: list[str] = field(default_factory=lambda: ["question"])
    id_key: str = "id"
    revision: str | None = None
    published: str | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise UserError(
                f"benchmark name = {self.name!r}; letters, digits, '-', '_' and '.' are allowed: rename it."
            )
        if not self.fields:
            raise UserError(f"benchmarks[{self.name!r}].fields is empty; name the fields to look for.")


def read_rows(path: str | Path, what: str) -> Iterator[dict[str, Any]]:
    """Reads a JSONL file of objects, plain or gzip, and names the line where it is broken.

    Args:
        path (`str` or `Path`): The file.
        what (`str`): What it is, for messages.

    Yields:
        `dict`: The object of each line.

    Raises:
        UserError: If the file is missing, no text, or a line is no JSON object.
    """
    number = 0
    opened = gzip.open if str(path).endswith(".gz") else open
    try:
        with opened(path, "rt", encoding="utf-8") as stream:
            for number, line in enumerate(stream, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise UserError(
                            f"{what}: {path}, line {number} is no JSON object; one object a line is needed."
                        )
                    if "\\ud" in line.lower():
                        json.dumps(row, ensure_ascii=False).encode("utf-8")
                    yield row
    except (FileNotFoundError, IsADirectoryError) as error:
        raise UserError(f"{what}: {path} is no file; correct its path.") from error
    except UnicodeDecodeError as error:
        raise UserError(f"{what}: {path} is no UTF-8 text after line {number}.") from error
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise UserError(f"{what}: {path} is damaged or cut off after line {number} ({error}).") from error
    except UnicodeEncodeError as error:
        raise UserError(f"{what}: {path}, line {number} holds a lone surrogate, which is no text.") from error
    except RecursionError as error:
        raise UserError(f"{what}: {path}, line {number} is nested too deeply; one object a line.") from error
    except json.JSONDecodeError as error:
        raise UserError(f"{what}: {path}, line {number} is no JSON ({error.msg}).") from error


def benchmark_items(config: BenchmarkConfig, path: str | Path) -> list[BenchmarkItem]:
    """Reads the texts of a benchmark.

    Args:
        config (`BenchmarkConfig`): The benchmark.
        path (`str` or `Path`): Its file.

    Returns:
        `list[BenchmarkItem]`: One entry an item and field.

    Raises:
        UserError: If a row has none of the fields, or the file has no rows.
    """
    items = []
    for number, row in enumerate(read_rows(path, f"benchmark {config.name!r}"), 1):
        item_id = item_id_of(config, row, number)
        present = [name for name in config.fields if isinstance(row.get(name), (str, list)) and row[name]]
        if not present:
            raise UserError(
                f"benchmark {config.name!r}: row {number} of {path} has no text in {', '.join(config.fields)}; "
                f"its fields are {', '.join(map(str, row))}."
            )
        for name in present:
            text = row[name] if isinstance(row[name], str) else "\n".join(map(str, row[name]))
            revision = row.get("revision", config.revision)
            published = row.get("published", config.published)
            items.append(BenchmarkItem(config.name, item_id, name, text, revision, published))
    if not items:
        raise UserError(f"benchmark {config.name!r}: {path} has no rows.")
    return items


def item_id_of(config: BenchmarkConfig, row: dict[str, Any], number: int) -> str:
    """The id of an item: its `id_key`, else its `item_id`, else its row number.

    Args:
        config (`BenchmarkConfig`): The benchmark.
        row (`dict`): The item.
        number (`int`): Its row, from 1.

    Returns:
        `str`: The id.
    """
    return str(row.get(config.id_key, row.get("item_id", number)))


def match_record(document_id: str, url: str | None, source: str, match: Match) -> dict[str, Any]:
    """One finding, as a plain row.

    Args:
        document_id (`str`): Id of the document.
        url (`str` or `None`): Its address.
        source (`str`): Its source.
        match (`Match`): What was found.

    Returns:
        `dict`: A JSON object.
    """
    return {"id": document_id, "url": url, "source": source, **asdict(match)}


def contamination_report(
    index: ContaminationIndex, findings: Iterable[dict[str, Any]], action: str, documents_searched: int
) -> dict[str, Any]:
    """Sums findings up by benchmark and item.

    Args:
        index (`ContaminationIndex`): The index that was searched with.
        findings (`Iterable[dict]`): Rows of [`match_record`].
        action (`str`): What was done: `"drop"`, `"remove_span"` or `"report"`.
        documents_searched (`int`): How many documents were looked at.

    Returns:
        `dict`: The report, see the head of this file.
    """
    benchmarks: dict[str, dict[str, Any]] = {}
    state: dict[tuple[str, str], bool] = {}
    for record in index.items:
        name, key = str(record["benchmark"]), (str(record["benchmark"]), str(record["item_id"]))
        benchmarks.setdefault(name, {"revision": record["revision"], "published": record["published"]})
        state[key] = state.get(key, False) or bool(record["checked"])
    by_item: dict[tuple[str, str], dict[str, dict[str, Any]]] = {}
    for row in findings:
        documents = by_item.setdefault((row["benchmark"], row["item_id"]), {})
        known = documents.get(row["id"])
        if known is None or known["longest_run"] < row["longest_run"]:
            keys = ("id", "url", "source", "field", "longest_run", "coverage")
            documents[row["id"]] = {name: row[name] for name in keys}
    for name, summary in benchmarks.items():
        keys = [key for key in state if key[0] == name]
        found = [key for key in keys if key in by_item]
        checked = sum(state[key] for key in keys)
        summary.update(
            items=len(keys),
            checked=checked,
            unchecked=len(keys) - checked,
            contaminated=len(found),
            documents=len({document for key in found for document in by_item[key]}),
        )
    return {
        "schema": 1,
        "settings": asdict(index.settings),
        "index": index.fingerprint,
        "action": action,
        "documents_searched": documents_searched,
        "benchmarks": benchmarks,
        "items": [
            {"benchmark": key[0], "item_id": key[1], "documents": sorted(by_item[key].values(), key=lambda d: d["id"])}
            for key in state
            if key in by_item
        ],
    }

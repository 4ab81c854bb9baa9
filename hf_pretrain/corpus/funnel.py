"""Where the documents went: per stage, source and reason, with sums that must agree.

`Counted` wraps a datatrove block and counts what goes in, what comes out, what is dropped and why, and how many bytes
an edit took off, without trusting the block's own counters. For every stage and source:

    documents_in = documents_out + sum of documents removed, over reasons
    bytes_in     = bytes_out + sum of bytes removed + bytes_trimmed

and the next stage's input is this one's output. `check_funnel` raises where that fails.
"""

import logging
import time
from collections import deque
from collections.abc import Iterable, Iterator
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any

from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep

from hf_pretrain.utils.atomic import write_json


logger = logging.getLogger(__name__)

ALARM_SHARE = 0.9
_EXAMPLES_PER_REASON = 5
_EXAMPLE_CHARACTERS = 400


def text_bytes(text: str) -> int:
    """UTF-8 size of a text.

    Args:
        text (`str`): A text.

    Returns:
        `int`: Bytes.
    """
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def empty_row(stage: str, source: str) -> dict[str, Any]:
    """A row of the funnel with nothing in it.

    Args:
        stage (`str`): The stage.
        source (`str`): The source.

    Returns:
        `dict`: The row.
    """
    return {
        "stage": stage,
        "source": source,
        "documents_in": 0,
        "documents_out": 0,
        "bytes_in": 0,
        "bytes_out": 0,
        "bytes_trimmed": 0,
        "removed": {},
        "seconds": 0.0,
    }


class ReasonCapture:
    """Stands where a datatrove filter expects a writer of dropped documents; the filter then notes its reason."""

    def __enter__(self) -> "ReasonCapture":
        return self

    def __exit__(self, *error: object) -> None:
        return None

    def write(self, document: Document, rank: int = 0, **extra: Any) -> None:
        """Takes a dropped document; its reason is on it already.

        Args:
            document (`Document`): The document.
            rank (`int`, *optional*, defaults to 0): Task number.
        """

    def close(self) -> None:
        """Does nothing: there is no file."""


class Counted(PipelineStep):
    """Runs a block that keeps the order of documents, and counts.

    Args:
        stage (`str`): Name of the stage in the funnel.
        block (`PipelineStep`): A filter, formatter or extractor. What it does not yield counts as dropped.
        logging_dir (`Path`): Logging folder of the pipeline; tallies go to `tallies/`, a few dropped documents of each
            reason to `examples/`.
        position (`int`): Place of the block in the pipeline.
    """

    type = "COUNTED"

    def __init__(self, stage: str, block: PipelineStep, logging_dir: str | Path, position: int) -> None:
        super().__init__()
        self.stage, self.block, self.logging_dir, self.position = stage, block, Path(logging_dir), position
        self.name = stage
        self.stats = block.stats
        if getattr(block, "exclusion_writer", "absent") is None:
            block.exclusion_writer = ReasonCapture()

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Runs the block and counts.

        Args:
            data (`DocumentsPipeline`): Documents.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: What the block yields.
        """
        tally = _Tally(self.stage)
        begin = time.perf_counter()
        for document in self.block.run(tally.watch(data), rank, world_size):
            tally.passed(document)
            paused = time.perf_counter()
            yield document
            tally.outside += time.perf_counter() - paused
        tally.finish()
        tally.share_seconds(time.perf_counter() - begin - tally.outside)
        name = f"{self.position:02d}_{rank:05d}.json"
        write_json(self.logging_dir / "tallies" / name, [*tally.rows.values(), *tally.routed.values()])
        if tally.examples:
            write_json(self.logging_dir / "examples" / name, tally.examples)


class _Tally:
    """Counts of one block in one task."""

    def __init__(self, stage: str) -> None:
        self.stage = stage
        self.rows: dict[str, dict[str, Any]] = {}
        self.examples: dict[str, list[dict[str, Any]]] = {}
        self.outside = 0.0
        self.routed: dict[str, dict[str, Any]] = {}
        self._pending: deque[tuple[Document, int, str]] = deque()

    def watch(self, data: DocumentsPipeline) -> Iterator[Document]:
        iterator = iter(data)
        while True:
            begin = time.perf_counter()
            document = next(iterator, None)
            self.outside += time.perf_counter() - begin
            if document is None:
                return
            source = str(document.metadata.get("source", "unknown"))
            size = text_bytes(document.text)
            row = self.rows.get(source)
            if row is None:
                row = self.rows[source] = empty_row(self.stage, source)
            row["documents_in"] += 1
            row["bytes_in"] += size
            self._pending.append((document, size, source))
            yield document

    def passed(self, document: Document) -> None:
        while self._pending:
            earlier, size, source = self._pending.popleft()
            if earlier is document:
                row, left = self.rows[source], text_bytes(document.text)
                target = str(document.metadata.get("source", "unknown"))
                if target != source:
                    self._routed(row, target, size, left)
                    return
                row["documents_out"] += 1
                row["bytes_out"] += left
                row["bytes_trimmed"] += size - left
                return
            self._dropped(earlier, size, source)
        raise RuntimeError(f"{self.stage} yielded a document that it was not given, or out of order: {document.id}")

    def _routed(self, row: dict[str, Any], target: str, size: int, left: int) -> None:
        """One source's loss is another's gain; the stage `route` is where the other begins."""
        removed = row["removed"].setdefault(f"routed_to_{target}", {"documents": 0, "bytes": 0})
        removed["documents"] += 1
        removed["bytes"] += left
        row["bytes_trimmed"] += size - left
        gain = self.routed.setdefault(target, empty_row("route", target))
        for key, value in (("documents", 1), ("bytes", left)):
            gain[f"{key}_in"] += value
            gain[f"{key}_out"] += value

    def finish(self) -> None:
        while self._pending:
            self._dropped(*self._pending.popleft())

    def _dropped(self, document: Document, size: int, source: str) -> None:
        reason = str(document.metadata.get("filter_reason") or self.stage)
        removed = self.rows[source]["removed"].setdefault(reason, {"documents": 0, "bytes": 0})
        removed["documents"] += 1
        removed["bytes"] += size
        examples = self.examples.setdefault(reason, [])
        if len(examples) < _EXAMPLES_PER_REASON:
            text = document.text[:_EXAMPLE_CHARACTERS].encode("utf-8", "replace").decode()
            examples.append({"id": document.id, "source": source, "text": text})

    def share_seconds(self, seconds: float) -> None:
        total = sum(row["bytes_in"] for row in self.rows.values()) or 1
        for row in self.rows.values():
            row["seconds"] = seconds * row["bytes_in"] / total


def merge_rows(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Adds up the rows of several tasks.

    Args:
        rows (`Iterable[dict]`): Rows of any stages and sources.

    Returns:
        `list[dict]`: One row a stage and source, in the order in which stages appear.
    """
    merged: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        target = merged.setdefault((row["stage"], row["source"]), empty_row(row["stage"], row["source"]))
        for key in ("documents_in", "documents_out", "bytes_in", "bytes_out", "bytes_trimmed", "seconds"):
            target[key] += row[key]
        for reason, counts in row["removed"].items():
            sums = target["removed"].setdefault(reason, {"documents": 0, "bytes": 0})
            sums["documents"] += counts["documents"]
            sums["bytes"] += counts["bytes"]
    return list(merged.values())


def check_funnel(rows: list[dict[str, Any]]) -> None:
    """Makes sure that no document is lost or counted twice.

    Args:
        rows (`list[dict]`): Merged rows, stage after stage.

    Raises:
        RuntimeError: If a row's sums disagree, or a stage does not get what the one before it gave.
    """
    last: dict[str, dict[str, Any]] = {}
    for row in rows:
        removed = row["removed"].values()
        documents = row["documents_out"] + sum(counts["documents"] for counts in removed)
        size = row["bytes_out"] + sum(counts["bytes"] for counts in removed) + row["bytes_trimmed"]
        where = f"funnel, {row['stage']}, {row['source']}"
        if (documents, size) != (row["documents_in"], row["bytes_in"]):
            raise RuntimeError(
                f"{where}: {row['documents_in']} documents and {row['bytes_in']} bytes went in, "
                f"{documents} and {size} are accounted for"
            )
        before = last.get(row["source"])
        if before and (before["documents_out"], before["bytes_out"]) != (row["documents_in"], row["bytes_in"]):
            raise RuntimeError(
                f"{where}: {row['documents_in']} documents and {row['bytes_in']} bytes went in, but "
                f"{before['stage']} gave {before['documents_out']} and {before['bytes_out']}"
            )
        last[row["source"]] = row


def find_alarms(rows: list[dict[str, Any]], share: float = ALARM_SHARE, least: int = 20) -> list[str]:
    """Names the sources that lost almost everything at one stage, which is rarely meant.

    Args:
        rows (`list[dict]`): Merged rows.
        share (`float`, *optional*, defaults to 0.9): Share of documents whose loss is alarming.
        least (`int`, *optional*, defaults to 20): Sources with fewer documents are not judged.

    Returns:
        `list[str]`: One sentence an alarm.
    """
    alarms = []
    for row in rows:
        lost = row["documents_in"] - row["documents_out"]
        if row["documents_in"] >= least and lost > share * row["documents_in"]:
            reason = max(row["removed"], key=lambda name: row["removed"][name]["documents"])
            alarms.append(
                f"{row['source']} lost {lost} of {row['documents_in']} documents at {row['stage']}, most as '{reason}'"
            )
    return alarms


def build_funnel(rows: list[dict[str, Any]], tokens: dict[str, int]) -> dict[str, Any]:
    """The content of `funnel.json`.

    Args:
        rows (`list[dict]`): Merged rows, stage after stage.
        tokens (`dict[str, int]`): Tokens of each source at the end.

    Returns:
        `dict`: `stages` (in order, with totals over sources), `rows`, `tokens`, `alarms`.

    Raises:
        RuntimeError: If the sums disagree.
    """
    check_funnel(rows)
    alarms = find_alarms(rows)
    for alarm in alarms:
        logger.warning("%s", alarm)
    stages: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = stages.setdefault(row["stage"], empty_row(row["stage"], "all"))
        merged = merge_rows([total, {**row, "source": "all"}])[0]
        stages[row["stage"]] = merged
    for row in [*rows, *stages.values()]:
        row["seconds"] = round(row["seconds"], 3)
    ordered = [stages[name] for name in stage_order(rows)]
    return {"schema": 1, "stages": ordered, "rows": rows, "tokens": tokens, "alarms": alarms}


def stage_order(rows: list[dict[str, Any]]) -> list[str]:
    """Orders the stages as documents meet them: a source that skips some says nothing about their order.

    Args:
        rows (`list[dict]`): Rows, for each source in its own order of stages.

    Returns:
        `list[str]`: Every stage once.
    """
    sorter: TopologicalSorter[str] = TopologicalSorter()
    last: dict[str, str] = {}
    for row in rows:
        sorter.add(row["stage"], *([last[row["source"]]] if row["source"] in last else []))
        last[row["source"]] = row["stage"]
    return list(sorter.static_order())

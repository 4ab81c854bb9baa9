"""The way back: from a document's id to the steps that read it, without going through the samples.

The id is searched in the provenance lines, which gives the document's tokens and so its windows. Every epoch of a
source is a permutation that can be inverted, so a window's draws are known, one an epoch; a draw's sample is found by
bisection over the schedule's counts, and the sample's step from `skipped` and the sizes of the batch.
"""

import json
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.permutation import Permutation, derive_seed
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


@dataclass(frozen=True)
class Reading:
    """One time that a step read a document, or a part of it.

    Args:
        step (`int`): The optimizer step, from 1.
        row (`int`): Row of the global batch, from 0.
        rank (`int`, *optional*): The process that read it, where it is known.
        sample_index (`int`): Number of the sample.
        source (`str`): Name of the source.
        epoch (`int`): Pass over the source, from 0.
        window (`int`): Number of the window in the source.
        document_start (`int`): First token of the document that was read.
        document_stop (`int`): End, exclusive.
    """

    step: int
    row: int
    rank: int | None
    sample_index: int
    source: str
    epoch: int
    window: int
    document_start: int
    document_stop: int


@dataclass(frozen=True)
class DocumentReadings:
    """A document and all the times it was read.

    Args:
        record (`dict`): Its provenance.
        source (`str`): Name of its source.
        document_index (`int`): Its number in the source.
        num_tokens (`int`): Its tokens.
        readings (`list[Reading]`): In the order of steps and rows.
        left_out (`int`): Samples with a part of it that the run skipped.
    """

    record: dict[str, Any]
    source: str
    document_index: int
    num_tokens: int
    readings: list[Reading]
    left_out: int

    def to_json(self) -> dict[str, Any]:
        """Describes it as plain JSON data.

        Returns:
            `dict[str, Any]`: The fields, readings as mappings.
        """
        return {**vars(self), "readings": [vars(reading) for reading in self.readings]}


def find_documents(source: TokenSource, document_id: str) -> Iterator[tuple[int, int, int]]:
    """Searches a source for a document.

    Args:
        source (`TokenSource`): A source on disk with provenance lines.
        document_id (`str`): The id, as its line gives it.

    Yields:
        `tuple[int, int, int]`: Number of the document, position of its first token, end (exclusive).
    """
    if source.is_dataset:
        for document in source.documents_with_id(document_id):
            yield document, *source.document_range(document)
        return
    needle = json.dumps(document_id, ensure_ascii=False).encode()
    first, tokens = 0, 0
    for entry in source.metadata.get("files", ()):
        path = Path(source.folder or "") / entry["name"]
        lines, index = Path(f"{path}.docs.jsonl"), Path(f"{path}.docs.index")
        if lines.is_file() and index.is_file() and lines.stat().st_size:
            line_ends = np.fromfile(index, dtype="<u8")
            with open(lines, "rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as text:
                place = text.find(needle)
                while place >= 0:
                    document = int(np.searchsorted(line_ends, place, side="right"))
                    start = int(line_ends[document - 1]) if document else 0
                    # The text may stand in another field; only the line's own id counts.
                    if json.loads(text[start : int(line_ends[document])]).get("id") == document_id:
                        ends = np.memmap(f"{path}.index", dtype="<u8", mode="r")
                        low = int(ends[document - 1]) if document else 0
                        yield first + document, tokens + low, tokens + int(ends[document])
                    place = text.find(needle, int(line_ends[document]))
        first += entry["num_documents"]
        tokens += entry["num_tokens"]


def sample_of_draw(dataset: MixtureDataset, source: str, draw: int, stop: int) -> int | None:
    """Finds the sample that a draw of a source is: the inverse of the schedule.

    Args:
        dataset (`MixtureDataset`): The run's dataset.
        source (`str`): Name of the source.
        draw (`int`): Number of the draw, those of earlier stages included.
        stop (`int`): Samples from here on are not looked at.

    Returns:
        `int`: The sample, or `None` if it is not among those.
    """
    schedule = dataset.schedule
    wanted = draw - schedule.start_draws.get(source, 0)
    if wanted < 0 or schedule.counts(stop)[source] <= wanted:
        return None
    low, high = 0, stop - 1
    while low < high:
        middle = (low + high) // 2
        if schedule.counts(middle + 1)[source] > wanted:
            high = middle
        else:
            low = middle + 1
    return low


def trace_document(folder: str | Path, document_id: str, steps: int | None = None) -> list[DocumentReadings]:
    """Finds the steps at which a document was read.

    Args:
        folder (`str` or `Path`): The stage's folder, which holds `data_order.json`.
        document_id (`str`): The document's id.
        steps (`int`, *optional*): Steps made so far; by default all that the run plans.

    Returns:
        `list[DocumentReadings]`: One entry for each source that holds the document.

    Raises:
        UserError: If no source holds it, or the sources are gone or changed.
    """
    order = DataOrder.read(folder)
    dataset = order.build()
    positions = order.num_samples if steps is None else min(order.positions_of_step(steps).stop, order.num_samples)
    stop = order.skips.end_after(positions)
    found = []
    for source in dataset.sources:
        for document, start, end in find_documents(source, document_id):
            samples = _samples_of_tokens(dataset, source, start, end, stop)
            readings = []
            for sample, epoch, window, low, high in samples:
                place = order.step_of_sample(sample)
                if place is None:
                    continue
                step, row = place
                who = order.span_of_step(step).rank_of(row)
                readings.append(
                    Reading(
                        step,
                        row,
                        None if who is None else who[0],
                        sample,
                        source.name,
                        epoch,
                        window,
                        low - start,
                        high - start,
                    )
                )
            record = source.documents_of(start, start + 1)[0].record
            readings.sort(key=lambda reading: (reading.step, reading.row))
            left_out = len(samples) - len(readings)
            found.append(DocumentReadings(record, source.name, document, end - start, readings, left_out))
    if not found:
        names = ", ".join(source.name for source in dataset.sources)
        raise UserError(
            f"--doc {document_id}; no source of this stage holds a document of that id ({names}): `hf-pretrain trace "
            "RUN --step N` shows ids, and --stage names another stage"
        )
    return found


def _samples_of_tokens(
    dataset: MixtureDataset, source: TokenSource, start: int, end: int, stop: int
) -> list[tuple[int, int, int, int, int]]:
    """`(sample, epoch, row, low, high)` of every row that holds tokens of a range, among the samples below `stop`."""
    size = dataset.num_rows(source.name)
    rows = dataset.rows_of(source.name, start, max(end, start + 1))
    before = dataset.schedule.start_draws.get(source.name, 0)
    last = before + dataset.schedule.counts(stop)[source.name]
    found = []
    for epoch in range(before // size, -(-last // size)) if size else ():
        order = Permutation(size, derive_seed(dataset.seed, source.name, epoch))
        for row, low, high in rows:
            sample = sample_of_draw(dataset, source.name, epoch * size + order.index_of(row), stop)
            if sample is not None:
                found.append((sample, epoch, row, low, high))
    return found

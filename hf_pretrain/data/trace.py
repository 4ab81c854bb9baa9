"""From a step of a run back to its documents: source, id, URL and span of tokens of everything a batch held."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.token_source import DocumentSpan
from hf_pretrain.utils.errors import UserError


@dataclass(frozen=True)
class SampleTrace:
    """What one sample held.

    Args:
        sample_index (`int`): Number of the sample in the run.
        row (`int`): Its row in the global batch, from 0.
        source (`str`): Name of its source.
        epoch (`int`): Pass over the source, from 0.
        window (`int`): Number of the window in the source.
        spans (`list[DocumentSpan]`): The documents, in order.
        rank (`int`, *optional*): The process that read it, where it is known.
        rank_row (`int`, *optional*): Its row among those of that process.
    """

    sample_index: int
    row: int
    source: str
    epoch: int
    window: int
    spans: list[DocumentSpan]
    rank: int | None = None
    rank_row: int | None = None

    def to_json(self) -> dict[str, Any]:
        """Describes the sample as plain JSON data.

        Returns:
            `dict[str, Any]`: The fields; of each document its provenance record and `document_start`, `document_stop`,
            the range of its own tokens that the sample held.
        """
        documents = [
            {
                **span.record,
                "document_index": span.document_index,
                "document_start": span.start - span.document_start,
                "document_stop": span.stop - span.document_start,
            }
            for span in self.spans
        ]
        return {
            "row": self.row,
            "rank": self.rank,
            "rank_row": self.rank_row,
            "sample_index": self.sample_index,
            "source": self.source,
            "epoch": self.epoch,
            "window": self.window,
            "documents": documents,
        }


def trace_sample(dataset: MixtureDataset, index: int, row: int = 0) -> SampleTrace:
    """Names the documents of one sample.

    Args:
        dataset (`MixtureDataset`): The run's dataset.
        index (`int`): Number of the sample.
        row (`int`, *optional*, defaults to 0): Its row in the global batch.

    Returns:
        `SampleTrace`: Source, epoch, window and documents.
    """
    source, epoch, window = dataset.locate(index)
    held = dataset.sources[source]
    spans = [span for start, stop in dataset.spans(index) for span in held.documents_of(start, stop)]
    return SampleTrace(index, row, dataset.sources[source].name, epoch, window, spans)


def trace_step(folder: str | Path, step: int, rank: int | None = None, row: int | None = None) -> list[SampleTrace]:
    """Names the documents of one optimizer step.

    Args:
        folder (`str` or `Path`): The stage's folder, which holds `data_order.json`.
        step (`int`): The step, from 1.
        rank (`int`, *optional*): Only what this process read.
        row (`int`, *optional*): Only this row: of the process where `rank` is given, else of the global batch.

    Returns:
        `list[SampleTrace]`: One trace a row.

    Raises:
        UserError: If step, process or row lie outside the run, or its sources are gone or changed.
    """
    order = DataOrder.read(folder)
    if order.positions_of_step(step).stop > order.num_samples:
        raise UserError(
            f"step = {step}; this run plans {order.num_samples} samples, which end before it: ask for an earlier step"
        )
    span = order.span_of_step(step)
    if rank is not None and span.world_size is None:
        raise UserError(f"rank = {rank}; this run did not record its processes: leave --rank out")
    if rank is not None and not 0 <= rank < (span.world_size or 0):
        raise UserError(f"rank = {rank}; step {step} was made by {span.world_size} processes, counted from 0")
    places = []
    for number, sample in enumerate(order.samples_of_step(step)):
        who, own_row = span.rank_of(number) or (None, None)
        if (rank is None or who == rank) and (row is None or row == (number if rank is None else own_row)):
            places.append((number, sample, who, own_row))
    if not places:
        rows = span.global_batch if rank is None else span.global_batch // (span.world_size or 1)
        raise UserError(f"row = {row}; there are {rows} rows, counted from 0")
    dataset = order.build()
    return [
        replace(trace_sample(dataset, sample, number), rank=who, rank_row=own_row)
        for number, sample, who, own_row in places
    ]

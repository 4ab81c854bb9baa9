"""Where a run stands in its data: samples trained on, samples left out, and how its batches were cut so far.

All three are in every checkpoint's manifest, in units of samples, so that a run goes on at the right sample with
another global batch, micro-batch or number of processes. Ranges that are left out are also in `data_order.json`: a run
that went back from a spike and was killed before its next checkpoint still leaves them out.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import ORDER_FILE, BatchSpan, DataOrder, join_spans, position_after
from hf_pretrain.data.skips import Skips


class DataState:
    """The place of a run in its data.

    Args:
        cut (`BatchSpan`): How this run cuts its batches.
        manifest (`Mapping[str, Any]`, *optional*): That of the checkpoint it goes on from.
        step (`int`, *optional*, defaults to 0): Optimizer steps made before.
    """

    def __init__(self, cut: BatchSpan, manifest: Mapping[str, Any] | None = None, step: int = 0) -> None:
        manifest = manifest or {}
        earlier = [BatchSpan(**span) for span in manifest.get("batches", ())]
        if step and not earlier:
            earlier = [BatchSpan(0, 0, manifest.get("samples", step * cut.global_batch) // step)]
        self.spans = join_spans(earlier, cut, step)
        self.step = step
        self._skipped = Skips(manifest.get("skipped", ()))

    def samples_after(self, step: int) -> int:
        """Counts the samples trained on.

        Args:
            step (`int`): Optimizer steps made.

        Returns:
            `int`: The position of the next sample.
        """
        return position_after(self.spans, step)

    def apply(self, dataset: MixtureDataset, record_dir: str | Path) -> None:
        """Makes a dataset leave out what the run leaves out: its own ranges, the checkpoint's and the record's.

        Args:
            dataset (`MixtureDataset`): The dataset; ranges that it already leaves out stay.
            record_dir (`str` or `Path`): Folder of `data_order.json`.
        """
        skips = Skips([*self._skipped.ranges, *dataset.skips.ranges])
        if self.step and (Path(record_dir) / ORDER_FILE).is_file():
            # What the record leaves out before this checkpoint and the checkpoint does not is of a later attempt.
            end = self._skipped.end_after(self.samples_after(self.step))
            later = [entry for entry in DataOrder.read(record_dir).skips.ranges if entry[0] >= end]
            skips = Skips([*skips.ranges, *later])
        dataset.skips = skips

    def to_json(self, dataset: Any, step: int) -> dict[str, Any]:
        """What a checkpoint's manifest keeps.

        Args:
            dataset (`Dataset`): The training data.
            step (`int`): Optimizer steps made.

        Returns:
            `dict[str, Any]`: `samples`, `batches` and `skipped`.
        """
        skipped = dataset.skips.to_json() if isinstance(dataset, MixtureDataset) else []
        batches = [dataclasses.asdict(span) for span in self.spans]
        return {"samples": self.samples_after(step), "batches": batches, "skipped": skipped}

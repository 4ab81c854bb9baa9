"""Where a run stands in its data: samples trained on, samples left out, and how its batches were cut so far.

All of it is in every checkpoint's manifest, in units of samples, so that a run goes on at the right sample with
another global batch, micro-batch or number of processes. Ranges that are left out are also in `data_order.json`: a run
that went back from a spike and was killed before its next checkpoint still leaves them out.
"""

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_pretrain.data.continuation import continued_from
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import ORDER_FILE, BatchSpan, DataOrder, join_spans, position_after
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.skips import Skips
from hf_pretrain.data.streaming import StreamingMixture
from hf_pretrain.utils.errors import UserError


class DataState:
    """The place of a run in its data.

    Args:
        cut (`BatchSpan`): How this run cuts its batches.
        manifest (`Mapping[str, Any]`, *optional*): That of the checkpoint it goes on from.
        step (`int`, *optional*, defaults to 0): Optimizer steps made before.
        given (`MixtureSchedule`, *optional*): The schedule as the run's configuration gives it.
    """

    def __init__(
        self,
        cut: BatchSpan,
        manifest: Mapping[str, Any] | None = None,
        step: int = 0,
        given: MixtureSchedule | None = None,
    ) -> None:
        manifest = manifest or {}
        earlier = [BatchSpan(**span) for span in manifest.get("batches", ())]
        if step and not earlier:
            earlier = [BatchSpan(0, 0, manifest.get("samples", step * cut.global_batch) // step)]
        self.spans = join_spans(earlier, cut, step)
        self.step = step
        self._skipped = Skips(manifest.get("skipped", ()))
        self._saved = manifest.get("mixture", {})
        self._stream = manifest.get("stream")
        self._given = given
        self._base = given
        self._fixed = 0

    def samples_after(self, step: int) -> int:
        """Counts the samples trained on.

        Args:
            step (`int`): Optimizer steps made.

        Returns:
            `int`: The position of the next sample.
        """
        return position_after(self.spans, step)

    def apply(self, dataset: MixtureDataset, record_dir: str | Path, may_change: bool = False) -> None:
        """Makes a dataset go on as the run does.

        It leaves out what the run leaves out: its own ranges, the checkpoint's and the record's. Where the run became
        longer or its later weights changed, the samples already trained on stay what they were, and the rest is laid
        out from there on: no window comes twice in an epoch and none is lost.

        Args:
            dataset (`MixtureDataset`): The dataset; ranges that it already leaves out stay.
            record_dir (`str` or `Path`): Folder of `data_order.json`.
            may_change (`bool`, *optional*, defaults to `False`): Whether weights may differ from the run's for samples
                already trained on; from here on the new ones count.
        """
        end = self._skipped.end_after(self.samples_after(self.step))
        skips = Skips([*self._skipped.ranges, *dataset.skips.ranges])
        if self.step and (Path(record_dir) / ORDER_FILE).is_file():
            # What the record leaves out before this checkpoint and the checkpoint does not is of a later attempt.
            later = [entry for entry in DataOrder.read(record_dir).skips.ranges if entry[0] >= end]
            skips = Skips([*skips.ranges, *later])
        dataset.skips = skips
        if self._given is None:
            return
        self._base, self._fixed = self._given, 0
        if self._saved and self.step:
            before = MixtureSchedule.from_json(self._saved["given"])
            if before == self._given:
                self._base = MixtureSchedule.from_json(self._saved["base"])
                self._fixed = self._saved["fixed"]
            elif may_change or self._given.same_mix_until(before, end):
                self._base = continued_from(self._given, MixtureSchedule.from_json(self._saved["used"]), end)
                self._fixed = end
        dataset.fixed_samples = self._fixed
        dataset.set_schedule(self._base)

    def begin_stream(self, dataset: Any) -> None:
        """Makes a stream begin where the run stands; other datasets are told by their sampler.

        Args:
            dataset (`Dataset`): The training data.
        """
        if isinstance(dataset, StreamingMixture):
            dataset.load_state_dict(
                self._stream or {"position": self.samples_after(self.step), "at": 0, "streams": {}}
            )

    def check_length(self, dataset: Any, max_steps: int) -> None:
        """Makes sure that a dataset holds the whole run.

        Args:
            dataset (`Sized`): The dataset.
            max_steps (`int`): Optimizer steps of the run.

        Raises:
            UserError: If it is too short.
        """
        needed = self.samples_after(max_steps)
        if len(dataset) < needed:
            raise UserError(
                f"max_steps = {max_steps}; {needed} samples are needed, the schedule has {len(dataset)}: make it as "
                "long as the run"
            )

    def to_json(self, dataset: Any, step: int) -> dict[str, Any]:
        """What a checkpoint's manifest keeps.

        Args:
            dataset (`Dataset`): The training data.
            step (`int`): Optimizer steps made.

        Returns:
            `dict[str, Any]`: `samples`, `batches`, and for a mixture `skipped` and `mixture`: the schedule as it was
            given, as it was begun with, and as it is used. For streams `stream`, their state.
        """
        batches = [dataclasses.asdict(span) for span in self.spans]
        found = {"samples": self.samples_after(step), "batches": batches}
        if isinstance(dataset, StreamingMixture):
            found["stream"] = dataset.state_dict(found["samples"])
        if isinstance(dataset, MixtureDataset) and self._given is not None and self._base is not None:
            schedules = {
                "given": self._given.to_json(),
                "base": self._base.to_json(),
                "used": dataset.schedule.to_json(),
                "fixed": self._fixed,
            }
            found |= {"skipped": dataset.skips.to_json(), "mixture": schedules}
        return found

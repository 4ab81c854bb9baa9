"""`data_order.json`: all that is needed to build a run's dataset again and to name any step's samples.

It holds the seed, the window length, the schedule, where the sources lie (relative to the file, so that a run folder
may be moved with its shards) with their fingerprints, from which step on the global batch had which size, and under
`skipped` the ranges of samples that the run leaves out.

Steps count positions, the samples trained on; `skips` turns a position into the number of a sample and back.
"""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.skips import Skips
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.atomic import write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint


ORDER_FILE = "data_order.json"
SCHEMA = 1


@dataclass(frozen=True)
class BatchSpan:
    """From which step on the global batch has a size.

    Args:
        start_step (`int`): Steps before it were finished when the size began; step `start_step + 1` is the first.
        start_sample (`int`): Samples trained on before it: the position of the first sample of that step.
        global_batch (`int`): Sequences of one optimizer step.
        world_size (`int`, *optional*): Processes that shared the batch, where it is known.
        micro_batch (`int`, *optional*): Sequences of one forward pass of one process, where it is known.
    """

    start_step: int
    start_sample: int
    global_batch: int
    world_size: int | None = None
    micro_batch: int | None = None

    @property
    def cut(self) -> tuple[int, int | None, int | None]:
        """How the span cuts the line of samples."""
        return self.global_batch, self.world_size, self.micro_batch

    def rank_of(self, row: int) -> tuple[int, int] | None:
        """Finds which process read a row of the global batch.

        Processes take whole micro-batches in turn: micro-batch `m` of the step goes to process `m % world_size`.

        Args:
            row (`int`): Row of the global batch, from 0.

        Returns:
            `tuple[int, int]`: The process, and the row among its own; `None` where that was not recorded.
        """
        if self.world_size is None or self.micro_batch is None:
            return None
        micro, place = divmod(row, self.micro_batch)
        return micro % self.world_size, micro // self.world_size * self.micro_batch + place


def span_at(spans: Sequence[BatchSpan], steps: int) -> BatchSpan:
    """Finds how the batch of the next step is cut.

    Args:
        spans (`Sequence[BatchSpan]`): The spans of a run.
        steps (`int`): Optimizer steps already made.

    Returns:
        `BatchSpan`: The last span that begins at or before it.
    """
    return max((span for span in spans if span.start_step <= steps), key=lambda span: span.start_step)


def position_after(spans: Sequence[BatchSpan], steps: int) -> int:
    """Counts the samples trained on.

    Args:
        spans (`Sequence[BatchSpan]`): The spans of a run.
        steps (`int`): Optimizer steps made.

    Returns:
        `int`: The position of the first sample of the next step.
    """
    span = span_at(spans, steps)
    return span.start_sample + (steps - span.start_step) * span.global_batch


def join_spans(earlier: Sequence[BatchSpan], new: BatchSpan, steps: int) -> list[BatchSpan]:
    """Lets a run go on with another cut of its batches.

    Args:
        earlier (`Sequence[BatchSpan]`): The spans so far; those that begin after `steps` are forgotten.
        new (`BatchSpan`): How batches are cut from now on.
        steps (`int`): Optimizer steps already made.

    Returns:
        `list[BatchSpan]`: The spans of the whole run.
    """
    spans = [span for span in earlier if span.start_step < steps]
    if spans and spans[-1].cut == new.cut:
        return spans
    start = position_after(spans, steps) if spans else 0
    return [*spans, replace(new, start_step=steps if spans else 0, start_sample=start)]


@dataclass
class DataOrder:
    """A run's data order as written to `data_order.json`.

    Args:
        seed (`int`): Seed of the dataset.
        seq_length (`int`): Tokens of a sample.
        num_samples (`int`): Length of the run in samples.
        schedule (`MixtureSchedule`): The schedule in force, shares moved to keep within caps included.
        sources (`list[dict]`): `name`, `folder` (as given, or `None` in memory), `num_tokens`, `num_documents`,
            `fingerprint` of what is said of the shards, `content`, a hash of parts of them.
        batches (`list[BatchSpan]`): Sizes of the global batch.
        skips (`Skips`): The samples left out.
        packing (`str`, *optional*, defaults to `"concat"`): How documents share rows.
    """

    seed: int
    seq_length: int
    num_samples: int
    schedule: MixtureSchedule
    sources: list[dict[str, Any]]
    batches: list[BatchSpan] = field(default_factory=list)
    skips: Skips = field(default_factory=Skips)
    packing: str = "concat"

    @classmethod
    def of(
        cls,
        dataset: MixtureDataset,
        global_batch: int,
        world_size: int | None = None,
        micro_batch: int | None = None,
    ) -> "DataOrder":
        """Describes a dataset.

        Args:
            dataset (`MixtureDataset`): The dataset.
            global_batch (`int`): Sequences of one optimizer step.
            world_size (`int`, *optional*): Processes that share it.
            micro_batch (`int`, *optional*): Sequences of one forward pass of one process.

        Returns:
            `DataOrder`: Its description.
        """
        sources = [
            {
                "name": source.name,
                "folder": None if source.folder is None else str(source.folder.resolve()),
                "num_tokens": source.num_tokens,
                "num_documents": source.num_documents,
                "fingerprint": fingerprint(source.metadata.get("files", [])),
                "content": None if source.folder is None else source.content_hash(),
            }
            for source in dataset.sources
        ]
        spans = [BatchSpan(0, 0, global_batch, world_size, micro_batch)]
        return cls(
            dataset.seed,
            dataset.seq_length,
            len(dataset),
            dataset.schedule,
            sources,
            spans,
            dataset.skips,
            dataset.packing,
        )

    def write(self, folder: str | Path) -> None:
        """Writes `data_order.json` atomically.

        Args:
            folder (`str` or `Path`): The stage's folder.
        """
        folder = Path(folder)
        here = folder.resolve()
        sources = [
            {**entry, "folder": entry["folder"] and os.path.relpath(entry["folder"], here)} for entry in self.sources
        ]
        data = {
            "schema": SCHEMA,
            "seed": self.seed,
            "seq_length": self.seq_length,
            "num_samples": self.num_samples,
            "packing": self.packing,
            "batches": [vars(span) for span in self.batches],
            "skipped": self.skips.to_json(),
            "sources": sources,
            "schedule": self.schedule.to_json(),
        }
        write_json(folder / ORDER_FILE, data)

    @classmethod
    def read(cls, folder: str | Path) -> "DataOrder":
        """Reads `data_order.json`.

        Args:
            folder (`str` or `Path`): The stage's folder.

        Returns:
            `DataOrder`: The order, source folders as absolute paths.

        Raises:
            UserError: If there is none, or it is not one of this schema.
        """
        path = Path(folder) / ORDER_FILE
        if not path.is_file():
            raise UserError(f"{path}: no such file; give the folder of a training stage that made at least one step")
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise UserError(f"{path}: no valid JSON ({error})") from error
        if data.get("schema") != SCHEMA:
            raise UserError(f"{path}: schema = {data.get('schema')!r}; this version reads schema {SCHEMA}")
        here = path.parent.resolve()
        sources = [
            {**entry, "folder": entry["folder"] and os.path.normpath(here / entry["folder"])}
            for entry in data["sources"]
        ]
        return cls(
            data["seed"],
            data["seq_length"],
            data["num_samples"],
            MixtureSchedule.from_json(data["schedule"]),
            sources,
            [BatchSpan(**span) for span in data["batches"]],
            Skips(data.get("skipped", ())),
            data.get("packing", "concat"),
        )

    def continued_by(self, new: "DataOrder", step: int) -> "DataOrder":
        """Joins this order with that of a resumed run.

        Args:
            new (`DataOrder`): The order of the resumed run.
            step (`int`): Optimizer steps already made.

        Returns:
            `DataOrder`: The new order with the sizes of the global batch of the whole run.

        Raises:
            UserError: If the resumed run would have read other samples in the steps already made.
        """
        consumed = self.positions_of_step(step).stop if step else 0
        for key in ("seed", "seq_length", "packing"):
            if consumed and getattr(self, key) != getattr(new, key):
                raise UserError(
                    f"{key} = {getattr(new, key)}; the run was begun with {getattr(self, key)}, "
                    "and its order cannot be "
                    "continued with another: restore it or start a new run folder"
                )
        before = {entry["name"]: entry for entry in self.sources}
        for entry in new.sources:
            old = before.get(entry["name"])
            if consumed and old is not None and _is_other(old, entry):
                raise UserError(
                    f"source {entry['name']!r} changed since the run began (its shards have "
                    "other hashes); restore them or start "
                    "a new run folder"
                )
        if consumed and self.skips.below(self.skips.end_after(consumed)) != new.skips.below(
            new.skips.end_after(consumed)
        ):
            raise UserError(
                f"skipped = {new.skips.to_json()}; the {consumed} samples of the {step} steps already made left out "
                f"{self.skips.to_json()}: leave out only samples that come later, or start a new run folder"
            )
        if consumed and not self.schedule.same_until(new.schedule, self.skips.end_after(consumed)):
            raise UserError(
                f"the mixture changed for samples that were already read (step {step}, "
                f"{consumed} samples); change weights "
                "only for phases that begin later, say that the change is meant with resume_changes: [mixture], or "
                "start a new run folder"
            )
        return replace(new, batches=join_spans(self.batches if consumed else [], new.batches[-1], step))

    def span_of_step(self, step: int) -> BatchSpan:
        """Finds how the batch of a step was cut.

        Args:
            step (`int`): The step, from 1.

        Returns:
            `BatchSpan`: The last span that begins before it.

        Raises:
            UserError: If the step is below 1.
        """
        if isinstance(step, bool) or not isinstance(step, int) or step < 1:
            raise UserError(f"step = {step}; steps count from 1")
        return span_at(self.batches, step - 1)

    def positions_of_step(self, step: int) -> range:
        """Names the positions of an optimizer step.

        Args:
            step (`int`): The step, from 1: the update after which `global_step == step`.

        Returns:
            `range`: How many samples were trained on before each of its own.

        Raises:
            UserError: If the step is below 1.
        """
        span = self.span_of_step(step)
        start = position_after(self.batches, step - 1)
        return range(start, start + span.global_batch)

    def samples_of_step(self, step: int) -> list[int]:
        """Names the samples of an optimizer step.

        Args:
            step (`int`): The step, from 1: the update after which `global_step == step`.

        Returns:
            `list[int]`: Numbers of its samples in the schedule.

        Raises:
            UserError: If the step is below 1.
        """
        return [self.skips.sample_at(position) for position in self.positions_of_step(step)]

    def step_of_sample(self, sample: int) -> tuple[int, int] | None:
        """Finds the optimizer step that holds a sample: the inverse of [`DataOrder.samples_of_step`].

        Args:
            sample (`int`): Number of the sample in the schedule.

        Returns:
            `tuple[int, int]`: The step, from 1, and the row in its global batch; `None` for a sample left out.
        """
        position = self.skips.position_of(sample)
        if position is None:
            return None
        span = max((item for item in self.batches if item.start_sample <= position), key=lambda item: item.start_step)
        steps, row = divmod(position - span.start_sample, span.global_batch)
        return span.start_step + steps + 1, row

    def build(self) -> MixtureDataset:
        """Builds the dataset again.

        Returns:
            `MixtureDataset`: The same samples as in the run.

        Raises:
            UserError: If a source is gone, was held in memory, or has changed.
        """
        sources = []
        for entry in self.sources:
            if entry["folder"] is None:
                raise UserError(
                    f"source {entry['name']!r} was held in memory and is gone; only sources on disk can be traced"
                )
            source = TokenSource.open(entry["folder"], entry["name"])
            now = {"fingerprint": fingerprint(source.metadata.get("files", [])), "content": source.content_hash()}
            if _is_other(entry, now):
                raise UserError(f"source {entry['name']!r}: the shards in {entry['folder']} are not those of the run")
            sources.append(source)
        # Shares were already moved where needed, so the caps must not be applied a second time.
        return MixtureDataset(
            sources,
            self.schedule,
            self.seq_length,
            self.seed,
            self.num_samples,
            max_epochs=float("inf"),
            skipped=self.skips.to_json(),
            packing=self.packing,
        )


def _is_other(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether shards are not those of an earlier record; records of older runs have no hash of the content."""
    contents = {entry["content"] for entry in (before, now) if entry.get("content")}
    return before["fingerprint"] != now["fingerprint"] or len(contents) > 1

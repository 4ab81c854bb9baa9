"""`data_order.json`: all that is needed to build a run's dataset again and to name any step's samples.

It holds the seed, the window length, the schedule, where the sources lie (relative to the file, so that a run folder
may be moved with its shards) with their fingerprints, and from which step on the global batch had which size.
"""

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
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
        start_sample (`int`): The first sample of that step.
        global_batch (`int`): Sequences of one optimizer step.
    """

    start_step: int
    start_sample: int
    global_batch: int


@dataclass
class DataOrder:
    """A run's data order as written to `data_order.json`.

    Args:
        seed (`int`): Seed of the dataset.
        seq_length (`int`): Tokens of a sample.
        num_samples (`int`): Length of the run in samples.
        schedule (`MixtureSchedule`): The schedule in force, shares moved to keep within caps included.
        sources (`list[dict]`): `name`, `folder` (as given, or `None` in memory), `num_tokens`, `num_documents`,
            `fingerprint`.
        batches (`list[BatchSpan]`): Sizes of the global batch.
    """

    seed: int
    seq_length: int
    num_samples: int
    schedule: MixtureSchedule
    sources: list[dict[str, Any]]
    batches: list[BatchSpan] = field(default_factory=list)

    @classmethod
    def of(cls, dataset: MixtureDataset, global_batch: int) -> "DataOrder":
        """Describes a dataset.

        Args:
            dataset (`MixtureDataset`): The dataset.
            global_batch (`int`): Sequences of one optimizer step.

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
            }
            for source in dataset.sources
        ]
        return cls(
            dataset.seed, dataset.seq_length, len(dataset), dataset.schedule, sources, [BatchSpan(0, 0, global_batch)]
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
            "batches": [vars(span) for span in self.batches],
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
        consumed = self.samples_of_step(step).stop if step else 0
        for key in ("seed", "seq_length"):
            if consumed and getattr(self, key) != getattr(new, key):
                raise UserError(
                    f"{key} = {getattr(new, key)}; the run was begun with {getattr(self, key)}, "
                    "and its order cannot be "
                    "continued with another: restore it or start a new run folder"
                )
        before = {entry["name"]: entry for entry in self.sources}
        for entry in new.sources:
            old = before.get(entry["name"])
            if consumed and old is not None and old["fingerprint"] != entry["fingerprint"]:
                raise UserError(
                    f"source {entry['name']!r} changed since the run began (its shards have "
                    "other hashes); restore them or start "
                    "a new run folder"
                )
        if consumed and not self.schedule.same_until(new.schedule, consumed):
            raise UserError(
                f"the mixture changed for samples that were already read (step {step}, "
                f"{consumed} samples); change weights "
                "only for phases that begin later, or start a new run folder"
            )
        spans = [span for span in self.batches if span.start_step < step] if consumed else []
        size = new.batches[-1].global_batch
        if not spans or spans[-1].global_batch != size:
            spans.append(BatchSpan(step if consumed else 0, consumed, size))
        return DataOrder(new.seed, new.seq_length, new.num_samples, new.schedule, new.sources, spans)

    def samples_of_step(self, step: int) -> range:
        """Names the samples of an optimizer step.

        Args:
            step (`int`): The step, from 1: the update after which `global_step == step`.

        Returns:
            `range`: Numbers of its samples.

        Raises:
            UserError: If the step is below 1.
        """
        if step < 1:
            raise UserError(f"step = {step}; steps count from 1")
        span = max((item for item in self.batches if item.start_step < step), key=lambda item: item.start_step)
        start = span.start_sample + (step - 1 - span.start_step) * span.global_batch
        return range(start, start + span.global_batch)

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
            source = TokenSource.open(entry["folder"])
            if fingerprint(source.metadata.get("files", [])) != entry["fingerprint"]:
                raise UserError(f"source {entry['name']!r}: the shards in {entry['folder']} are not those of the run")
            sources.append(source)
        # Shares were already moved where needed, so the caps must not be applied a second time.
        return MixtureDataset(
            sources, self.schedule, self.seq_length, self.seed, self.num_samples, max_epochs=float("inf")
        )

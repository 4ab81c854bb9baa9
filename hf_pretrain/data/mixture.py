"""`MixtureDataset`: sample `i` is a pure function of the seed, the schedule and `i`.

The schedule says which source and which draw of it; the draw number says which epoch and which place in it; a
permutation seeded by (seed, source, epoch) says which window. Nothing is remembered between calls, so any worker,
rank, restart or debugger gets the same sample, every window comes once an epoch, and every epoch has another order.

Use it with a sequential sampler: the order is in the dataset, and shuffling it again would break the phases.
"""

import functools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from hf_pretrain.data.permutation import Permutation, derive_seed
from hf_pretrain.data.repeats import MaxEpochs, OnExcess, SourcePlan, fit_repeats, plan_sources
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.skips import Skips
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


@functools.lru_cache(maxsize=256)
def _epoch_permutation(size: int, seed: int, name: str, epoch: int) -> Permutation:
    return Permutation(size, derive_seed(seed, name, epoch))


def pack_window(tokens: np.ndarray, document_starts: np.ndarray) -> dict[str, torch.Tensor]:
    """Turns one window of packed documents into model inputs.

    Position ids restart where a document begins, which is how packed attention tells documents apart. The label of a
    document's first token is -100: nothing may be predicted across a document's edge.

    Args:
        tokens (`np.ndarray`): int64 ids of shape `[seq_length]`.
        document_starts (`np.ndarray`): Offsets at which documents begin.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids`, `labels` and `position_ids`, int64 of shape `[seq_length]`. Labels are
        not shifted; the model shifts.
    """
    labels = tokens.copy()
    labels[document_starts] = -100
    last_start = np.zeros(len(tokens), dtype=np.int64)
    last_start[document_starts] = document_starts
    positions = np.arange(len(tokens), dtype=np.int64) - np.maximum.accumulate(last_start)
    return {
        "input_ids": torch.from_numpy(tokens),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
    }


class MixtureDataset(Dataset):
    """Windows of several sources in the order of a schedule.

    Args:
        sources (`Sequence[TokenSource]`): The sources; every name in the schedule must be among them.
        schedule (`MixtureSchedule`): Which source each sample is drawn from.
        seq_length (`int`): Tokens of a sample.
        seed (`int`, *optional*, defaults to 0): Chooses the order of windows in every epoch of every source.
        num_samples (`int`, *optional*): Length; by default the schedule's.
        max_epochs (`float` or `dict[str, float]`, *optional*): How often a source may be read; 4 by default.
        on_excess (`"refuse"` or `"redistribute"`, *optional*, defaults to `"refuse"`): What to do with a schedule that
            reads a source more often.
        skipped (`Iterable[Sequence[int]]`, *optional*): `[start, stop]` ranges of samples to leave out. Item `i` is
            then the i-th sample that lies in none of them.

    Raises:
        UserError: If sources share a name or differ in vocabulary, a scheduled source is missing or too short, or a
        cap is
            exceeded.
    """

    def __init__(
        self,
        sources: Sequence[TokenSource],
        schedule: MixtureSchedule,
        seq_length: int,
        seed: int = 0,
        num_samples: int | None = None,
        max_epochs: MaxEpochs | None = None,
        on_excess: OnExcess = "refuse",
        skipped: Iterable[Sequence[int]] = (),
    ) -> None:
        if isinstance(seq_length, bool) or not isinstance(seq_length, int) or seq_length < 2:
            raise UserError(f"seq_length = {seq_length!r}; allowed are whole numbers from 2 up")
        by_name: dict[str, TokenSource] = {}
        for source in sources:
            if source.name in by_name:
                raise UserError(f"two sources are called {source.name!r}; give each its own name")
            by_name[source.name] = source
        vocabularies = {source.vocab_size for source in sources if source.folder is not None}
        if len(vocabularies) > 1:
            raise UserError(
                "the sources were made by different tokenizers (vocabularies of "
                f"{sorted(vocabularies)} ids); tokenize them "
                "with one"
            )
        self._by_name = by_name
        self.seq_length = seq_length
        self.seed = seed
        self.max_epochs = max_epochs
        self.on_excess = on_excess
        self.skips = Skips(skipped)
        # Samples already trained on, whose shares must stay when a changed schedule is fitted to the caps.
        self.fixed_samples = 0
        self.set_schedule(schedule)
        self._num_samples = schedule.num_samples if num_samples is None else num_samples

    @property
    def sources(self) -> list[TokenSource]:
        """The sources in the schedule's order: a sample's `source_index` counts here."""
        return [self._by_name[name] for name in self.schedule.sources]

    @property
    def requested_schedule(self) -> MixtureSchedule:
        """The schedule as given, before any share was moved to keep within `max_epochs`."""
        return self._requested

    def set_schedule(self, schedule: MixtureSchedule) -> None:
        """Installs another schedule after checking it against the sources.

        Workers copy the dataset when an iterator is made, so this must happen before; `on_train_begin` is early
        enough.

        Args:
            schedule (`MixtureSchedule`): The new schedule.

        Raises:
            UserError: If a source is missing or too short, or a cap is exceeded.
        """
        for name in schedule.sources:
            if name not in self._by_name:
                raise UserError(f"mixture: {unknown_name_message('source', name, self._by_name)}")
        windows = {name: self._by_name[name].num_windows(self.seq_length) for name in schedule.sources}
        self._requested = schedule
        self.schedule = fit_repeats(
            schedule, windows, self.seq_length, self.max_epochs, self.on_excess, self.fixed_samples
        )
        self._windows = [windows[name] for name in self.schedule.sources]

    def plan(self) -> list[SourcePlan]:
        """Computes what the whole run draws from each source.

        Returns:
            `list[SourcePlan]`: Tokens, share, epochs and cap of each source.
        """
        windows = dict(zip(self.schedule.sources, self._windows, strict=True))
        return plan_sources(self.schedule, windows, self.seq_length, self.max_epochs)

    def __len__(self) -> int:
        return self._num_samples

    def locate(self, index: int) -> tuple[int, int, int]:
        """Finds where a sample's tokens lie.

        Args:
            index (`int`): Number of the sample.

        Returns:
            `tuple[int, int, int]`: Index of the source, epoch of the source (from 0), number of the window in it.
        """
        source, draw = self.schedule.locate(index)
        size = self._windows[source]
        epoch, place = divmod(draw, size)
        return source, epoch, _epoch_permutation(size, self.seed, self.schedule.sources[source], epoch)[place]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Builds one sample.

        Args:
            index (`int`): Position of the sample in the run: how many are trained on before it. It is the number of
                the sample itself where `skips` leaves nothing out.

        Returns:
            `dict[str, Any]`: `input_ids`, `labels`, `position_ids` (int64 tensors of shape `[seq_length]`),
            `sample_index` and `source_index` (`int`).

        Raises:
            IndexError: If the index lies outside the run.
        """
        index = int(index)
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of a run of {self._num_samples}")
        index = self.skips.sample_at(index)
        source, _, window = self.locate(index)
        tokens, starts = self._by_name[self.schedule.sources[source]].window(window, self.seq_length)
        return {**pack_window(tokens, starts), "sample_index": index, "source_index": source}

    def consumed(self, index: int) -> dict[str, dict[str, float]]:
        """Counts what the first samples trained on held.

        Args:
            index (`int`): How many samples; those that `skips` leaves out are not among them.

        Returns:
            `dict[str, dict[str, float]]`: Per source `tokens` (of this run), `share` (of this run), `epochs` (earlier
            stages included) and `unique_tokens`, how many different ones were read (earlier stages included).
        """
        end = self.skips.end_after(index)
        counts = self.schedule.counts(end)
        for start, stop in self.skips.below(end):
            first, last = self.schedule.counts(start), self.schedule.counts(stop)
            counts = {name: count - (last[name] - first[name]) for name, count in counts.items()}
        result = {}
        for name, size in zip(self.schedule.sources, self._windows, strict=True):
            drawn = counts[name] + self.schedule.start_draws.get(name, 0)
            result[name] = {
                "tokens": counts[name] * self.seq_length,
                "share": counts[name] / index if index else 0.0,
                "epochs": drawn / size if size else 0.0,
                # Within an epoch no window comes twice.
                "unique_tokens": min(drawn, size) * self.seq_length,
            }
        return result


class WindowDataset(Dataset):
    """The first windows of one source in their order, for held-out loss.

    Args:
        source (`TokenSource`): The source.
        seq_length (`int`): Tokens of a sample.
        max_windows (`int`, *optional*): How many at most; by default all.

    Raises:
        UserError: If the source holds no full window.
    """

    def __init__(self, source: TokenSource, seq_length: int, max_windows: int | None = None) -> None:
        available = source.num_windows(seq_length)
        if not available:
            raise UserError(
                f"source {source.name!r} holds {source.num_tokens} tokens, no full window of "
                f"{seq_length}; give it more text or "
                "use a shorter seq_length"
            )
        self.source = source
        self.seq_length = seq_length
        self._length = available if max_windows is None else min(available, max_windows)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        """Builds one window.

        Args:
            index (`int`): Number of the window.

        Returns:
            `dict[str, torch.Tensor]`: `input_ids`, `labels` and `position_ids`, int64 of shape `[seq_length]`.

        Raises:
            IndexError: If the index lies outside.
        """
        index = int(index)
        if not 0 <= index < self._length:
            raise IndexError(f"window {index} of {self._length}")
        return pack_window(*self.source.window(index, self.seq_length))

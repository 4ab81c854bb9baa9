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

from hf_pretrain.data.packing import PackedSamples, Packing, Rows, make_rows, pack_rows, pack_window
from hf_pretrain.data.permutation import Permutation, derive_seed
from hf_pretrain.data.phases import check_context
from hf_pretrain.data.repeats import MaxEpochs, OnExcess, SourcePlan, fit_repeats, plan_sources
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.skips import Skips
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


_BLOCK = 1024


@functools.lru_cache(maxsize=256)
def _epoch_permutation(size: int, seed: int, name: str, epoch: int) -> Permutation:
    return Permutation(size, derive_seed(seed, name, epoch))


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
        packing (`"concat"` or `"best_fit"`, *optional*, defaults to `"concat"`): How documents share rows: cut into
            windows wherever these end, or kept whole where they fit.

    Raises:
        UserError: If sources share a name or differ in vocabulary, a scheduled source is missing or too short, or a
            cap is exceeded.
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
        packing: Packing = "concat",
    ) -> None:
        if isinstance(seq_length, bool) or not isinstance(seq_length, int) or seq_length < 2:
            raise UserError(f"seq_length = {seq_length!r}; allowed are whole numbers from 2 up")
        by_name: dict[str, TokenSource] = {}
        for source in sources:
            if source.name in by_name:
                raise UserError(f"two sources are called {source.name!r}; give each its own name")
            by_name[source.name] = source
        vocabularies = {source.vocab_size for source in sources if source.vocab_size and source.folder is not None}
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
        self.packing = packing
        self._rows_of: dict[str, Rows] = {}
        self._vocab_size = min((source.vocab_size for source in sources if source.vocab_size), default=0)
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
        for phase in schedule.phases:
            if phase.seq_length is not None:
                check_context(phase.seq_length, self.seq_length, f"phase {phase.name!r}: seq_length")
        for name in schedule.sources:
            if name not in self._rows_of:
                self._rows_of[name] = make_rows(self._by_name[name], self.seq_length, self.packing)
        windows = {name: self._rows_of[name].num_rows for name in schedule.sources}
        self._requested = schedule
        self.schedule = fit_repeats(
            schedule, windows, self.seq_length, self.max_epochs, self.on_excess, self.fixed_samples
        )
        self._windows = [windows[name] for name in self.schedule.sources]
        self._rows = [self._rows_of[name] for name in self.schedule.sources]
        self._contexts = {phase.seq_length for phase in self.schedule.phases} - {None, self.seq_length}
        self._make_blocks()

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
        self._check_index(index)
        index = self.skips.sample_at(index)
        source, _, window = self.locate(index)
        return self._read([index], [(source, window)])[0]

    def __getitems__(self, indices: Sequence[int]) -> PackedSamples:
        """Builds the samples of a batch at once, which is what a `DataLoader` asks for.

        Args:
            indices (`Sequence[int]`): Numbers of the samples.

        Returns:
            `PackedSamples`: The same samples as one by one.

        Raises:
            IndexError: If an index lies outside the run.
        """
        indices = [int(index) for index in indices]
        for index in indices:
            self._check_index(index)
        indices = [self.skips.sample_at(index) for index in indices]
        places = []
        for index in indices:
            number, offset = divmod(index, _BLOCK)
            source, draw = self._place_block(number)[offset]
            epoch, place = divmod(draw, self._windows[source])
            number, offset = divmod(place, _BLOCK)
            places.append((source, self._window_block(source, epoch, number)[offset]))
        return self._read(indices, places)

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key not in ("_place_block", "_window_block")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._make_blocks()

    def _check_index(self, index: int) -> None:
        if not 0 <= index < self._num_samples:
            raise IndexError(f"sample {index} of a run of {self._num_samples}")

    def _make_blocks(self) -> None:
        # Neighbouring samples are found together many times faster than alone. This is a cache and no state: any
        # sample is the same whatever was asked for before.
        self._place_block = functools.lru_cache(maxsize=4)(self._locate_block)
        self._window_block = functools.lru_cache(maxsize=4 * len(self._windows))(self._permute_block)

    def _locate_block(self, number: int) -> list[tuple[int, int]]:
        return self.schedule.locate_range(number * _BLOCK, (number + 1) * _BLOCK)

    def _permute_block(self, source: int, epoch: int, number: int) -> list[int]:
        size = self._windows[source]
        permutation = _epoch_permutation(size, self.seed, self.schedule.sources[source], epoch)
        return permutation.block(number * _BLOCK, min((number + 1) * _BLOCK, size))

    def _read(self, indices: list[int], places: list[tuple[int, int]]) -> PackedSamples:
        ids = np.empty((len(indices), self.seq_length), dtype=np.int64)
        contexts = [self.schedule.phase_at(index).seq_length for index in indices] if self._contexts else None
        read = [(self._rows[source], window) for source, window in places]
        labels, positions = pack_rows(read, ids, contexts)
        if self._vocab_size and ids.size and int(ids.max()) >= self._vocab_size:
            for row, (source, window) in enumerate(places):
                start, stop = self._rows[source].spans(window)[0][0], self._rows[source].spans(window)[-1][1]
                self.sources[source].check_ids(start, stop, int(ids[row].max()))
        tensors = (torch.from_numpy(array) for array in (ids, labels, positions))
        return PackedSamples(*tensors, indices, [source for source, _ in places])

    def num_rows(self, source: str) -> int:
        """Counts the rows of an epoch of a source, which its draws are numbered by.

        Args:
            source (`str`): Name of the source.

        Returns:
            `int`: Windows, or rows of whole documents with `packing="best_fit"`.
        """
        return self._rows_of[source].num_rows

    def rows_of(self, source: str, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Finds the rows of a source that hold some of its tokens.

        Args:
            source (`str`): Name of the source.
            start (`int`): First position in the source.
            stop (`int`): End, exclusive.

        Returns:
            `list[tuple[int, int, int]]`: Row, and first position and end of what it holds of the range.
        """
        return self._rows_of[source].rows_of(start, stop)

    def spans(self, index: int) -> list[tuple[int, int]]:
        """Names the tokens that a sample holds.

        Args:
            index (`int`): Number of the sample.

        Returns:
            `list[tuple[int, int]]`: Ranges of positions in the sample's source, in their order in the row.
        """
        source, _, window = self.locate(index)
        return self._rows[source].spans(window)

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

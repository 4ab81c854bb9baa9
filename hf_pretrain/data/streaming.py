"""`StreamingMixture`: the mixture of `mixture.py` over sources that cannot be mapped, read from front to back.

Draw `k` of a source is the k-th window of its documents laid end to end, so the same schedule gives the same shares,
and any number of workers and processes the same global batches. What it cannot do: permute windows (a source's order
is the stream's own), know sizes before reading (a cap on epochs is noticed when it is reached), leave samples out, or
jump. A resume opens each stream at its `state_dict` where it has one that is exact, and reads up to there where not.
"""

import bisect
import copy
import logging
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch.utils.data import IterableDataset, get_worker_info

from hf_pretrain.data.packing import mark_documents
from hf_pretrain.data.repeats import MaxEpochs, epoch_caps
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

_BLOCK = 1024
_KEPT_STATES = 64


class StreamingMixture(IterableDataset):
    """Windows of several streams in the order of a schedule.

    Args:
        streams (`Mapping[str, Iterable]`): Documents of each source, as mappings with `input_ids` or as lists of ids;
            each must begin anew whenever it is iterated. A `datasets.IterableDataset` is reshuffled every epoch if it
            was shuffled, and is resumed by its own `state_dict`.
        schedule (`MixtureSchedule`): Which source each sample is drawn from.
        seq_length (`int`): Tokens of a sample.
        block_size (`int`, *optional*, defaults to 1): Samples in a row that go to one worker: the micro-batch of the
            loader, or with `dispatch_batches=False` that of all processes together. `PretrainTrainer` sets it.
        eos_token_id (`int`, *optional*): Appended to documents that do not end with it.
        max_epochs (`float` or `Mapping[str, float]`, *optional*): How often a stream may be read; 4 by default.
        state_every (`int`, *optional*, defaults to 64): Samples between two states that are kept for `state_dict`.

    Raises:
        UserError: If a scheduled source is missing, or the schedule goes on from an earlier stage.

    Example:

    ```python
    >>> schedule = MixtureSchedule.from_weights({"web": 0.7, "code": 0.3}, num_samples=1000)
    >>> dataset = StreamingMixture({"web": web, "code": code}, schedule, seq_length=2048, block_size=8)
    >>> loader = DataLoader(dataset, batch_size=8, collate_fn=PretrainDataCollator())
    ```
    """

    def __init__(
        self,
        streams: Mapping[str, Iterable[Any]],
        schedule: MixtureSchedule,
        seq_length: int,
        block_size: int = 1,
        eos_token_id: int | None = None,
        max_epochs: MaxEpochs | None = None,
        state_every: int = 64,
    ) -> None:
        if isinstance(seq_length, bool) or not isinstance(seq_length, int) or seq_length < 2:
            raise UserError(f"seq_length = {seq_length!r}; allowed are whole numbers from 2 up")
        for name in schedule.sources:
            if name not in streams:
                raise UserError(f"mixture: {unknown_name_message('source', name, streams)}")
            if iter(streams[name]) is streams[name]:
                raise UserError(
                    f"source {name!r} is an iterator, which can be read once; give what begins anew whenever it is "
                    "iterated, e.g. a datasets.IterableDataset"
                )
        if any(schedule.start_draws.values()):
            raise UserError(
                "a stream cannot go on where an earlier stage stopped reading; use MixtureDataset over files"
            )
        for phase in schedule.phases:
            if phase.seq_length not in (None, seq_length):
                raise UserError(f"phase {phase.name!r}: seq_length = {phase.seq_length}; streams have one length")
        self.schedule = schedule
        self.seq_length = seq_length
        self.block_size = block_size
        self._streams = {name: streams[name] for name in schedule.sources}
        self._eos_token_id = eos_token_id
        self._caps = epoch_caps(schedule.sources, max_epochs)
        self._state_every = state_every
        self._start: dict[str, Any] = {"position": 0, "at": 0, "streams": {}}
        self._states: dict[int, dict[str, Any]] = {}

    @property
    def num_samples(self) -> int:
        """Length of the run in samples."""
        return self.schedule.num_samples

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        begin, first = self._start["at"], self._start["position"]
        saved = self._start["streams"]
        readers = [
            _Reader(name, stream, self.seq_length, self._eos_token_id, self._caps[name], saved.get(name))
            for name, stream in self._streams.items()
        ]
        if first - begin > self._state_every:
            logger.info("Reading %d samples of the streams again to reach sample %d", first - begin, first)
        self._states = {}
        for block in range(begin, self.num_samples, _BLOCK):
            places = self.schedule.locate_range(block, min(block + _BLOCK, self.num_samples))
            for index, (source, _) in enumerate(places, start=block):
                if worker is None and index % self._state_every == 0:
                    self._states[index] = {reader.name: reader.state() for reader in readers}
                    self._states = dict(list(self._states.items())[-_KEPT_STATES:])
                window = readers[source].window()
                if index >= first and (index - first) // self.block_size % count == number:
                    yield self._sample(index, source, *window)

    def state_dict(self, position: int | None = None) -> dict[str, Any]:
        """Says where the reading stands, as plain JSON data.

        Loaders read ahead, so ask for the number of samples that were used. Worker processes keep their states to
        themselves: with workers the state is the position alone, which is as exact but has to read from the start.

        Args:
            position (`int`, *optional*): Samples used; by default those at the newest state kept.

        Returns:
            `dict[str, Any]`: `position`, and the streams' states at the sample `at` before it.
        """
        known = sorted(self._states)
        if position is None:
            position = known[-1] if known else self._start["position"]
        place = bisect.bisect_right(known, position)
        if place:
            return {"position": position, "at": known[place - 1], "streams": self._states[known[place - 1]]}
        start = self._start if self._start["at"] <= position else {"at": 0, "streams": {}}
        return {"position": position, "at": start["at"], "streams": start["streams"]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Makes the next iteration begin where a state was taken.

        Args:
            state (`Mapping[str, Any]`): What [`StreamingMixture.state_dict`] gave.

        Raises:
            UserError: If it is no such state, or lies beyond the end of the run.
        """
        if set(state) != {"position", "at", "streams"} or not 0 <= state["at"] <= state["position"]:
            raise UserError(
                f"state_dict with the keys {sorted(state)}; give what StreamingMixture.state_dict returned"
            )
        if state["position"] > self.num_samples:
            raise UserError(f"position = {state['position']}; the schedule has {self.num_samples} samples")
        self._start = dict(state)
        self._states = {}

    def _sample(self, index: int, source: int, ids: np.ndarray, starts: np.ndarray) -> dict[str, Any]:
        labels, positions = ids[None].copy(), np.empty((1, len(ids)), dtype=np.int64)
        mark_documents(labels, positions, starts)
        return {
            "input_ids": torch.from_numpy(ids),
            "labels": torch.from_numpy(labels[0]),
            "position_ids": torch.from_numpy(positions[0]),
            "sample_index": index,
            "source_index": source,
        }


class _Reader:
    """One stream as windows: documents laid end to end, epoch after epoch, no token left out."""

    def __init__(
        self,
        name: str,
        stream: Iterable[Any],
        seq_length: int,
        eos_token_id: int | None,
        cap: float,
        state: Mapping[str, Any] | None,
    ) -> None:
        self.name = name
        self._given = stream
        self._seq_length = seq_length
        self._eos_token_id = eos_token_id
        self._cap = cap
        state = state or {"epoch": 0, "documents": 0, "tokens": 0, "rest": [], "starts": [], "stream": None}
        self._epoch, self._documents, self._tokens = state["epoch"], state["documents"], state["tokens"]
        self._rest = np.array(state["rest"], dtype=np.int64)
        self._starts = np.array(state["starts"], dtype=np.int64)
        self._has_state = hasattr(stream, "state_dict") and not _has_shuffle_buffer(stream)
        self._iterator = self._open(state["stream"])

    def _open(self, state: Any = None) -> Iterator[Any]:
        # A copy: a loaded state stays with a stream, and the one that was given must still begin at its front.
        self._stream = copy.copy(self._given) if self._has_state else self._given
        if hasattr(self._stream, "set_epoch"):
            self._stream.set_epoch(self._epoch)
        if state is not None:
            self._stream.load_state_dict(state)
            return iter(self._stream)
        iterator = iter(self._stream)
        for _ in range(self._documents):
            next(iterator, None)
        return iterator

    def state(self) -> dict[str, Any]:
        """Where the reading stands, before the next window."""
        return {
            "epoch": self._epoch,
            "documents": self._documents,
            "tokens": self._tokens,
            "rest": self._rest.tolist(),
            "starts": self._starts.tolist(),
            "stream": self._stream.state_dict() if self._has_state else None,
        }

    def window(self) -> tuple[np.ndarray, np.ndarray]:
        """Reads the next window: its ids, and where documents begin in it."""
        parts, starts, held = [self._rest], [self._starts], len(self._rest)
        while held < self._seq_length:
            document = self._next_document()
            parts.append(document)
            starts.append(np.array([held], dtype=np.int64)[: len(document)])
            held += len(document)
        ids, starts = np.concatenate(parts), np.concatenate(starts)
        inside = starts < self._seq_length
        self._rest, self._starts = ids[self._seq_length :].copy(), starts[~inside] - self._seq_length
        return ids[: self._seq_length].copy(), starts[inside]

    def _next_document(self) -> np.ndarray:
        found = next(self._iterator, None)
        while found is None:
            if not self._tokens:
                raise UserError(f"source {self.name!r} holds no token; leave it out of the mixture")
            if self._epoch + 1 >= self._cap:
                raise UserError(
                    f"source {self.name!r} ended after {self._tokens:,} tokens in {self._epoch + 1} epochs, its cap "
                    f"is max_epochs = {self._cap:g}; lower its weight, train on fewer tokens, or raise max_epochs"
                )
            self._epoch, self._documents = self._epoch + 1, 0
            self._iterator = self._open()
            found = next(self._iterator, None)
        self._documents += 1
        if isinstance(found, Mapping):
            if "input_ids" not in found:
                raise UserError(f"source {self.name!r}: a document with the keys {sorted(found)}; input_ids is needed")
            found = found["input_ids"]
        ids = np.asarray(found, dtype=np.int64)
        if self._eos_token_id is not None and len(ids) and ids[-1] != self._eos_token_id:
            ids = np.append(ids, self._eos_token_id)
        self._tokens += len(ids)
        return ids


def _has_shuffle_buffer(stream: Any) -> bool:
    """Whether a state of the stream forgets what lies in a buffer: such a stream is read again from its front."""
    waiting = [getattr(stream, "_ex_iterable", None)]
    while waiting:
        part = waiting.pop()
        if part is not None:
            if "BufferShuffled" in type(part).__name__:
                return True
            waiting += [getattr(part, "ex_iterable", None), *(getattr(part, "ex_iterables", None) or ())]
    return False

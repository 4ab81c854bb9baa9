"""Rows of packed documents: read from a source, and turned into model inputs.

A row comes of one of two packings: `concat`, fixed windows over the line of all tokens, cut wherever they end; or
`best_fit`, whole documents side by side. Either way `position_ids` restart where a document begins, which is how
attention tells documents apart, and the label of a document's first token is -100: nothing is predicted across an
edge, and filler is never trained on.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch

from hf_pretrain.data.best_fit import load_index
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


Packing = Literal["concat", "best_fit"]


class Rows(Protocol):
    """The rows of one source."""

    source: TokenSource
    num_rows: int

    def read_into(self, row: int, out: np.ndarray) -> tuple[np.ndarray, int]:
        """Reads a row; returns where its documents begin, and how much of it is filled."""

    def spans(self, row: int) -> list[tuple[int, int]]:
        """The ranges of the source's tokens that a row holds, in order."""

    def rows_of(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """The rows that hold tokens of a range, each with the part of the range it holds."""


class ConcatRows:
    """Fixed windows over the line of all tokens; a tail shorter than a window is left out.

    Args:
        source (`TokenSource`): The source.
        seq_length (`int`): Tokens of a row.
    """

    def __init__(self, source: TokenSource, seq_length: int) -> None:
        self.source = source
        self.seq_length = seq_length
        self.num_rows = source.num_windows(seq_length)

    def read_into(self, row: int, out: np.ndarray) -> tuple[np.ndarray, int]:
        """Reads a row.

        Args:
            row (`int`): Number of the row.
            out (`np.ndarray`): int64 array of shape `[seq_length]` to fill.

        Returns:
            `tuple[np.ndarray, int]`: Offsets at which documents begin, and `seq_length`.
        """
        return self.source.read_row(row * self.seq_length, out), self.seq_length

    def spans(self, row: int) -> list[tuple[int, int]]:
        """Names the tokens of a row.

        Args:
            row (`int`): Number of the row.

        Returns:
            `list[tuple[int, int]]`: One range of positions in the source.
        """
        return [(row * self.seq_length, (row + 1) * self.seq_length)]

    def rows_of(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Finds the rows of some tokens.

        Args:
            start (`int`): First position in the source.
            stop (`int`): End, exclusive.

        Returns:
            `list[tuple[int, int, int]]`: Row, and first position and end of what it holds of the range.
        """
        length = self.seq_length
        rows = range(start // length, min((stop - 1) // length + 1, self.num_rows)) if stop > start else ()
        return [(row, max(start, row * length), min(stop, (row + 1) * length)) for row in rows]


class BestFitRows:
    """Whole documents side by side; only documents longer than a row are cut.

    Args:
        source (`TokenSource`): The source.
        seq_length (`int`): Tokens of a row.
    """

    def __init__(self, source: TokenSource, seq_length: int) -> None:
        self.source = source
        self.seq_length = seq_length
        files = source.metadata.get("files")
        self._index = load_index(source.name, source.document_ends(), source.num_tokens, seq_length, files)
        self.num_rows = self._index.num_rows
        self._filler = source.eos_token_id or 0

    def read_into(self, row: int, out: np.ndarray) -> tuple[np.ndarray, int]:
        """Reads a row.

        Args:
            row (`int`): Number of the row.
            out (`np.ndarray`): int64 array of shape `[seq_length]` to fill.

        Returns:
            `tuple[np.ndarray, int]`: Offsets at which pieces begin, and how many tokens are no filler.
        """
        offset, starts = 0, []
        for start, stop in self._index.pieces(row):
            starts.append(offset)
            self.source.read_into(start, out[offset : offset + stop - start])
            offset += stop - start
        out[offset:] = self._filler
        return np.array(starts, dtype=np.int64), offset

    def spans(self, row: int) -> list[tuple[int, int]]:
        """Names the tokens of a row.

        Args:
            row (`int`): Number of the row.

        Returns:
            `list[tuple[int, int]]`: A range of positions in the source for each piece.
        """
        return self._index.pieces(row)

    def rows_of(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Finds the rows of some tokens, by one look through the index.

        Args:
            start (`int`): First position in the source.
            stop (`int`): End, exclusive.

        Returns:
            `list[tuple[int, int, int]]`: Row, and first position and end of what it holds of the range.
        """
        return self._index.rows_of(start, stop)


def make_rows(source: TokenSource, seq_length: int, packing: Packing = "concat") -> Rows:
    """Makes the rows of a source.

    Args:
        source (`TokenSource`): The source.
        seq_length (`int`): Tokens of a row.
        packing (`"concat"` or `"best_fit"`, *optional*, defaults to `"concat"`): How documents share rows.

    Returns:
        `Rows`: The rows.

    Raises:
        UserError: If the packing is unknown.
    """
    if packing not in ("concat", "best_fit"):
        raise UserError(f"packing = {packing!r}; allowed are 'concat' and 'best_fit'")
    return ConcatRows(source, seq_length) if packing == "concat" else BestFitRows(source, seq_length)


class PackedSamples(Sequence):
    """Samples that lie in the arrays of one batch already; each item is the sample's dictionary.

    Args:
        input_ids (`torch.Tensor`): int64 of shape `[batch, seq_length]`.
        labels (`torch.Tensor`): As `input_ids`, not shifted; -100 where nothing is predicted.
        position_ids (`torch.Tensor`): As `input_ids`, restarting at every document.
        sample_index (`Sequence[int]`): Number of each sample in the run.
        source_index (`Sequence[int]`): Source of each sample.
    """

    def __init__(
        self,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        position_ids: torch.Tensor,
        sample_index: Sequence[int],
        source_index: Sequence[int],
    ) -> None:
        self.input_ids = input_ids
        self.labels = labels
        self.position_ids = position_ids
        self.sample_index = list(sample_index)
        self.source_index = list(source_index)

    def __len__(self) -> int:
        return len(self.sample_index)

    def __getitem__(self, place: int) -> dict[str, Any]:
        return {
            "input_ids": self.input_ids[place],
            "labels": self.labels[place],
            "position_ids": self.position_ids[place],
            "sample_index": self.sample_index[place],
            "source_index": self.source_index[place],
        }

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[place] for place in range(len(self)))


def mark_documents(
    labels: np.ndarray, positions: np.ndarray, starts: np.ndarray, fillers: Sequence[tuple[int, int]] = ()
) -> None:
    """Writes the labels and positions of all rows of a batch at once.

    Args:
        labels (`np.ndarray`): The ids, of shape `[batch, seq_length]`; changed in place.
        positions (`np.ndarray`): Filled; of the same shape.
        starts (`np.ndarray`): Rising places at which documents begin, counted through the batch row by row.
        fillers (`Sequence[tuple[int, int]]`, *optional*): Row, and where its filler begins.
    """
    rows, length = labels.shape
    labels.reshape(-1)[starts] = -100
    edges = [starts, np.arange(0, rows * length, length)]
    if fillers:
        edges.append(np.array([row * length + filled for row, filled in fillers], dtype=np.int64))
        for row, filled in fillers:
            labels[row, filled:] = -100
    edges = np.concatenate(edges)
    edges.sort()
    sizes = np.diff(edges, append=rows * length)
    np.subtract(_arange(rows * length), np.repeat(edges, sizes), out=positions.reshape(-1))


_COUNTING = np.arange(1 << 15, dtype=np.int64)


def _arange(length: int) -> np.ndarray:
    global _COUNTING
    if len(_COUNTING) < length:
        _COUNTING = np.arange(length, dtype=np.int64)
    return _COUNTING[:length]


def pack_rows(
    read: Sequence[tuple[Rows, int]], ids: np.ndarray, contexts: Sequence[int | None] | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Reads rows into a batch and makes their labels and positions.

    Args:
        read (`Sequence[tuple[Rows, int]]`): Of each row of the batch the rows of its source, and its number in them.
        ids (`np.ndarray`): int64 array of shape `[batch, seq_length]` to fill.
        contexts (`Sequence[int | None]`, *optional*): Tokens after which each row begins anew, for phases of shorter
            sequences.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Labels and positions.
    """
    length = ids.shape[1]
    found, fillers = [], []
    for place, (rows, row) in enumerate(read):
        starts, filled = rows.read_into(row, ids[place])
        if filled < length:
            fillers.append((place, filled))
        context = contexts[place] if contexts else None
        if context is not None and context < length:
            starts = np.union1d(starts, np.arange(context, length, context))
        found.append(starts)
    starts = np.concatenate(found)
    is_inside = not len(starts) or (starts.min() >= 0 and starts.max() < length)
    starts += np.repeat(np.arange(0, ids.size, length), [len(part) for part in found])
    if not is_inside or (starts[1:] < starts[:-1]).any():
        for rows, row in read:
            for start, stop in rows.spans(row):
                rows.source.document_starts(start, stop)  # says which index does not rise
        raise UserError("document ends do not rise inside a row; a file is damaged. Tokenize the sources again.")
    labels, positions = ids.copy(), np.empty_like(ids)
    mark_documents(labels, positions, starts, fillers)
    return labels, positions


def pack_window(tokens: np.ndarray, document_starts: np.ndarray) -> dict[str, torch.Tensor]:
    """Turns one window of packed documents into model inputs.

    Args:
        tokens (`np.ndarray`): int64 ids of shape `[seq_length]`.
        document_starts (`np.ndarray`): Offsets at which documents begin.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids`, `labels` and `position_ids`, int64 of shape `[seq_length]`. Labels are
        not shifted; the model shifts.
    """
    labels = tokens[None].copy()
    positions = np.empty((1, len(tokens)), dtype=np.int64)
    mark_documents(labels, positions, document_starts)
    return {
        "input_ids": torch.from_numpy(tokens),
        "labels": torch.from_numpy(labels[0]),
        "position_ids": torch.from_numpy(positions[0]),
    }

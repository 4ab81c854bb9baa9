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

    num_rows: int

    def read_into(self, row: int, out: np.ndarray) -> tuple[np.ndarray, int]:
        """Reads a row; returns where its documents begin, and how much of it is filled."""

    def spans(self, row: int) -> list[tuple[int, int]]:
        """The ranges of the source's tokens that a row holds, in order."""


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
        start = row * self.seq_length
        self.source.read_into(start, out)
        return self.source.document_starts(start, start + self.seq_length) - start, self.seq_length

    def spans(self, row: int) -> list[tuple[int, int]]:
        """Names the tokens of a row.

        Args:
            row (`int`): Number of the row.

        Returns:
            `list[tuple[int, int]]`: One range of positions in the source.
        """
        return [(row * self.seq_length, (row + 1) * self.seq_length)]


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
    labels: np.ndarray, positions: np.ndarray, starts: np.ndarray, filled: int, context: int | None = None
) -> None:
    """Writes the labels and positions of one row.

    Args:
        labels (`np.ndarray`): The row's ids, of shape `[seq_length]`; changed in place.
        positions (`np.ndarray`): Filled.
        starts (`np.ndarray`): Offsets at which documents begin.
        filled (`int`): From here on the row is filler.
        context (`int`, *optional*): Tokens after which the row begins anew, for phases of shorter sequences.
    """
    length = len(labels)
    if filled < length:
        labels[filled:] = -100
        starts = np.append(starts, filled)
    if context is not None and context < length:
        starts = np.union1d(starts, np.arange(context, length, context))
    labels[starts] = -100
    edges = starts.tolist()
    if not edges or edges[0]:
        edges.insert(0, 0)
    edges.append(length)
    counting = _arange(length)
    for start, stop in zip(edges[:-1], edges[1:], strict=True):
        positions[start:stop] = counting[: stop - start]


_COUNTING = np.arange(4096, dtype=np.int64)


def _arange(length: int) -> np.ndarray:
    global _COUNTING
    if len(_COUNTING) < length:
        _COUNTING = np.arange(length, dtype=np.int64)
    return _COUNTING


def pack_window(tokens: np.ndarray, document_starts: np.ndarray) -> dict[str, torch.Tensor]:
    """Turns one window of packed documents into model inputs.

    Args:
        tokens (`np.ndarray`): int64 ids of shape `[seq_length]`.
        document_starts (`np.ndarray`): Offsets at which documents begin.

    Returns:
        `dict[str, torch.Tensor]`: `input_ids`, `labels` and `position_ids`, int64 of shape `[seq_length]`. Labels are
        not shifted; the model shifts.
    """
    labels = tokens.copy()
    positions = np.empty(len(tokens), dtype=np.int64)
    mark_documents(labels, positions, document_starts, len(tokens))
    return {
        "input_ids": torch.from_numpy(tokens),
        "labels": torch.from_numpy(labels),
        "position_ids": torch.from_numpy(positions),
    }

"""Best-fit packing: which pieces of documents share a row, so that documents stay whole wherever they fit.

Documents longer than a row are cut into full rows and a rest; then pieces go, longest first, each into the fullest row
that still has room (best fit decreasing; Ding et al. 2024, https://huggingface.co/papers/2404.10830). No token is
lost: what stays free in a row is filler without a label. The packing depends on the source and the row length alone,
never on the seed, so an epoch is a permutation of rows and sample `i` stays a function of the seed and `i`.
"""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from hf_pretrain.utils.atomic import atomic_directory, read_json, write_json
from hf_pretrain.utils.cache import cache_dir
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint


logger = logging.getLogger(__name__)

_SCHEMA = 1


@dataclass(frozen=True)
class BestFitIndex:
    """Rows of pieces of documents. Row `r` holds the pieces `[bounds[r], bounds[r + 1])`.

    Args:
        starts (`np.ndarray`): First token of each piece, as a position in the source; int64.
        lengths (`np.ndarray`): Tokens of each piece; int32.
        bounds (`np.ndarray`): int64 of shape `[rows + 1]`.
        seq_length (`int`): Tokens of a row.
    """

    starts: np.ndarray
    lengths: np.ndarray
    bounds: np.ndarray
    seq_length: int

    @property
    def num_rows(self) -> int:
        """Number of rows."""
        return len(self.bounds) - 1

    def pieces(self, row: int) -> list[tuple[int, int]]:
        """Names the pieces of a row.

        Args:
            row (`int`): Number of the row.

        Returns:
            `list[tuple[int, int]]`: First token and end of each, as positions in the source.
        """
        first, last = int(self.bounds[row]), int(self.bounds[row + 1])
        starts, lengths = self.starts[first:last].tolist(), self.lengths[first:last].tolist()
        return [(start, start + length) for start, length in zip(starts, lengths, strict=True)]

    def rows_of(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Finds the rows that hold tokens of a range, by one look through the pieces.

        Args:
            start (`int`): First position in the source.
            stop (`int`): End, exclusive.

        Returns:
            `list[tuple[int, int, int]]`: Row, first position and end of each piece, cut to the range, by position.
        """
        found = np.flatnonzero((self.starts < stop) & (self.starts + self.lengths > start))
        rows = np.searchsorted(self.bounds, found, side="right") - 1
        lows, highs = np.maximum(self.starts[found], start), np.minimum(self.starts[found] + self.lengths[found], stop)
        places = zip(rows.tolist(), lows.tolist(), highs.tolist(), strict=True)
        return sorted(places, key=lambda place: place[1])


def cut_documents(ends: np.ndarray, seq_length: int, offset: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Cuts documents into pieces no longer than a row.

    Args:
        ends (`np.ndarray`): Rising ends of the documents.
        seq_length (`int`): Tokens of a row.
        offset (`int`, *optional*, defaults to 0): Added to the starts.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Start (int64) and length (int32) of each piece, in order.
    """
    ends = ends.astype(np.int64)
    sizes = np.diff(ends, prepend=0)
    counts = -(-sizes // seq_length)
    number = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    inside = number * seq_length
    lengths = np.minimum(np.repeat(sizes, counts) - inside, seq_length)
    return np.repeat(ends - sizes, counts) + inside + offset, lengths.astype(np.int32)


def assign_rows(lengths: np.ndarray, seq_length: int) -> tuple[np.ndarray, int]:
    """Assigns pieces to rows by best fit decreasing.

    Pieces of one length and rows of one free room are handled together, so the work grows with the number of distinct
    lengths and not with the number of documents.

    Args:
        lengths (`np.ndarray`): Tokens of each piece, from 1 up to `seq_length`.
        seq_length (`int`): Tokens of a row.

    Returns:
        `tuple[np.ndarray, int]`: The row of each piece, and the number of rows.
    """
    order = np.argsort(-lengths, kind="stable")
    rows = np.empty(len(lengths), dtype=np.int64)
    with_room: dict[int, list[np.ndarray]] = {}
    rooms = 0  # bit c is set where some row has c tokens free
    num_rows = placed = 0

    def keep(room: int, numbers: np.ndarray) -> None:
        nonlocal rooms
        if room and len(numbers):
            with_room.setdefault(room, []).append(numbers)
            rooms |= 1 << room

    values, counts = np.unique(lengths, return_counts=True)
    for length, count in zip(values[::-1].tolist(), counts[::-1].tolist(), strict=True):
        members, done = order[placed : placed + count], 0
        placed += count
        while done < count:
            fitting = rooms >> length
            if fitting:
                room = length + (fitting & -fitting).bit_length() - 1
                free = np.concatenate(with_room.pop(room))
                rooms ^= 1 << room
            else:
                room = seq_length
                free = np.arange(num_rows, num_rows - (done - count) // (room // length))
                num_rows += len(free)
            each = room // length
            take = min(count - done, len(free) * each)
            rows[members[done : done + take]] = np.repeat(free, each)[:take]
            done += take
            full, rest = divmod(take, each)
            keep(room - each * length, free[:full])
            if rest:
                keep(room - rest * length, free[full : full + 1])
            keep(room, free[full + bool(rest) :])
    return rows, num_rows


def build_index(parts: Iterable[tuple[int, np.ndarray]], seq_length: int) -> BestFitIndex:
    """Packs the documents of a source.

    Args:
        parts (`Iterable[tuple[int, np.ndarray]]`): Position of each shard in the source, and its document ends.
        seq_length (`int`): Tokens of a row.

    Returns:
        `BestFitIndex`: The rows; it takes 12 bytes a piece, and about 50 while it is built.
    """
    cut = [cut_documents(ends, seq_length, offset) for offset, ends in parts]
    starts = np.concatenate([piece[0] for piece in cut] or [np.empty(0, np.int64)])
    lengths = np.concatenate([piece[1] for piece in cut] or [np.empty(0, np.int32)])
    rows, num_rows = assign_rows(lengths, seq_length)
    order = np.argsort(rows, kind="stable")
    bounds = np.concatenate(([0], np.cumsum(np.bincount(rows, minlength=num_rows)))).astype(np.int64)
    index = BestFitIndex(starts[order], lengths[order], bounds, seq_length)
    filled = np.add.reduceat(index.lengths, bounds[:-1], dtype=np.int64) if num_rows else np.empty(0)
    assert len(order) == bounds[-1], "a piece got no row"
    assert not num_rows or filled.max() <= seq_length, "a row holds more than fits"
    return index


def load_index(
    name: str, parts: Iterable[tuple[int, np.ndarray]], num_tokens: int, seq_length: int, files: list | None
) -> BestFitIndex:
    """Takes the packing of a source from the cache, or makes it and puts it there.

    Args:
        name (`str`): Name of the source, for messages.
        parts (`Iterable[tuple[int, np.ndarray]]`): Position of each shard in the source, and its document ends.
        num_tokens (`int`): Tokens of the source; every one must be in some row.
        seq_length (`int`): Tokens of a row.
        files (`list`, *optional*): What `source.json` says of the shards (names, sizes, hashes). Without it the source
            is in memory, and the index too.

    Returns:
        `BestFitIndex`: The rows; mapped into memory where they are cached.

    Raises:
        UserError: If the document ends do not cover the tokens.
    """
    if not files:
        return _complete(build_index(parts, seq_length), name, num_tokens)
    folder = cache_dir() / "best_fit" / f"{fingerprint([_SCHEMA, files, num_tokens, seq_length])}"
    if not (folder / "index.json").is_file():
        index = _complete(build_index(parts, seq_length), name, num_tokens)
        filler = 1 - num_tokens / max(index.num_rows * seq_length, 1)
        logger.info("%s: packed into %d rows of %d, %.2f%% filler", name, index.num_rows, seq_length, 100 * filler)
        try:
            with atomic_directory(folder) as staging:
                for key in ("starts", "lengths", "bounds"):
                    np.save(staging / f"{key}.npy", getattr(index, key))
                write_json(staging / "index.json", {"rows": index.num_rows, "tokens": num_tokens})
        except OSError:
            # Another process of the run may have put the same index there in the meantime.
            if not (folder / "index.json").is_file():
                raise
    description = read_json(folder / "index.json")
    starts, lengths, bounds = (
        np.load(folder / f"{key}.npy", mmap_mode="r", allow_pickle=False) for key in ("starts", "lengths", "bounds")
    )
    fits = len(bounds) == description["rows"] + 1 and len(starts) == len(lengths) == bounds[-1]
    if not fits or description["tokens"] != num_tokens:
        raise UserError(f"{folder}: a damaged packing index of source {name!r}; remove the folder, it is made again")
    return BestFitIndex(*(array.view(np.ndarray) for array in (starts, lengths, bounds)), seq_length)


def _complete(index: BestFitIndex, name: str, num_tokens: int) -> BestFitIndex:
    packed = int(index.lengths.sum(dtype=np.int64))
    if packed != num_tokens:
        raise UserError(
            f"source {name!r}: its documents hold {packed} tokens, the source {num_tokens}; the index does not belong "
            "to the tokens. Tokenize this source again."
        )
    return index

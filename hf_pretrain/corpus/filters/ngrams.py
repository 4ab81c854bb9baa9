"""N-grams of a text as 64-bit numbers, all positions at once, for the rules on repetition.

A word is a polynomial hash of its characters, `sum_i c_i B**i` modulo 2**64, so that the hashes of the n-grams are one
multiplication and one addition away from those of the (n-1)-grams, and equal joined strings have equal hashes wherever
the words in them end. Sorting shows whether an n-gram occurs twice; most texts are done with that.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np


if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


_BASE = 0x9E3779B97F4A7C15
_MIX = np.uint64(0xD6E8FEB86659FD93)
_POWERS = 1 << 16  # longer words share a power; only their neighbours' joins would notice
_BLOCK = 1 << 20  # characters hashed at once


def find_repeated(pieces: list[str]) -> tuple[int, int]:
    """
    Pieces that were seen before, datatrove's `find_duplicates` without a loop.

    Args:
        pieces (`list[str]`): Lines or paragraphs.

    Returns:
        `tuple[int, int]`: their number and their characters.
    """
    unique = set(pieces)
    repeated = len(pieces) - len(unique)
    return (repeated, sum(map(len, pieces)) - sum(map(len, unique))) if repeated else (0, 0)


def hash_pieces(words: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Polynomial hashes of words, `sum_i c_i B**i` modulo 2**64: that of two words joined is
    `hash(first) + power(first) * hash(second)`.

    Args:
        words (`Sequence[str]`): The words.

    Returns:
        `tuple[np.ndarray, np.ndarray, np.ndarray]`: hash (`uint64`), power `B**length` (`uint64`) and length (`int64`)
        of each word.
    """
    table = _powers()
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    hashes = np.empty(len(words), np.uint64)
    ends = np.cumsum(lengths)
    first = 0
    while first < len(words):
        before = int(ends[first - 1]) if first else 0
        last = max(int(np.searchsorted(ends, before + _BLOCK, side="right")), first + 1)
        _hash_block(words[first:last], lengths[first:last], hashes[first:last], table)
        first = last
    hashes[lengths == 0] = 0
    return hashes, table[lengths % _POWERS], lengths


def spaced_grams(hashes: np.ndarray, sizes: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """
    Hashes of n-grams as rows of words: words that end elsewhere make another n-gram.

    Args:
        hashes (`np.ndarray`): Hashes of the words.
        sizes (`Sequence[int]`): Values of n, ascending.

    Yields:
        `tuple[int, np.ndarray]`: n, and the hash at each position; sizes beyond the text are left out.
    """
    gram, done = hashes, 1
    for n in sizes:
        if n <= len(hashes):
            while done < n:
                gram, done = hashes[: len(gram) - 1] + _MIX * gram[1:], done + 1
            yield n, gram


def joined_grams(hashes: np.ndarray, powers: np.ndarray, sizes: Sequence[int]) -> Iterator[tuple[int, np.ndarray]]:
    """
    Hashes of n-grams as joined strings: `a bc` and `ab c` are one.

    Args:
        hashes (`np.ndarray`): Hashes of the words.
        powers (`np.ndarray`): Their powers, see [`hash_pieces`].
        sizes (`Sequence[int]`): Values of n, ascending.

    Yields:
        `tuple[int, np.ndarray]`: n, and the hash at each position; sizes beyond the text are left out.
    """
    gram, done = hashes, 1
    for n in sizes:
        if n <= len(hashes):
            while done < n:
                kept = len(gram) - 1
                gram, done = hashes[:kept] + powers[:kept] * gram[1:], done + 1
            yield n, gram


def _hash_block(words: Sequence[str], lengths: np.ndarray, out: np.ndarray, table: np.ndarray) -> None:
    joined = "".join(words)
    if joined.isascii():
        codes = np.frombuffer(joined.encode("ascii"), np.uint8)
    else:
        codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), np.uint32)
    starts = np.cumsum(lengths) - lengths
    places = np.arange(len(codes)) - np.repeat(starts, lengths)
    if len(codes) > _POWERS:
        places %= _POWERS
    # One more element, so that an empty word at the end has a place; empty words are set to zero by the caller.
    weighted = np.zeros(len(codes) + 1, np.uint64)
    np.multiply(table[places], codes, out=weighted[:-1])
    np.add.reduceat(weighted, starts, out=out)


@functools.lru_cache(maxsize=1)
def _powers() -> np.ndarray:
    bases = np.full(_POWERS, np.uint64(_BASE))
    bases[0] = 1
    return np.multiply.accumulate(bases)


def most_common(grams: np.ndarray) -> tuple[int, int]:
    """
    The most common n-gram.

    Args:
        grams (`np.ndarray`): Hashes, one a position.

    Returns:
        `tuple[int, int]`: how often it occurs, and where it begins; of several the one met first.
    """
    ordered = np.sort(grams)
    same = ordered[1:] == ordered[:-1]
    if not same.any():
        return 1, 0
    borders = np.flatnonzero(~same)
    runs = np.diff(borders, prepend=-1, append=len(ordered) - 1)
    count = int(runs.max())
    stops = np.append(borders, len(ordered) - 1)
    winners = ordered[stops[runs == count]]
    place = (grams == winners[0]).argmax() if len(winners) == 1 else np.isin(grams, winners).argmax()
    return count, int(place)


def repeated_characters(grams: np.ndarray, ends: np.ndarray, n: int, limit: float = 0.0) -> int:
    """
    Characters in n-grams that were met before; an n-gram that is counted is stepped over whole.

    Args:
        grams (`np.ndarray`): Hashes of joined n-grams, one a position.
        ends (`np.ndarray`): Characters before each word, one more than words.
        n (`int`): Words in an n-gram.
        limit (`float`, *optional*, defaults to 0): A count that cannot exceed this need not be exact and may be 0.

    Returns:
        `int`: characters.
    """
    ordered = np.sort(grams)
    repeats = int(np.count_nonzero(ordered[1:] == ordered[:-1]))
    if not repeats:
        return 0
    sizes = ends[n:] - ends[:-n]
    if repeats * int(sizes.max()) <= limit:  # not even all of them together reach the limit
        return 0
    seen: set[int] = set()
    values, lengths = grams.tolist(), sizes.tolist()
    index, total = 0, 0
    while index < len(values):
        value = values[index]
        if value in seen:
            total += lengths[index]
            index += n
        else:
            seen.add(value)
            index += 1
    return total

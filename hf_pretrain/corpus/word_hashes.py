"""Words of many texts as 64-bit hashes, computed by numpy for a whole batch of texts at once.

Deduplication and decontamination both look at n-grams of words; this file is the one place that says what a word is. A
word is a run of letters, marks and digits; in scripts written without spaces (Han, kana, Thai, Lao, Khmer, Burmese)
each character is a word, so that n-grams become character n-grams there. Case, punctuation and invisible format
characters do not count; accents are dropped in Latin, Greek and Cyrillic only (elsewhere a mark makes another word).

A word's hash is `sum_i code_i * p**(i - start)` modulo 2**64, taken as a difference of one cumulative sum times an
inverse power of the odd base p, then mixed (the finaliser of splitmix64). Long texts go through in blocks.
"""

import functools
import html
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


_BLOCK = 1 << 16
_BASE = 0x9E3779B97F4A7C15
_TABLE_SIZE = 0x20000
_SPACELESS = np.uint32(1 << 31)  # the character is a word of its own
_SKIP = np.uint32(0xFFFFFFFF)  # the character is invisible: neither letter nor boundary
_MARKED_SCRIPTS = ("LATIN", "GREEK", "CYRILLIC")
_SPACELESS_NAMES = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "IDEOGRAPHIC", "BOPOMOFO")


@dataclass(frozen=True)
class WordHashes:
    """The words of a batch of texts.

    Args:
        hashes (`np.ndarray`): Hash of every word, `uint64`, text after text.
        ends (`np.ndarray`): For each text, the index after its last word, `int64`.
        weak (`np.ndarray`): For each word, whether it says nothing by itself, `bool`: digits alone, or a single letter
            of a script with spaces.
    """

    hashes: np.ndarray
    ends: np.ndarray
    weak: np.ndarray

    def __len__(self) -> int:
        return len(self.ends)

    def bounds(self, index: int) -> tuple[int, int]:
        """The words of one text.

        Args:
            index (`int`): Which text of the batch.

        Returns:
            `tuple[int, int]`: First index and the index after the last.
        """
        return (int(self.ends[index - 1]) if index else 0), int(self.ends[index])

    def of(self, index: int) -> np.ndarray:
        """The word hashes of one text.

        Args:
            index (`int`): Which text of the batch.

        Returns:
            `np.ndarray`: A view, `uint64`.
        """
        start, stop = self.bounds(index)
        return self.hashes[start:stop]


def mix64(values: np.ndarray) -> np.ndarray:
    """The finaliser of splitmix64: every input bit moves every output bit.

    Args:
        values (`np.ndarray`): `uint64` values.

    Returns:
        `np.ndarray`: `uint64` values of the same shape.
    """
    values = values ^ (values >> np.uint64(30))
    values *= np.uint64(0xBF58476D1CE4E5B9)
    values ^= values >> np.uint64(27)
    values *= np.uint64(0x94D049BB133111EB)
    values ^= values >> np.uint64(31)
    return values


def ngram_hashes(words: np.ndarray, size: int) -> np.ndarray:
    """Hashes of all runs of `size` neighbouring words.

    Args:
        words (`np.ndarray`): Word hashes, `uint64`, shape `[n]`.
        size (`int`): Words in an n-gram.

    Returns:
        `np.ndarray`: `uint64`, shape `[max(n - size + 1, 0)]`.
    """
    count = len(words) - size + 1
    if count <= 0:
        return np.empty(0, np.uint64)
    result = np.full(count, np.uint64(size), np.uint64)
    for offset in range(size):
        result = mix_in(result, words[offset : offset + count])
    return result


def mix_in(state: np.ndarray, value: np.ndarray) -> np.ndarray:
    """One step of an order-sensitive hash over arrays.

    Args:
        state (`np.ndarray`): Hashes so far, `uint64`.
        value (`np.ndarray`): What to add, `uint64`.

    Returns:
        `np.ndarray`: New hashes, `uint64`.
    """
    state = (state ^ value) * np.uint64(0xD6E8FEB86659FD93)
    return state ^ (state >> np.uint64(32))


def hash_words(
    texts: Sequence[str], numbers: str = "keep", strip_accents: bool = True, unescape: bool = False
) -> WordHashes:
    """Hashes the words of a batch of texts.

    Args:
        texts (`Sequence[str]`): The texts.
        numbers (`str`, *optional*, defaults to `"keep"`): `"keep"`, or `"mask"` to take all digits as equal.
        strip_accents (`bool`, *optional*, defaults to `True`): Whether accents of Latin, Greek and Cyrillic are
            dropped.
        unescape (`bool`, *optional*, defaults to `False`): Whether HTML entities are resolved first.

    Returns:
        `WordHashes`: The words, text after text.
    """
    parts, lengths = [], np.zeros(len(texts), np.int64)
    for index, text in enumerate(texts):
        if unescape and "&" in text:
            text = html.unescape(text)
        codes = _codes_of(text, strip_accents)
        lengths[index] = len(codes) + 1
        parts.append(codes)
        parts.append(_SEPARATOR)
    codes = np.concatenate(parts) if parts else np.empty(0, np.uint32)
    del parts  # half the memory of a long text
    char_ends = np.cumsum(lengths)
    hashes, starts, weak = _words_of(codes, numbers == "mask")
    return WordHashes(hashes, np.searchsorted(starts, char_ends).astype(np.int64), weak)


_SEPARATOR = np.zeros(1, np.uint32)


def _codes_of(text: str, strip_accents: bool) -> np.ndarray:
    if text.isascii():
        return _ascii_table()[np.frombuffer(text.encode("ascii"), np.uint8)]
    text = unicodedata.normalize("NFKC", text)
    points = np.frombuffer(text.encode("utf-32-le", "replace"), np.uint32)
    table = _unicode_table(strip_accents)
    codes = table[np.minimum(points, _TABLE_SIZE - 1)]
    outside = points >= _TABLE_SIZE
    if outside.any():
        # Planes 2 and 3 hold Han characters; what is above has no letters.
        ideographs = outside & (points < 0x40000)
        codes[ideographs] = points[ideographs] | _SPACELESS
        codes[outside & ~ideographs] = 0
    return codes[codes != _SKIP]


def _words_of(codes: np.ndarray, mask_numbers: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Word hashes, the character index where each word starts, and whether each word is weak."""
    if not len(codes):
        return np.empty(0, np.uint64), np.empty(0, np.int64), np.empty(0, bool)
    inside = codes != 0
    single = codes >= _SPACELESS
    starts_here = inside.copy()
    starts_here[1:] &= ~inside[:-1] | single[1:] | single[:-1]
    ends_here = inside.copy()
    ends_here[:-1] &= ~inside[1:] | starts_here[1:]
    starts = np.flatnonzero(starts_here)
    stops = np.flatnonzero(ends_here) + 1
    del inside, starts_here, ends_here  # a long text needs the memory for what follows
    digit = (codes >= 48) & (codes <= 57)
    # What follows a word up to the next one is no digit, so the sum from start to start is the word's.
    digits = np.add.reduceat(digit.view(np.uint8), starts, dtype=np.uint32) if len(starts) else starts
    weak = digits == stops - starts
    weak |= (stops - starts == 1) & ~single[starts]
    if mask_numbers:
        codes = np.where(digit, np.uint32(48), codes)
    hashes = np.empty(len(starts), np.uint64)
    first = 0
    while first < len(starts):
        origin = starts[first]
        last = int(np.searchsorted(stops, origin + _BLOCK, side="right"))
        last = max(last, first + 1)  # a single word longer than a block goes through whole
        _hash_block(codes, starts[first:last], stops[first:last], hashes[first:last])
        first = last
    return mix64(hashes), starts, weak


def _hash_block(codes: np.ndarray, starts: np.ndarray, stops: np.ndarray, out: np.ndarray) -> None:
    origin, end = int(starts[0]), int(stops[-1])
    powers, inverses = _powers(_round_up(end - origin))
    weighted = codes[origin:end].astype(np.uint64)
    weighted *= powers[: end - origin]
    sums = np.empty(end - origin + 1, np.uint64)
    sums[0] = 0
    np.cumsum(weighted, out=sums[1:])
    np.multiply(sums[stops - origin] - sums[starts - origin], inverses[starts - origin], out=out)


def _round_up(size: int) -> int:
    return max(_BLOCK, 1 << (size - 1).bit_length())


@functools.lru_cache(maxsize=4)
def _powers(size: int) -> tuple[np.ndarray, np.ndarray]:
    inverse = pow(_BASE, -1, 1 << 64)
    bases = np.full(size, np.uint64(_BASE))
    inverses = np.full(size, np.uint64(inverse))
    bases[0] = inverses[0] = 1
    return np.multiply.accumulate(bases), np.multiply.accumulate(inverses)


@functools.lru_cache(maxsize=1)
def _ascii_table() -> np.ndarray:
    return np.array([ord(chr(c).lower()) if chr(c).isalnum() else 0 for c in range(128)] + [0] * 128, np.uint32)


@functools.lru_cache(maxsize=2)
def _unicode_table(strip_accents: bool) -> np.ndarray:
    table = np.zeros(_TABLE_SIZE, np.uint32)
    for point in range(_TABLE_SIZE):
        character = chr(point)
        category = unicodedata.category(character)
        if category == "Cf" or 0xFE00 <= point <= 0xFE0F:
            table[point] = _SKIP
        elif category[0] in "LNM":
            table[point] = _letter_code(character, category, strip_accents)
    return table


def _letter_code(character: str, category: str, strip_accents: bool) -> int:
    point = ord(character)
    if strip_accents and 0x0300 <= point <= 0x036F:
        return int(_SKIP)
    name = unicodedata.name(character, "")
    if name.startswith(_SPACELESS_NAMES):
        return point | int(_SPACELESS)
    if category == "Nd":
        return 48 + int(unicodedata.decimal(character))
    lower = character.lower()[:1]
    if strip_accents and name.startswith(_MARKED_SCRIPTS):
        lower = unicodedata.normalize("NFD", lower)[:1]
    return ord(lower)

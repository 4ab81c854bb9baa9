"""Runs and coverage: how much of an item's word sequence a text holds.

Where the n-gram at word `q` of an item equals the n-gram at word `p` of a text, the pair lies on diagonal `p - q`. A
run is a maximal set of neighbours on one diagonal: `r` of them are `r + n - 1` equal words in a row. Coverage is the
share of the item's words inside any shared n-gram, wherever in the text. n = 8 and the longest run predict best how
much a score gains from contamination (ConTAM, arXiv 2411.03923).
"""

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_pretrain.corpus.word_hashes import hash_words


_CHUNK = re.compile(r"\S+")


@dataclass(frozen=True)
class Overlap:
    """What a text and an item share.

    Args:
        longest_run (`int`): Most words in a row that agree.
        coverage (`float`): Share of the item's words inside shared n-grams.
        start (`int`): First word of the longest run, in the text.
        first (`int`): First word of any shared n-gram, in the text.
        stop (`int`): The word after the last shared one, in the text.
    """

    longest_run: int
    coverage: float
    start: int
    first: int
    stop: int


def measure_overlap(text_positions: np.ndarray, item_positions: np.ndarray, size: int, item_words: int) -> Overlap:
    """Measures the overlap of one text with one item.

    Args:
        text_positions (`np.ndarray`): Word positions in the text of the shared n-grams, `int64`.
        item_positions (`np.ndarray`): Their positions in the item, same length.
        size (`int`): Words in an n-gram.
        item_words (`int`): Words in the item.

    Returns:
        `Overlap`: Longest run, coverage and place.
    """
    diagonals = text_positions - item_positions
    order = np.lexsort((text_positions, diagonals))
    places, lines = text_positions[order], diagonals[order]
    breaks = np.ones(len(places), bool)
    breaks[1:] = (lines[1:] != lines[:-1]) | (places[1:] != places[:-1] + 1)
    starts = np.flatnonzero(breaks)
    lengths = np.diff(np.append(starts, len(places)))
    best = int(lengths.argmax())
    covered = np.zeros(item_words + 1, np.int64)
    edges = np.unique(item_positions)
    np.add.at(covered, edges, 1)
    np.add.at(covered, np.minimum(edges + size, item_words), -1)
    share = float(np.count_nonzero(np.cumsum(covered[:-1]) > 0)) / item_words
    return Overlap(
        longest_run=int(lengths[best]) + size - 1,
        coverage=share,
        start=int(places[starts[best]]),
        first=int(text_positions.min()),
        stop=int(text_positions.max()) + size,
    )


def word_spans(text: str) -> np.ndarray:
    """Character span of every word, counted as the index counts words.

    Args:
        text (`str`): A text.

    Returns:
        `np.ndarray`: `int64`, shape `[words, 2]`. All words of one run of visible characters share its span, so a cut
        never splits such a run.
    """
    chunks = [match.span() for match in _CHUNK.finditer(text)]
    words = hash_words([html.unescape(text[start:stop]) for start, stop in chunks])
    counts = np.diff(np.concatenate([[0], words.ends]))
    return np.repeat(np.array(chunks, np.int64).reshape(-1, 2), counts, axis=0)


def remove_word_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Cuts runs of words out of a text.

    Args:
        text (`str`): A text.
        spans (`Sequence[tuple[int, int]]`): First word and the word after the last, for each run.

    Returns:
        `str`: The text without them; the white space around a cut is folded to what stood before it.
    """
    positions = word_spans(text)
    cuts = sorted((int(positions[a][0]), int(positions[b - 1][1])) for a, b in spans if a < b <= len(positions))
    pieces: list[str] = []
    last = 0
    for start, stop in cuts:
        if start > last:
            pieces.append(text[last:start])
        last = max(last, stop)
    rest = text[last:]
    pieces.append(rest.lstrip() if pieces and pieces[-1][-1:].isspace() else rest)
    return "".join(pieces)

"""Repeated passages: runs of 50 tokens that stand elsewhere too are cut out, the first copy stays (arXiv 2107.06499).

Every window of `window` tokens has a 64-bit rolling hash; windows whose hash was met before are repeats, and the union
of repeats is cut. Offsets are characters of the text, so a cut never splits one. A token is a word, a sign, or a
character of a script without spaces, exactly as written. Memory: 8 bytes a token of the texts that stay.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hf_pretrain.corpus.word_hashes import mix64, ngram_hashes
from hf_pretrain.utils.errors import UserError


_TOKEN = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
    "|[^\\W\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]+|[^\\w\\s]"
)


@dataclass
class SubstringConfig:
    """Settings of the removal of repeated passages.

    Args:
        enabled (`bool`, *optional*, defaults to `False`): Whether it runs.
        window (`int`, *optional*, defaults to 50): Tokens of the shortest passage that counts.
        min_words_left (`int`, *optional*, defaults to 20): A document that lost something and has fewer words goes.
    """

    enabled: bool = False
    window: int = 50
    min_words_left: int = 20

    def __post_init__(self) -> None:
        if self.window < 2 or self.min_words_left < 1:
            raise UserError("substrings.window must be at least 2 and substrings.min_words_left at least 1.")


def repeated_spans(texts: Sequence[str], order: Sequence[int], window: int) -> dict[int, list[tuple[int, int]]]:
    """Finds the passages that stand in a better placed text, or earlier in the same one.

    Args:
        texts (`Sequence[str]`): The texts.
        order (`Sequence[int]`): Text indices, best first.
        window (`int`): Tokens of the shortest passage.

    Returns:
        `dict[int, list[tuple[int, int]]]`: For each text with repeats, character spans, ascending and disjoint.
    """
    vocabulary: dict[str, int] = {}
    starts = np.zeros(len(texts) + 1, np.int64)
    hashes: list[np.ndarray] = []
    for place, index in enumerate(order):
        tokens = [vocabulary.setdefault(token, len(vocabulary)) for token in _TOKEN.findall(texts[index])]
        hashes.append(ngram_hashes(mix64(np.array(tokens, np.uint64)), window))
        starts[place + 1] = starts[place] + len(hashes[-1])
    joined = np.concatenate(hashes) if hashes else np.empty(0, np.uint64)
    del hashes
    sorting = np.argsort(joined, kind="stable")  # of equal hashes the best placed comes first
    equal = joined[sorting[1:]] == joined[sorting[:-1]]
    repeats = np.sort(sorting[1:][equal])
    spans: dict[int, list[tuple[int, int]]] = {}
    for place in np.unique(np.searchsorted(starts, repeats, side="right") - 1).tolist():
        low, high = np.searchsorted(repeats, starts[place : place + 2])
        index = order[place]
        edges = [(found.start(), found.end()) for found in _TOKEN.finditer(texts[index])]
        merged: list[tuple[int, int]] = []
        for first in (repeats[low:high] - starts[place]).tolist():
            begin, end = edges[first][0], edges[first + window - 1][1]
            if merged and begin <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((begin, end))
        spans[index] = merged
    return spans


def cut_spans(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Cuts spans out of a text.

    Args:
        text (`str`): The text.
        spans (`Sequence[tuple[int, int]]`): Character spans, ascending and disjoint.

    Returns:
        `str`: What is left; one blank stands where a cut joined two words.
    """
    parts, end = [], 0
    for start, stop in spans:
        parts.append(text[end:start].rstrip(" "))
        end = stop
    parts.append(text[end:].lstrip(" ") if spans else text)
    return " ".join(part for part in parts if part).strip()

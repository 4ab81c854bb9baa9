"""The set of shingles of a text, as sorted 64-bit hashes, and the exact similarity of two sets.

A shingle is an n-gram of words as `word_hashes` defines them (characters in scripts without spaces). A text with fewer
words than n has one shingle, its whole word sequence; a text without any word has the hash of its visible characters,
so that "!!!" and "???" stay different. Jaccard: |A and B| / |A or B| (Broder 1997).
"""

import hashlib
from collections.abc import Sequence

import numpy as np

from hf_pretrain.corpus.word_hashes import WordHashes, hash_words, mix_in, ngram_hashes


def shingle_arrays(texts: Sequence[str], size: int = 5, numbers: str = "keep") -> list[np.ndarray]:
    """Shingles of every text of a batch, in order and with repetitions.

    Args:
        texts (`Sequence[str]`): The texts.
        size (`int`, *optional*, defaults to 5): Words in a shingle.
        numbers (`str`, *optional*, defaults to `"keep"`): `"keep"`, or `"mask"` to take all digits as equal.

    Returns:
        `list[np.ndarray]`: One non-empty `uint64` array a text; an empty one for a blank text.
    """
    words = hash_words(texts, numbers=numbers)
    return [_shingles_of(words, index, text, size) for index, text in enumerate(texts)]


def _shingles_of(words: WordHashes, index: int, text: str, size: int) -> np.ndarray:
    hashes = words.of(index)
    if len(hashes) >= size:
        return ngram_hashes(hashes, size)
    if len(hashes):
        whole = np.array([len(hashes)], np.uint64)
        for position in range(len(hashes)):
            whole = mix_in(whole, hashes[position : position + 1])
        return whole
    visible = "".join(text.split())
    if not visible:
        return np.empty(0, np.uint64)
    digest = hashlib.blake2b(visible.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return np.frombuffer(digest, "<u8").astype(np.uint64)


def shingle_set(text: str, size: int = 5, numbers: str = "keep") -> np.ndarray:
    """The set of shingles of one text.

    Args:
        text (`str`): The text.
        size (`int`, *optional*, defaults to 5): Words in a shingle.
        numbers (`str`, *optional*, defaults to `"keep"`): `"keep"` or `"mask"`.

    Returns:
        `np.ndarray`: Sorted distinct `uint64` hashes.
    """
    return np.unique(shingle_arrays([text], size, numbers)[0])


def jaccard(first: np.ndarray, second: np.ndarray) -> float:
    """Exact Jaccard similarity of two shingle sets.

    Args:
        first (`np.ndarray`): Sorted distinct hashes.
        second (`np.ndarray`): Sorted distinct hashes.

    Returns:
        `float`: Between 0 and 1; 0 when a set is empty.
    """
    if not len(first) or not len(second):
        return 0.0
    merged = np.concatenate([first, second])
    merged.sort(kind="mergesort")
    common = int(np.count_nonzero(merged[1:] == merged[:-1]))
    return common / (len(merged) - common)

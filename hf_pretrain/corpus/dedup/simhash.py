"""SimHash: 64 bits a document whose Hamming distance follows the angle between shingle sets (Charikar 2002).

A bit differs with probability theta / pi. All pairs within `max_distance` bits are found exactly by the pigeonhole
rule: of `num_blocks` blocks at least `num_blocks - max_distance` agree, so every choice of that many blocks is a key
(Manku, Jain and Das Sarma, WWW 2007). Which candidates are duplicates is decided by exact Jaccard similarity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from hf_pretrain.corpus.word_hashes import mix64
from hf_pretrain.utils.errors import UserError


_BLOCK_SHINGLES = 1 << 13


@dataclass
class SimhashConfig:
    """Settings of near-duplicate removal by SimHash.

    Args:
        enabled (`bool`, *optional*, defaults to `False`): Whether it runs.
        max_distance (`int`, *optional*, defaults to 6): Bits that may differ.
        num_blocks (`int`, *optional*, defaults to 8): Blocks of the 64 bits; more make longer and more keys.
        ngram_size (`int`, *optional*, defaults to 5): Words in a shingle.
        similarity_threshold (`float`, *optional*, defaults to 0.8): Exact Jaccard similarity from which the lower
            placed document of a pair is removed.
        numbers (`str`, *optional*, defaults to `"keep"`): `"keep"`, or `"mask"` to take all digits as equal.
        max_comparisons (`int`, *optional*, defaults to 64): Most kept documents a document is compared with.
    """

    enabled: bool = False
    max_distance: int = 6
    num_blocks: int = 8
    ngram_size: int = 5
    similarity_threshold: float = 0.8
    numbers: str = "keep"
    max_comparisons: int = 64

    def __post_init__(self) -> None:
        if not 0 <= self.max_distance < self.num_blocks <= 64:
            raise UserError(
                f"simhash.max_distance = {self.max_distance}, num_blocks = {self.num_blocks}; "
                "0 <= max_distance < num_blocks <= 64 is needed."
            )
        if self.num_keys > 512:
            raise UserError(
                f"simhash: {self.num_blocks} blocks and max_distance = {self.max_distance} make {self.num_keys} keys "
                "a document; at most 512 are allowed: choose fewer blocks."
            )
        if not 0.0 < self.similarity_threshold <= 1.0:
            raise UserError(
                f"simhash.similarity_threshold = {self.similarity_threshold}; a number above 0 and up to 1 is needed."
            )
        if self.ngram_size < 1 or self.max_comparisons < 1:
            raise UserError("simhash.ngram_size and simhash.max_comparisons must be at least 1.")

    @property
    def num_keys(self) -> int:
        """Keys of a document: choices of `num_blocks - max_distance` blocks."""
        return math.comb(self.num_blocks, self.max_distance)


def simhashes(shingles: Sequence[np.ndarray]) -> np.ndarray:
    """SimHash of every document.

    Args:
        shingles (`Sequence[np.ndarray]`): Distinct shingles of each document, `uint64`, none of them empty.

    Returns:
        `np.ndarray`: `uint64`, shape `[documents]`.
    """
    result = np.empty(len(shingles), np.uint64)
    for index, values in enumerate(shingles):
        ones = np.zeros(64, np.int64)
        for begin in range(0, len(values), _BLOCK_SHINGLES):
            block = mix64(values[begin : begin + _BLOCK_SHINGLES]).astype("<u8")
            ones += np.unpackbits(block.view(np.uint8).reshape(-1, 8), axis=1, bitorder="little").sum(0, np.int64)
        result[index] = np.packbits(2 * ones > len(values), bitorder="little").view("<u8")[0]
    return result


def block_keys(hashes: np.ndarray, max_distance: int, num_blocks: int) -> np.ndarray:
    """Keys of which two hashes within the distance share at least one.

    Args:
        hashes (`np.ndarray`): SimHashes, `uint64`, shape `[documents]`.
        max_distance (`int`): Bits that may differ.
        num_blocks (`int`): Blocks of the 64 bits.

    Returns:
        `np.ndarray`: `uint64`, shape `[documents, comb(num_blocks, max_distance)]`.
    """
    edges = [64 * place // num_blocks for place in range(num_blocks + 1)]
    masks = [((1 << stop) - (1 << start)) for start, stop in zip(edges, edges[1:], strict=False)]
    chosen = [sum(choice) for choice in combinations(masks, num_blocks - max_distance)]
    return hashes[:, None] & np.array(chosen, np.uint64)[None, :]


def hamming(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Bits in which hashes differ.

    Args:
        first (`np.ndarray`): `uint64`.
        second (`np.ndarray`): `uint64`, same shape.

    Returns:
        `np.ndarray`: Counts.
    """
    return np.bitwise_count(first ^ second)

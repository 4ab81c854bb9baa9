"""MinHash signatures and bands: which documents are worth comparing.

A document's signature holds, for each of `num_buckets * hashes_per_bucket` hash functions, the smallest value over its
shingles; two signatures agree in a place with probability J, the Jaccard similarity. Documents whose
`hashes_per_bucket` values agree in at least one bucket become candidates, with probability

    P(J) = 1 - (1 - J ** hashes_per_bucket) ** num_buckets                     (Broder 1997; Leskovec et al., ch. 3)

so that 14 x 8 (FineWeb, arXiv 2406.17557) proposes 92.35 % of the pairs at J = 0.8 and 56.45 % at J = 0.7. Whether a
candidate really is a near-duplicate is decided in `verified_clusters`.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hf_pretrain.corpus.dedup.shingles import shingle_arrays
from hf_pretrain.corpus.word_hashes import mix64, mix_in
from hf_pretrain.utils.errors import UserError


_BATCH_CHARACTERS = 1 << 18
_BLOCK_SHINGLES = 1 << 14


@dataclass
class MinhashConfig:
    """Settings of near-duplicate removal.

    Args:
        enabled (`bool`, *optional*, defaults to `True`): Whether near-duplicates are removed.
        num_buckets (`int`, *optional*, defaults to 14): Buckets (bands) of a signature.
        hashes_per_bucket (`int`, *optional*, defaults to 8): Hash functions in a bucket (rows).
        ngram_size (`int`, *optional*, defaults to 5): Words in a shingle.
        similarity_threshold (`float`, *optional*, defaults to 0.8): Exact Jaccard similarity from which the lower
            placed document of a pair is removed.
        numbers (`str`, *optional*, defaults to `"keep"`): `"keep"`, or `"mask"` to take all digits as equal.
        max_comparisons (`int`, *optional*, defaults to 64): Most kept documents a document is compared with.
        seed (`int`, *optional*, defaults to 1): Seed of the hash functions.
        recall (`float`, *optional*): Share of the pairs at the threshold that must be compared. If given, the smallest
            signature that reaches it is chosen, see [`choose_bands`], and `num_buckets` and `hashes_per_bucket` are
            set by it.
        keep_similarity (`float`, *optional*, defaults to 0.5): With `recall`: pairs of this similarity ...
        keep_rate (`float`, *optional*, defaults to 0.5): ... are compared for nothing at most this often.
    """

    enabled: bool = True
    num_buckets: int = 14
    hashes_per_bucket: int = 8
    ngram_size: int = 5
    similarity_threshold: float = 0.8
    numbers: str = "keep"
    max_comparisons: int = 64
    seed: int = 1
    recall: float | None = None
    keep_similarity: float = 0.5
    keep_rate: float = 0.5

    def __post_init__(self) -> None:
        for name in ("num_buckets", "hashes_per_bucket", "ngram_size", "max_comparisons"):
            if getattr(self, name) < 1:
                raise UserError(f"minhash.{name} = {getattr(self, name)}; at least 1 is needed.")
        if not 0.0 < self.similarity_threshold <= 1.0:
            raise UserError(
                f"minhash.similarity_threshold = {self.similarity_threshold}; a number above 0 and up to 1 is needed."
            )
        if self.numbers not in ("keep", "mask"):
            raise UserError(f"minhash.numbers = {self.numbers!r}; 'keep' or 'mask' is allowed.")
        asked = _asked_bands(self)
        if asked is not None:
            self.num_buckets, self.hashes_per_bucket = asked


def _asked_bands(config: MinhashConfig) -> tuple[int, int] | None:
    if config.recall is None:
        return None
    return choose_bands(config.similarity_threshold, config.recall, config.keep_similarity, config.keep_rate)


def collision_probability(similarity: float, num_buckets: int, hashes_per_bucket: int) -> float:
    """Probability that two documents share a bucket.

    Args:
        similarity (`float`): Their Jaccard similarity.
        num_buckets (`int`): Buckets of a signature.
        hashes_per_bucket (`int`): Hash functions in a bucket.

    Returns:
        `float`: `1 - (1 - similarity ** hashes_per_bucket) ** num_buckets`.
    """
    return 1.0 - (1.0 - similarity**hashes_per_bucket) ** num_buckets


def choose_bands(
    duplicate_similarity: float,
    recall: float,
    keep_similarity: float = 0.5,
    keep_rate: float = 0.5,
    max_hashes: int = 1024,
) -> tuple[int, int]:
    """The smallest signature that meets two demands on which pairs are compared.

    Args:
        duplicate_similarity (`float`): Pairs of this similarity ...
        recall (`float`): ... are compared with at least this probability.
        keep_similarity (`float`, *optional*, defaults to 0.5): Pairs of this similarity ...
        keep_rate (`float`, *optional*, defaults to 0.5): ... are compared with at most this probability.
        max_hashes (`int`, *optional*, defaults to 1024): Most hash functions of a signature.

    Returns:
        `tuple[int, int]`: `num_buckets` and `hashes_per_bucket`.

    Raises:
        UserError: If no signature of that size meets both.
    """
    if not 0.0 < keep_similarity < duplicate_similarity <= 1.0 or not 0.0 < keep_rate < recall < 1.0:
        raise UserError(
            f"minhash: recall = {recall}, keep_rate = {keep_rate}, keep_similarity = {keep_similarity}, "
            f"similarity_threshold = {duplicate_similarity}; 0 < keep_rate < recall < 1 and "
            "0 < keep_similarity < similarity_threshold <= 1 are needed."
        )
    best: tuple[int, int, int] | None = None
    for rows in range(1, 65):
        agree = duplicate_similarity**rows
        buckets = 1 if agree >= recall else math.ceil(math.log1p(-recall) / math.log1p(-agree) - 1e-12)
        if buckets * rows > max_hashes or collision_probability(keep_similarity, buckets, rows) > keep_rate:
            continue
        if best is None or buckets * rows < best[0]:
            best = buckets * rows, buckets, rows
    if best is None:
        raise UserError(
            f"minhash.recall = {recall} at {duplicate_similarity} with keep_rate = {keep_rate} at {keep_similarity}; "
            f"no signature of up to {max_hashes} hashes does both: ask for less recall or allow more comparisons."
        )
    return best[1], best[2]


def batches(texts: Sequence[str], indices: Sequence[int] | None = None) -> Iterator[list[int]]:
    """Groups texts so that a batch fits a processor's cache; a long text is a batch of its own.

    Args:
        texts (`Sequence[str]`): The texts.
        indices (`Sequence[int]`, *optional*): Which of them; all by default.

    Yields:
        `list[int]`: Indices of a batch.
    """
    batch: list[int] = []
    size = 0
    for index in range(len(texts)) if indices is None else indices:
        length = len(texts[index])
        if batch and size + length > _BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
        batch.append(index)
        size += length
    if batch:
        yield batch


class MinhashSigner:
    """Computes signatures with one fixed family of hash functions `a * h + b` modulo 2**64, a odd.

    Args:
        config (`MinhashConfig`): The setting.
    """

    def __init__(self, config: MinhashConfig) -> None:
        self.config = config
        count = config.num_buckets * config.hashes_per_bucket
        seeds = mix64(
            np.arange(1, 2 * count + 1, dtype=np.uint64) + np.uint64((config.seed * 0x9E3779B97F4A7C15) % (1 << 64))
        )
        self._factors = seeds[:count] | np.uint64(1)
        self._offsets = seeds[count:]

    def signatures(self, shingles: Sequence[np.ndarray]) -> np.ndarray:
        """Signatures of a batch of documents.

        Args:
            shingles (`Sequence[np.ndarray]`): Shingles of each document, `uint64`, none of them empty.

        Returns:
            `np.ndarray`: `uint64`, shape `[documents, num_buckets * hashes_per_bucket]`.
        """
        lengths = np.array([len(item) for item in shingles], np.int64)
        result = np.full((len(self._factors), len(shingles)), np.iinfo(np.uint64).max, np.uint64)
        if not len(shingles):
            return result.T
        if lengths.min() < 1:
            raise ValueError("A document without shingles has no signature.")
        joined = np.concatenate(shingles)
        starts = np.concatenate([[0], np.cumsum(lengths)])
        buffer = np.empty(_BLOCK_SHINGLES, np.uint64)
        # Blocks bound the memory: a document of a million shingles is seen piece by piece.
        for begin in range(0, len(joined), _BLOCK_SHINGLES):
            block = joined[begin : begin + _BLOCK_SHINGLES]
            first = int(np.searchsorted(starts, begin, side="right")) - 1
            last = int(np.searchsorted(starts, begin + len(block), side="left"))
            edges = np.maximum(starts[first:last] - begin, 0)
            scratch = buffer[: len(block)]
            for row, (factor, offset) in enumerate(zip(self._factors, self._offsets, strict=True)):
                np.multiply(block, factor, out=scratch)
                np.add(scratch, offset, out=scratch)
                minima = np.minimum.reduceat(scratch, edges)
                np.minimum(result[row, first:last], minima, out=result[row, first:last])
        return np.ascontiguousarray(result.T)

    def bucket_keys(self, signatures: np.ndarray) -> np.ndarray:
        """Folds each bucket of a signature into one 64-bit key.

        Args:
            signatures (`np.ndarray`): `uint64`, shape `[documents, num_buckets * hashes_per_bucket]`.

        Returns:
            `np.ndarray`: `uint64`, shape `[documents, num_buckets]`.
        """
        rows = signatures.reshape(len(signatures), self.config.num_buckets, self.config.hashes_per_bucket)
        keys = np.zeros(rows.shape[:2], np.uint64)
        for column in range(self.config.hashes_per_bucket):
            keys = mix_in(keys, rows[:, :, column])
        return keys


def bucket_keys_of_texts(texts: Sequence[str], config: MinhashConfig) -> tuple[np.ndarray, np.ndarray]:
    """Bucket keys of all texts, batch by batch.

    Args:
        texts (`Sequence[str]`): The texts.
        config (`MinhashConfig`): The setting.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Indices of the texts that have shingles (all but blank ones), and their keys,
        `uint64`, shape `[signed, num_buckets]`.
    """
    signer = MinhashSigner(config)
    signed: list[int] = []
    keys: list[np.ndarray] = []
    for batch in batches(texts):
        shingles = shingle_arrays([texts[index] for index in batch], config.ngram_size, config.numbers)
        present = [place for place, item in enumerate(shingles) if len(item)]
        if present:
            signed.extend(batch[place] for place in present)
            keys.append(signer.bucket_keys(signer.signatures([shingles[place] for place in present])))
    if not signed:
        return np.empty(0, np.int64), np.empty((0, config.num_buckets), np.uint64)
    return np.array(signed, np.int64), np.concatenate(keys)

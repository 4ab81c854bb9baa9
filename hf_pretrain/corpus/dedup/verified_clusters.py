"""From candidates to removals: every removed document was compared with a document that stays.

Documents are taken best first (`exact.survivor_order`). One that shares a bucket with kept documents is compared with
them, exactly, by the Jaccard similarity of their shingle sets; if the most similar reaches the threshold the document
is removed, else it is kept and later ones are compared with it. There is no transitive closure: in a chain where each
document resembles only its neighbour, as many stay as are different from each other.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hf_pretrain.corpus.dedup.minhash import MinhashConfig, batches, bucket_keys_of_texts
from hf_pretrain.corpus.dedup.shingles import jaccard, shingle_arrays


@dataclass(frozen=True)
class RemovedPair:
    """One removal and its reason.

    Args:
        kept (`int`): The document that stays.
        removed (`int`): The document that goes.
        similarity (`float`): Their exact Jaccard similarity.
    """

    kept: int
    removed: int
    similarity: float


def shared_buckets(keys: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Finds the buckets that more than one document fell into.

    Args:
        keys (`np.ndarray`): `uint64`, shape `[documents, num_buckets]`.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Group of each document in each bucket, `int64`, same shape, -1 where it is
        alone (groups of different buckets have different numbers); and the rows that are in any group.
    """
    groups = np.full(keys.shape, -1, np.int64)
    offset = 0
    for bucket in range(keys.shape[1]):
        _, inverse, counts = np.unique(keys[:, bucket], return_inverse=True, return_counts=True)
        groups[:, bucket] = np.where(counts[inverse] > 1, inverse + offset, -1)
        offset += len(counts)
    return groups, np.flatnonzero((groups >= 0).any(axis=1))


def find_near_duplicates(
    texts: Sequence[str],
    order: Sequence[int],
    config: MinhashConfig,
    on_progress: Callable[[int], None] | None = None,
) -> list[RemovedPair]:
    """Finds the documents to remove so that no removed document lacks a similar kept one.

    Args:
        texts (`Sequence[str]`): The texts.
        order (`Sequence[int]`): Document indices, best first.
        config (`MinhashConfig`): The setting.
        on_progress (`Callable`, *optional*): Called with the number of documents compared since its last call.

    Returns:
        `list[RemovedPair]`: One entry a removed document, in the order of removal.
    """
    signed, keys = bucket_keys_of_texts(texts, config)
    groups, rows = shared_buckets(keys)
    row_of = {int(signed[row]): int(row) for row in rows}
    sets = _shingle_sets(texts, sorted(row_of), config)
    kept_in_group: dict[int, list[int]] = {}
    removals: list[RemovedPair] = []
    for index in order:
        row = row_of.get(index)
        if row is None:
            continue
        own_groups = groups[row][groups[row] >= 0].tolist()
        best, similarity = _most_similar(index, own_groups, kept_in_group, sets, config)
        if best >= 0 and similarity >= config.similarity_threshold:
            removals.append(RemovedPair(best, index, similarity))
        else:
            for group in own_groups:
                kept_in_group.setdefault(group, []).append(index)
        if on_progress is not None:
            on_progress(1)
    return removals


def _shingle_sets(texts: Sequence[str], indices: Sequence[int], config: MinhashConfig) -> dict[int, np.ndarray]:
    """Shingle sets of the candidates alone: a second pass is cheaper than keeping all sets in memory."""
    sets: dict[int, np.ndarray] = {}
    for batch in batches(texts, indices):
        arrays = shingle_arrays([texts[index] for index in batch], config.ngram_size, config.numbers)
        sets.update((index, np.unique(array)) for index, array in zip(batch, arrays, strict=True))
    return sets


def _most_similar(
    index: int,
    own_groups: Sequence[int],
    kept_in_group: dict[int, list[int]],
    sets: dict[int, np.ndarray],
    config: MinhashConfig,
) -> tuple[int, float]:
    shared: dict[int, int] = {}
    for group in own_groups:
        for kept in kept_in_group.get(group, ()):
            shared[kept] = shared.get(kept, 0) + 1
    best, similarity = -1, 0.0
    # Most shared buckets first: they are the likeliest, and the cap on comparisons then costs the least.
    for kept in sorted(shared, key=lambda item: -shared[item])[: config.max_comparisons]:
        small, large = sorted((len(sets[index]), len(sets[kept])))
        if small < config.similarity_threshold * large:
            continue  # the similarity is at most small / large
        value = jaccard(sets[index], sets[kept])
        if value > similarity:
            best, similarity = kept, value
            if value == 1.0:
                break
    return best, similarity

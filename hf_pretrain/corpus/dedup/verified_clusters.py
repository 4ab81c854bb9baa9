"""From candidates to removals: every removed document was compared with a document that stays.

Documents are taken best first (`exact.survivor_order`). One that shares a bucket with kept documents is compared with
them, exactly, by the Jaccard similarity of their shingle sets; if the most similar reaches the threshold the document
is removed, else it is kept and later ones are compared with it. There is no transitive closure: in a chain where each
document resembles only its neighbour, as many stay as are different from each other.
"""

from collections.abc import Callable, Iterable, Sequence
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
    return remove_duplicates(
        (index for index in order if index in row_of),
        lambda index: groups[row_of[index]][groups[row_of[index]] >= 0].tolist(),
        sets.__getitem__,
        config.similarity_threshold,
        config.max_comparisons,
        on_progress=on_progress,
    )


def remove_duplicates(
    order: Iterable[int],
    groups_of: Callable[[int], list[int]],
    features: Callable[[int], np.ndarray],
    threshold: float,
    max_comparisons: int,
    fixed: Callable[[int], bool] = lambda index: False,
    on_progress: Callable[[int], None] | None = None,
) -> list[RemovedPair]:
    """The one place that decides what goes, in memory and over shards.

    Args:
        order (`Iterable[int]`): Documents that share a group with another, best first.
        groups_of (`Callable`): Gives the groups of a document.
        features (`Callable`): Gives the feature set of a document, sorted distinct `uint64`.
        threshold (`float`): Jaccard similarity from which a document goes.
        max_comparisons (`int`): Most kept documents a document is compared with; also the most kept documents that a
            group remembers, so that the cost of a group of boilerplate grows with its size and not with its square.
        fixed (`Callable`, *optional*): Whether a document stays whatever it resembles (those of an earlier crawl).
        on_progress (`Callable`, *optional*): Called with the number of documents decided since its last call.

    Returns:
        `list[RemovedPair]`: One entry a removed document, in the order of removal.
    """
    kept_in_group: dict[int, list[int]] = {}
    removals: list[RemovedPair] = []
    for index in order:
        groups = groups_of(index)
        if not fixed(index):
            best, similarity = _most_similar(index, groups, kept_in_group, features, threshold, max_comparisons)
        else:
            best, similarity = -1, 0.0
        if best >= 0 and similarity >= threshold:
            removals.append(RemovedPair(best, index, similarity))
        else:
            for group in groups:
                members = kept_in_group.setdefault(group, [])
                if len(members) < max_comparisons:
                    members.append(index)
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
    groups: Sequence[int],
    kept_in_group: dict[int, list[int]],
    features: Callable[[int], np.ndarray],
    threshold: float,
    max_comparisons: int,
) -> tuple[int, float]:
    shared: dict[int, int] = {}
    for group in groups:
        for kept in kept_in_group.get(group, ()):
            shared[kept] = shared.get(kept, 0) + 1
    best, similarity = -1, 0.0
    if not shared:
        return best, similarity
    own = features(index)
    # Most shared buckets first: they are the likeliest, and the cap on comparisons then costs the least.
    for kept in sorted(shared, key=lambda item: -shared[item])[:max_comparisons]:
        other = features(kept)
        small, large = sorted((len(own), len(other)))
        if small < threshold * large:
            continue  # the similarity is at most small / large
        value = jaccard(own, other)
        if value > similarity:
            best, similarity = kept, value
            if value == 1.0:
                break
    return best, similarity

"""How duplicates are proposed and proved, as one interface that memory and shards share.

A method says which part of a document it reads, gives keys (documents that share one are compared) and features (sets
whose exact Jaccard similarity decides). Equal texts and equal addresses are the special case of one key and a
threshold of 1.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from datatrove.data import Document

from hf_pretrain.corpus.dedup.exact import text_key
from hf_pretrain.corpus.dedup.minhash import MinhashConfig, MinhashSigner
from hf_pretrain.corpus.dedup.shingles import shingle_arrays
from hf_pretrain.corpus.dedup.simhash import SimhashConfig, block_keys, simhashes
from hf_pretrain.corpus.dedup.urls import canonical_url


class DedupMethod(ABC):
    """One way to find duplicates; see `ExactText`, `ExactUrl`, `Minhash`, `Simhash`.

    Args:
        threshold (`float`): Similarity from which a document is removed.
        max_comparisons (`int`): Most kept documents a document is compared with.
    """

    name: str
    reason: str
    blank_reason: str | None = None  # documents without content are dropped for it, or kept if there is none
    num_keys: int

    def __init__(self, threshold: float = 1.0, max_comparisons: int = 1) -> None:
        self.threshold, self.max_comparisons = threshold, max_comparisons

    def content(self, document: Document) -> str:
        """The part of a document that is compared.

        Args:
            document (`Document`): A document.

        Returns:
            `str`: Its text, or its address.
        """
        return document.text

    @abstractmethod
    def keys(self, contents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Keys of a batch.

        Args:
            contents (`Sequence[str]`): What is compared.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: Whether each has anything to compare, `bool`; keys, `uint64`, shape
            `[batch, num_keys]`.
        """

    @abstractmethod
    def features(self, contents: Sequence[str]) -> list[np.ndarray]:
        """Sets whose similarity decides.

        Args:
            contents (`Sequence[str]`): What is compared.

        Returns:
            `list[np.ndarray]`: Sorted distinct `uint64` values of each.
        """

    def settings(self) -> dict[str, Any]:
        """What the result depends on.

        Returns:
            `dict`: Plain values.
        """
        return {"method": self.name, "threshold": self.threshold, "max_comparisons": self.max_comparisons}


class ExactText(DedupMethod):
    """Equal texts, white space folded; blank texts go as `empty_text`."""

    name, reason, blank_reason, num_keys = "exact", "exact_duplicate", "empty_text", 1

    def _digests(self, contents: Sequence[str]) -> list[bytes]:
        return [text_key(text) for text in contents]

    def keys(self, contents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See [`DedupMethod.keys`]; the key is half of the digest."""
        digests = self._digests(contents)
        present = np.array([bool(digest) for digest in digests], bool)
        joined = b"".join(digest[:8] or bytes(8) for digest in digests)
        return present, np.frombuffer(joined, "<u8").astype(np.uint64).reshape(-1, 1)

    def features(self, contents: Sequence[str]) -> list[np.ndarray]:
        """See [`DedupMethod.features`]; both halves of the digest."""
        return [np.unique(np.frombuffer(digest, "<u8").astype(np.uint64)) for digest in self._digests(contents)]


class ExactUrl(ExactText):
    """Equal addresses; the better copy of a page stays. Documents without an address stay.

    Args:
        url_field (`str`, *optional*, defaults to `"url"`): Metadata field with the address.
    """

    name, reason, blank_reason = "url", "duplicate_url", None

    def __init__(self, url_field: str = "url") -> None:
        super().__init__()
        self.url_field = url_field

    def content(self, document: Document) -> str:
        """The canonical address of a document, see [`canonical_url`]."""
        value = document.metadata.get(self.url_field)
        return canonical_url(value) if isinstance(value, str) else ""

    def settings(self) -> dict[str, Any]:
        """What the result depends on."""
        return super().settings() | {"url_field": self.url_field}


class _Shingled(DedupMethod):
    """Similarity of shingle sets."""

    reason = "near_duplicate"

    def __init__(self, config: MinhashConfig | SimhashConfig) -> None:
        super().__init__(config.similarity_threshold, config.max_comparisons)
        self.config = config

    def shingles(self, contents: Sequence[str]) -> list[np.ndarray]:
        """Shingles with repetitions, in the order of the text."""
        return shingle_arrays(contents, self.config.ngram_size, self.config.numbers)

    def features(self, contents: Sequence[str]) -> list[np.ndarray]:
        """See [`DedupMethod.features`]; the shingle sets."""
        return [np.unique(values) for values in self.shingles(contents)]

    def keys(self, contents: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """See [`DedupMethod.keys`]."""
        shingles = self.shingles(contents)
        present = np.array([len(values) > 0 for values in shingles], bool)
        keys = np.zeros((len(shingles), self.num_keys), np.uint64)
        if present.any():
            keys[present] = self.keys_of_shingles([values for values in shingles if len(values)])
        return present, keys

    @abstractmethod
    def keys_of_shingles(self, shingles: Sequence[np.ndarray]) -> np.ndarray:
        """Keys of documents given as non-empty shingle arrays."""

    def settings(self) -> dict[str, Any]:
        """What the result depends on."""
        return {"method": self.name, **asdict(self.config)}


class Minhash(_Shingled):
    """Candidates by MinHash bands.

    Args:
        config (`MinhashConfig`): The setting.
    """

    name = "minhash"

    def __init__(self, config: MinhashConfig) -> None:
        super().__init__(config)
        self.num_keys = config.num_buckets
        self._signer = MinhashSigner(config)

    def keys_of_shingles(self, shingles: Sequence[np.ndarray]) -> np.ndarray:
        """See [`_Shingled.keys_of_shingles`]."""
        return self._signer.bucket_keys(self._signer.signatures(shingles))


class Simhash(_Shingled):
    """Candidates by blocks of SimHash bits.

    Args:
        config (`SimhashConfig`): The setting.
    """

    name = "simhash"

    def __init__(self, config: SimhashConfig) -> None:
        super().__init__(config)
        self.num_keys = config.num_keys

    def keys_of_shingles(self, shingles: Sequence[np.ndarray]) -> np.ndarray:
        """See [`_Shingled.keys_of_shingles`]."""
        hashes = simhashes([np.unique(values) for values in shingles])
        return block_keys(hashes, self.config.max_distance, self.config.num_blocks)

"""A Bloom filter over 64-bit hashes, and the block that drops documents whose n-grams were mostly seen before.

For n items at false-positive rate p: m = -n ln p / (ln 2)^2 bits and k = m / n ln 2 hash functions (Bloom 1970). A
document is tested first and inserted after, whole or not at all, so it never meets itself.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hf_pretrain.corpus.dedup.shingles import shingle_arrays
from hf_pretrain.corpus.word_hashes import mix64
from hf_pretrain.utils.atomic import atomic_directory, read_json, write_json
from hf_pretrain.utils.errors import UserError


@dataclass
class NgramConfig:
    """Settings of n-gram deduplication.

    Args:
        enabled (`bool`, *optional*, defaults to `False`): Whether it runs.
        ngram_size (`int`, *optional*, defaults to 13): Words in an n-gram.
        threshold (`float`, *optional*, defaults to 0.8): Share of n-grams seen before from which a document goes.
        expected_ngrams (`int`, *optional*, defaults to 1000000000): Distinct n-grams the filter is made for.
        false_positive_rate (`float`, *optional*, defaults to 0.01): Rate of n-grams taken for seen at that load.
    """

    enabled: bool = False
    ngram_size: int = 13
    threshold: float = 0.8
    expected_ngrams: int = 1_000_000_000
    false_positive_rate: float = 0.01

    def __post_init__(self) -> None:
        if self.ngram_size < 1 or self.expected_ngrams < 1:
            raise UserError("ngrams.ngram_size and ngrams.expected_ngrams must be at least 1.")
        for name in ("threshold", "false_positive_rate"):
            if not 0.0 < getattr(self, name) <= (1.0 if name == "threshold" else 0.5):
                raise UserError(f"ngrams.{name} = {getattr(self, name)}; above 0 and at most 1 (rate: 0.5) is needed.")


def bloom_size(items: int, false_positive_rate: float) -> tuple[int, int]:
    """Bits and hash functions of a filter.

    Args:
        items (`int`): Distinct items at design load.
        false_positive_rate (`float`): Rate at that load.

    Returns:
        `tuple[int, int]`: Bits, a multiple of 8, and hash functions.
    """
    bits = math.ceil(-items * math.log(false_positive_rate) / math.log(2) ** 2)
    return max(8, -(-bits // 8) * 8), max(1, round(bits / items * math.log(2)))


class BloomFilter:
    """A set of 64-bit hashes that may take a stranger for a member, never a member for a stranger.

    Args:
        items (`int`): Distinct items it is made for.
        false_positive_rate (`float`, *optional*, defaults to 0.01): Rate at that load.
    """

    def __init__(self, items: int, false_positive_rate: float = 0.01) -> None:
        self.items, self.false_positive_rate = items, false_positive_rate
        self.num_bits, self.num_hashes = bloom_size(items, false_positive_rate)
        self._bytes = np.zeros(self.num_bits // 8, np.uint8)

    def _places(self, hashes: np.ndarray) -> Iterable[np.ndarray]:
        first, step = mix64(hashes), mix64(hashes ^ np.uint64(0x9E3779B97F4A7C15)) | np.uint64(1)
        for number in range(self.num_hashes):
            yield (first + np.uint64(number) * step) % np.uint64(self.num_bits)

    def test(self, hashes: np.ndarray) -> np.ndarray:
        """Whether items were inserted.

        Args:
            hashes (`np.ndarray`): `uint64`.

        Returns:
            `np.ndarray`: `bool`, same shape.
        """
        found = np.ones(len(hashes), bool)
        for places in self._places(hashes):
            found &= (self._bytes[places >> np.uint64(3)] >> (places & np.uint64(7)).astype(np.uint8)) & 1 == 1
        return found

    def add(self, hashes: np.ndarray) -> None:
        """Inserts items.

        Args:
            hashes (`np.ndarray`): `uint64`.
        """
        for places in self._places(hashes):
            bits = np.left_shift(np.uint8(1), (places & np.uint64(7)).astype(np.uint8))
            np.bitwise_or.at(self._bytes, places >> np.uint64(3), bits)

    @property
    def load(self) -> float:
        """Share of the bits that are set; 0.5 at design load."""
        ones = sum(
            int(np.bitwise_count(self._bytes[start : start + (1 << 20)]).sum(dtype=np.int64))
            for start in range(0, len(self._bytes), 1 << 20)
        )
        return ones / self.num_bits

    def save(self, folder: str | Path, settings: dict | None = None) -> None:
        """Saves the filter.

        Args:
            folder (`str` or `Path`): Folder to make.
            settings (`dict`, *optional*): What made the hashes; [`load_from`] compares it.
        """
        with atomic_directory(folder) as staging:
            self._bytes.tofile(staging / "bits.u8")
            content = {"items": self.items, "false_positive_rate": self.false_positive_rate, "settings": settings}
            write_json(staging / "bloom.json", content)

    @classmethod
    def load_from(cls, folder: str | Path, settings: dict | None = None) -> "BloomFilter":
        """Loads a filter.

        Args:
            folder (`str` or `Path`): Folder of [`save`].
            settings (`dict`, *optional*): Must equal those it was saved with.

        Returns:
            `BloomFilter`: The filter.

        Raises:
            UserError: If it is missing, cut short, or was made from other hashes.
        """
        file = Path(folder) / "bloom.json"
        if not file.is_file():
            raise UserError(f"bloom filter = {folder}; there is no saved filter in that folder.")
        content = read_json(file)
        if content["settings"] != settings:
            raise UserError(f"bloom filter = {folder}; it was made with {content['settings']}, not {settings}.")
        result = cls(content["items"], content["false_positive_rate"])
        data = np.fromfile(Path(folder) / "bits.u8", np.uint8)
        if len(data) != len(result._bytes):
            raise UserError(f"bloom filter = {folder}; bits.u8 has {len(data)} bytes, not {len(result._bytes)}.")
        result._bytes = data
        return result


def seen_documents(texts: Iterable[str], bloom: BloomFilter, config: NgramConfig) -> Iterable[float]:
    """Share of each text's n-grams that were seen in earlier texts; texts that stay are inserted.

    Args:
        texts (`Iterable[str]`): The texts, best first.
        bloom (`BloomFilter`): The filter; it is filled.
        config (`NgramConfig`): The setting.

    Yields:
        `float`: The share, 0 for a blank text.
    """
    for text in texts:
        hashes = np.unique(shingle_arrays([text], config.ngram_size)[0])
        share = float(bloom.test(hashes).mean()) if len(hashes) else 0.0
        if share < config.threshold:
            bloom.add(hashes)
        yield share

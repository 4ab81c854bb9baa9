"""Pages dropped by their address, before the dear work of extraction: datatrove's lists and words, offline.

datatrove's `URLFilter` asks the network for the public suffixes, compares words in any case with lists in lower
case, and fails at a document without an address. Here the suffixes are those that tldextract ships, the address is
lower-cased, and a document without one passes.
"""

from __future__ import annotations

import io
import tarfile
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote

import numpy as np
import xxhash
from datatrove.pipeline.filters.url_filter import URLFilter, get_list, normalizer
from datatrove.utils._import_utils import ASSETS_PATH

from hf_pretrain.corpus.config_ingest import UrlConfig
from hf_pretrain.utils.atomic import write_bytes
from hf_pretrain.utils.cache import cache_dir
from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter


class OfflineUrlFilter(URLFilter):
    """
    Drops documents by `metadata["url"]`: `url_domain`, `url_subdomain`, `url_listed`, `url_word`, `url_soft_words`,
    `url_subword`.

    The lists that datatrove ships (4.6 million domains) are kept as sorted hashes of 64 bits in a cache: 37 MB, shared
    by all processes, where Python's sets take half a gigabyte and some seconds in each. That a domain is dropped for
    the hash of another has a chance of 1 in 4 million million.

    Args:
        config (`UrlConfig`, *optional*): Settings.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "URL filter"

    def __init__(self, config: UrlConfig | None = None, exclusion_writer: DiskWriter | None = None) -> None:
        config = config or UrlConfig(enabled=True)
        for module in ("tldextract", "ahocorasick", "fasteners"):
            require(module, "sources", "the URL filter")
        super().__init__(
            soft_word_threshold=config.soft_word_threshold,
            extra_domains=[domain.lower() for domain in config.domains],
            extra_urls=[url.lower() for url in config.urls],
            banned_words=config.words,
            banned_subwords=config.subwords,
            soft_banned_words=config.soft_words,
            use_integrated_lists=config.lists,
            exclusion_writer=exclusion_writer,
        )
        from tldextract import TLDExtract

        self._hashes = np.empty(0, np.uint64)
        self.tldextractor = TLDExtract(cache_dir=None, suffix_list_urls=())

    def download_data(self) -> None:
        """Read the lists that datatrove ships, once a process; nothing is fetched."""
        if self._downloaded or not self.use_integrated_lists:
            return
        self._hashes = _shipped_hashes()
        for name in ("banned_words", "banned_subwords", "soft_banned_words"):
            setattr(self, name, get_list(ASSETS_PATH, f"{name}.txt", getattr(self, name)))
        for word in self.banned_subwords:
            self.banned_subwords_automaton.add_word(word, len(self.banned_subwords_automaton))
        self.banned_subwords_automaton.make_automaton()
        self._downloaded = True

    def _listed(self, name: str, own: set[str]) -> bool:
        if name in own:
            return True
        if not name or not len(self._hashes):
            return False
        value = np.uint64(_hash(name))
        place = int(np.searchsorted(self._hashes, value))
        return place < len(self._hashes) and self._hashes[place] == value

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """
        Decide on one document.

        Args:
            document (`Document`): The document.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        self.download_data()
        url = str(document.metadata.get("url") or "").strip().lower()
        if not url:
            self.stat_update("without_url")
            return True
        parts = self.tldextractor(url)
        if self._listed(f"{parts.domain}.{parts.suffix}", self.block_listed_domains):
            return False, "url_domain"
        if self._listed(parts.fqdn, self.block_listed_domains):
            return False, "url_subdomain"
        if self._listed(url, self.block_listed_url):
            return False, "url_listed"
        plain = unquote(url)
        words = set(normalizer.split(plain))
        if not words.isdisjoint(self.banned_words):
            return False, "url_word"
        if len(words & self.soft_banned_words) >= self.soft_word_threshold:
            return False, "url_soft_words"
        if self.banned_subwords and next(self.banned_subwords_automaton.iter(normalizer.sub("", plain)), None):
            return False, "url_subword"
        return True


def _hash(name: str) -> int:
    return xxhash.xxh3_64_intdigest(name.encode("utf-8", "surrogatepass"))


def _shipped_hashes() -> np.ndarray:
    """Sorted hashes of the domains and addresses that datatrove ships, made once and then mapped into memory."""
    archive = Path(ASSETS_PATH) / "url_filterblacklistsv0_3_0.tar.gz"
    cached = cache_dir() / f"url_lists-{archive.stat().st_size}.npy"
    if not cached.is_file():
        values = []
        with tarfile.open(archive, "r:gz") as members:
            for name in ("domains", "urls"):
                for line in members.extractfile(name):
                    if line.strip() and not line.startswith(b"#"):
                        values.append(_hash(line.decode("utf-8", "replace").strip().lower()))
        buffer = io.BytesIO()
        np.save(buffer, np.unique(np.array(values, dtype=np.uint64)))
        cached.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(cached, buffer.getvalue())
    return np.load(cached, mmap_mode="r", allow_pickle=False)

"""Pages dropped by their address, before the dear work of extraction: datatrove's lists and words, offline.

datatrove's `URLFilter` asks the network for the public suffixes, compares words in any case with lists in lower case, and
fails at a document without an address. Here the suffixes are those that tldextract ships, the address is
lower-cased, and a document without one passes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote

from datatrove.pipeline.filters.url_filter import URLFilter, normalizer

from hf_pretrain.corpus.config_ingest import UrlConfig
from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter


class OfflineUrlFilter(URLFilter):
    """
    Drops documents by `metadata["url"]`: `url_domain`, `url_subdomain`, `url_listed`, `url_word`, `url_soft_words`,
    `url_subword`.

    The lists that datatrove ships (4.6 million domains) take some seconds and about half a gigabyte a process.

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

        self.tldextractor = TLDExtract(cache_dir=None, suffix_list_urls=())

    def filter(self, document: Document) -> bool | tuple[bool, str]:
        """
        Decide on one document.

        Args:
            document (`Document`): The document.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        self.download_data()  # unpacks the lists that the package ships; nothing is fetched
        url = str(document.metadata.get("url") or "").strip().lower()
        if not url:
            self.stat_update("without_url")
            return True
        parts = self.tldextractor(url)
        if f"{parts.domain}.{parts.suffix}" in self.block_listed_domains:
            return False, "url_domain"
        if parts.fqdn in self.block_listed_domains:
            return False, "url_subdomain"
        if url in self.block_listed_url:
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

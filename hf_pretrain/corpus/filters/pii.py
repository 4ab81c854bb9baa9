"""Masks personal data with one placeholder a type: `<EMAIL>`, `<IPV4>`, `<PHONE>`, ...

The result depends on the text alone: not on the order of documents, the shard or the worker, and a second pass changes
nothing. Placeholders do not pretend to be data, so a model learns no made-up address. Counts by type go to the step's
statistics and to `metadata["pii"]`.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from datatrove.pipeline.formatters.base import BaseFormatter
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.config_filters import PIIConfig
from hf_pretrain.corpus.filters import pii_patterns as patterns


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from datatrove.data import Document, DocumentsPipeline


PLACEHOLDERS = {
    "url_userinfo": "<USERINFO>",
    "secret": "<SECRET>",
    "email": "<EMAIL>",
    "iban": "<IBAN>",
    "card": "<CARD>",
    "ssn": "<SSN>",
    "phone": "<PHONE>",
    "mac": "<MAC>",
    "ipv6": "<IPV6>",
    "ipv4": "<IPV4>",
}


class PIIFormatter(BaseFormatter):
    """
    Replaces personal data by typed placeholders.

    Args:
        config (`PIIConfig`, *optional*): Which types, and the policies for private addresses and `git@host:path`.
    """

    name = "PII"

    def __init__(self, config: PIIConfig | None = None) -> None:
        super().__init__()
        self.config = config or PIIConfig()
        finders: dict[str, Callable[[str], Iterator[tuple[int, int]]]] = {
            "url_userinfo": patterns.find_url_userinfo,
            "secret": patterns.find_secrets,
            "email": partial(patterns.find_emails, scp_addresses=self.config.mask_scp_addresses),
            "iban": patterns.find_ibans,
            "card": patterns.find_cards,
            "ssn": patterns.find_ssns,
            "phone": patterns.find_phones,
            "mac": patterns.find_macs,
            "ipv6": partial(patterns.find_ipv6, public_only=self.config.public_ips_only),
            "ipv4": partial(patterns.find_ipv4, public_only=self.config.public_ips_only),
        }
        # The order of PLACEHOLDERS: what can hold another type (a key in a URL, a card that looks like a phone) goes
        # first.
        self.finders = {kind: finders[kind] for kind in PLACEHOLDERS if kind in self.config.types}

    def mask(self, text: str) -> tuple[str, dict[str, int]]:
        """
        Mask one text.

        Args:
            text (`str`): The text.

        Returns:
            `tuple[str, dict[str, int]]`: the masked text, and how many of each type were found (types found only).
        """
        counts: dict[str, int] = {}
        # A placeholder can open the view on a neighbour; masking again until nothing is found makes a second run
        # change nothing.
        while (masked := self._mask_once(text, counts)) != text:
            text = masked
        return text, counts

    def _mask_once(self, text: str, counts: dict[str, int]) -> str:
        for kind, find in self.finders.items():
            pieces, position = [], 0
            for start, end in sorted(find(text)):
                if start >= position:
                    pieces += [text[position:start], PLACEHOLDERS[kind]]
                    position = end
                    counts[kind] = counts.get(kind, 0) + 1
            if pieces:
                text = "".join([*pieces, text[position:]])
        return text

    def format(self, text: str) -> str:
        """
        The masked text alone, datatrove's formatter method.

        Args:
            text (`str`): The text.

        Returns:
            `str`: the masked text.
        """
        return self.mask(text)[0]

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """
        Mask a stream of documents.

        Args:
            data (`DocumentsPipeline`): Documents.
            rank (`int`, *optional*, defaults to 0): This task; no influence.
            world_size (`int`, *optional*, defaults to 1): Number of tasks; no influence.

        Returns:
            `DocumentsPipeline`: the documents, masked.
        """
        for doc in data:
            self.stat_update(StatHints.total)
            if doc.metadata.get("domain") not in self.config.skip_domains:
                with self.track_time():
                    doc.text, counts = self.mask(doc.text)
                if counts:
                    before = doc.metadata.get("pii", {})
                    doc.metadata["pii"] = {k: before.get(k, 0) + counts.get(k, 0) for k in sorted({*before, *counts})}
                    self.stat_update("pii_documents")
                    for kind, count in counts.items():
                        self.stat_update(f"pii_{kind}", value=count)
                    if self._too_many(doc):
                        continue
            self.stat_update(StatHints.forwarded)
            self.update_doc_stats(doc)
            yield doc

    def _too_many(self, doc: Document) -> bool:
        """A list of addresses is no text; what is left of one after masking is placeholders."""
        found = doc.metadata["pii"]
        if not self.config.max_findings or sum(found.values()) <= self.config.max_findings:
            return False
        doc.metadata["filter_reason"] = f"pii_{max(found, key=lambda kind: (found[kind], kind))}"
        self.stat_update(StatHints.dropped, f"dropped_{doc.metadata['filter_reason']}")
        return True

"""Which documents are long enough to teach a longer context, written once more as a source of their own.

Only what a document really holds counts: its tokens, not those of its neighbours in a packed window. Long documents
that are long by repetition (logs, tables, generated listings) teach nothing, and give themselves away by compressing
too well; the band of compression ratios that is accepted is a setting.
"""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from datatrove.data import Document

from hf_pretrain.utils.errors import UserError


@dataclass
class LongDocumentsConfig:
    """Settings of the extra source of long documents.

    Args:
        name (`str`, *optional*, defaults to `"long"`): Name of the source; empty makes none.
        min_tokens (`int`, *optional*, defaults to 8192): Fewest tokens of a document.
        max_compression (`float`, *optional*, defaults to 8.0): Documents that deflate by more are left out.
        sources (`list[str]`, *optional*, defaults to `[]`): Sources to take from; empty takes from all.
    """

    name: str = "long"
    min_tokens: int = 8192
    max_compression: float = 8.0
    sources: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        if not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise UserError(f"long_documents.name = {self.name!r}; use letters, digits, '-', '_' and '.'.")
        if self.min_tokens < 1:
            raise UserError(f"long_documents.min_tokens = {self.min_tokens}; at least 1 is needed.")
        if self.max_compression <= 1.0:
            raise UserError(f"long_documents.max_compression = {self.max_compression}; a number above 1 is needed.")


def compression_ratio(text: str) -> float:
    """How well a text deflates.

    Args:
        text (`str`): A text.

    Returns:
        `float`: Bytes before, divided by bytes after; prose gives 2 to 3.
    """
    data = text.encode("utf-8", "replace")
    return len(data) / max(len(zlib.compress(data, 1)), 1)


def select_long_documents(
    documents: Sequence[Document], num_tokens: Sequence[int], config: LongDocumentsConfig
) -> list[int]:
    """Selects the long documents.

    Args:
        documents (`Sequence[Document]`): Documents, with `metadata["source"]`.
        num_tokens (`Sequence[int]`): Tokens of each.
        config (`LongDocumentsConfig`): The setting.

    Returns:
        `list[int]`: Indices of the selected ones.
    """
    if not config.name:
        return []
    return [
        index
        for index, (document, count) in enumerate(zip(documents, num_tokens, strict=True))
        if count >= config.min_tokens
        and (not config.sources or document.metadata.get("source") in config.sources)
        and compression_ratio(document.text) <= config.max_compression
    ]

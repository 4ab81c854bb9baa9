"""Repeated paragraphs: boilerplate that stands in many documents, equal or nearly so.

A paragraph is what lies between blank lines (lines, by choice). `max_copies` of a paragraph stay, those of the best
placed documents; the fuzzy level compares the paragraphs that are left by verified MinHash.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hf_pretrain.corpus.dedup.exact import text_key
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.verified_clusters import find_near_duplicates
from hf_pretrain.utils.errors import UserError


@dataclass
class ParagraphConfig:
    """Settings of paragraph deduplication.

    Args:
        enabled (`bool`, *optional*, defaults to `False`): Whether it runs.
        unit (`str`, *optional*, defaults to `"paragraph"`): `"paragraph"` (between blank lines) or `"line"`.
        min_words (`int`, *optional*, defaults to 8): Shorter ones are never removed.
        max_copies (`int`, *optional*, defaults to 1): Copies of one paragraph that stay in the corpus.
        fuzzy (`bool`, *optional*, defaults to `False`): Whether near copies go too.
        similarity_threshold (`float`, *optional*, defaults to 0.8): Exact Jaccard similarity of near copies.
        min_words_left (`int`, *optional*, defaults to 20): A document that lost something and has fewer words goes.
    """

    enabled: bool = False
    unit: str = "paragraph"
    min_words: int = 8
    max_copies: int = 1
    fuzzy: bool = False
    similarity_threshold: float = 0.8
    min_words_left: int = 20

    def __post_init__(self) -> None:
        if self.unit not in ("paragraph", "line"):
            raise UserError(f"paragraphs.unit = {self.unit!r}; 'paragraph' or 'line' is allowed.")
        if min(self.min_words, self.max_copies, self.min_words_left) < 1:
            raise UserError("paragraphs.min_words, max_copies and min_words_left must be at least 1.")
        MinhashConfig(similarity_threshold=self.similarity_threshold)


def remove_paragraphs(
    texts: Sequence[str], order: Sequence[int], config: ParagraphConfig
) -> tuple[dict[int, str], dict[bytes, int]]:
    """Takes repeated paragraphs out.

    Args:
        texts (`Sequence[str]`): The texts.
        order (`Sequence[int]`): Text indices, best first.
        config (`ParagraphConfig`): The setting.

    Returns:
        `tuple[dict[int, str], dict[bytes, int]]`: New text of each text that lost a paragraph; how often each repeated
        paragraph stood in the corpus, by its key.
    """
    splitter = re.compile(r"(\n[^\S\n]*\n\s*)" if config.unit == "paragraph" else r"(\n)")
    counts: dict[bytes, int] = {}
    pieces = {index: splitter.split(texts[index]) for index in order}  # text, separator, text, ...
    gone: set[tuple[int, int]] = set()
    left: list[tuple[int, int]] = []
    for index in order:
        for place in range(0, len(pieces[index]), 2):
            piece = pieces[index][place]
            if len(piece.split()) < config.min_words and len(piece) < 8 * config.min_words:
                continue
            key = text_key(piece)
            counts[key] = counts.get(key, 0) + 1
            if counts[key] > config.max_copies:
                gone.add((index, place))
            elif counts[key] == 1:
                left.append((index, place))
    if config.fuzzy:
        setting = MinhashConfig(similarity_threshold=config.similarity_threshold)
        near = find_near_duplicates([pieces[index][place] for index, place in left], range(len(left)), setting)
        gone.update(left[pair.removed] for pair in near)
    changed: dict[int, str] = {}
    for index in {index for index, _ in gone}:
        parts = pieces[index]
        kept = [
            part + (parts[place + 1] if place + 1 < len(parts) else "")
            for place, part in enumerate(parts)
            if place % 2 == 0 and (index, place) not in gone
        ]
        changed[index] = "".join(kept).rstrip() if (index, len(parts) - 1) in gone else "".join(kept)
    return changed, {key: count for key, count in counts.items() if count > 1}

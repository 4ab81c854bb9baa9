"""Gopher's repetition rules (arXiv 2112.11446, table A1), with the decisions of datatrove's filter and less work.

datatrove joins the words of every n-gram of nine lengths into a string; here n-grams are numbers (`ngrams.py`).
One rule differs on purpose: a "top n-gram" must occur `top_ngram_min_count` times. With 1, as in datatrove, the only
n-gram of a short text counts as its top one and drops it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter
from datatrove.utils.text import split_into_words

from hf_pretrain.corpus.filters.ngrams import (
    find_repeated,
    hash_pieces,
    joined_grams,
    most_common,
    repeated_characters,
    spaced_grams,
)
from hf_pretrain.corpus.filters.profiles import LanguageProfile, load_profiles
from hf_pretrain.corpus.ingest.language_codes import known_language


if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from datatrove.data import Document


class RepetitionFilter(GopherRepetitionFilter):
    """
    Drops documents that repeat themselves; constructor, thresholds and reasons are those of datatrove's
    `GopherRepetitionFilter`.

    Args:
        top_ngram_min_count (`int`, *optional*, defaults to 2): Occurrences from which an n-gram can be the top one.
        profiles (`Mapping[str, LanguageProfile]`, *optional*):
            Profiles by canonical code; by default those of the package.
        profile_limits (`bool`, *optional*, defaults to `True`):
            For documents in a language other than English with a profile, take its limits of lines and n-grams where
            they are wider, and leave out the rules on paragraphs and characters of lines (as FineWeb-2 does).
        **kwargs: See `GopherRepetitionFilter`; `language` takes a word tokenizer.
    """

    name = "Gopher repetition"

    def __init__(
        self,
        top_ngram_min_count: int = 2,
        profiles: Mapping[str, LanguageProfile] | None = None,
        profile_limits: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.top_ngram_min_count = top_ngram_min_count
        self.profiles = (load_profiles() if profiles is None else profiles) if profile_limits else {}

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Decide on one document.

        Args:
            doc (`Document`): The document; `metadata["language"]` chooses the profile.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        text = doc.text
        if not text or text.isspace():
            return False, "empty"
        language = known_language(doc.metadata.get("language"))
        profile = self.profiles.get(language) if language != "en" else None
        reason = self._repeated_blocks(text, profile)
        if reason is None:
            words = split_into_words(text, self.language)
            if words:
                reason = self._repeated_ngrams(words, len(text), profile)
        return True if reason is None else (False, reason)

    def _repeated_blocks(self, text: str, profile: LanguageProfile | None) -> str | None:
        if profile is None:
            pieces = self.paragraph_exp.split(text.strip())
            number, characters = find_repeated(pieces)
            if self.dup_para_frac and number / len(pieces) > self.dup_para_frac:
                return "dup_para_frac"
            if self.dup_para_char_frac and characters / len(text) > self.dup_para_char_frac:
                return "dup_para_char_frac"
        pieces = self._line_splitter.split(text)
        number, characters = find_repeated(pieces)
        share = self.dup_line_frac
        if profile is not None and share:
            share = max(share, profile.dup_line_frac)
        if share and number / len(pieces) > share:
            return "dup_line_frac"
        if profile is None and self.dup_line_char_frac and characters / len(text) > self.dup_line_char_frac:
            return "dup_line_char_frac"
        return None

    def _repeated_ngrams(self, words: list[str], size: int, profile: LanguageProfile | None) -> str | None:
        hashes, powers, lengths = hash_pieces(words)
        ends = np.zeros(len(words) + 1, np.int64)
        np.cumsum(lengths, out=ends[1:])
        for n, gram in spaced_grams(hashes, [n for n, _ in self.top_n_grams]):
            count, first = most_common(gram)
            if count >= self.top_ngram_min_count:
                characters = count * (int(ends[first + n] - ends[first]) + n - 1)
                if characters / size > _limit(self.top_n_grams, n, profile and profile.top_n_grams):
                    return f"top_{n}_gram"
        for n, gram in joined_grams(hashes, powers, [n for n, _ in self.dup_n_grams]):
            limit = _limit(self.dup_n_grams, n, profile and profile.dup_n_grams)
            if repeated_characters(gram, ends, n, limit * size) / size > limit:
                return f"duplicated_{n}_n_grams"
        return None


def _limit(given: Sequence[tuple[int, float]], n: int, wider: Sequence[Sequence[float]] | None) -> float:
    limit = dict(given)[n]
    return max(limit, dict(map(tuple, wider)).get(n, 0.0)) if wider else limit

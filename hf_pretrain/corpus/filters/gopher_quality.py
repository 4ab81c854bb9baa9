"""Gopher's quality rules (arXiv 2112.11446, appendix A.1.1), with the decisions and reasons of datatrove's filter.

datatrove asks of every character of every word whether it is a mark and whether it is a letter. Here each distinct
word is asked once, and most are answered by one call (`str.isalpha`). What differs on purpose can be switched off:
stop words are those of the document's language and compared without regard to case, limits of word length and of
alphabetic words come from the language's profile, and a text without any word is dropped where datatrove divides by
zero.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
from datatrove.utils.text import PUNCTUATION_SET, split_into_words

from hf_pretrain.corpus.filters.profiles import LanguageProfile, load_profiles
from hf_pretrain.corpus.ingest.language_codes import known_language


if TYPE_CHECKING:
    from collections.abc import Mapping

    from datatrove.data import Document


class QualityFilter(GopherQualityFilter):
    """
    Drops documents whose words and lines do not look like running text; constructor and reasons are those of
    datatrove's `GopherQualityFilter`.

    Args:
        profiles (`Mapping[str, LanguageProfile]`, *optional*):
            Profiles by canonical code; by default those of the package. A document without a known language counts as
            English; one in a language without a profile is not held to the stop word rule.
        casefold_stop_words (`bool`, *optional*, defaults to `True`):
            Compare stop words without regard to case; `False` is datatrove's rule, where "The" is none.
        profile_limits (`bool`, *optional*, defaults to `True`):
            Take limits of word length and alphabetic share from the profile of a language other than English, where
            they are wider than the given ones.
        **kwargs: See `GopherQualityFilter`; `stop_words` replaces those of every profile, `language` takes a word
            tokenizer.
    """

    name = "Gopher quality"

    def __init__(
        self,
        profiles: Mapping[str, LanguageProfile] | None = None,
        casefold_stop_words: bool = True,
        profile_limits: bool = True,
        **kwargs,
    ) -> None:
        super().__init__(**kwargs)
        self.profiles = load_profiles() if profiles is None else profiles
        self.casefold_stop_words, self.profile_limits = casefold_stop_words, profile_limits
        self.given_stop_words = frozenset(kwargs["stop_words"]) if kwargs.get("stop_words") is not None else None

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
            return False, "gopher_short_doc" if self.min_doc_words else "empty"
        words = split_into_words(text, self.language)
        counts = Counter(words)
        number = characters = alphabetic = 0
        for word, count in counts.items():
            if word.isalpha():  # no mark is a letter
                number += count
                alphabetic += count
                characters += len(word) * count
            elif not PUNCTUATION_SET.issuperset(word):
                number += count
                characters += len(word) * count
                if any(map(str.isalpha, word)):
                    alphabetic += count
        profile = self.profiles.get(known_language(doc.metadata.get("language")) or "en")
        reason = self._words_reason(number, characters, alphabetic, len(words), profile)
        if reason is None or reason == "gopher_below_alpha_threshold":
            reason = self._marks_reason(text, len(words)) or reason
        if reason is None and self.min_stop_words and self._stop_words(counts, profile) < self.min_stop_words:
            reason = "gopher_enough_stop_words"
        return True if reason is None else (False, reason)

    def _words_reason(
        self, number: int, characters: int, alphabetic: int, total: int, profile: LanguageProfile | None
    ) -> str | None:
        if self.min_doc_words and number < self.min_doc_words or not number:
            return "gopher_short_doc"
        if self.max_doc_words and number > self.max_doc_words:
            return "gopher_long_doc"
        shortest, longest = self.min_avg_word_length, self.max_avg_word_length
        least_alphabetic = self.max_non_alpha_words_ratio  # datatrove's name says the opposite of what it is
        if profile is not None and self.profile_limits:
            shortest = shortest and min(shortest, profile.min_avg_word_length)
            longest = longest and max(longest, profile.max_avg_word_length)
            least_alphabetic = least_alphabetic and min(least_alphabetic, profile.min_alpha_ratio)
        mean = characters / number
        if shortest and mean < shortest:
            return "gopher_below_avg_threshold"
        if longest and mean > longest:
            return "gopher_above_avg_threshold"
        # Asked last but one; the marks come before it.
        return "gopher_below_alpha_threshold" if least_alphabetic and alphabetic / total < least_alphabetic else None

    def _marks_reason(self, text: str, total: int) -> str | None:
        ellipses = text.count("...") + text.count("\u2026")
        if self.max_symbol_word_ratio:
            if text.count("#") / total > self.max_symbol_word_ratio:
                return "gopher_too_many_hashes"
            if ellipses / total > self.max_symbol_word_ratio:
                return "gopher_too_many_ellipsis"
        lines = None
        if self.max_bullet_lines_ratio and ("-" in text or "\u2022" in text):
            lines = text.splitlines()
            bullets = sum(line.lstrip().startswith(("\u2022", "-")) for line in lines)
            if bullets / len(lines) > self.max_bullet_lines_ratio:
                return "gopher_too_many_bullets"
        if self.max_ellipsis_lines_ratio and ellipses:
            lines = lines or text.splitlines()
            ends = sum(line.rstrip().endswith(("...", "\u2026")) for line in lines)
            if ends / len(lines) > self.max_ellipsis_lines_ratio:
                return "gopher_too_many_end_ellipsis"
        return None

    def _stop_words(self, counts: Counter[str], profile: LanguageProfile | None) -> int:
        stop_words = self.given_stop_words
        if stop_words is None:
            if profile is None or not profile.stop_words:
                return self.min_stop_words  # no list, no rule
            stop_words = profile.stop_word_set
        found = len(stop_words.intersection(counts))
        if found >= self.min_stop_words or not self.casefold_stop_words:
            return found
        return len(stop_words.intersection(map(str.lower, counts)))

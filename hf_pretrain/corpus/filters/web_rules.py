"""C4's and FineWeb's rules with the decisions, reasons and edits of datatrove's filters, and less work.

datatrove updates a statistic for every line, splits every line into sentences, and compares every line with a tuple of
159 marks. Here lines are counted and reported once a document, sentences are counted until there are enough, and what
a page does not hold (a brace, "javascript") is looked for once. Sources: C4 arXiv 1910.10683, FineWeb 2406.17557.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from datatrove.pipeline.filters.c4_filters import (
    CITATION_REGEX,
    ELLIPSIS,
    END_PUNCTUATION,
    POLICY_SUBSTRINGS,
    C4QualityFilter,
)
from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
from datatrove.utils.text import split_into_sentences, split_into_words

from hf_pretrain.corpus.filters.profiles import LanguageProfile, load_profiles
from hf_pretrain.corpus.filters.repetition import find_repeated
from hf_pretrain.corpus.ingest.language_codes import known_language


if TYPE_CHECKING:
    from collections.abc import Mapping

    from datatrove.data import Document


FINEWEB_DUPLICATE_RATIO = {"fineweb_paper": 0.1, "fineweb_code": 0.01}
SPACELESS_LANGUAGES = frozenset({"zh", "yue", "wuu", "ja", "th", "lo", "km", "my"})


class C4Filter(C4QualityFilter):
    """
    C4's line and page rules. They edit the text, so what went is counted: `c4_characters_removed`,
    `c4_documents_edited`.

    Args:
        **kwargs: See datatrove's `C4QualityFilter`; `language` takes a word tokenizer.
    """

    name = "C4 quality"

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Edit and decide on one document.

        Args:
            doc (`Document`): The document; its text is replaced by the lines that stay.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        text = doc.text
        counts: Counter[str] = Counter()
        kept: list[str] = []
        reason = self._lines(text, known_language(doc.metadata.get("language")), kept, counts)
        for name, count in counts.items():
            self.stat_update(name, value=count)
        if reason is not None:
            return False, reason
        left = ("\n" if self.split_paragraph else " ").join(kept).strip()
        if not left:
            return False, "empty"
        if left != text:
            doc.text = left
            self.stat_update("c4_documents_edited")
            self.stat_update("c4_characters_removed", value=len(text) - len(left))
        return True

    def _lines(self, text: str, language: str | None, kept: list[str], counts: Counter[str]) -> str | None:
        # Counting words by spaces would drop every line of a script that has none.
        least_words = -1 if language in SPACELESS_LANGUAGES else self.min_words_per_line
        # What the whole page lacks no line has.
        lower = text.lower()
        lorem = self.filter_lorem_ipsum and "lorem ipsum" in lower
        script = self.filter_javascript and "javascript" in lower
        brace = self.filter_curly_bracket and "{" in text
        policies = [phrase for phrase in POLICY_SUBSTRINGS if phrase in lower] if self.filter_policy else []
        cited = self.remove_citations and "[" in text
        # A citation inside a word can, once gone, join what was apart.
        careful = cited and bool(CITATION_REGEX.search(text))
        if careful:
            lorem, script, brace = self.filter_lorem_ipsum, self.filter_javascript, self.filter_curly_bracket
            policies = list(POLICY_SUBSTRINGS) if self.filter_policy else []
        sentences, wanted = 0, self.min_num_sentences
        for line in text.splitlines() if self.split_paragraph else split_into_sentences(text, self.language):
            line = line.strip()
            words = line.split()
            counts["line-total"] += 1
            if self.max_word_length != -1 and len(line) > self.max_word_length:
                if any(len(word) > self.max_word_length for word in words):
                    counts["line-filter-too_long_word"] += 1
                    continue
            if careful:
                line = CITATION_REGEX.sub("", line)
            if self.filter_no_terminal_punct and (not line.endswith(END_PUNCTUATION) or line.endswith(ELLIPSIS)):
                counts["line-filter-no_terminal_punc"] += 1
                continue
            if len(words) < least_words:
                counts["line-filter-too_few_words"] += 1
                continue
            small = line.lower() if lorem or script or policies else ""
            if lorem and "lorem ipsum" in small:
                return "lorem_ipsum"
            if script and "javascript" in small:
                counts["line-filter-javascript"] += 1
                continue
            if brace and "{" in line:
                return "curly_bracket"
            if policies and any(phrase in small for phrase in policies):
                counts["line-filter-policy"] += 1
                continue
            if sentences < wanted:
                sentences += len(split_into_sentences(line, self.language)) if self.split_paragraph else 1
            kept.append(line)
            counts["line-kept"] += 1
        return "too_few_sentences" if sentences < wanted else None


class FineWebFilter(FineWebQualityFilter):
    """
    FineWeb's rules on lines; constructor, thresholds and reasons are those of datatrove's `FineWebQualityFilter`.

    Args:
        profiles (`Mapping[str, LanguageProfile]`, *optional*):
            Profiles by canonical code; by default those of the package.
        profile_limits (`bool`, *optional*, defaults to `True`):
            For documents in a language other than English with a profile, take its limits of final marks and line
            breaks where they are wider, and leave out the rule on short lines (as FineWeb-2 does).
        **kwargs: See `FineWebQualityFilter`; `language` takes a word tokenizer.
    """

    name = "FineWeb quality"

    def __init__(
        self, profiles: Mapping[str, LanguageProfile] | None = None, profile_limits: bool = True, **kwargs
    ) -> None:
        super().__init__(**kwargs)
        self.profiles = (load_profiles() if profiles is None else profiles) if profile_limits else {}
        self._single = frozenset(mark for mark in self.stop_chars if len(mark) == 1)
        self._longer = tuple(mark for mark in self.stop_chars if len(mark) > 1)

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Decide on one document.

        Args:
            doc (`Document`): The document; `metadata["language"]` chooses the profile.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        text = doc.text
        lines = [line for line in text.split("\n") if line and not line.isspace()]
        if not lines:
            return False, "empty"
        language = known_language(doc.metadata.get("language"))
        profile = self.profiles.get(language) if language != "en" else None
        least_marks, most_breaks = self.line_punct_thr, self.new_line_ratio
        if profile is not None:
            least_marks = min(least_marks, profile.line_punct_ratio)
            most_breaks = max(most_breaks, profile.new_line_ratio)
        ended = sum(line[-1] in self._single for line in lines)
        if self._longer:
            ended += sum(line[-1] not in self._single and line.endswith(self._longer) for line in lines)
        share = ended / len(lines)
        if share < least_marks and not (share == 0 and self.line_punct_exclude_zero):
            return False, "line_punct_ratio"
        if profile is None:
            short = sum(len(line) <= self.short_line_length for line in lines)
            if short / len(lines) > self.short_line_threshold:
                return False, "short_line_ratio"
        breaks = text.count("\n")
        if find_repeated(lines)[1] / (len(text) - breaks) > self.char_duplicates_ratio:
            return False, "char_dup_ratio"
        if breaks and breaks / max(len(split_into_words(text, self.language)), 1) > most_breaks:
            return False, "list_ratio"
        return True

"""Gopher's repetition rules (arXiv 2112.11446, table A1), with the decisions of datatrove's filter and less work.

Words become small integers once and n-grams are tuples of them, instead of nine passes of joined text. A text without
a repeated n-gram has no longer repeated one, which ends the search after the 5-grams of most documents.
One rule differs on purpose: a "top n-gram" must occur `top_ngram_min_count` times. With 1, as in datatrove, the only
n-gram of a short text counts as its top one and drops it.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter, find_duplicates
from datatrove.utils.text import split_into_words


if TYPE_CHECKING:
    from datatrove.data import Document


class RepetitionFilter(GopherRepetitionFilter):
    """
    Drops documents that repeat themselves; constructor, thresholds and reasons are those of datatrove's
    `GopherRepetitionFilter`.

    Args:
        top_ngram_min_count (`int`, *optional*, defaults to 2): Occurrences from which an n-gram can be the top one.
        **kwargs: See `GopherRepetitionFilter`; `language` takes a word tokenizer.
    """

    name = "Gopher repetition"

    def __init__(self, top_ngram_min_count: int = 2, **kwargs) -> None:
        super().__init__(**kwargs)
        self.top_ngram_min_count = top_ngram_min_count

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Decide on one document.

        Args:
            doc (`Document`): The document.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        text = doc.text
        if not text.strip():
            return False, "empty"
        reason = self._repeated_blocks(text)
        if reason is None:
            words = split_into_words(text, self.language)
            codes: dict[str, int] = {}
            ids = [codes.setdefault(word, len(codes)) for word in words]
            lengths = [len(word) for word in words]
            reason = self._top_ngram(ids, lengths, len(text)) or self._duplicated_ngrams(ids, lengths, len(text))
        return True if reason is None else (False, reason)

    def _repeated_blocks(self, text: str) -> str | None:
        blocks = (
            ("para", self.paragraph_exp.split(text.strip()), self.dup_para_frac, self.dup_para_char_frac),
            ("line", self._line_splitter.split(text), self.dup_line_frac, self.dup_line_char_frac),
        )
        for kind, pieces, share_limit, character_limit in blocks:
            number, characters = find_duplicates(pieces)
            if share_limit and number / len(pieces) > share_limit:
                return f"dup_{kind}_frac"
            if character_limit and characters / len(text) > character_limit:
                return f"dup_{kind}_char_frac"
        return None

    def _top_ngram(self, ids: list[int], lengths: list[int], size: int) -> str | None:
        for n, limit in self.top_n_grams:
            grams = list(zip(*(ids[k:] for k in range(n)), strict=False))
            if not grams:
                continue
            gram, count = Counter(grams).most_common(1)[0]
            if count < self.top_ngram_min_count:
                continue
            first = grams.index(gram)
            # Words with a space between each two, as the paper measures characters.
            if count * (sum(lengths[first : first + n]) + n - 1) / size > limit:
                return f"top_{n}_gram"
        return None

    def _duplicated_ngrams(self, ids: list[int], lengths: list[int], size: int) -> str | None:
        ends = [0]
        for length in lengths:
            ends.append(ends[-1] + length)
        unique_from = None
        for n, limit in self.dup_n_grams:
            if unique_from is not None and n >= unique_from:
                continue
            grams = list(zip(*(ids[k:] for k in range(n)), strict=False))
            if len(set(grams)) == len(grams):
                unique_from = n
                continue
            seen, index, repeated = set(), 0, 0
            while index < len(grams):
                if grams[index] in seen:
                    repeated += ends[index + n] - ends[index]
                    index += n
                else:
                    seen.add(grams[index])
                    index += 1
            if repeated / size > limit:
                return f"duplicated_{n}_n_grams"
        return None

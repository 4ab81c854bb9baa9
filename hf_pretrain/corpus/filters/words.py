"""What a word is, and what a sentence is: the one tokenizer of all filter rules.

The definition of a word moves decisions more than any threshold does, so it is a named setting and recorded. `regex`:
runs of letters, marks and digits, and runs of other marks as words of their own (agrees with spaCy on 92-100 % of
decisions at 60 times its speed). `whitespace`: what the Gopher paper used. In scripts without spaces each character is
a word. datatrove's blocks take an instance where they ask for a `language`.
"""

from __future__ import annotations

import re

import regex
from datatrove.utils.word_tokenizers import WordTokenizer


WORD_DEFINITIONS = ("regex", "whitespace")

# Written without spaces between words: each base character, with the marks that belong to it, is a word.
_SPACELESS = r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Thai}\p{Lao}\p{Khmer}\p{Myanmar}&&[\p{L}]]"
_ALONE = rf"{_SPACELESS}[\p{{M}}\u30fc]*"
_REGEX_WORDS = regex.compile(rf"{_ALONE}|(?:(?!{_SPACELESS})[\w\p{{M}}])+|[^\w\s\p{{M}}]+", regex.V1)
_WHITESPACE_WORDS = regex.compile(rf"{_ALONE}|(?:(?!{_SPACELESS})\S)+", regex.V1)
_HAS_SPACELESS = regex.compile(_SPACELESS, regex.V1)
_SPACED_WORDS = regex.compile(r"[\w\p{M}]+|[^\w\s\p{M}]+", regex.V1)
_ASCII_WORDS = re.compile(r"[A-Za-z0-9_]+|[^A-Za-z0-9_\s]+")

# A sentence ends at a run of terminal marks with closing quotes and then space, at an ideographic stop, or at a line
# break. Not after a single capital ("J. Smith") or a common abbreviation.
_SENTENCE_END = re.compile(
    r"(?<!\b[^\W\d_a-z])(?<!\b(?:Mr|Dr|St|vs|cf|No))(?<!\b(?:Mrs|e\.g|i\.e|etc))[.!?\u061f\u06d4\u0964\u0965\u2026]+[\"'\u201d\u2019\u00bb)\]]*(?=\s)"
    r"|[\u3002\uff01\uff1f\uff61]+[\u300d\u300f\u201d\uff09]*|\n+"
)


class FastWordTokenizer(WordTokenizer):
    """
    Words and sentences by compiled expressions.

    The words of the last text are kept, so that the rules of a pipeline, which see one document after the other, split
    it once.

    Args:
        words (`str`, *optional*, defaults to `"regex"`): `"regex"` or `"whitespace"`.
        lower (`bool`, *optional*, defaults to `False`): Give the words in lower case.
        marks (`bool`, *optional*, defaults to `True`): Give runs of marks (no letter, no digit) too.
    """

    def __init__(self, words: str = "regex", lower: bool = False, marks: bool = True) -> None:
        super().__init__(f"fast-{words}")
        if words not in WORD_DEFINITIONS:
            raise ValueError(f"words = {words!r}; allowed are {', '.join(WORD_DEFINITIONS)}")
        self.words, self.lower, self.marks = words, lower, marks
        self._last: tuple[str, list[str]] = ("", [])

    def __getstate__(self) -> dict:
        return {**self.__dict__, "_last": ("", [])}

    def word_tokenize(self, text: str) -> list[str]:
        """
        Split a text into words.

        Args:
            text (`str`): The text.

        Returns:
            `list[str]`: the words in order; shared with the next call on the same text, so do not change it.
        """
        last_text, found = self._last
        if text is last_text or (len(text) == len(last_text) and text == last_text):
            return found
        source = text.lower() if self.lower else text
        if self.words == "whitespace":
            found = _WHITESPACE_WORDS.findall(source) if _HAS_SPACELESS.search(source) else source.split()
        else:
            if source.isascii():
                pattern = _ASCII_WORDS
            else:
                pattern = _REGEX_WORDS if _HAS_SPACELESS.search(source) else _SPACED_WORDS
            found = pattern.findall(source)
        if not self.marks:
            found = [word for word in found if word[0].isalnum() or any(map(str.isalnum, word))]
        self._last = (text, found)
        return found

    def span_tokenize(self, text: str) -> list[tuple[int, int]]:
        """
        Character spans of the sentences, without the space around them.

        Args:
            text (`str`): The text.

        Returns:
            `list[tuple[int, int]]`: start and end of each sentence, in order.
        """
        spans, start = [], 0
        for match in _SENTENCE_END.finditer(text):
            spans.append((start, match.end()))
            start = match.end()
        spans.append((start, len(text)))
        trimmed = []
        for left, right in spans:
            piece = text[left:right]
            left += len(piece) - len(piece.lstrip())
            right -= len(piece) - len(piece.rstrip())
            if left < right:
                trimmed.append((left, right))
        return trimmed

    def sent_tokenize(self, text: str) -> list[str]:
        """
        Split a text into sentences; the same pieces as [`~FastWordTokenizer.span_tokenize`].

        Args:
            text (`str`): The text.

        Returns:
            `list[str]`: the sentences.
        """
        return [text[left:right] for left, right in self.span_tokenize(text)]

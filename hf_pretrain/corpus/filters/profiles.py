"""What running text looks like, language by language: stop words and limits, shipped, loaded from a file, or derived.

Gopher's and FineWeb's limits were set on English. A German word is longer, a Chinese one is a character, and "the" is
in neither. A profile holds what differs. Those of the package (`language_profiles.json`) are Gopher's own for English
(arXiv 2112.11446) and FineWeb-2's for the others (arXiv 2506.20920; Apache-2.0), whose source each entry names; where
a language is written without spaces, limits of word length are left out, for there a word is a character here.
[`derive_profile`] makes one from a reference corpus: the tails of its histograms.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import unicodedata
from collections import Counter
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from datatrove.utils.text import TERMINAL_PUNCTUATION

from hf_pretrain.corpus.filters.ngrams import (
    find_repeated,
    hash_pieces,
    joined_grams,
    most_common,
    repeated_characters,
    spaced_grams,
)
from hf_pretrain.corpus.filters.words import FastWordTokenizer
from hf_pretrain.corpus.ingest.language_codes import canonical_language
from hf_pretrain.utils.atomic import write_text
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from datatrove.utils.word_tokenizers import WordTokenizer


STOP_WORD_FREQUENCY = 0.008
MIN_STOP_WORDS = 8
# Gopher's table A1 and FineWeb's limits, for English.
TOP_NGRAMS = ((2, 0.2), (3, 0.18), (4, 0.16))
DUPLICATE_NGRAMS = ((5, 0.15), (6, 0.14), (7, 0.13), (8, 0.12), (9, 0.11), (10, 0.1))


@dataclass(frozen=True)
class LanguageProfile:
    """
    Stop words and limits of one language.

    Args:
        language (`str`):
            Canonical code.
        stop_words (`list[str]`):
            Frequent function words, in lower case; empty where there is no rule.
        min_language_score (`float`, *optional*, defaults to 0.65):
            Smallest probability at which the detector is believed.
        min_avg_word_length (`float`, *optional*, defaults to 3):
            Characters.
        max_avg_word_length (`float`, *optional*, defaults to 10):
            Characters.
        min_alpha_ratio (`float`, *optional*, defaults to 0.8):
            Smallest share of words with a letter.
        dup_line_frac (`float`, *optional*, defaults to 0.3):
            Largest share of lines seen before.
        top_n_grams (`list[list[float]]`, *optional*):
            Pairs of n and the largest share of characters in the most common n-gram.
        dup_n_grams (`list[list[float]]`, *optional*):
            Pairs of n and the largest share of characters in repeated n-grams.
        line_punct_ratio (`float`, *optional*, defaults to 0.12):
            Smallest share of lines with a final mark.
        new_line_ratio (`float`, *optional*, defaults to 0.3):
            Most line breaks a word.
        source (`str`, *optional*, defaults to `""`):
            Where the numbers are from.
    """

    language: str
    stop_words: list[str]
    min_language_score: float = 0.65
    min_avg_word_length: float = 3.0
    max_avg_word_length: float = 10.0
    min_alpha_ratio: float = 0.8
    dup_line_frac: float = 0.3
    top_n_grams: list[list[float]] = dataclasses.field(default_factory=lambda: [list(pair) for pair in TOP_NGRAMS])
    dup_n_grams: list[list[float]] = dataclasses.field(
        default_factory=lambda: [list(pair) for pair in DUPLICATE_NGRAMS]
    )
    line_punct_ratio: float = 0.12
    new_line_ratio: float = 0.3
    source: str = ""

    def __post_init__(self) -> None:
        where = f"profile of {self.language!r}"
        if canonical_language(self.language) != self.language:
            raise UserError(f"{where}: language; write {canonical_language(self.language)!r}.")
        for name in ("min_language_score", "min_alpha_ratio", "dup_line_frac", "line_punct_ratio"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"{where}: {name} = {getattr(self, name)!r}; allowed is 0 to 1.")
        for name in ("top_n_grams", "dup_n_grams"):
            for pair in getattr(self, name):
                if len(pair) != 2 or not 2 <= pair[0] <= 20 or not 0 <= pair[1] <= 1:
                    raise UserError(
                        f"{where}: {name} has {pair!r}; write [n, share] with n from 2 and share in 0 to 1."
                    )

    @functools.cached_property
    def stop_word_set(self) -> frozenset[str]:
        """The stop words, to look up."""
        return frozenset(self.stop_words)

    def to_json(self) -> str:
        """
        The profile as JSON, readable by [`load_profiles`].

        Returns:
            `str`: one object.
        """
        return json.dumps(dataclasses.asdict(self), ensure_ascii=True)


@functools.lru_cache(maxsize=8)
def load_profiles(path: str | None = None) -> Mapping[str, LanguageProfile]:
    """
    Profiles of the package, with those of a file put over them.

    Args:
        path (`str`, *optional*): A JSON file with a list of profiles, as [`save_profiles`] writes it.

    Returns:
        `Mapping[str, LanguageProfile]`: profiles by canonical code.

    Raises:
        UserError: If the file cannot be read, or a profile has an unknown key or a wrong value.
    """
    shipped = resources.files("hf_pretrain.corpus.filters").joinpath("language_profiles.json")
    profiles = _read(shipped.read_text(encoding="utf-8"), "language_profiles.json")
    if path is not None:
        try:
            text = Path(path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"filters.profiles = {path!r}; the file cannot be read ({error}).") from error
        profiles |= _read(text, path)
    return profiles


def _read(text: str, where: str) -> dict[str, LanguageProfile]:
    try:
        rows = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(f"{where} is no JSON ({error}); write a list of profiles.") from error
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise UserError(f"{where}: a list of profiles is needed.")
    profiles = [build(LanguageProfile, row, f"{where}, profile {number}") for number, row in enumerate(rows, 1)]
    return {profile.language: profile for profile in profiles}


def save_profiles(profiles: Iterable[LanguageProfile], path: str | Path) -> None:
    """
    Write profiles to a file for `filters.profiles`.

    Args:
        profiles (`Iterable[LanguageProfile]`): The profiles.
        path (`str` or `Path`): The file.
    """
    write_text(Path(path), "[\n" + ",\n".join(profile.to_json() for profile in profiles) + "\n]\n")


def derive_profile(
    texts: Iterable[str],
    language: str,
    tokenizer: WordTokenizer | None = None,
    tail: float = 0.1,
    scores: Iterable[float] | None = None,
    source: str = "",
) -> LanguageProfile:
    """
    Make the profile of a language from texts that are good ones.

    Stop words are the words with a share of 0.8 % or more (the eight most common where fewer have it). Each limit lets
    all but a share `tail` of the reference pass, the language score is the median less one standard deviation, kept
    within 0.3 and 0.9 (FineWeb-2, arXiv 2506.20920). A limit on repetition is never stricter than English's: a clean
    reference says what repetition is not, and not how much of it is too much.

    Args:
        texts (`Iterable[str]`): The reference corpus, some hundred documents or more.
        language (`str`): Its language, any code.
        tokenizer (`WordTokenizer`, *optional*): What a word is; use the filters' own (`FastWordTokenizer()`).
        tail (`float`, *optional*, defaults to 0.1): Share of the reference that may lie outside a limit, in (0, .5).
        scores (`Iterable[float]`, *optional*): The detector's probabilities on the same texts.
        source (`str`, *optional*, defaults to `""`): Name of the corpus, recorded.

    Returns:
        `LanguageProfile`: the profile.

    Raises:
        UserError: If `tail` is out of range, or fewer than 20 texts have words.
    """
    if not 0 < tail < 0.5:
        raise UserError(f"tail = {tail!r}; a share above 0 and below 0.5 is needed.")
    words_of = tokenizer or FastWordTokenizer()
    frequencies: Counter[str] = Counter()
    rows: list[dict[str, float]] = []
    for text in texts:
        words = words_of.word_tokenize(text)
        real = [word for word in words if any(map(str.isalnum, word))]
        if not real:
            continue
        frequencies.update(word for word in map(str.lower, real) if _is_word(word))
        rows.append(_measure(text, words, real))
    if len(rows) < 20:
        raise UserError(f"profile of {language!r}: {len(rows)} texts with words; at least 20 are needed.")

    def low(name: str) -> float:
        return round(float(np.quantile([row[name] for row in rows], tail)), 3)

    def high(name: str, least: float = 0.0, most: float = np.inf) -> float:
        return round(min(max(least, float(np.quantile([row[name] for row in rows], 1 - tail))), most), 3)

    total = sum(frequencies.values()) or 1
    ranked = [word for word, _ in sorted(frequencies.items(), key=lambda item: (-item[1], item[0]))]
    common = [word for word in ranked if frequencies[word] / total >= STOP_WORD_FREQUENCY]
    known = list(scores) if scores is not None else []
    score = float(np.clip(np.median(known) - np.std(known), 0.3, 0.9)) if known else 0.65
    return LanguageProfile(
        language=canonical_language(language),
        stop_words=common if len(common) >= MIN_STOP_WORDS else ranked[:MIN_STOP_WORDS],
        min_language_score=round(score, 3),
        min_avg_word_length=low("word_length"),
        max_avg_word_length=high("word_length"),
        min_alpha_ratio=low("alpha"),
        dup_line_frac=high("dup_line", 0.3, 1.0),
        top_n_grams=[[n, high(f"top_{n}", limit, 1.0)] for n, limit in TOP_NGRAMS],
        dup_n_grams=[[n, high(f"dup_{n}", limit, 1.0)] for n, limit in DUPLICATE_NGRAMS],
        line_punct_ratio=low("line_punct"),
        new_line_ratio=high("new_line"),
        source=source or f"derived from {len(rows)} texts, words = {words_of.language}, tail {tail}",
    )


def _is_word(word: str) -> bool:
    """Letters and their marks alone: no digit and no sign is a stop word."""
    return word.isalpha() or all(unicodedata.category(character)[0] in "LM" for character in word)


def _measure(text: str, words: list[str], real: list[str]) -> dict[str, float]:
    lines = [line for line in text.split("\n") if line.strip()]
    hashes, powers, lengths = hash_pieces(words)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    row = {
        "word_length": sum(map(len, real)) / len(real),
        "alpha": sum(any(map(str.isalpha, word)) for word in real) / len(real),
        "dup_line": find_repeated(lines)[0] / len(lines),
        "line_punct": sum(line[-1] in TERMINAL_PUNCTUATION for line in lines) / len(lines),
        "new_line": text.count("\n") / len(words),
        **{f"top_{n}": 0.0 for n, _ in TOP_NGRAMS},
        **{f"dup_{n}": 0.0 for n, _ in DUPLICATE_NGRAMS},
    }
    for n, gram in spaced_grams(hashes, [n for n, _ in TOP_NGRAMS]):
        count, first = most_common(gram)
        row[f"top_{n}"] = count * (int(ends[first + n] - ends[first]) + n - 1) / len(text) if count > 1 else 0.0
    for n, gram in joined_grams(hashes, powers, [n for n, _ in DUPLICATE_NGRAMS]):
        row[f"dup_{n}"] = repeated_characters(gram, ends, n) / len(text)
    return row


def profile_settings(profiles: Mapping[str, LanguageProfile]) -> list[dict[str, Any]]:
    """
    Profiles as plain data, for a fingerprint.

    Args:
        profiles (`Mapping[str, LanguageProfile]`): Profiles by code.

    Returns:
        `list[dict]`: one entry a profile, in order of codes.
    """
    return [dataclasses.asdict(profiles[code]) for code in sorted(profiles)]

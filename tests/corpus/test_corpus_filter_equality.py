"""The fast rules against datatrove's own, with equal words: the same decision, reason and edit on real text."""

import inspect
import pkgutil
import pydoc_data.topics
import random

import numpy as np
import pytest
from datatrove.data import Document
from datatrove.pipeline.filters.c4_filters import C4QualityFilter
from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
from datatrove.pipeline.filters.gopher_repetition_filter import (
    GopherRepetitionFilter,
    find_all_duplicate,
    find_duplicates,
    find_top_duplicate,
    get_n_grams,
)
from hypothesis import given
from hypothesis import strategies as st

from hf_pretrain.corpus.filters.gopher_quality import QualityFilter
from hf_pretrain.corpus.filters.ngrams import (
    find_repeated,
    hash_pieces,
    joined_grams,
    most_common,
    repeated_characters,
    spaced_grams,
)
from hf_pretrain.corpus.filters.repetition import RepetitionFilter
from hf_pretrain.corpus.filters.web_rules import C4Filter, FineWebFilter
from hf_pretrain.corpus.filters.words import FastWordTokenizer


def real_texts() -> list[str]:
    """Reference topics, docstrings and sources of the standard library, and damaged copies of them."""
    texts = list(pydoc_data.topics.topics.values())
    for name in ("argparse", "decimal", "doctest", "email.message", "json", "logging", "pickle", "statistics", "this"):
        module = pkgutil.resolve_name(name)
        texts.append(inspect.getdoc(module) or "")
        texts += [inspect.getdoc(item) or "" for item in vars(module).values() if inspect.isclass(item)]
        texts.append(inspect.getsource(module)[:4000])
    texts = [text for text in texts if text.strip()]
    chooser = random.Random(0)
    damaged = []
    for text in texts:
        lines = text.split("\n")
        lines += chooser.choices(lines, k=chooser.randrange(1, len(lines) + 1))
        damaged.append("\n".join(lines))
        damaged.append(text.replace(" the ", " \u6f22\u5b57 ").replace("e", "\u00e9") + " [1] java[2]script \u2026")
        damaged.append("\n".join(f"- {line} ..." for line in lines[:20]))
    return [text[:6000] for text in texts + damaged][::2]


TEXTS = real_texts()
NO_LINES = dict.fromkeys(("dup_line_frac", "dup_para_frac", "dup_line_char_frac", "dup_para_char_frac"), 0)
WORDS = {name: FastWordTokenizer(name) for name in ("regex", "whitespace")}


def outcome(step, text: str) -> tuple:
    document = Document(text, "id")
    return step.filter(document), document.text


def pairs(words):
    same = {"language": words}
    return {
        "quality": (GopherQualityFilter(**same), QualityFilter(casefold_stop_words=False, **same)),
        "quality without floor": (
            GopherQualityFilter(min_doc_words=5, max_non_alpha_words_ratio=0.7, **same),
            QualityFilter(min_doc_words=5, max_non_alpha_words_ratio=0.7, casefold_stop_words=False, **same),
        ),
        "repetition": (GopherRepetitionFilter(**same), RepetitionFilter(top_ngram_min_count=1, **same)),
        "n-grams": (
            GopherRepetitionFilter(**NO_LINES, **same),
            RepetitionFilter(top_ngram_min_count=1, **NO_LINES, **same),
        ),
        "C4": (C4QualityFilter(**same), C4Filter(**same)),
        "C4 as in FineWeb": (
            C4QualityFilter(filter_no_terminal_punct=False, filter_curly_bracket=False, **same),
            C4Filter(filter_no_terminal_punct=False, filter_curly_bracket=False, **same),
        ),
        "C4 by sentences": (
            C4QualityFilter(split_paragraph=False, min_num_sentences=3, **same),
            C4Filter(split_paragraph=False, min_num_sentences=3, **same),
        ),
        "fineweb_code": (FineWebQualityFilter(**same), FineWebFilter(**same)),
        "fineweb_paper": (
            FineWebQualityFilter(char_duplicates_ratio=0.1, **same),
            FineWebFilter(char_duplicates_ratio=0.1, **same),
        ),
        "fineweb, long marks": (
            FineWebQualityFilter(stop_chars=(".", "..."), short_line_thr=1, **same),
            FineWebFilter(stop_chars=(".", "..."), short_line_thr=1, **same),
        ),
    }


@pytest.mark.parametrize("words", ["regex", "whitespace"])
@pytest.mark.parametrize("rule", list(pairs(WORDS["regex"])))
def test_decisions_reasons_and_edits_are_those_of_datatrove(rule, words):
    stock, ours = pairs(WORDS[words])[rule]
    expected = [outcome(stock, text) for text in TEXTS]
    assert [outcome(ours, text) for text in TEXTS] == expected
    verdicts = {str(verdict) for verdict, _ in expected}
    assert len(verdicts) >= 2, "the texts do not try this rule"


def test_the_texts_meet_most_reasons():
    reasons = {
        verdict[1]
        for stock, _ in pairs(WORDS["regex"]).values()
        for text in TEXTS
        if (verdict := outcome(stock, text)[0]) is not True
    }
    assert len(reasons) >= 18, sorted(reasons)


def test_line_statistics_of_c4_are_those_of_datatrove():
    stock, ours = pairs(WORDS["regex"])["C4"]
    for text in TEXTS[:100]:
        outcome(stock, text), outcome(ours, text)
    lines = {name: stat.total for name, stat in stock.stats.stats.items() if name.startswith("line-")}
    assert {name: ours.stats[name].total for name in lines} == lines
    assert len(lines) >= 4


words_drawn = st.lists(st.sampled_from(["a", "aa", "b", "ab", "1", "11", "\u00e9", "\ud800"]), min_size=1, max_size=40)


@given(words_drawn)
def test_ngram_numbers_are_those_of_datatrove(words):
    hashes, powers, lengths = hash_pieces(words)
    ends = np.concatenate([[0], np.cumsum(lengths)])
    for n, gram in spaced_grams(hashes, [1, 2, 3, 4]):
        count, first = most_common(gram)
        assert count * len(" ".join(words[first : first + n])) == find_top_duplicate(get_n_grams(words, n))
    for n, gram in joined_grams(hashes, powers, [2, 3, 5, 6]):
        assert repeated_characters(gram, ends, n) == find_all_duplicate(words, n)


@given(st.lists(st.text("ab", max_size=2), max_size=20))
def test_repeated_pieces_are_those_of_datatrove(pieces):
    assert find_repeated(pieces) == find_duplicates(pieces)


def test_hashes_do_not_depend_on_blocks(monkeypatch):
    words = [f"word{number % 97}" for number in range(500)] + ["", "x" * 300]
    expected = [array.tolist() for array in hash_pieces(words)]
    monkeypatch.setattr("hf_pretrain.corpus.filters.ngrams._BLOCK", 64)
    assert [array.tolist() for array in hash_pieces(words)] == expected

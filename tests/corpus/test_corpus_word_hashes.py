"""Words as hashes: what counts as a word, and that batches and blocks change nothing."""

import numpy as np
import pytest

from hf_pretrain.corpus import word_hashes
from hf_pretrain.corpus.word_hashes import hash_words, ngram_hashes


def words(text: str, **options) -> list[int]:
    return hash_words([text], **options).of(0).tolist()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("Hello, World!", "hello world"),
        ("caf\u00e9", "cafe"),
        ("caf\u00e9", "CAFE\u0301"),
        ("\uff28\uff45\uff4c\uff4c\uff4f", "hello"),
        ("so\u00adft zero\u200bwidth", "soft zerowidth"),
        ("a\u00a0b\tc\nd-e", "a b c d e"),
    ],
)
def test_equal_words(first: str, second: str) -> None:
    assert words(first) == words(second) != []


@pytest.mark.parametrize(
    ("first", "second"),
    # bug D4: a mark outside Latin, Greek and Cyrillic makes another word.
    [
        ("\u0e44\u0e21\u0e48", "\u0e44\u0e21"),
        ("\u304c\u304d", "\u304b\u304d"),
        ("\u0915\u0941\u0932", "\u0915\u0932"),
        ("ab", "ba"),
        ("1", "2"),
    ],
)
def test_different_words(first: str, second: str) -> None:
    assert words(first) != words(second)


def test_scripts_without_spaces_count_characters() -> None:
    assert len(words("\u65e5\u672c\u8a9e text")) == 4
    assert len(words("\U00020000\U00020001")) == 2
    assert len(words("\ud55c\uad6d\uc5b4 \ub2e8\uc5b4")) == 2  # Hangul has spaces


def test_numbers_can_be_masked() -> None:
    assert words("page 12", numbers="mask") == words("page 99", numbers="mask")
    assert words("page 12") != words("page 99")
    assert hash_words(["page 12 x1 b \u65e5"]).weak.tolist() == [False, True, False, True, False]


def test_entities_are_resolved_on_request() -> None:
    assert words("a&nbsp;&#98;", unescape=True) == words("a b")


def test_batches_and_blocks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["", "one", "two three", "caf\u00e9 au lait " * 50, "!!!", "x" * 300 + " end"]
    whole = hash_words(texts)
    alone = [words(text) for text in texts]
    assert [whole.of(i).tolist() for i in range(len(texts))] == alone
    monkeypatch.setattr(word_hashes, "_BLOCK", 64)
    assert hash_words(texts).hashes.tolist() == whole.hashes.tolist()


def test_ngrams_depend_on_order_and_length() -> None:
    values = np.array([1, 2, 3, 1, 2, 3], np.uint64)
    grams = ngram_hashes(values, 3)
    assert grams[0] == grams[3] and len(set(grams.tolist())) == 3
    assert len(ngram_hashes(values, 7)) == 0

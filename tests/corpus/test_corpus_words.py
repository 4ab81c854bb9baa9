"""Words and sentences: what the filters count."""

import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hf_pretrain.corpus.filters.words import FastWordTokenizer


def test_marks_are_words_of_their_own_by_default():
    assert FastWordTokenizer().word_tokenize("Hello, world...") == ["Hello", ",", "world", "..."]


def test_marks_and_case_can_be_left_out():
    assert FastWordTokenizer(lower=True, marks=False).word_tokenize("Hello, World 3...") == ["hello", "world", "3"]


def test_whitespace_words_are_those_of_the_paper():
    assert FastWordTokenizer("whitespace").word_tokenize("Hello, world's end...") == ["Hello,", "world's", "end..."]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("\u6211\u559c\u6b22 Python", ["\u6211", "\u559c", "\u6b22", "Python"]),
        # A Thai consonant keeps its tone mark, Hindi its vowel signs: D4 of the bug log.
        ("\u0e44\u0e21\u0e48", ["\u0e44", "\u0e21\u0e48"]),
        (
            "\u0939\u093f\u0928\u094d\u0926\u0940 \u092e\u0947\u0902",
            ["\u0939\u093f\u0928\u094d\u0926\u0940", "\u092e\u0947\u0902"],
        ),
        ("\u304b\u3099\u304d", ["\u304b\u3099", "\u304d"]),
        ("e\u0301te\u0301 na\u00efve", ["e\u0301te\u0301", "na\u00efve"]),
    ],
)
def test_scripts(text, words):
    assert FastWordTokenizer().word_tokenize(text) == words


@given(st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=60))
def test_every_visible_character_is_in_one_word(text):
    joined = "".join(FastWordTokenizer().word_tokenize(text))
    assert joined == "".join(text.split())


@given(st.text(alphabet="aB. !?\n\u3002\"'", max_size=60))
def test_sentences_are_their_spans_and_lose_nothing(text):
    tokenizer = FastWordTokenizer()
    sentences = tokenizer.sent_tokenize(text)
    assert sentences == [text[left:right] for left, right in tokenizer.span_tokenize(text)]
    assert "".join("".join(sentences).split()) == "".join(text.split())


def test_sentence_ends():
    text = 'Dr. J. Smith came. "Really?" he said!  Yes.\nNo end here\n\n\u6211\u3002\u4f60'
    assert FastWordTokenizer().sent_tokenize(text) == [
        "Dr. J. Smith came.",
        '"Really?"',
        "he said!",
        "Yes.",
        "No end here",
        "\u6211\u3002",
        "\u4f60",
    ]


def test_the_cache_of_the_last_text_does_not_mix_texts():
    tokenizer = FastWordTokenizer()
    assert tokenizer.word_tokenize("one two") == ["one", "two"]
    assert tokenizer.word_tokenize("six ten") == ["six", "ten"]
    assert pickle.loads(pickle.dumps(tokenizer)).word_tokenize("a b") == ["a", "b"]


def test_unknown_definition_is_refused():
    with pytest.raises(ValueError, match="regex, whitespace"):
        FastWordTokenizer("spacy")

"""Filter rules: equal to datatrove's where it is right, and where it is not, the case that shows it."""

import dataclasses

import pytest
from datatrove.data import Document
from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter
from hypothesis import given
from hypothesis import strategies as st

from hf_pretrain.corpus.config_filters import DOMAIN_PRESETS, WEB_RULES, DomainRules, FilterConfig
from hf_pretrain.corpus.filters.gopher_quality import QualityFilter
from hf_pretrain.corpus.filters.heuristics import CodeFilter, build_filters
from hf_pretrain.corpus.filters.repetition import RepetitionFilter
from hf_pretrain.corpus.filters.web_rules import C4Filter
from hf_pretrain.corpus.filters.words import FastWordTokenizer
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


PROSE = (
    "The history of the printing press begins with movable type, and it spread over Europe within a few decades. "
    "Scholars have argued that cheap books changed how people learned to read. "
    "A workshop in Mainz could print more pages in a day than a scribe in a year. "
    "Prices of paper fell as mills were built along rivers. "
    "That is why towns with a press grew faster than towns without one. "
    "Later printers added pictures, maps and tables to their books."
)
WORDS = FastWordTokenizer()
texts = st.lists(
    st.sampled_from(["a", "bb", "ccc", "the", "of", ".", "\n", "\n\n", "x y", "- ", "..."]), min_size=1, max_size=60
)


def decide(step, text, **metadata):
    return step.filter(Document(text, "id", metadata=metadata))


@given(texts.map(" ".join))
def test_repetition_decides_as_datatrove_does(text):
    if not text.strip():
        return
    stock = GopherRepetitionFilter(language=WORDS)
    assert decide(RepetitionFilter(top_ngram_min_count=1, language=WORDS), text) == decide(stock, text)


@given(texts.map(" ".join))
def test_quality_decides_as_datatrove_does_on_lower_case_english(text):
    if not any(character.isalnum() for character in text):
        return
    settings = {"min_doc_words": 3, "language": WORDS}
    assert decide(QualityFilter(**settings), text) == decide(GopherQualityFilter(**settings), text)


def test_a_short_unique_text_has_no_top_ngram():
    text = "Alexander Hamilton wrote essays"
    assert decide(GopherRepetitionFilter(language=WORDS), text) == (False, "top_2_gram")
    assert decide(RepetitionFilter(language=WORDS), text) is True
    assert decide(RepetitionFilter(language=WORDS), "buy now " * 20) == (False, "top_2_gram")


def test_stop_words_in_capitals_and_of_other_languages_count():
    words = FastWordTokenizer(marks=False)
    shout = "The Battle Of Hastings " + "happened long ago " * 5
    settings = {"min_doc_words": 5, "language": words}
    assert decide(GopherQualityFilter(**settings), shout) == (False, "gopher_enough_stop_words")
    assert decide(QualityFilter(**settings), shout) is True
    french = "Le chat dort sur la table et le chien mange dans le jardin"
    assert decide(QualityFilter(**settings), french, language="fra_Latn") is True
    assert decide(QualityFilter(**settings), french, language="en") == (False, "gopher_enough_stop_words")
    assert decide(QualityFilter(**settings), "katu magonda venu sirena talo koira", language="mt") is True


@pytest.mark.parametrize("text", ["", " \n ", "...", "*** --- ***"])
def test_texts_without_words_are_dropped_and_never_crash(text):
    for domain in DOMAIN_PRESETS:
        verdicts = [decide(step, text) for step in build_filters(FilterConfig(), domain)]
        assert any(verdict is not True for verdict in verdicts)


def test_marks_do_not_count_as_words_in_the_alphabetic_share():
    technical = "The value of x, y, and z (see a, b, c) is: [p, q]; (r)! To be." + " Have a look at it." * 3
    settings = {"min_doc_words": 5, "max_non_alpha_words_ratio": 0.8}
    assert decide(QualityFilter(language=FastWordTokenizer(), min_avg_word_length=1, **settings), technical) == (
        False,
        "gopher_below_alpha_threshold",
    )
    assert (
        decide(QualityFilter(language=FastWordTokenizer(marks=False), min_avg_word_length=1, **settings), technical)
        is True
    )


def test_c4_says_what_it_took_away():
    step = C4Filter(filter_no_terminal_punct=False, language=WORDS)
    doc = Document(f"{PROSE}\nShort line\nPlease read our cookie policy before you go on.", "id")
    assert step.filter(doc) is True
    assert doc.text == PROSE
    assert step.stats["c4_documents_edited"].total == 1
    assert step.stats["c4_characters_removed"].total > 50
    assert decide(step, "One sentence only here.") == (False, "too_few_sentences")
    assert decide(step, PROSE + " { }") == (False, "curly_bracket")


def test_c4_keeps_lines_of_scripts_without_spaces():
    chinese = "\u6211\u559c\u6b22\u8bfb\u4e66\u3002" * 6
    step = C4Filter(filter_no_terminal_punct=False, language=WORDS)
    assert decide(step, chinese, language="zh") is True
    assert decide(step, chinese, language="en") == (False, "too_few_sentences")


@pytest.mark.parametrize(("preset", "verdict"), [("fineweb_paper", True), ("fineweb_code", (False, "char_dup_ratio"))])
def test_fineweb_presets_differ_in_duplicated_line_characters(preset, verdict):
    lines = [f"This is line number {number} of a page about the printing press." for number in range(30)]
    text = "\n".join([*lines, lines[0]])  # 3 % duplicated characters
    (step,) = build_filters(FilterConfig(domains={"web": DomainRules(False, False, False, preset)}), "web")
    assert decide(step, text) == verdict


def test_code_rules():
    step = CodeFilter()
    summary = '"""Area of a rectangle in square metres, for both given in metres."""'
    source = f"def area(width, height):\n    {summary}\n    return width * height\n"
    assert decide(step, source) is True
    assert decide(step, "# Automatically generated by a tool\n" + source) == (False, "code_generated")
    assert decide(step, source + "x = '" + "a" * 1001 + "'\n") == (False, "code_long_line")
    assert decide(step, "\n".join(f"value_{n} = '{'b' * 120}'" for n in range(9))) == (False, "code_mean_line_length")
    assert decide(step, "(((((((((()))))))))) [[[]]] {{{}}} a\n" * 4) == (False, "code_alphanumeric_ratio")
    assert decide(step, "x = 1\n") == (False, "code_too_few_words")


def test_good_prose_passes_every_rule_of_the_web():
    for step in build_filters(FilterConfig(), "web"):
        assert decide(step, PROSE, language="en") is True


def test_domains_have_their_rules_and_unknown_ones_those_of_the_web():
    names = {
        domain: [step.name for step in build_filters(FilterConfig(), domain)] for domain in ("books", "code", "forum")
    }
    assert names["books"] == ["Gopher quality"]
    assert names["code"] == ["Code quality"]
    assert names["forum"][:3] == ["Gopher repetition", "Gopher quality", "C4 quality"]
    assert len(names["forum"]) == 4


def test_rules_are_laid_over_the_preset():
    config = build(FilterConfig, {"domains": {"books": {"min_words": 5}, "x": {"c4": False}}}, "test")
    assert config.rules_for("books") == dataclasses.replace(DOMAIN_PRESETS["books"], min_words=5)
    assert config.rules_for("x") == dataclasses.replace(WEB_RULES, c4=False)
    assert config.rules_for("code") == DOMAIN_PRESETS["code"]


def test_presets_leave_nothing_open():
    for rules in DOMAIN_PRESETS.values():
        assert None not in dataclasses.astuple(rules)


@pytest.mark.parametrize(
    ("mapping", "message"),
    [
        ({"words": "spacy"}, "words"),
        ({"domains": {"web": {"fineweb": "on"}}}, "fineweb"),
        ({"domains": {"web": {"min_words": -1}}}, "min_words = -1"),
        ({"domains": {"web": {"min_alpha_ratio": 1.5}}}, "0.0 to 1.0"),
        ({"domains": {"web": {"min_wrds": 3}}}, "min_words"),
    ],
)
def test_wrong_settings_are_one_clear_line(mapping, message):
    with pytest.raises(UserError, match=message):
        build(FilterConfig, mapping, "test")


def test_reasons_reach_the_exclusion_writer(tmp_path):
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    steps = build_filters(FilterConfig(), "web", lambda rule: JsonlWriter(str(tmp_path / rule), compression=None))
    documents = [Document(PROSE, "good"), Document("buy now " * 40, "bad")]
    for step in steps:
        documents = list(step(iter(documents)))
    assert [doc.id for doc in documents] == ["good"]
    dropped = (tmp_path / "gopher_repetition" / "00000.jsonl").read_text()
    assert '"filter_reason":"dup' in dropped.replace(" ", "") or '"filter_reason":"top_2_gram"' in dropped.replace(
        " ", ""
    )

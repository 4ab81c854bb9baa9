"""Language codes and identification, C1 of the bug log."""

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config_ingest import LanguageConfig
from hf_pretrain.corpus.ingest.language import LanguageStep, detect_language
from hf_pretrain.corpus.ingest.language_codes import canonical_language, known_language
from hf_pretrain.utils.errors import UserError


FRENCH = "Le chat dort sur la table pendant que la pluie tombe doucement dans le jardin de la maison."
ENGLISH = "The cat sleeps on the table while the rain falls softly in the garden of the house."


@pytest.mark.parametrize("code", ["fr", "fra", "fre", "fra_Latn", "fr-CA", "fr_FR", "French", " FR "])
def test_codes_have_one_form(code):
    assert canonical_language(code) == "fr"


@pytest.mark.parametrize(
    ("code", "form"), [("deu", "de"), ("cmn_Hans", "zh"), ("arb", "ar"), ("yue", "yue"), ("es", "es")]
)
def test_more_codes(code, form):
    assert canonical_language(code) == form


def test_unknown_code_is_an_error_with_a_suggestion():
    with pytest.raises(UserError, match="Did you mean 'French'"):
        canonical_language("Frensh")
    with pytest.raises(UserError, match="xx"):
        LanguageConfig(keep=["xx"])
    assert known_language("xx") is None
    assert known_language(None) is None


@pytest.mark.parametrize("code", ["fr", "fra", "fra_Latn"])
def test_french_is_kept_under_every_code(code):
    step = LanguageStep(LanguageConfig(keep=[code]))
    kept = list(step([Document(FRENCH, "a"), Document(ENGLISH, "b")]))
    assert [doc.id for doc in kept] == ["a"]
    assert kept[0].metadata["language"] == "fr"
    assert kept[0].metadata["language_score"] >= 0.65
    assert step.stats["dropped_language_en"].total == 1


def test_empty_text_is_dropped_with_a_reason():
    step = LanguageStep(LanguageConfig())
    assert list(step([Document(" \n", "a")])) == []
    assert step.stats["dropped_language_empty"].total == 1


def test_line_breaks_do_not_matter():
    assert detect_language(FRENCH.replace(" ", "\n\n")) == detect_language(FRENCH)


def test_only_the_head_is_read():
    assert detect_language(FRENCH + ENGLISH * 50, max_chars=len(FRENCH))[0] == "fr"


def test_no_letters_is_undetermined():
    assert detect_language("12345 67890 --") == ("und", 0.0)


def test_annotate_only_keeps_all_and_remembers_what_was_declared():
    step = LanguageStep(LanguageConfig())
    documents = [
        Document(FRENCH, "a", metadata={"language": "en"}),
        Document(ENGLISH, "b", metadata={"language": "eng"}),
    ]
    french, english = step(documents)
    assert french.metadata["language"] == "fr"
    assert french.metadata["language_declared"] == "en"
    assert "language_declared" not in english.metadata


def test_code_is_passed_on_unseen():
    step = LanguageStep(LanguageConfig(keep=["fr"]))
    (doc,) = step([Document("def f(): pass", "a", metadata={"domain": "code"})])
    assert "language" not in doc.metadata


def test_an_unsure_verdict_is_dropped():
    step = LanguageStep(LanguageConfig(keep=["en"], min_score=1.0))
    assert list(step([Document(ENGLISH, "a")])) == []
    assert step.stats["dropped_language_score"].total == 1

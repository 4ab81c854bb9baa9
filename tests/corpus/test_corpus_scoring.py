"""Toxicity and quality as steps of the corpus stage: trained from its own sources, counted, fingerprinted."""

import json
import random

import pytest

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.filters.classifier_training import ClassifierTraining, train_quality_classifier
from hf_pretrain.corpus.pipeline import build_corpus
from hf_pretrain.utils.errors import UserError


pytest.importorskip("sklearn")
GOOD = "river mountain empire treaty science species climate poem harbour".split()
BAD = "click cheap offer subscribe discount cart login cookie winner".split()
SHARED = "the of and in to that was with have been people city water light year".split()


def text(words: list[str], seed: int) -> str:
    chooser = random.Random(seed)
    sentences = (" ".join(chooser.choices(words + SHARED, k=10)).capitalize() + f" {seed}." for _ in range(10))
    return " ".join(sentences)


@pytest.fixture
def inputs(tmp_path):
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "en.txt").write_text("blorp\nfrell\n")
    wiki = [text(GOOD, number) for number in range(40)]
    web = [text(BAD, 100 + number) for number in range(40)] + [text(GOOD, 200 + number) for number in range(10)]
    web.append(text(BAD, 300) + " Blorp frell, blorp frell.")
    for name, texts in (("wiki", wiki), ("web", web)):
        rows = ({"id": f"{name}{number}", "text": line} for number, line in enumerate(texts))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def settings(inputs, **filters) -> CorpusConfig:
    off = {"gopher_repetition": False, "gopher_quality": False, "c4": False, "fineweb": "off"}
    mapping = {
        "sources": [
            {"name": name, "kind": "jsonl", "path": str(inputs / f"{name}.jsonl"), "domain": name}
            for name in ("wiki", "web")
        ],
        "contamination": {"enabled": False},
        "language": {"skip_domains": ["wiki", "web"]},
        "filters": {"domains": {"wiki": off, "web": off}, **filters},
        "dedup": {"minhash": {"enabled": False}},
        "tokenizer": {"vocab_size": 300},
        "validation": {"fraction": 0.05},
    }
    return CorpusConfig.from_mapping(mapping)


def stage(facts: dict, name: str, source: str) -> dict:
    (row,) = [row for row in facts["funnel"]["rows"] if (row["stage"], row["source"]) == (name, source)]
    assert row["documents_in"] == row["documents_out"] + sum(c["documents"] for c in row["removed"].values())
    return row


def test_a_classifier_of_the_own_sources_keeps_the_good_pages(inputs, tmp_path):
    training = {"backend": "hashing", "num_features": 4096}
    quality = {"positives": ["wiki"], "negatives": ["web"], "rule": "threshold", "keep_fraction": 0.4}
    config = settings(
        inputs,
        quality={**quality, "training": training},
        toxicity={"action": "drop", "lexicon": str(inputs / "lists"), "max_density": 0.005, "min_hits": 2},
    )
    facts = build_corpus(config, tmp_path / "out")
    assert stage(facts, "toxicity", "web")["removed"]["toxicity_lexicon"]["documents"] == 1
    row = stage(facts, "quality", "web")
    assert row["removed"]["quality_threshold"]["documents"] > 20
    assert stage(facts, "quality", "wiki")["removed"] == {}, "only the domain web is held to the rule"
    assert facts["filters"]["words"] == "regex"
    assert facts["filters"]["classifier"]["metrics"]["auc"] > 0.5
    (folder,) = (tmp_path / "out" / "steps").glob("*_quality-*")
    rows = [json.loads(line) for line in (folder / "documents" / "wiki" / "00000.jsonl").read_text().splitlines()]
    assert all(0 <= row["metadata"]["quality_score"] <= 1 for row in rows)

    again = build_corpus(config, tmp_path / "out")
    assert again["filters"] == facts["filters"]


def test_another_model_in_the_same_folder_is_another_step(inputs, tmp_path):
    train = ClassifierTraining(backend="hashing", num_features=4096)
    good, bad = [text(GOOD, 400 + n) for n in range(30)], [text(BAD, 500 + n) for n in range(30)]
    train_quality_classifier(good, bad, inputs / "model", train)
    config = settings(inputs, quality={"models": [str(inputs / "model")], "rule": "threshold", "keep_fraction": 0.05})
    first = build_corpus(config, tmp_path / "out")
    train_quality_classifier(bad, good, inputs / "model", train)
    second = build_corpus(config, tmp_path / "out")
    kept = [stage(facts, "quality", "web")["documents_out"] for facts in (first, second)]
    assert kept[0] < 25 < kept[1]


@pytest.mark.parametrize(
    ("quality", "message"),
    [
        ({"positives": ["wiki"]}, "go together"),
        ({"positives": ["wiki"], "negatives": ["wiki"]}, "'wiki' is in positives and in negatives"),
        ({"positives": ["wki"], "negatives": ["web"]}, "Did you mean 'wiki'"),
        ({"rule": "threshold"}, "without a classifier"),
        ({"models": ["x"], "rule": "pareto", "domains": ["book"]}, "filters.quality.domains"),
        ({"models": ["x"], "keep_fraction": 2.0}, "keep_fraction = 2.0"),
    ],
)
def test_wrong_settings_are_one_clear_line(inputs, quality, message):
    with pytest.raises(UserError, match=message):
        settings(inputs, quality=quality)


def test_a_missing_model_is_an_error(inputs, tmp_path):
    config = settings(inputs, quality={"models": [str(inputs / "none")]})
    with pytest.raises(UserError, match="train one first"):
        build_corpus(config, tmp_path / "out")
    assert not list((tmp_path / "out").glob("steps/*"))

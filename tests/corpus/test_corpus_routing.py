"""Documents of one source that become another's by their language."""

import json

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.config_ingest import LanguageConfig, SourceConfig
from hf_pretrain.corpus.filters.profiles import LanguageProfile
from hf_pretrain.corpus.ingest.language import LanguageStep
from hf_pretrain.corpus.pipeline import build_corpus
from hf_pretrain.utils.errors import UserError


FRENCH = "Le chat dort sur la table pendant que la pluie tombe doucement dans le jardin de la maison numero {}."
ENGLISH = "The cat sleeps on the table while the rain falls softly in the garden of the house number {}."
GERMAN = "Die Katze schl\u00e4ft auf dem Tisch, und der Regen f\u00e4llt leise in den Garten des Hauses Nummer {}."
OFF = {"gopher_repetition": False, "gopher_quality": False, "c4": False, "fineweb": "off"}


def settings(folder, **language) -> CorpusConfig:
    return CorpusConfig.from_mapping(
        {
            "sources": [
                {"name": "web", "kind": "jsonl", "path": str(folder / "web.jsonl")},
                {"name": "web_fr", "kind": "routed", "domain": "french"},
            ],
            "contamination": {"enabled": False},
            "language": {"keep": ["en"], "route": {"fra": "web_fr"}, **language},
            "filters": {"domains": {"web": OFF, "french": {**OFF, "gopher_quality": True, "min_words": 10}}},
            "dedup": {"minhash": {"enabled": False}},
            "tokenizer": {"vocab_size": 300},
            "validation": {"fraction": 0.1},
        }
    )


@pytest.fixture
def folder(tmp_path):
    texts = [pattern.format(number) for number in range(12) for pattern in (ENGLISH, FRENCH, GERMAN)]
    rows = ({"id": str(number), "text": text} for number, text in enumerate(texts))
    (tmp_path / "web.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_routed_documents_are_counted_once_and_meet_their_own_rules(folder):
    facts = build_corpus(settings(folder), folder / "out")
    rows = {(row["stage"], row["source"]): row for row in facts["funnel"]["rows"]}
    removed = {name: counts["documents"] for name, counts in rows["language", "web"]["removed"].items()}
    assert removed == {"language_de": 12, "routed_to_web_fr": 12}
    assert rows["route", "web_fr"]["documents_out"] == 12 == rows["gopher_quality", "web_fr"]["documents_in"]
    assert ("gopher_quality", "web") not in rows
    assert facts["sources"]["web"]["documents"] == facts["sources"]["web_fr"]["documents"] == 12
    assert facts["sources"]["web_fr"]["languages"] == {"fr": 12}
    assert facts["totals"]["raw_documents"] == 36


def test_a_routed_document_says_where_it_is_from():
    step = LanguageStep(LanguageConfig(route={"fr": "web_fr"}, min_scores={"de": 0.999999}), {"web_fr": "french"})
    documents = [Document(text.format(1), text[:2], metadata={"source": "web"}) for text in (FRENCH, GERMAN)]
    first, second = step(iter(documents))
    assert (first.metadata["source"], first.metadata["domain"]) == ("web_fr", "french")
    assert first.metadata["routed_from"] == "web"
    assert second.metadata["source"] == "web", "nothing is dropped where no language is to be kept"
    strict = LanguageStep(LanguageConfig(keep=["fr"], min_scores={"fra": 1.0}, min_score=0.1))
    assert strict.filter(Document(FRENCH, "id")) == (False, "language_score")


def test_scores_of_profiles():
    strict = LanguageProfile("fr", ["le"], min_language_score=1.0)
    settings = {"keep": ["fr"], "min_score": 0.1}
    for config, verdict in (
        (LanguageConfig(**settings, profile_scores=True), (False, "language_score")),
        (LanguageConfig(**settings), True),
        (LanguageConfig(**settings, profile_scores=True, min_scores={"fra": 0.2}), True),
    ):
        assert LanguageStep(config, profiles={"fr": strict}).filter(Document(FRENCH, "id")) == verdict


def test_wrong_routes_are_one_clear_line(folder):
    with pytest.raises(UserError, match="Did you mean 'web_fr'"):
        settings(folder, route={"fr": "web_rf"})
    with pytest.raises(UserError, match="sends nothing there"):
        settings(folder, route={})
    with pytest.raises(UserError, match="Did you mean"):
        settings(folder, route={"Frensh": "web_fr"})
    with pytest.raises(UserError, match="min_scores"):
        LanguageConfig(min_scores={"fr": 2.0})
    with pytest.raises(UserError, match=r"language\.route"):
        SourceConfig("x", "routed", "somewhere")

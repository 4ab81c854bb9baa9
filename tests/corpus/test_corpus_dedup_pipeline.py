"""The dedup section of a recipe: every level, over shards and in memory alike, and an index for the next corpus."""

import json
import random

import pytest

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.dedup.pairs import read_pairs
from hf_pretrain.corpus.pipeline import build_corpus
from hf_pretrain.utils.atomic import read_json
from hf_pretrain.utils.errors import UserError


def build(tmp_path, name: str, limit: int = 10**9, rows: list[dict] | None = None, **dedup):
    file = tmp_path / "notes.jsonl"
    if rows is not None:
        file.write_text("\n".join(map(json.dumps, rows)) + "\n")
    config = CorpusConfig.from_mapping(
        {
            "sources": [{"name": "notes", "kind": "jsonl", "path": str(file), "domain": "web"}],
            "contamination": {"enabled": False},
            "pii": {"types": []},
            "filters": {"domains": {"web": {"gopher_repetition": False}}},
            "language": {"skip_domains": ["web"]},
            "dedup": dedup,
            "limits": {"memory_bytes": limit},
            "tasks": 2,
            "tokenizer": {"vocab_size": 300},
            "validation": {"fraction": 0.1},
        }
    )
    facts = build_corpus(config, tmp_path / name)
    return facts, read_json(tmp_path / name / "funnel.json")


def prose(rng: random.Random) -> str:
    words = "the of and to in that was with have been ship whale winter captain harbour letter garden village".split()
    return " ".join(
        " ".join(rng.choices(words, k=11)).capitalize() + f" stone{rng.randrange(10**6)}." for _ in range(14)
    )


@pytest.fixture
def rows() -> list[dict]:
    rng = random.Random(0)
    texts = [prose(rng) for _ in range(12)]
    return [
        {"id": f"{i}-{copy}", "text": text + " Again." * (copy == 3), "url": f"https://site.org/{i}-{copy % 3}"}
        for i, text in enumerate(texts)
        for copy in range(4)
    ]


def test_shards_and_memory_agree_and_the_index_serves_the_next_corpus(tmp_path, rows, caplog) -> None:
    levels = {"url": True, "paragraphs": {"enabled": True}, "substrings": {"enabled": True}}
    levels |= {"ngrams": {"enabled": True, "expected_ngrams": 10_000}, "simhash": {"enabled": True}}
    _, memory = build(tmp_path, "memory", rows=rows, save_index=True, **levels)
    size = sum(len(json.dumps(row)) for row in rows)
    with caplog.at_level("INFO"):
        _, shards = build(tmp_path, "shards", limit=size // 2, **levels)
    assert "over shards" in caplog.text
    plain = [{k: v for k, v in row.items() if k != "seconds"} for row in memory["rows"]]
    assert [{k: v for k, v in row.items() if k != "seconds"} for row in shards["rows"]] == plain
    (near,) = (path.parent for path in (tmp_path / "memory" / "steps").glob("*near*/pairs.parquet"))
    assert {pair["removed"].split("-")[0] for pair in read_pairs(near / "pairs.parquet")} == {
        str(i) for i in range(12)
    }
    assert not list((tmp_path / "shards" / "steps").glob("*/work"))
    with pytest.raises(UserError, match="nothing is left"):
        build(tmp_path, "next", index=[str(tmp_path / "memory" / "dedup_index")])
    with pytest.raises(UserError, match="no index in that folder"):
        build(tmp_path, "wrong", index=[str(tmp_path / "nowhere")])

"""The corpus room: raw files in, token shards out, with every document accounted for.

Read `pipeline.py` first (the order of the work), then `config.py` (everything a recipe may say). The rooms inside:

* `ingest/`: readers, HTML extraction, language; the sample crawl that needs no Hub.
* `filters/`: rules of quality, language profiles, classifiers of quality and toxicity, personal data.
* `dedup/`: exact duplicates, near-duplicates with verified similarity, passages; in memory or over shards.
* `contamination/`: benchmark items found in documents, and the report.
* `shards/`: tokenizer, token shards with provenance, validation split, long documents.

`scoring` puts the classifiers into the order of the work; `README.md` has what was measured on real data.

Shared by them: `word_hashes` (what a word is, for n-grams), `documents` (JSONL between steps), `stage` (a step is a
folder, complete or absent, named by its fingerprint), `funnel` (what each stage removed and why; the sums must
agree), `facts`.

Example:

```python
from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.pipeline import build_corpus

config = CorpusConfig.from_mapping(
    {
        "sources": [
            {"name": "web", "kind": "warc", "path": "crawl/"},
            {"name": "notes", "kind": "jsonl", "path": "notes.jsonl"},
        ],
        "benchmarks": [{"name": "quiz", "path": "quiz.jsonl", "fields": ["question"]}],
        "tokenizer": {"vocab_size": 8192},
    }
)
facts = build_corpus(config, "runs/mine/1_corpus")
print(facts["totals"]["tokens"], facts["contamination"]["quiz"]["contaminated"])
```
"""

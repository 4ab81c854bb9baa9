"""Deduplication: which documents say the same thing, and which copy stays.

Read `verified_clusters.py` first: a document is removed only when a copy that *stays* was compared with it and their
exact Jaccard similarity reached the threshold. MinHash merely proposes what to compare. The other files:

* `config`: the `dedup` section of a recipe and the steps that follow from it.
* `keep`: who stays: source priority, quality, length, date, id; never the order of the files.
* `methods`: the ways to find whole documents, one interface: equal text, equal address (`urls`), `minhash`, `simhash`.
* `shingles`: the set of word n-grams of a text (characters where a script has no spaces, the whole text when short).
* `minhash`: signatures for batches in numpy, bands, `choose_bands` by asked recall, the closed form of what is found.
* `steps`: any method in memory, as a datatrove block of one task.
* `stages`, `stage_files`: any method over shards: signatures, buckets, features, clusters, filter; files and checks.
* `index`: what an earlier corpus kept, so that of a new one only what is new stays.
* `trimming`: below the document: `paragraphs` (equal with counts, nearly equal), `substrings` (50 tokens), `bloom`.
* `pairs`: `pairs.parquet`, every removal as (kept, removed, similarity).

Memory and shards share the decisions, and the survivors are the same for any number of tasks and order of input.

Example:

```python
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.verified_clusters import find_near_duplicates

texts = ["the same long sentence about whales and ships in winter seas"] * 2 + ["another text entirely"]
removals = find_near_duplicates(texts, order=[0, 1, 2], config=MinhashConfig())
print([(pair.kept, pair.removed, pair.similarity) for pair in removals])  # [(0, 1, 1.0)]
```
"""

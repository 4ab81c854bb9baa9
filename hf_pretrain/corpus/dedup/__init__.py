"""Deduplication: which documents say the same thing, and which copy stays.

Read `verified_clusters.py` first: a document is removed only when a copy that *stays* was compared with it and their
exact Jaccard similarity reached the threshold. MinHash merely proposes what to compare. The other files:

* `shingles`: the set of word n-grams of a text (characters where a script has no spaces, the whole text when short).
* `exact`: equal texts, by a hash of the text with its white space folded.
* `minhash`: signatures for batches of documents in numpy, bands, and the closed form of what a setting will find.
* `steps`: the datatrove blocks `ExactDeduplication` and `NearDuplicateRemoval` over the pure functions.

Who survives is never an accident of order: `survivor_order` sorts by source order, then longest, then id, so one task
and four tasks keep the same documents. Every removal is written to `pairs.jsonl` as (kept, removed, similarity).

Example:

```python
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.verified_clusters import find_near_duplicates

texts = ["the same long sentence about whales and ships in winter seas"] * 2 + ["another text entirely"]
removals = find_near_duplicates(texts, order=[0, 1, 2], config=MinhashConfig())
print([(pair.kept, pair.removed, pair.similarity) for pair in removals])  # [(0, 1, 1.0)]
```
"""

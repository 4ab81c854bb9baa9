"""Contamination: which documents hold items of a benchmark, and which items of a benchmark are held.

Read `index.py` first: `ContaminationIndex.build(items, settings)` turns benchmark items into word n-grams that
remember item and position; `match_text(text)` says which items a text contains, by the longest run of words and by
coverage.

* `matching`: the pure arithmetic of runs and coverage on hashed words, and the cutting of spans.
* `report`: benchmark files in, per-benchmark and per-item report out (`contamination.json`).
* `steps`: the datatrove block `DecontaminationFilter`.

An item is contaminated by a text when 13 words in a row agree, or half of its words lie in shared 8-grams (items of 20
words or more), or the whole item stands in the text (shorter items). Case, punctuation, line breaks, full-width
letters, HTML entities and invisible characters make no difference; n-grams of numbers and single letters alone do not
count. Items too short to say anything are counted as `unchecked`. An index without items, and settings that differ
from the index's, are errors: a report of "nothing found" always means that something was searched for.

Example:

```python
from hf_pretrain.corpus.contamination.index import BenchmarkItem, ContaminationIndex

question = "How many eggs does Janet sell each day at the market when her sixteen ducks lay one each?"
index = ContaminationIndex.build([BenchmarkItem("gsm", "1", "question", question)])
print(index.match_text("Homework: " + question.upper())[0].item_id)  # 1
```
"""

"""
Which documents stay, and what is masked in them.

- `words.py`: what a word and a sentence is. One tokenizer for every rule, recorded by name; no spaCy.
- `heuristics.py`: `build_filters(config, domain)` gives the rules of a domain. Gopher's are in `gopher_quality.py` and
  `repetition.py` (numbers for n-grams: `ngrams.py`), C4's and FineWeb's in `web_rules.py`. Decisions and reasons are
  datatrove's for equal words and settings.
- `profiles.py`: stop words and limits by language (`language_profiles.json`), and `derive_profile` from a reference
  corpus.
- `classifier_training.py`: `train_quality_classifier(positives, negatives, folder)`; `classifier.py`: the folder it
  leaves, and scores; `classifier_filter.py`: threshold, Pareto rule, buckets, ensembles.
- `toxicity.py`: listed words by density.
- `pii.py`, `pii_patterns.py`: typed placeholders for e-mail, IP, MAC, phone, card, IBAN, SSN, URL logins and keys.

A dropped document leaves its reason: as the counter `dropped_<reason>` of the step, and as `metadata["filter_reason"]`
where an exclusion writer is given.

```python
from hf_pretrain.corpus.config_filters import FilterConfig, PIIConfig
from hf_pretrain.corpus.filters.heuristics import build_filters
from hf_pretrain.corpus.filters.pii import PIIFormatter

steps = [*build_filters(FilterConfig(words="regex"), "web"), PIIFormatter(PIIConfig())]
```

A classifier, from two lists of texts to a filter:

```python
from hf_pretrain.corpus.filters.classifier_filter import ClassifierFilter
from hf_pretrain.corpus.filters.classifier_training import train_quality_classifier

model = train_quality_classifier(reference_texts, web_texts, "classifiers/quality")
print(model.card["metrics"]["auc"], model.threshold(keep_fraction=0.1))
steps.append(ClassifierFilter(["classifiers/quality"], rule="pareto", alpha=9))
```
"""

"""
Which documents stay, and what is masked in them.

- `words.py`: what a word and a sentence is. One tokenizer for every rule, recorded by name; no spaCy.
- `heuristics.py`: Gopher, C4, FineWeb and source-code rules; `build_filters(config, domain)` gives the steps of a
  domain.
- `pii.py`: typed placeholders for e-mail, IP, phone, card, IBAN, SSN, URL logins and keys.

A dropped document leaves its reason: as the counter `dropped_<reason>` of the step, and as `metadata["filter_reason"]`
where an exclusion writer is given.

```python
from hf_pretrain.corpus.config_filters import FilterConfig, PIIConfig
from hf_pretrain.corpus.filters.heuristics import build_filters
from hf_pretrain.corpus.filters.pii import PIIFormatter

steps = [*build_filters(FilterConfig(words="regex"), "web"), PIIFormatter(PIIConfig())]
```
"""

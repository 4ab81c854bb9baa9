"""What a model is worth, in units that do not depend on its tokenizer, with and without what it may have seen.

Read in this order:

* `byte_lengths`: how many bytes of text each token of a vocabulary stands for.
* `bits_per_byte`: bits per byte of held-out documents, by source, and by position within long documents.
* `contamination_scores`: bits per byte of benchmark answers, over all items, over the clean ones and over those that
  were found in the training data, each with a bootstrap interval.
* `memorisation`: training text given back word for word, by how often it was read.
* `suite`: all of it for one model after the other, as facts.

Example:

```python
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_pretrain.models
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.evaluation.bits_per_byte import evaluate_documents, iterate_documents
from hf_pretrain.evaluation.byte_lengths import token_byte_lengths

tokenizer = AutoTokenizer.from_pretrained("runs/tiny_cpu/1_corpus/tokenizer")
model = AutoModelForCausalLM.from_pretrained("runs/tiny_cpu/2_pretrain/model", dtype="float32").eval()
source = TokenSource.open("runs/tiny_cpu/1_corpus/tokens/validation/books")
score = evaluate_documents(model, iterate_documents(source, max_tokens=8192), token_byte_lengths(tokenizer), 256)
print(score.bits_per_byte)
```

Every number comes with its convention, `bits_per_byte.CONVENTION`.
"""

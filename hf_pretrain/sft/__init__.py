"""Instruction tuning: rows of any common shape in, a curated set with a funnel, a masked loss that is really masked.

Read in this order:

* `formats`: `messages`, `conversations` or `prompt`/`completion` rows to one checked list of turns.
* `curation`: language, length, refusal and format rules, duplicates, benchmark items, caps per source, and a selection
  by quality and diversity within a budget. Every row that goes has a reason, and the reasons add up.
* `template`: renders the chat template for real and refuses one that would train on nothing, on the user's words, or
  without the token that ends a turn. Rows are cut at turn borders, never inside an answer.
* `build`: TRL's `SFTTrainer` on the result: packing without leaks, LoRA with tied embeddings kept tied, router
  balancing on or off by name.

Example:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_pretrain.models
from hf_pretrain.sft.build import SftOptions, build_trainer, encode_conversations
from hf_pretrain.sft.curation import CurationConfig, curate
from hf_pretrain.sft.formats import read_conversations

tokenizer = AutoTokenizer.from_pretrained("runs/tiny_cpu/1_corpus/tokenizer")
model = AutoModelForCausalLM.from_pretrained("runs/tiny_cpu/3_anneal/model", dtype="float32")
rows = read_conversations("runs/tiny_cpu/1_corpus/sft")
chosen = curate(rows.conversations, CurationConfig(max_examples=200))
encoded = encode_conversations(chosen.kept, tokenizer, max_length=512)
trainer = build_trainer(model, tokenizer, encoded, "out", SftOptions(arguments={"num_train_epochs": 2}))
trainer.train()
```

Papers: LIMA (2305.11206), DEITA (2312.15685), LoRA (2106.09685).
"""

"""A trained model becomes a repository that stands on its own: weights, tokenizer, code, licences, an honest card.

Read in this order:

* `model_card`: the card, from `facts.json` alone; a checker names every number in a card that no fact backs.
* `push`: the folder, the proof that a process without this package loads it with the same logits, and the upload.
* `reload_process`: what that process runs.
* `templates/`: the card's text.

Example:

```python
from transformers import AutoModelForCausalLM, AutoTokenizer

import hf_pretrain.models
from hf_pretrain.hub.push import reload_check, save_for_hub

model = AutoModelForCausalLM.from_pretrained("runs/tiny_cpu/5_sft/model", dtype="float32")
tokenizer = AutoTokenizer.from_pretrained("runs/tiny_cpu/5_sft/model")
save_for_hub(model, tokenizer, "out/model")
print(reload_check("out/model", model, tokenizer, prompt="How do I boil an egg?").text)
```

The weights come first and the card last, everywhere: a fault in a card never costs a model.
"""

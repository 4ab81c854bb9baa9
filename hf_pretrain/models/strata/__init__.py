"""Strata, the model family of this package: dense or mixture of experts.

Files, in reading order:

* `configuration_strata.py` - `StrataConfig`, its fields, presets and checks.
* `layers_strata.py` - norm, rotary embedding, attention, SwiGLU.
* `modeling_strata.py` - decoder layer, `StrataModel`, `StrataForCausalLM`.
* `routing_strata.py` - scores, balance terms, bias, capacity, noise as pure functions; `StrataRouter`.
* `experts_strata.py` - the fused bank of experts.
* `context_strata.py` - `extend_context`: a longer context by YaRN and others.
* `counting_strata.py` - total, active and matrix-product parameters.

These files travel to the Hub with a checkpoint, so each imports only torch, transformers, huggingface_hub and its
siblings (`from .sibling import name`). Errors are plain `ValueError`s for the same reason.
"""

"""Strata, the model family of this package: dense or mixture of experts.

Files, in reading order:

* `configuration_strata.py` - `StrataConfig`, its fields, presets and checks.
* `layers_strata.py` - norm, rotary embedding, attention, SwiGLU.
* `modeling_strata.py` - decoder layer, `StrataModel`, `StrataForCausalLM`.
* `routing_strata.py` - scores, balance terms, bias, capacity, noise as pure functions; `StrataRouter`.
* `experts_strata.py` - the fused bank of experts.
* `parallel_strata.py` - a parallel style and the loss at a sharded head, for tensor parallelism and FSDP2.
* `context_strata.py` - `extend_context`: a longer context by YaRN and others.
* `counting_strata.py` - total, active and matrix-product parameters.

Three more are for us alone; the modeling file does not import them, so they stay behind:

* `export_strata.py` - `export_model(model, "qwen3_moe")`: a stock Llama, Qwen3, Mixtral or Qwen3-MoE, equal logits.
* `import_strata.py` - `from_hf(path)`: those four as a Strata.
* `upcycling_strata.py` - `upcycle(dense, 8, 2)`: experts out of a dense model, at first with the same output.

The others travel to the Hub with a checkpoint, so each imports only torch, transformers, huggingface_hub and its
siblings (`from .sibling import name`). Errors are plain `ValueError`s for the same reason.
"""

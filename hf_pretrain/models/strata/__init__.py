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

Bad input: a checkpoint of another architecture, a capacity that cannot hold one token and RoPE set on the config of a
built model (it does nothing; `model.extend_context(4)` does) are each said in one sentence.

Conformance: `make conformance` downloads the source distribution of transformers 5.24.0 (its hash is noted in
`tests/conformance/suite.py`; without a registry the run is skipped) and runs its `ModelTesterMixin`, training,
tensor-parallel, expert-parallel and FSDP mixins on a dense model, a mixture, and one with everything on; parallel
checks on two gloo processes. On 2 CPU cores: 439 passed, 188 skipped, no failure, 2806 subtests, 5 minutes beside
other work. `generate` is checked by our own mixin (`tests/conformance/stand_ins.py`): the archive has none.

| skipped | reason |
|---|---|
| 42, 6, 12, 3 | Flash Attention, the kernels library, deepspeed, torchao are not installed |
| 24, 3, 3, 3 | need an accelerator, several, MPS; marked slow by the suite, and need one too |
| 13, 3 | HSDP and FSDP with expert parallelism want 4 or 8 processes, as many cores |
| 18 | conversion of checkpoint keys: Strata saves its keys as they are |
| 16, 1 | experts and expert parallelism on the dense model (ours: `LEFT_OUT`; theirs: plans shard experts) |
| 2 | a layer for each entry of the tensor-parallel plan: only the model with everything on has one (`LEFT_OUT`) |
| 3 x 9 | other kinds of models: sub-configs (4), encoders, position tables, partial or axial RoPE, a switch |
| 3 | attention weights of the generic classifier, whose signature hides the option; the two classes before it pass |
| 3, 6 | weights kept in float32: the dense model has none |

One check runs on changed fields (`CHANGED`): HSDP against one device, without the balance loss, which each rank takes
over its own rows.

**Collapse, and what prevents it.** `tests/benchmarks/collapse.py` trains one tiny model (16 experts, top-1, 2 layers,
600 steps on Python's reference topics as bytes) with each remedy. The setup asks for trouble: one expert a token, a
high learning rate, a router that starts ten times larger than the default.

| balancing | MaxVio | served | load entropy | dead of 32 | layers in alarm of 2 | loss |
|---|---|---|---|---|---|---|
| nothing | 10.27 | 10.27 | 0.294 | 11 | 2 | 1.741 |
| aux loss 0.01 | 0.74 | 0.74 | 0.969 | 0 | 0 | 1.715 |
| bias 0.01 | 0.09 | 0.09 | 1.000 | 0 | 0 | 1.709 |
| capacity 1.25, reroute | 7.88 | 0.25 | 0.564 | 4 | 1 | 1.709 |
| Gumbel noise | 2.69 | 2.69 | 0.837 | 0 | 0 | 1.781 |
| aux loss + bias | 0.20 | 0.20 | 0.999 | 0 | 0 | 1.669 |

MaxVio is max / mean - 1 of what tokens ask for, "served" of what they get, loss the held-out cross-entropy; one seed,
so differences of a few hundredths of loss mean little. Capacity shares the work out and leaves the router's wishes as
they are: it wants a balance term or the bias beside it. Gumbel noise keeps every expert alive, not evenly loaded. The
bias balances best here, without a term in the loss.
"""

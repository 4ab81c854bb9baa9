"""The room of the language-modelling loss. Read `causal_lm.py` first: conventions, result type, plain implementation.

- `causal_lm.py`: `causal_lm_loss(hidden_states, lm_head_weight, labels, ...) -> LossOutput` and its twin on logits.
- `chunked.py`: the same numbers without all logits in memory; fast on CPU, runs anywhere.
- `liger.py`: the same numbers by Liger's fused kernel on CUDA.
- `selection.py`: `resolve_loss_implementation("auto", device)` picks one of them and says why.
- `objective.py`: `CausalLMObjective`, the loss object that a model is given; keeps cross-entropy and z apart.
- `liger_seam.py`, `trl_seam.py`: how the object acts where Liger's forward or TRL's fused head computes the loss.

Every implementation has one signature and one result: `loss = ce + z`, both the sum over valid shifted targets
divided by `num_items_in_batch` (the targets of the whole accumulation window over all ranks), so that the result does
not depend on micro-batch, accumulation or world size. Labels come unshifted and are never written to. A batch without
any target has loss 0 with a graph. z-loss never enters evaluation.

    from hf_pretrain.losses.objective import CausalLMObjective

    objective = CausalLMObjective(z_loss_coef=1e-4)
    objective.attach(model)                     # model: any transformers causal LM
    model(input_ids=ids, labels=ids).loss.backward()
    print(objective.pop_metrics())              # {'ce_loss': ..., 'z_loss': ..., 'lse_mean': ..., 'lse_max': ...}
    objective.detach()

**What z-loss does.** `tests/benchmarks/zloss.py` trains one tiny model (2 layers, bytes, 300 steps, one seed) at three
learning rates. `lse` is the root mean square of the logsumexp (untrained 5.5), `max` its largest value in the run:

| learning rate | coefficient | lse at 1/4 | at 1/2 | at the end | max | CE | held-out CE |
|---|---|---|---|---|---|---|---|
| 0.01 | 0 | 6.39 | 6.57 | 6.32 | 13.6 | 2.220 | 2.150 |
| 0.01 | 0.0001 | 6.21 | 6.30 | 5.99 | 13.8 | 2.289 | 2.223 |
| 0.01 | 0.01 | 1.52 | 0.85 | 0.69 | 8.6 | 2.249 | 2.185 |
| 0.1 | 0 | 5.08 | 5.43 | 5.53 | 11.0 | 2.599 | 2.519 |
| 0.1 | 0.0001 | 5.17 | 5.21 | 5.53 | 17.4 | 2.612 | 2.483 |
| 0.1 | 0.01 | 0.99 | 0.90 | 0.68 | 12.2 | 2.588 | 2.488 |
| 1 | 0 | 43.30 | 29.76 | 25.97 | 262.7 | 8.467 | 17.025 |
| 1 | 0.0001 | 55.02 | 56.53 | 25.31 | 146.3 | 9.464 | 9.969 |
| 1 | 0.01 | 37.15 | 13.53 | 7.94 | 129.2 | 6.191 | 5.554 |

At the two lower rates the losses with and without z-loss differ by at most 0.073 nats. At rate 1, which breaks the
model, the logsumexp at the end is 26.0 without z-loss, 25.3 with 1e-4 and 7.9 with 0.01. This is one seed and a short
run; it says nothing of others.
"""

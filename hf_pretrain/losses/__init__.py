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
"""

"""Which parameters get weight decay.

No decay on vectors (norms, per-head scales), on biases of any shape (experts' biases are matrices) and on embeddings:
they are looked up, not multiplied, so decay only shrinks rare tokens (OLMo 2, SmolLM3). A head tied to the embedding
is that embedding; an untied head is a matrix like any other and decays. A router's gate decays too: it is a linear
map, and decay keeps its logits small, which is what the router z-loss wants as well.
"""

from __future__ import annotations

from typing import Any

from torch import nn

from hf_pretrain.utils.errors import UserError


def parameter_groups(model: nn.Module, weight_decay: float, *, decay_embeddings: bool = False) -> list[dict[str, Any]]:
    """Splits the trainable parameters into a group with and one without weight decay.

    Args:
        model (`torch.nn.Module`): Its parameters that require gradients are taken, each once.
        weight_decay (`float`): Decay of the first group, at least 0.
        decay_embeddings (`bool`, *optional*, defaults to `False`): Whether embeddings decay after all.

    Returns:
        `list[dict]`: Optimizer groups with `"params"`, `"weight_decay"` and `"names"`; empty groups are left out.

    Raises:
        UserError: If the decay is negative or nothing can be trained.
    """
    if isinstance(weight_decay, bool) or not isinstance(weight_decay, int | float) or not weight_decay >= 0:
        raise UserError(f"weight_decay = {weight_decay!r}; a number of at least 0 is needed; 0.1 is usual.")
    embeddings = set()
    if not decay_embeddings:
        for module in model.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                embeddings.add(id(module.weight))
    decayed: dict[str, nn.Parameter] = {}
    spared: dict[str, nn.Parameter] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        is_bias = "bias" in name.rpartition(".")[2]
        group = spared if parameter.dim() <= 1 or is_bias or id(parameter) in embeddings else decayed
        group[name] = parameter
    if not decayed and not spared:
        raise UserError("the model has no parameter that requires gradients; unfreeze what is to be trained.")
    groups = []
    for chosen, decay in ((decayed, float(weight_decay)), (spared, 0.0)):
        if chosen:
            groups.append({"params": list(chosen.values()), "weight_decay": decay, "names": list(chosen)})
    return groups

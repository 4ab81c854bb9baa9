"""What sharded training needs beyond transformers' parallel styles.

* `replicated_with_grad_sum`: a style for parameters that every tensor-parallel rank holds whole but uses for its own
  heads only (the QK-norms). The gradient of each backward is summed over the ranks before it is added to the ones
  before it. transformers' `replicated_with_grad_allreduce` sums what has been accumulated so far at every backward, so
  that from the second micro-batch of an optimizer step on the earlier ones count once per rank.
* `loss_at_head`: a fused loss reads the weight of the head instead of calling the head. Sharded, that weight is whole
  only inside the head's own forward (FSDP2), or has to be gathered (tensor parallelism).
* `check_head_rows`: says it when the head and the config disagree, in the logits' width, which is whole in every case.
"""

from collections.abc import Callable

import torch
from torch import nn
from transformers.distributed.tensor_parallel import ALL_PARALLEL_STYLES, TensorParallelLayer


def check_head_rows(rows: int, vocab_size: int) -> None:
    """Refuse a head that was replaced or resized without the config, where a loss would fail on a shape or mislead.

    Args:
        rows (`int`): Rows of the head's whole weight, which is the width of the logits.
        vocab_size (`int`): What the model's config says.

    Raises:
        ValueError: If they differ.
    """
    if rows != vocab_size:
        raise ValueError(
            f"vocab_size = {vocab_size}, but the head has {rows} rows; resize with model.resize_token_embeddings."
        )


def loss_at_head(head: nn.Module, hidden_states: torch.Tensor, compute: Callable) -> torch.Tensor:
    """Compute a loss from hidden states and the whole weight of the head, however that weight is sharded.

    Args:
        head (`nn.Module`): The head; has a `weight` of shape `(V, H)`.
        hidden_states (`torch.Tensor`): Shape `(B, T, H)`.
        compute (`Callable`): Called as `compute(hidden_states, weight)`.

    Returns:
        `torch.Tensor`: What `compute` returns; the gradient of a sharded weight arrives at its shards.
    """
    if not hasattr(head.weight, "full_tensor"):
        return compute(hidden_states, head.weight)

    def forward(hidden_states: torch.Tensor) -> torch.Tensor:
        weight = head.weight  # whole again where FSDP2 sharded it; its hooks ran just before
        return compute(hidden_states, weight.full_tensor() if hasattr(weight, "full_tensor") else weight)

    # Tensor parallelism replaces the forward of a module by one that splits the output; this one has no such output.
    replaced = vars(head).get("forward")
    head.forward = forward
    try:
        return head(hidden_states)
    finally:
        del head.forward
        if replaced is not None:
            head.forward = replaced


class ReplicatedWithGradSum(TensorParallelLayer):
    """Style of a module whose parameters are whole on every rank and whose gradients there are parts of a sum."""

    def install_forward(self, module: nn.Module, mesh) -> nn.Module:
        """Make the gradients of the module's parameters sums over the ranks.

        Args:
            module (`nn.Module`): The module; changed in place.
            mesh (`DeviceMesh`): The tensor-parallel mesh.

        Returns:
            `nn.Module`: The same module.
        """
        original_forward = module.forward
        hooked: dict[str, nn.Parameter] = {}

        def summed(gradient: torch.Tensor) -> torch.Tensor:
            gradient = gradient.clone()
            torch.distributed.all_reduce(gradient, group=mesh.get_group())
            return gradient

        def forward(*args, **kwargs):
            # Not earlier: loading replaces the parameters, and FSDP2 hands out others in the forward.
            if torch.is_grad_enabled():
                for name, parameter in module.named_parameters(recurse=False):
                    if parameter.requires_grad and hooked.get(name) is not parameter:
                        parameter.register_hook(summed)
                        hooked[name] = parameter
            return original_forward(*args, **kwargs)

        module.forward = forward
        return module


ALL_PARALLEL_STYLES.register("replicated_with_grad_sum", ReplicatedWithGradSum())


__all__ = ["ReplicatedWithGradSum", "loss_at_head"]

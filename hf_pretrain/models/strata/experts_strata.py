"""The fused bank of SwiGLU experts, in the layout transformers uses: `gate_up_proj (E, 2I, H)`, `down_proj (E, H, I)`.

`forward` is the path without a special kernel ("eager" in transformers' words): tokens are sorted by expert once, each
expert multiplies one contiguous slice. The decorator adds `grouped_mm` and `batched_mm`, which give the same numbers.
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers.activations import ACT2FN
from transformers.integrations import use_experts_implementation

from .configuration_strata import StrataConfig


@use_experts_implementation
class StrataExperts(nn.Module):
    """All experts of a layer as two 3-D parameters.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        super().__init__()
        self.num_experts = config.num_experts
        self.hidden_dim = config.hidden_size
        self.intermediate_dim = config.moe_intermediate_size
        self.gate_up_proj = nn.Parameter(torch.empty(self.num_experts, 2 * self.intermediate_dim, self.hidden_dim))
        self.down_proj = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, self.intermediate_dim))
        self.act_fn = ACT2FN[config.hidden_act]

    def __getattr__(self, name: str):
        # The stock grouped and batched kernels cast their input to the weights' dtype, which under autocast would run
        # the experts in float32. Handing out the weights in the autocast dtype keeps them at the precision asked for.
        value = super().__getattr__(name)
        if isinstance(value, nn.Parameter) and not value.is_meta and torch.is_autocast_enabled(value.device.type):
            return value.to(torch.get_autocast_dtype(value.device.type))
        return value

    def forward(
        self, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
    ) -> torch.Tensor:
        """Run every token through its experts.

        Args:
            hidden_states (`torch.Tensor`): Shape `(T, H)`.
            top_k_index (`torch.Tensor`): Expert ids, shape `(T, k)`; ids of `num_experts` and above (another rank's
                experts under expert parallelism) are skipped.
            top_k_weights (`torch.Tensor`): Gates, shape `(T, k)`.

        Returns:
            `torch.Tensor`: The gated sum of the experts' outputs, shape `(T, H)`.
        """
        k = top_k_index.shape[-1]
        sorted_ids, order = top_k_index.reshape(-1).sort(stable=True)
        tokens = order // k
        sizes = torch.bincount(sorted_ids, minlength=self.num_experts + 1).tolist()
        slices = hidden_states.index_select(0, tokens).split(sizes)
        # unbind: its backward writes the gradient bank once; indexing would fill a zero bank for every expert
        gate_up_proj, down_proj = self.gate_up_proj.unbind(0), self.down_proj.unbind(0)
        outputs = []
        for expert in range(self.num_experts):
            if sizes[expert] == 0:
                continue
            gate, up = F.linear(slices[expert], gate_up_proj[expert]).chunk(2, dim=-1)
            outputs.append(F.linear(self.act_fn(gate) * up, down_proj[expert]))
        if not outputs:  # no expert of this rank is asked; keep the graph connected
            return hidden_states * 0.0 + self.gate_up_proj.sum() * 0.0 + self.down_proj.sum() * 0.0
        rows = torch.cat(outputs)
        weights = top_k_weights.reshape(-1).index_select(0, order[: rows.shape[0]])
        weighted = (rows * weights.unsqueeze(-1)).to(hidden_states.dtype)
        return torch.zeros_like(hidden_states).index_add(0, tokens[: rows.shape[0]], weighted)


__all__ = ["StrataExperts"]

"""The fused bank of SwiGLU experts, in the layout transformers uses: `gate_up_proj (E, 2I, H)`, `down_proj (E, H, I)`.

`forward` is the path without a special kernel ("eager" in transformers' words): tokens are sorted by expert once, then
each expert works on one contiguous slice that stays in the cache. Its backward is written out: it writes the gradient
bank in place and keeps only the inner projection, where autograd would keep five copies of every routed token. The
decorator adds `grouped_mm` and `batched_mm`, which give the same numbers.
"""

from collections.abc import Callable

import torch
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.activations import ACT2FN
from transformers.integrations import use_experts_implementation

from .configuration_strata import StrataConfig


_SILU = (nn.SiLU, type(ACT2FN["silu"]))  # transformers has a class of its own for it


def _activation_backward(act_fn: Callable, inputs: torch.Tensor, gradient: torch.Tensor, out: torch.Tensor) -> None:
    """Gradient through an activation at `inputs`, written to `out`."""
    if type(act_fn) in _SILU:
        torch.ops.aten.silu_backward(gradient, inputs, grad_input=out)
        return
    with torch.enable_grad():
        leaf = inputs.detach().requires_grad_()
        out.copy_(torch.autograd.grad(act_fn(leaf), leaf, gradient)[0])


class _SortedExperts(torch.autograd.Function):
    """`output[t] = sum over its experts e of w * down_e(act(gate_e(x)) * up_e(x))`, one expert after the other.

    The gate w multiplies the inner activation, so its gradient needs no output of an expert:
    `dw = <inner, down_e^T dy>`. Rows past `sum(sizes)` belong to no expert here and get no gradient.
    """

    @staticmethod
    def forward(ctx, hidden_states, weights, gate_up_proj, down_proj, order, sizes, act_fn):
        tokens, sorted_weights = order // weights.shape[-1], weights.reshape(-1).index_select(0, order).unsqueeze(-1)
        projected = hidden_states.new_empty(sum(sizes), gate_up_proj.shape[1])
        output = torch.zeros_like(hidden_states)
        start = 0
        with torch.autocast(hidden_states.device.type, enabled=False):
            for expert, size in enumerate(sizes):
                if size == 0:
                    continue
                rows, start = slice(start, start + size), start + size
                inputs = hidden_states.index_select(0, tokens[rows])
                gate, up = torch.mm(inputs, gate_up_proj[expert].t(), out=projected[rows]).chunk(2, dim=-1)
                inner = (act_fn(gate) * up).mul_(sorted_weights[rows])
                output.index_add_(0, tokens[rows], inner @ down_proj[expert].t())
        ctx.save_for_backward(hidden_states, gate_up_proj, down_proj, projected, order, tokens, sorted_weights)
        ctx.sizes, ctx.act_fn, ctx.weights_shape = sizes, act_fn, weights.shape
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        hidden_states, gate_up_proj, down_proj, projected, order, tokens, sorted_weights = ctx.saved_tensors
        _, _, wants_gate_up, wants_down, *_ = ctx.needs_input_grad
        hidden_grad = torch.zeros_like(hidden_states)
        sorted_weights_grad = torch.zeros_like(sorted_weights)
        gate_up_grad = torch.empty_like(gate_up_proj) if wants_gate_up else None
        down_grad = torch.empty_like(down_proj) if wants_down else None
        start = 0
        with torch.autocast(hidden_states.device.type, enabled=False):
            for expert, size in enumerate(ctx.sizes):
                if size == 0:
                    for bank in (gate_up_grad, down_grad):
                        if bank is not None:
                            bank[expert].zero_()
                    continue
                rows, start = slice(start, start + size), start + size
                gate, up = projected[rows].chunk(2, dim=-1)
                row_grad = gradient.index_select(0, tokens[rows])
                inner_grad = row_grad @ down_proj[expert]
                activated = ctx.act_fn(gate)
                inner = activated * up
                torch.sum(inner_grad * inner, dim=-1, keepdim=True, out=sorted_weights_grad[rows])
                if down_grad is not None:
                    torch.mm(row_grad.t(), inner.mul_(sorted_weights[rows]), out=down_grad[expert])
                inner_grad.mul_(sorted_weights[rows])
                projected_grad = torch.empty_like(projected[rows])
                gate_grad, up_grad = projected_grad.chunk(2, dim=-1)
                torch.mul(inner_grad, activated, out=up_grad)
                _activation_backward(ctx.act_fn, gate, inner_grad.mul_(up), out=gate_grad)
                if gate_up_grad is not None:
                    inputs = hidden_states.index_select(0, tokens[rows])
                    torch.mm(projected_grad.t(), inputs, out=gate_up_grad[expert])
                hidden_grad.index_add_(0, tokens[rows], projected_grad @ gate_up_proj[expert])
        weights_grad = torch.empty_like(sorted_weights).index_copy_(0, order, sorted_weights_grad)
        return hidden_grad, weights_grad.view(ctx.weights_shape), gate_up_grad, down_grad, None, None, None


@torch.compiler.disable  # the sizes are read on the host, so the graph breaks here anyway: once, not per expert
def _run_sorted(inputs, indices, weights, gate_up_proj, down_proj, act_fn) -> torch.Tensor:
    """Sort the assignments by expert and run them."""
    sorted_ids, order = indices.reshape(-1).sort(stable=True)
    num_experts = gate_up_proj.shape[0]
    sizes = torch.bincount(sorted_ids, minlength=num_experts).tolist()[:num_experts]
    return _SortedExperts.apply(inputs, weights, gate_up_proj, down_proj, order, sizes, act_fn)


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
        if isinstance(value, torch.Tensor) and not value.is_meta and torch.is_autocast_enabled(value.device.type):
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
        gate_up_proj, down_proj = self.gate_up_proj, self.down_proj
        inputs, weights = hidden_states.to(gate_up_proj.dtype), top_k_weights.to(gate_up_proj.dtype)
        output = _run_sorted(inputs, top_k_index, weights, gate_up_proj, down_proj, self.act_fn)
        return output.to(hidden_states.dtype)


__all__ = ["StrataExperts"]

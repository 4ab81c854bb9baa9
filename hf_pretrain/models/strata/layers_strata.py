"""Building blocks of a Strata layer: RMSNorm, rotary embedding, grouped-query attention, SwiGLU.

They compute what Qwen3's blocks compute, so checkpoints translate in both directions. Attention runs by transformers'
attention interface (`ALL_ATTENTION_FUNCTIONS`), RoPE by its init functions.
"""

import copy
import logging
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable
from transformers.activations import ACT2FN
from transformers.cache_utils import Cache
from transformers.integrations import use_kernel_forward_from_hub
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS, dynamic_rope_update
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs

from .configuration_strata import StrataConfig


logger = logging.getLogger(__name__)


def rotate_half(x: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + d/2) of the last dimension by 90 degrees.

    Args:
        x (`torch.Tensor`): Shape `(..., d)`.

    Returns:
        `torch.Tensor`: Same shape.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((-second, first), dim=-1)


class _Rotate(torch.autograd.Function):
    """RoPE with its backward written out: the rotation by the opposite angle, in two passes over memory each way."""

    @staticmethod
    def forward(ctx, x, cos, sin):
        ctx.save_for_backward(cos, sin)
        ctx.dtype = x.dtype
        half = x.shape[-1] // 2
        turned = x * cos
        turned[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
        turned[..., half:].addcmul_(x[..., :half], sin[..., half:])
        return turned

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        cos, sin = ctx.saved_tensors
        half = gradient.shape[-1] // 2
        back = gradient * cos
        back[..., :half].addcmul_(gradient[..., half:], sin[..., half:])
        back[..., half:].addcmul_(gradient[..., :half], sin[..., :half], value=-1)
        return back.to(ctx.dtype), None, None


def apply_rotary_pos_emb(
    q: torch.Tensor, k: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, unsqueeze_dim: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rotate queries and keys by their positions.

    Args:
        q (`torch.Tensor`): Shape `(B, heads, T, d)`.
        k (`torch.Tensor`): Shape `(B, kv_heads, T, d)`.
        cos (`torch.Tensor`): Shape `(B, T, d)`.
        sin (`torch.Tensor`): Shape `(B, T, d)`.
        unsqueeze_dim (`int`, *optional*, defaults to 1): Where the head dimension is.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Rotated queries and keys.
    """
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    if q.is_cpu and not torch.compiler.is_compiling():
        return _Rotate.apply(q, cos, sin), _Rotate.apply(k, cos, sin)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def eager_attention_forward(
    module: nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **kwargs: Unpack[TransformersKwargs],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention in plain matrix products; the reference of the other implementations.

    Args:
        module (`nn.Module`): The attention layer (its `num_key_value_groups`).
        query (`torch.Tensor`): Shape `(B, heads, T, d)`.
        key (`torch.Tensor`): Shape `(B, kv_heads, S, d)`.
        value (`torch.Tensor`): Shape `(B, kv_heads, S, d)`.
        attention_mask (`torch.Tensor`, *optional*): Additive mask, broadcast to `(B, heads, T, S)`.
        scaling (`float`): Factor on the scores.
        dropout (`float`, *optional*, defaults to 0.0): Dropout on the weights.
        kwargs (`TransformersKwargs`): What other implementations take.

    Returns:
        `tuple[torch.Tensor, torch.Tensor]`: Output `(B, T, heads, d)` and weights.
    """
    key = key.repeat_interleave(module.num_key_value_groups, dim=1)
    value = value.repeat_interleave(module.num_key_value_groups, dim=1)
    scores = torch.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    weights = F.dropout(weights, p=dropout, training=module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights


class _RMSNormOnCPU(torch.autograd.Function):
    """RMSNorm of float32 with its backward written out: a third of the passes over memory that autograd makes."""

    @staticmethod
    def forward(ctx, inputs, weight, eps):
        flat = inputs.reshape(-1, weight.shape[0])
        norm = torch.linalg.vector_norm(flat, dim=-1, keepdim=True)
        scale = norm.square_().div_(weight.shape[0]).add_(eps).rsqrt_()
        ctx.save_for_backward(inputs, weight, scale)
        return (flat * scale).mul_(weight).view(inputs.shape)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        inputs, weight, scale = ctx.saved_tensors
        flat, flat_grad = inputs.reshape(-1, weight.shape[0]), gradient.reshape(-1, weight.shape[0])
        product = flat_grad * flat
        pull = product.mv(weight).unsqueeze(-1).mul_(scale.pow(3)).div_(-weight.shape[0])
        weight_grad = product.mul_(scale).sum(0)
        inputs_grad = torch.mul(flat_grad, weight, out=product).mul_(scale).addcmul_(flat, pull)
        return inputs_grad.view(inputs.shape), weight_grad, None


@use_kernel_forward_from_hub("RMSNorm")
class StrataRMSNorm(nn.Module):
    """Root-mean-square norm with a learned scale, computed in float32 (arXiv 1910.07467).

    Args:
        hidden_size (`int`): Width of the last dimension.
        eps (`float`, *optional*, defaults to 1e-6): Added to the mean square.
    """

    def __init__(self, hidden_size: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(hidden_size))
        self.variance_epsilon = eps

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Normalise the last dimension.

        Args:
            hidden_states (`torch.Tensor`): Shape `(..., hidden_size)`.

        Returns:
            `torch.Tensor`: Same shape and dtype.
        """
        dtype = hidden_states.dtype
        float32 = dtype == torch.float32 and self.weight.dtype == torch.float32
        if hidden_states.is_cpu and float32 and not torch.compiler.is_compiling():
            return _RMSNormOnCPU.apply(hidden_states, self.weight, self.variance_epsilon)
        normed = F.rms_norm(hidden_states.float(), self.weight.shape, eps=self.variance_epsilon)
        return self.weight * normed.to(dtype)

    def extra_repr(self) -> str:
        """Shape and epsilon, for printing."""
        return f"{tuple(self.weight.shape)}, eps={self.variance_epsilon}"


class StrataRotaryEmbedding(nn.Module):
    """Cosines and sines of RoPE for any `rope_type` transformers knows.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        super().__init__()
        self.config = config
        inv_freq, self.attention_scaling = self._compute()
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    @staticmethod
    def compute_default_rope_parameters(config: StrataConfig, device=None, **kwargs) -> tuple[torch.Tensor, float]:
        """Frequencies of plain RoPE (arXiv 2104.09864): `theta ** (-2i / d)`.

        Args:
            config (`StrataConfig`): Gives `rope_theta` and `head_dim`.
            device (`torch.device`, *optional*): Where to put them.
            kwargs (`dict`): What other types take.

        Returns:
            `tuple[torch.Tensor, float]`: Inverse frequencies `(head_dim / 2,)` and the factor on cosines and sines.
        """
        exponent = torch.arange(0, config.head_dim, 2, dtype=torch.float, device=device) / config.head_dim
        return config.rope_parameters["rope_theta"] ** -exponent, 1.0

    def _compute(self, device=None) -> tuple[torch.Tensor, float]:
        """Frequencies and factor of the config as it is now."""
        self._built_from = copy.deepcopy(self.config.rope_parameters)
        self._warned = False
        self.rope_type = self.config.rope_parameters["rope_type"]
        self.max_seq_len_cached = self.original_max_seq_len = self.config.max_position_embeddings
        if self.rope_type == "default":
            return self.compute_default_rope_parameters(self.config, device=device)
        return ROPE_INIT_FUNCTIONS[self.rope_type](self.config, device)

    def rebuild(self) -> None:
        """Compute the frequencies again after the config's RoPE changed (a changed config alone changes nothing)."""
        inv_freq, self.attention_scaling = self._compute(self.inv_freq.device)
        self.inv_freq = nn.Buffer(inv_freq, persistent=False)
        self.original_inv_freq = nn.Buffer(inv_freq.clone(), persistent=False)

    def warn_if_stale(self, config: StrataConfig) -> None:
        """Say once that the config's RoPE was changed and the frequencies were not.

        Args:
            config (`StrataConfig`): The model's configuration as it is now.
        """
        if config.rope_parameters != self._built_from and not self._warned:
            self._warned = True
            logger.warning(
                "rope_parameters = %s, but the model was built with %s and still computes with those; "
                "call model.extend_context(...), or save the config and load the model again.",
                config.rope_parameters,
                self._built_from,
            )

    @dynamic_rope_update
    def forward(self, x: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosines and sines at the given positions.

        Args:
            x (`torch.Tensor`): Gives device and dtype.
            position_ids (`torch.Tensor`): Shape `(B, T)`.

        Returns:
            `tuple[torch.Tensor, torch.Tensor]`: Cosines and sines, each `(B, T, head_dim)`.
        """
        angles = position_ids[..., None].float() * self.inv_freq.to(device=x.device, dtype=torch.float)
        angles = torch.cat((angles, angles), dim=-1)
        cos, sin = angles.cos() * self.attention_scaling, angles.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


class StrataAttention(nn.Module):
    """Grouped-query attention with optional QK-norm over each head, before RoPE.

    Args:
        config (`StrataConfig`): The model's configuration.
        layer_idx (`int`): Index of the layer.
    """

    def __init__(self, config: StrataConfig, layer_idx: int):
        super().__init__()
        self.config = config
        self.layer_idx = layer_idx
        self.head_dim = config.head_dim
        self.num_key_value_groups = config.num_attention_heads // config.num_key_value_heads
        self.scaling = self.head_dim**-0.5
        self.attention_dropout = config.attention_dropout
        self.is_causal = True
        self.sliding_window = config.sliding_window if config.layer_types[layer_idx] == "sliding_attention" else None
        query_size, key_size = config.num_attention_heads * self.head_dim, config.num_key_value_heads * self.head_dim
        self.q_proj = nn.Linear(config.hidden_size, query_size, bias=config.attention_bias)
        self.k_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.v_proj = nn.Linear(config.hidden_size, key_size, bias=config.attention_bias)
        self.o_proj = nn.Linear(query_size, config.hidden_size, bias=config.attention_bias)
        self.o_proj._writes_residual = True
        self.q_norm = StrataRMSNorm(self.head_dim, eps=config.rms_norm_eps) if config.use_qk_norm else nn.Identity()
        self.k_norm = StrataRMSNorm(self.head_dim, eps=config.rms_norm_eps) if config.use_qk_norm else nn.Identity()

    def forward(
        self,
        hidden_states: torch.Tensor,
        position_embeddings: tuple[torch.Tensor, torch.Tensor],
        attention_mask: torch.Tensor | None = None,
        cache: Cache | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Attend.

        Args:
            hidden_states (`torch.Tensor`): Shape `(B, T, H)`.
            position_embeddings (`tuple[torch.Tensor, torch.Tensor]`): Cosines and sines.
            attention_mask (`torch.Tensor`, *optional*): What the mask function of the implementation made.
            cache (`Cache`, *optional*): Keys and values so far; updated.
            kwargs (`TransformersKwargs`): Passed to the attention implementation.

        Returns:
            `tuple`: Output `(B, T, H)` and the weights, where the implementation has them.
        """
        shape = hidden_states.shape[:-1]
        query = self.q_norm(self.q_proj(hidden_states).view(*shape, -1, self.head_dim)).transpose(1, 2)
        key = self.k_norm(self.k_proj(hidden_states).view(*shape, -1, self.head_dim)).transpose(1, 2)
        value = self.v_proj(hidden_states).view(*shape, -1, self.head_dim).transpose(1, 2)
        query, key = apply_rotary_pos_emb(query, key, *position_embeddings)
        if cache is not None:
            key, value = cache.update(key, value, self.layer_idx, kwargs=kwargs)

        attention: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(
            self.config._attn_implementation, eager_attention_forward
        )
        output, weights = attention(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.attention_dropout if self.training else 0.0,
            scaling=self.scaling,
            sliding_window=self.sliding_window,
            **kwargs,
        )
        return self.o_proj(output.reshape(*shape, -1).contiguous()), weights


class StrataMLP(nn.Module):
    """SwiGLU feed-forward layer (arXiv 2002.05202).

    Args:
        config (`StrataConfig`): The model's configuration.
        intermediate_size (`int`): Inner width.
    """

    def __init__(self, config: StrataConfig, intermediate_size: int):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, intermediate_size, bias=False)
        self.down_proj = nn.Linear(intermediate_size, config.hidden_size, bias=False)
        self.down_proj._writes_residual = True
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Transform every token.

        Args:
            hidden_states (`torch.Tensor`): Shape `(..., H)`.

        Returns:
            `torch.Tensor`: Same shape.
        """
        return self.down_proj(self.act_fn(self.gate_proj(hidden_states)) * self.up_proj(hidden_states))


__all__ = [
    "StrataAttention",
    "StrataMLP",
    "StrataRMSNorm",
    "StrataRotaryEmbedding",
    "apply_rotary_pos_emb",
    "eager_attention_forward",
    "rotate_half",
]

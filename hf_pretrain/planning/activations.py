"""Bytes of activations that wait for the backward pass, per token and layer.

Counted tensor by tensor as autograd saves them, for the plain layers of Strata (and of transformers' Llama, Qwen3 and
Mixtral, which are written alike), for fused kernels (Liger's RMSNorm, SwiGLU, RoPE), and for what Strata does on a CPU
(its own RMSNorm in fp32, experts one after the other, which keep one projection of each row). With hidden size h,
heads of total width q and kv, feed-forward width f, in 16 bit:

    fused   2 (6 h + 2 kv + 3 f)      norms keep input and output, SwiGLU keeps gate, up and product
    plain   norms keep an fp32 copy, the normed value and the output; SwiGLU keeps silu(gate) too

Under `autocast` the residual stream stays in fp32, and every linear layer keeps its own 16-bit copy of its input.
"""

from hf_pretrain.planning.counting import ModelShape
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


COMPUTE_MODES = ("fp32", "bf16", "autocast")
KORTHIKANTI_MODES = ("none", "selective", "full")


def layer_bytes_per_token(
    shape: ModelShape,
    sparse: bool = False,
    compute: str = "bf16",
    fused: bool = False,
    attention: str = "sdpa",
    seq_length: int = 0,
    on_cpu: bool = False,
) -> float:
    """Bytes one token leaves in one layer.

    Args:
        shape (`ModelShape`): The model.
        sparse (`bool`, *optional*, defaults to `False`): Whether the layer holds experts.
        compute (`str`, *optional*, defaults to `"bf16"`): `"fp32"`, `"bf16"` (weights and stream in bf16, as with
            FSDP2's mixed precision), or `"autocast"`.
        fused (`bool`, *optional*, defaults to `False`): Whether norms, RoPE and SwiGLU are Liger's.
        attention (`str`, *optional*, defaults to `"sdpa"`): `"sdpa"` and flash keep no scores; `"eager"` keeps them.
        seq_length (`int`, *optional*, defaults to 0): For the scores of eager attention.
        on_cpu (`bool`, *optional*, defaults to `False`): Whether Strata's layers for CPUs run.

    Returns:
        `float`: Bytes.

    Raises:
        UserError: If a mode is unknown.
    """
    item, stream = _itemsizes(compute)
    hidden = shape.hidden_size
    query, key = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    autocast = compute == "autocast"

    kept = _norm_bytes(stream, fused, on_cpu)

    def norm(width: int, kept_outputs: int) -> float:
        """A norm of the stream whose output goes into so many linear layers."""
        output = kept_outputs * item if autocast else stream
        return width * (kept + output)

    def rotated(width: int) -> float:
        """Queries or keys: what RoPE hands to attention, and before it what the QK-norm keeps."""
        if shape.qk_norm is None:
            return width * item
        return width * (item + _norm_bytes(item, fused, on_cpu))

    total = norm(hidden, 3) + rotated(query) + rotated(key) + key * item + query * item + 4 * shape.num_heads
    if attention == "eager":
        total += 2 * (query - key) * item + shape.num_heads * seq_length * (4 + (item if item < 4 else 0))
    if not sparse:
        inner = 3 if fused else 4
        return total + norm(hidden, 2) + inner * shape.intermediate_size * item
    # The router reads the norm's output in fp32: the output itself, or a copy of it where the stream is narrower.
    total += hidden * (kept + 4) + 4 * 3 * shape.num_experts
    if shape.shared_width:
        total += (3 if fused else 4) * shape.shared_width * item + hidden * {"fp32": 0, "bf16": 2, "autocast": 4}[
            compute
        ]
    if on_cpu:
        if not shape.shared_width and item == 2:
            total += hidden * item  # what the experts read, in 16 bit
        return total + shape.experts_per_token * (2 * shape.expert_width * item + item + 3 * 8)
    # Rows in, rows out and rows out times their gates; under autocast the last are fp32. Then three lists of indices.
    chosen = shape.experts_per_token
    rows = hidden * (8 if autocast else 3 * item) + (3 if fused else 4) * shape.expert_width * item
    total += chosen * (rows + 3 * 8)
    return total


def stream_bytes_per_token(shape: ModelShape, compute: str = "bf16") -> float:
    """Bytes of the residual stream per token: what full activation checkpointing keeps of a layer.

    Args:
        shape (`ModelShape`): The model.
        compute (`str`, *optional*, defaults to `"bf16"`): One of `COMPUTE_MODES`.

    Returns:
        `float`: Bytes.
    """
    return shape.hidden_size * _itemsizes(compute)[1]


def last_norm_bytes_per_token(
    shape: ModelShape, compute: str = "bf16", fused: bool = False, on_cpu: bool = False
) -> float:
    """Bytes a token leaves in the norm before the head.

    Args:
        shape (`ModelShape`): The model.
        compute (`str`, *optional*, defaults to `"bf16"`): One of `COMPUTE_MODES`.
        fused (`bool`, *optional*, defaults to `False`): Whether the norm is Liger's.
        on_cpu (`bool`, *optional*, defaults to `False`): Whether Strata's norm for CPUs runs.

    Returns:
        `float`: Bytes.
    """
    stream = _itemsizes(compute)[1]
    return shape.hidden_size * (_norm_bytes(stream, fused, on_cpu) + stream)


def backward_bytes_per_token(
    shape: ModelShape, sparse: bool = False, compute: str = "bf16", on_cpu: bool = False
) -> float:
    """Bytes per token of the gradients that are alive at once while one layer is differentiated (measured).

    Args:
        shape (`ModelShape`): The model.
        sparse (`bool`, *optional*, defaults to `False`): Whether the layer holds experts.
        compute (`str`, *optional*, defaults to `"bf16"`): One of `COMPUTE_MODES`.
        on_cpu (`bool`, *optional*, defaults to `False`): Whether experts run one after the other.

    Returns:
        `float`: Bytes: two of the feed-forward width and two of the stream; of a sparse layer the rows in and out.
    """
    item, stream = _itemsizes(compute)
    if not sparse:
        return 2 * shape.intermediate_size * item + 2 * shape.hidden_size * stream
    inner = 2 * shape.experts_per_token * shape.expert_width * item
    rows = 2 * shape.experts_per_token * shape.hidden_size * item
    share = 2 / shape.num_experts if on_cpu else 1  # one expert's rows, and no even spread
    return 2 * shape.hidden_size * stream + share * (rows + inner)


def fused_layer_bytes(shape: ModelShape) -> float:
    """The textbook figure of a dense layer in bf16 with fused kernels and no QK-norm: 2 (6 h + 2 kv + 3 f) a token.

    Args:
        shape (`ModelShape`): The model.

    Returns:
        `float`: Bytes; [`layer_bytes_per_token`] adds the log-sum-exp that flash attention keeps.
    """
    key = shape.num_kv_heads * shape.head_dim
    return 2 * (4 * shape.hidden_size + 2 * shape.num_heads * shape.head_dim + 2 * key + 3 * shape.intermediate_size)


def korthikanti_bytes(
    seq_length: int,
    micro_batch: int,
    hidden_size: int,
    num_heads: int,
    tp: int = 1,
    sequence_parallel: bool = False,
    recompute: str = "none",
) -> float:
    """Bytes of one GPT layer in fp16 with GELU and dropout, scores kept (arXiv 2205.05198).

    Args:
        seq_length (`int`): s.
        micro_batch (`int`): b.
        hidden_size (`int`): h.
        num_heads (`int`): a.
        tp (`int`, *optional*, defaults to 1): t.
        sequence_parallel (`bool`, *optional*, defaults to `False`): Whether norms and dropouts are divided too.
        recompute (`str`, *optional*, defaults to `"none"`): `"none"`, `"selective"` (attention) or `"full"`.

    Returns:
        `float`: s b h (10 + 24 / t + 5 a s / (h t)) and its variants; 2 s b h under full recomputation.
    """
    if recompute not in KORTHIKANTI_MODES:
        raise UserError(unknown_name_message("recompute", recompute, KORTHIKANTI_MODES))
    tokens = seq_length * micro_batch * hidden_size
    if recompute == "full":
        return 2.0 * tokens
    scores = 0.0 if recompute == "selective" else 5 * num_heads * seq_length / (hidden_size * tp)
    return tokens * ((34 / tp if sequence_parallel else 10 + 24 / tp) + scores)


def _norm_bytes(item: int, fused: bool, on_cpu: bool) -> int:
    """What an RMSNorm keeps of an element: its input; the plain one an fp32 copy of it and the normed value."""
    return item if fused or (on_cpu and item == 4) else 4 + item


def _itemsizes(compute: str) -> tuple[int, int]:
    """Bytes of an element in matrix products, and in the residual stream."""
    if compute not in COMPUTE_MODES:
        raise UserError(unknown_name_message("compute", compute, COMPUTE_MODES))
    return (4 if compute == "fp32" else 2), (2 if compute == "bf16" else 4)

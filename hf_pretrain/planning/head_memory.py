"""Bytes that the output head and its loss take beyond parameters and activations, for three ways to compute it.

With T tokens of a micro-batch, V rows of the head, width H, and the logits' dtype of b bytes:

    naive     forward  T V (b + 4 [fp32 copy, if b < 4] + 4 [log-softmax])
              backward T V (4 [log-softmax] + 4 [gradient of the loss] + 4 [gradient of the logits]) = 12 T V
    chunked   C V (4 + b [16-bit copy, if b < 4]) + both gradients in fp32 + T H b [rows with a target, on a CPU]
              + C H 4 [a chunk of them];  C rows fit a fixed budget
    Liger     C' V b + gradient of the hidden states in b + gradient of the weight in fp32;
              C' = next power of two of T / ceil(V / H), at most T

Naive is what transformers' own loss allocates (torch's log-softmax upcasts). A test holds naive and chunked to the
bytes that the implementations allocate on a CPU, in fp32, in 16 bit and under autocast. Liger's row is read off its
code (0.8, `accum_dtype` fp32) and not measured: its kernels run on no CPU; what a kernel keeps for itself is not in
it. Peaks, so the larger of forward and backward; what the optimizer, other layers and a gradient that existed before
hold comes on top, and one more `C V 4` for `chunked` with a softcap. Transformers' loss in 16 bit needs 10 T V in
the forward alone, 12 T V with the backward.
"""

from dataclasses import asdict, dataclass

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
# The budgets of `losses.chunked` (a test holds them equal): bytes for one fp32 buffer of logits.
CHUNK_BUDGETS = {"cpu": 64 * 2**20, "cuda": 512 * 2**20}
_FP32 = 4


@dataclass(frozen=True)
class HeadMemory:
    """Peak bytes of head and loss, forward and backward, gradients of the head's weight and input included.

    Args:
        num_tokens (`int`): Tokens of a micro-batch on one device.
        vocab_size (`int`): Rows of the head.
        hidden_size (`int`): Width of the head.
        dtype (`str`): In which the logits are made.
        logits (`int`): One copy of all logits in that dtype.
        naive (`int`): All logits at once, by transformers' own loss.
        chunked (`int`): By `losses.chunked`.
        liger (`int`): By Liger's fused linear cross-entropy.
    """

    num_tokens: int
    vocab_size: int
    hidden_size: int
    dtype: str
    logits: int
    naive: int
    chunked: int
    liger: int

    def to_dict(self) -> dict[str, int | str]:
        """For facts and reports.

        Returns:
            `dict`: All fields, plain JSON.
        """
        return asdict(self)


def chunk_rows(num_tokens: int, vocab_size: int, device_type: str = "cuda") -> int:
    """Rows whose logits `losses.chunked` has in memory at once.

    Args:
        num_tokens (`int`): Rows in all.
        vocab_size (`int`): Rows of the head.
        device_type (`str`, *optional*, defaults to `"cuda"`): `"cpu"`, or anything else for an accelerator.

    Returns:
        `int`: At least 16 where there are as many, evened out over the chunks.
    """
    limit = max(16, CHUNK_BUDGETS["cpu" if device_type == "cpu" else "cuda"] // (vocab_size * _FP32))
    chunks = -(-num_tokens // limit)
    return -(-num_tokens // chunks)


def liger_chunk_rows(num_tokens: int, vocab_size: int, hidden_size: int) -> int:
    """Rows whose logits Liger 0.8's fused linear cross-entropy has in memory at once.

    Args:
        num_tokens (`int`): Rows in all.
        vocab_size (`int`): Rows of the head.
        hidden_size (`int`): Width of the head.

    Returns:
        `int`: A power of two, or all rows.
    """
    parts = -(-vocab_size // hidden_size)
    rows = -(-num_tokens // parts)
    return min(1 << (rows - 1).bit_length(), num_tokens)


def head_memory(
    num_tokens: int,
    vocab_size: int,
    hidden_size: int,
    dtype: str = "bfloat16",
    weight_dtype: str = "float32",
    device_type: str = "cuda",
) -> HeadMemory:
    """Peak bytes of the head and the loss of a micro-batch, three ways.

    Args:
        num_tokens (`int`): Tokens of a micro-batch on one device (micro-batch times sequence length).
        vocab_size (`int`): Rows of the head.
        hidden_size (`int`): Width of the head.
        dtype (`str`, *optional*, defaults to `"bfloat16"`): Of the logits: the autocast dtype, or that of the weights.
        weight_dtype (`str`, *optional*, defaults to `"float32"`): Of the head's weight; if it differs from `dtype`, a
            cast copy of the weight counts too.
        device_type (`str`, *optional*, defaults to `"cuda"`): Sets the chunk size of `chunked`.

    Returns:
        [`HeadMemory`]

    Raises:
        UserError: If a size is no positive whole number, or a dtype is unknown.
    """
    for name, value in (("num_tokens", num_tokens), ("vocab_size", vocab_size), ("hidden_size", hidden_size)):
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise UserError(f"{name} = {value!r}; a whole number of at least 1 is needed.")
    for value in (dtype, weight_dtype):
        if value not in DTYPE_BYTES:
            raise UserError(unknown_name_message("dtype", value, DTYPE_BYTES))
    item, weight_item = DTYPE_BYTES[dtype], DTYPE_BYTES[weight_dtype]
    logits, inputs, weights = num_tokens * vocab_size, num_tokens * hidden_size, vocab_size * hidden_size
    narrow = item < _FP32
    cast = weights * item if item != weight_item else 0

    forward = logits * (item + (_FP32 if narrow else 0) + _FP32)
    backward = logits * 3 * _FP32
    products = logits * item + weights * weight_item + inputs * item
    casts = weights * (item + weight_item) + inputs * item if cast else 0
    naive = cast + max(forward, backward, products, casts)

    rows = chunk_rows(num_tokens, vocab_size, device_type)
    gradients = (inputs + weights) * _FP32
    picked = inputs * item if device_type == "cpu" else 0
    at_chunk = rows * vocab_size * (_FP32 + (item if narrow else 0)) + rows * hidden_size * _FP32 + picked
    handed_on = (weights * weight_item if weight_item < _FP32 else 0) + (inputs * item if narrow else 0) + picked
    chunked = gradients + max(cast + at_chunk, handed_on)

    liger = cast + liger_chunk_rows(num_tokens, vocab_size, hidden_size) * vocab_size * item
    liger += inputs * item + weights * _FP32
    return HeadMemory(
        num_tokens=num_tokens,
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        dtype=dtype,
        logits=logits * item,
        naive=naive,
        chunked=chunked,
        liger=liger,
    )

"""Training FLOPs per token under named conventions, and model FLOPs utilisation.

Training costs three times the forward pass: 6 FLOPs a weight and token. With L layers, H heads of width Q, length T:

    6n_total         6 N_total                    rule of thumb; counts lookups, and all experts of a MoE
    6n_active        6 N_active                   the same with the experts a token uses
    palm             6 N_active + 12 L H Q T      PaLM, appendix B (arXiv 2204.02311): attention scores in full
    matmul           6 N_matmul                   weights in matrix products only, a tied head included
    matmul_full      6 N_matmul + 12 L H Q T
    matmul_causal    6 N_matmul + 6 L H Q T       half the scores are masked: the lower bound, our default

A sliding window w < T replaces T by w (full) or T/2 by w - w^2 / 2T (causal). A number without its convention means
nothing: the same run is 34 % by `6n_total` and 43 % by `palm` for OLMo-3-7B.
"""

from collections.abc import Mapping
from typing import Any

from hf_pretrain.planning.counting import ModelShape, count_parameters
from hf_pretrain.planning.quantities import positive
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


FLOP_CONVENTIONS = ("6n_total", "6n_active", "palm", "matmul", "matmul_full", "matmul_causal")
DEFAULT_CONVENTION = "matmul_causal"
RECOMPUTE = ("none", "selective", "full")


def attention_flops_per_token(model: ModelShape | Mapping[str, Any], seq_length: int, causal: bool) -> float:
    """Training FLOPs of the attention scores and their weighted sum, per token.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        seq_length (`int`): Tokens of a sequence, T. Packed documents attend to less: this is an upper bound then.
        causal (`bool`): Whether to count only what the causal mask keeps.

    Returns:
        `float`: 12 H Q times the keys seen on average, summed over layers.
    """
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    if isinstance(seq_length, bool) or not isinstance(seq_length, int) or seq_length < 1:
        raise UserError(f"seq_length = {seq_length!r}; a whole number of at least 1 is needed.")
    keys = 0.0
    for window in shape.windows or (None,) * shape.num_layers:
        width = seq_length if window is None else min(window, seq_length)
        keys += width - width**2 / (2 * seq_length) if causal else width
    return 12.0 * shape.num_heads * shape.head_dim * keys


def training_flops_per_token(
    model: ModelShape | Mapping[str, Any], seq_length: int | None = None, convention: str = DEFAULT_CONVENTION
) -> float:
    """Training FLOPs per token (forward and backward, no recomputation) under a named convention.

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        seq_length (`int`, *optional*): Tokens of a sequence; needed where attention scores count.
        convention (`str`, *optional*, defaults to `"matmul_causal"`): One of `FLOP_CONVENTIONS`.

    Returns:
        `float`: FLOPs per token.

    Raises:
        UserError: If the convention is unknown, or a length is needed and missing.
    """
    if convention not in FLOP_CONVENTIONS:
        raise UserError(unknown_name_message("FLOP convention", convention, FLOP_CONVENTIONS))
    shape = model if isinstance(model, ModelShape) else ModelShape.from_config(model)
    counts = count_parameters(shape)
    weights = {"6n_total": counts.total, "6n_active": counts.active, "palm": counts.active}.get(
        convention, counts.matmul
    )
    flops = 6.0 * weights
    if convention in ("palm", "matmul_full", "matmul_causal"):
        if seq_length is None:
            raise UserError(f"seq_length = None; convention {convention!r} counts attention scores; give the length.")
        flops += attention_flops_per_token(shape, seq_length, causal=convention == "matmul_causal")
    return flops


def hardware_flops_per_token(
    model: ModelShape | Mapping[str, Any],
    seq_length: int | None = None,
    convention: str = DEFAULT_CONVENTION,
    recompute: str = "none",
) -> float:
    """FLOPs the hardware does per token, the forward that activation checkpointing repeats included (for HFU).

    Args:
        model (`ModelShape` or `Mapping[str, Any]`): The shape, or a configuration.
        seq_length (`int`, *optional*): Tokens of a sequence; needed where attention scores count.
        convention (`str`, *optional*, defaults to `"matmul_causal"`): One of `FLOP_CONVENTIONS`.
        recompute (`str`, *optional*, defaults to `"none"`): `"none"`, `"selective"` (attention scores once more) or
            `"full"` (every layer once more; the head is not repeated, which this neglects as the usual 8 N does).

    Returns:
        `float`: 8 N instead of 6 N and 16/12 of the attention term for `"full"`.

    Raises:
        UserError: If a name is unknown.
    """
    if recompute not in RECOMPUTE:
        raise UserError(unknown_name_message("recompute", recompute, RECOMPUTE))
    flops = training_flops_per_token(model, seq_length, convention)
    if recompute == "full":
        return flops * 4 / 3
    if recompute == "selective" and convention in ("palm", "matmul_full", "matmul_causal"):
        return flops + attention_flops_per_token(model, seq_length, causal=convention == "matmul_causal") / 3
    return flops


def flops_per_token_from_numbers(
    parameters: float,
    num_layers: int = 0,
    num_heads: int = 0,
    head_dim: int = 0,
    seq_length: int = 1,
    causal: bool = True,
) -> float:
    """Training FLOPs per token when there is no configuration: 6 N, and 6 or 12 L H Q T.

    Args:
        parameters (`float`): N of the convention you want; the active ones for a mixture of experts.
        num_layers (`int`, *optional*, defaults to 0): L; 0 leaves attention scores out.
        num_heads (`int`, *optional*, defaults to 0): Query heads, H.
        head_dim (`int`, *optional*, defaults to 0): Width of a head, Q.
        seq_length (`int`, *optional*, defaults to 1): T.
        causal (`bool`, *optional*, defaults to `True`): Count only what the causal mask keeps.

    Returns:
        `float`: FLOPs per token.
    """
    attention = (6.0 if causal else 12.0) * num_layers * num_heads * head_dim * seq_length
    return 6.0 * positive("parameters", parameters) + attention


def model_flops_utilisation(
    tokens_per_second: float, flops_per_token: float, peak_flops: float | None, num_devices: int = 1
) -> float | None:
    """Share of the devices' peak that the model's own FLOPs use (MFU; recomputation does not count).

    Args:
        tokens_per_second (`float`): Of all devices together.
        flops_per_token (`float`): From [`training_flops_per_token`]; print its convention beside the result.
        peak_flops (`float`, *optional*): Dense peak of one device in FLOP/s; `None` if unknown.
        num_devices (`int`, *optional*, defaults to 1): Devices at work.

    Returns:
        `float`, *optional*: In [0, 1] for a sane input; `None` when the peak is unknown: never a guess.
    """
    if peak_flops is None or peak_flops <= 0:
        return None
    return tokens_per_second * flops_per_token / (peak_flops * num_devices)

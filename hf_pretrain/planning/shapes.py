"""A Strata model of about so many parameters, in the proportions that published dense models have.

Width over depth near 64 to 128, heads of 64 or 128, up to eight key-value heads, a SwiGLU of 8/3 of the width adjusted
until the count is met.
"""

import math
from typing import Any

from hf_pretrain.planning.counting import count_parameters
from hf_pretrain.planning.quantities import positive
from hf_pretrain.utils.errors import UserError


TOLERANCE = 0.03
_TIED_BELOW = 4e9  # Llama-3.2-3B is tied, Llama-3-8B is not


def default_vocabulary(parameters: float) -> int:
    """Rows of the embedding that suit a size: small models cannot afford large vocabularies.

    Args:
        parameters (`float`): N.

    Returns:
        `int`: A multiple of 128.
    """
    return 8192 if parameters < 3e7 else 32768 if parameters < 5e8 else 49152 if parameters < 4e9 else 128256


def design_shape(parameters: float, vocab_size: int | None = None, seq_length: int = 4096) -> dict[str, Any]:
    """Fields of a dense `StrataConfig` with about so many parameters.

    Args:
        parameters (`float`): N, embeddings included.
        vocab_size (`int`, *optional*): Rows of the embedding; by size by default.
        seq_length (`int`, *optional*, defaults to 4096): Goes into `max_position_embeddings`.

    Returns:
        `dict`: The fields, with `model_type`; its count is within 3 % of the wish.

    Raises:
        UserError: If no such shape exists (too small for its vocabulary).
    """
    wanted = positive("parameters", parameters)
    vocab = vocab_size or default_vocabulary(wanted)
    best: tuple[float, dict[str, Any]] | None = None
    step = 64 if wanted < 1e9 else 256 if wanted < 2e10 else 1024
    for hidden in range(step, 32768 + step, step):
        head = 128 if hidden >= 2048 and hidden % 128 == 0 else 64 if hidden % 64 == 0 and hidden >= 256 else 32
        if hidden % head:
            continue
        heads = hidden // head
        groups = math.gcd(heads, 8) if heads > 8 else max(1, heads // 2) if heads % 2 == 0 else 1
        fields = {
            "model_type": "strata",
            "vocab_size": vocab,
            "hidden_size": hidden,
            "num_attention_heads": heads,
            "num_key_value_heads": groups,
            "head_dim": head,
            "max_position_embeddings": seq_length,
            "use_qk_norm": True,
            "tie_word_embeddings": wanted < _TIED_BELOW,
        }
        unit = 256 if hidden >= 2048 else 64 if hidden >= 512 else 16
        inner = max(unit, round(8 / 3 * hidden / unit) * unit)
        one, two = (
            count_parameters(fields | {"num_hidden_layers": n, "intermediate_size": inner}).total for n in (1, 2)
        )
        depth = round((wanted - one) / (two - one)) + 1
        for layers in {depth, depth - depth % 4, depth + -depth % 4}:
            if not 2 <= layers <= 256:
                continue
            low, high = (
                count_parameters(fields | {"num_hidden_layers": layers, "intermediate_size": width}).total
                for width in (unit, 2 * unit)
            )
            widths = round((wanted - low) / (high - low)) + 1
            width = unit * max(1, widths)
            if not 2 <= width / hidden <= 4.5:
                continue
            shape = fields | {"num_hidden_layers": layers, "intermediate_size": width}
            off = abs(count_parameters(shape).total / wanted - 1)
            if off > TOLERANCE:
                continue
            target = 48 if wanted < 3e8 else 96
            odd = (
                0.2 * (layers % 4 != 0)
                + 0.5 * (heads > 8 and groups < 4)
                + abs(math.log(hidden / layers / target))
                + 5 * off
            )
            if best is None or odd < best[0]:
                best = odd, shape
    if best is None:
        raise UserError(
            f"params = {wanted:.3g}; no shape has so many with a vocabulary of {vocab}: give --vocab-size or --config."
        )
    return best[1]

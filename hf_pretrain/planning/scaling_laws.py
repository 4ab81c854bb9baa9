"""The laws by name, what they say together, and how counts of different conventions translate.

`epoch` is the default. [`law_band`] shows how far the laws disagree about one budget: that spread, and not the last
digit of any of them, is what is known. A law fitted without embeddings and one fitted with them agree once the counts
are translated (Pearce and Song, arXiv 2406.12907): N_total = N + 47491 N^(1/3) for a vocabulary of 32k.
"""

import math

from hf_pretrain.planning.chinchilla import PARAMETRIC_LAWS, TOKEN_LAWS, Allocation, ParametricLaw
from hf_pretrain.planning.quantities import ModelSize, positive, size_under
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


DEFAULT_LAW = "epoch"
# Llama-style vocabularies of 128k and more have larger embeddings than this: pass real counts where there are any.
PEARCE_SONG_COEFFICIENT = 47491.0
WARN_EMBEDDING_SHARE = 0.1


def get_law(name: str = DEFAULT_LAW) -> ParametricLaw:
    """Looks a parametric law up.

    Args:
        name (`str`, *optional*, defaults to `"epoch"`): Name of a set of constants.

    Returns:
        `ParametricLaw`: The law.

    Raises:
        UserError: If nobody knows the name, or the law has no loss.
    """
    if name in TOKEN_LAWS:
        raise UserError(
            f"law = {name!r}; it says how many tokens a budget wants but has no loss: choose one of "
            f"{', '.join(PARAMETRIC_LAWS)}."
        )
    if name not in PARAMETRIC_LAWS:
        raise UserError(unknown_name_message("law", name, PARAMETRIC_LAWS))
    return PARAMETRIC_LAWS[name]


def law_band(flops: float, param_convention: str = "total") -> list[Allocation]:
    """What each law advises for one budget.

    Args:
        flops (`float`): C = 6 N D.
        param_convention (`str`, *optional*, defaults to `"total"`): Laws of another convention are left out.

    Returns:
        `list[Allocation]`: Ordered by tokens a parameter.

    Raises:
        UserError: If no law counts that way.
    """
    laws = [law for law in (*PARAMETRIC_LAWS.values(), *TOKEN_LAWS.values()) if law.name != "sardana_coef"]
    advice = [law.optimum(flops) for law in laws if law.param_convention == param_convention]
    if not advice:
        raise UserError(f"param_convention = {param_convention!r}; the laws here count total parameters.")
    return sorted(advice, key=lambda item: item.tokens_per_parameter)


def total_from_non_embedding(parameters: ModelSize | float) -> ModelSize:
    """N_total = N + 47491 N^(1/3): an estimate for a vocabulary of 32k (arXiv 2406.12907).

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.

    Returns:
        `ModelSize`: With embeddings.
    """
    size = size_under(parameters, "non_embedding", "pearce_song")
    return ModelSize(size + PEARCE_SONG_COEFFICIENT * size ** (1 / 3), "total")


def non_embedding_from_total(parameters: ModelSize | float) -> ModelSize:
    """The inverse of [`total_from_non_embedding`].

    Args:
        parameters (`ModelSize` or `float`): N with embeddings.

    Returns:
        `ModelSize`: Without embeddings, an estimate.
    """
    total = size_under(parameters, "total", "pearce_song")
    # With x = N^(1/3) this is x^3 + c x = total: increasing and convex, so Newton from above converges.
    root = total ** (1 / 3)
    for _ in range(100):
        step = (root**3 + PEARCE_SONG_COEFFICIENT * root - total) / (3 * root**2 + PEARCE_SONG_COEFFICIENT)
        root -= step
        if abs(step) <= 1e-15 * root:
            break
    return ModelSize(root**3, "non_embedding")


def non_embedding_optimum(parameters: ModelSize | float, law: ParametricLaw) -> Allocation:
    """The frontier of a law of total parameters, as one sees it who counts N and C without embeddings.

    A line fitted where Kaplan et al. measured, 768 to 1.5e9 parameters, has the exponent 0.75 to 0.79 by the law's
    constants, near their 0.73; for large models it falls to the law's own `a` (arXiv 2406.12907).

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.
        law (`ParametricLaw`): A law of total parameters.

    Returns:
        `Allocation`: The point of the frontier with this N; its `flops` count no embeddings either.
    """
    size = size_under(parameters, "non_embedding", "pearce_song")
    total = total_from_non_embedding(size)
    slope = 1 + PEARCE_SONG_COEFFICIENT / 3 * size ** (-2 / 3)
    ratio = law.beta * law.B * law.size(total) ** (law.alpha + 1) / (law.alpha * law.A * size * slope)
    tokens = positive("tokens", ratio ** (1 / law.beta))
    return Allocation(size, tokens, law.loss(total, tokens), law.name, "non_embedding")


def bits_per_byte(loss: float, bytes_per_token: float) -> float:
    """A loss that can be compared across tokenizers: L / ln 2 / bytes per token.

    Args:
        loss (`float`): Nats a token.
        bytes_per_token (`float`): UTF-8 bytes of a token, on average over the text the loss is of.

    Returns:
        `float`: Bits a byte.
    """
    return positive("loss", loss) / math.log(2) / positive("bytes_per_token", bytes_per_token)

"""Loss and optimum when the unique tokens run out (Muennighoff et al., arXiv 2305.16264).

    L = E + A / N'^alpha + B / D'^beta

with the effective numbers of `repetition.py`: D' saturates in the repeats, N' in the parameters beyond those that the
unique tokens can feed, N_opt(U). R* of both were fitted together with the constants `muennighoff_c4`. Excess
parameters count for less even in the first pass: where data is not short, use the law without limits.
"""

import math

from hf_pretrain.planning.chinchilla import MUENNIGHOFF_C4, Allocation, ParametricLaw
from hf_pretrain.planning.quantities import ModelSize, minimise, positive
from hf_pretrain.planning.repetition import effective_parameters, effective_tokens


def data_constrained_loss(
    parameters: ModelSize | float, tokens: float, unique_tokens: float, law: ParametricLaw = MUENNIGHOFF_C4
) -> float:
    """Loss after several passes over a limited set.

    Args:
        parameters (`ModelSize` or `float`): N.
        tokens (`float`): Tokens seen, repeats included, D.
        unique_tokens (`float`): Distinct ones at hand; U is as many of them as are seen.
        law (`ParametricLaw`, *optional*, defaults to `MUENNIGHOFF_C4`): The law without repeats.

    Returns:
        `float`: Nats a token; the law's own loss when nothing repeats and the model is not too large for its data.
    """
    size = law.size(parameters)
    unique = min(positive("unique_tokens", unique_tokens), positive("tokens", tokens))
    useful = law.optimum_for_tokens(unique).parameters
    return law.loss(effective_parameters(size, useful), effective_tokens(tokens, unique))


def data_constrained_optimum(flops: float, unique_tokens: float, law: ParametricLaw = MUENNIGHOFF_C4) -> Allocation:
    """The best split of a budget when only so many unique tokens exist.

    Args:
        flops (`float`): C = 6 N D.
        unique_tokens (`float`): U.
        law (`ParametricLaw`, *optional*, defaults to `MUENNIGHOFF_C4`): The law without repeats.

    Returns:
        `Allocation`: The plain optimum when it needs no repeats; otherwise fewer parameters and more epochs than it.
    """
    plain = law.optimum(flops)
    if plain.tokens <= positive("unique_tokens", unique_tokens):
        return plain

    def loss_at(log_size: float) -> float:
        size = math.exp(log_size)
        return data_constrained_loss(size, flops / (6 * size), unique_tokens, law)

    center = math.log(plain.parameters)
    size = math.exp(minimise(loss_at, center - math.log(1e3), math.log(flops / (6 * unique_tokens)), scan=200))
    tokens = flops / (6 * size)
    loss = data_constrained_loss(size, tokens, unique_tokens, law)
    return Allocation(size, tokens, loss, law.name, law.param_convention)

"""The laws of Kaplan et al. (arXiv 2001.08361), each with the constants it was fitted with.

N counts no embeddings, loss is nats a token of WebText2. The single laws and the joint fits have constants of their
own (tables 5 and 6 of the paper): mixing them up is off by 0.06 nats at N = 1e9, D = 2e10. Budgets are C_min, the
compute at a batch far below the critical one, in PF-days of 8.64e19 FLOPs.
"""

from dataclasses import dataclass

from hf_pretrain.planning.quantities import ModelSize, positive, size_under


PARAM_CONVENTION = "non_embedding"
PF_DAY_FLOPS = 8.64e19
_NAME = "kaplan"


@dataclass(frozen=True)
class KaplanAllocation:
    """What Kaplan's laws advise for a budget.

    Args:
        parameters (`float`): N_opt, without embeddings.
        tokens (`float`): D.
        batch_tokens (`float`): B.
        steps (`float`): S.
        param_convention (`str`): What `parameters` counts.
    """

    parameters: float
    tokens: float
    batch_tokens: float
    steps: float
    param_convention: str = PARAM_CONVENTION


def loss_from_parameters(parameters: ModelSize | float) -> float:
    """L(N) = (8.8e13 / N)^0.076: enough data, trained to convergence.

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.

    Returns:
        `float`: Nats a token.
    """
    return (8.8e13 / size_under(parameters, PARAM_CONVENTION, _NAME)) ** 0.076


def loss_from_tokens(tokens: float) -> float:
    """L(D) = (5.4e13 / D)^0.095: a large model, stopped early.

    Args:
        tokens (`float`): D.

    Returns:
        `float`: Nats a token.
    """
    return (5.4e13 / positive("tokens", tokens)) ** 0.095


def loss_from_compute(pf_days: float) -> float:
    """L(C_min) = (3.1e8 / C_min)^0.050.

    Args:
        pf_days (`float`): C_min in PF-days; FLOPs / `PF_DAY_FLOPS`.

    Returns:
        `float`: Nats a token.
    """
    return (3.1e8 / positive("pf_days", pf_days)) ** 0.050


def joint_loss(parameters: ModelSize | float, tokens: float) -> float:
    """L(N, D) = ((6.4e13 / N)^(0.076 / 0.103) + 1.8e13 / D)^0.103, with the joint fit's own constants.

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.
        tokens (`float`): D.

    Returns:
        `float`: Nats a token.
    """
    size = size_under(parameters, PARAM_CONVENTION, _NAME)
    return ((6.4e13 / size) ** (0.076 / 0.103) + 1.8e13 / positive("tokens", tokens)) ** 0.103


def loss_from_steps(parameters: ModelSize | float, steps: float) -> float:
    """L(N, S_min) = (6.5e13 / N)^0.077 + (2.1e3 / S_min)^0.76.

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.
        steps (`float`): S_min, steps at a batch far above the critical one; see [`minimum_steps`].

    Returns:
        `float`: Nats a token.
    """
    size = size_under(parameters, PARAM_CONVENTION, _NAME)
    return (6.5e13 / size) ** 0.077 + (2.1e3 / positive("steps", steps)) ** 0.76


def critical_batch_tokens(loss: float) -> float:
    """B_crit(L) = 2e8 / L^(1 / 0.21) tokens, whatever the model's size.

    Args:
        loss (`float`): Nats a token.

    Returns:
        `float`: Tokens; it doubles for every 13 % the loss falls.
    """
    return 2e8 / positive("loss", loss) ** (1 / 0.21)


def minimum_steps(steps: float, batch_tokens: float, loss: float) -> float:
    """S_min = S / (1 + B_crit / B).

    Args:
        steps (`float`): Steps taken, S.
        batch_tokens (`float`): Their batch in tokens, B.
        loss (`float`): Loss reached, for B_crit.

    Returns:
        `float`: Steps an unlimited batch would have needed.
    """
    return positive("steps", steps) / (1 + critical_batch_tokens(loss) / positive("batch_tokens", batch_tokens))


def minimum_compute(flops: float, batch_tokens: float, loss: float) -> float:
    """C_min = C / (1 + B / B_crit).

    Args:
        flops (`float`): Compute spent, C.
        batch_tokens (`float`): Batch in tokens, B.
        loss (`float`): Loss reached, for B_crit.

    Returns:
        `float`: What a tiny batch would have spent, in the unit of `flops`.
    """
    return positive("flops", flops) / (1 + positive("batch_tokens", batch_tokens) / critical_batch_tokens(loss))


def minimum_tokens(parameters: ModelSize | float) -> float:
    """D = 5e3 N^0.74: with fewer tokens a model overfits (several epochs, 10 % dropout).

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.

    Returns:
        `float`: Tokens.
    """
    return 5e3 * size_under(parameters, PARAM_CONVENTION, _NAME) ** 0.74


def optimal_allocation(pf_days: float) -> KaplanAllocation:
    """N = 1.3e9 C^0.73, B = 2.0e6 C^0.24, S = 5.4e3 C^0.03, D = 2e10 C^0.27 (table 6; the text's 4e10 C^0.26 differs).

    Args:
        pf_days (`float`): C_min in PF-days.

    Returns:
        `KaplanAllocation`: The split; history, not advice: later work explains the exponent 0.73 by how parameters
            and warm-up were counted (arXiv 2406.12907, 2406.19146).
    """
    budget = positive("pf_days", pf_days)
    return KaplanAllocation(1.3e9 * budget**0.73, 2e10 * budget**0.27, 2.0e6 * budget**0.24, 5.4e3 * budget**0.03)

"""Laws of sparse models. Advisory: four papers, four parametrisations, held-out fits of moderate quality.

Each counts parameters its own way, and data, tokenizer and routing differ: use ratios between shapes of one law, never
levels across laws. The planner's rule is [`sparse_loss`]: the dense law at the active parameters, scaled by what
experts add in [`ludziejewski_loss`].
"""

import math

from hf_pretrain.planning.chinchilla import ParametricLaw
from hf_pretrain.planning.quantities import ModelSize, positive, size_under
from hf_pretrain.utils.errors import UserError


PARAM_CONVENTIONS_OF_LAWS = {
    "krajewski": "total",
    "abnar": "total",
    "ludziejewski": "active",
    "clark": "active",
}


def krajewski_loss(parameters: ModelSize | float, tokens: float, granularity: float) -> float:
    """L = c + (g / G^gamma + a) / N^alpha + b / D^beta at 64-fold expansion (arXiv 2402.07871).

    Args:
        parameters (`ModelSize` or `float`): N, total.
        tokens (`float`): D.
        granularity (`float`): G = width of the dense feed-forward layer over an expert's, at least 1.

    Returns:
        `float`: Nats a token.
    """
    size = size_under(parameters, "total", "krajewski")
    fine = 2.1 / _at_least_one("granularity", granularity) ** 0.58
    return 0.47 + (fine + 18.1) / size**0.115 + 30.8 / positive("tokens", tokens) ** 0.147


def krajewski_dense_loss(parameters: ModelSize | float, tokens: float) -> float:
    """The dense counterpart, L = c + a / N^alpha + b / D^beta (arXiv 2402.07871).

    Args:
        parameters (`ModelSize` or `float`): N, total.
        tokens (`float`): D.

    Returns:
        `float`: Nats a token.
    """
    size = size_under(parameters, "total", "krajewski")
    return 0.47 + 16.3 / size**0.126 + 26.7 / positive("tokens", tokens) ** 0.127


def abnar_loss(parameters: ModelSize | float, tokens: float, sparsity: float) -> float:
    """L = a/N^alpha + b/D^beta + c/(1-S)^lambda + d/((1-S)^delta N^gamma) + e (arXiv 2501.12370).

    Args:
        parameters (`ModelSize` or `float`): N, total.
        tokens (`float`): D.
        sparsity (`float`): S = (E - k) / E in [0, 1), the share of experts a token does not use.

    Returns:
        `float`: Nats a token; the fit explains 0.68 of the held-out variance.
    """
    if not 0 <= sparsity < 1:
        raise UserError(f"sparsity = {sparsity!r}; (experts - experts per token) / experts is in [0, 1).")
    size, dense = size_under(parameters, "total", "abnar"), 1 - sparsity
    return (
        16612.50 / size**0.5962
        + 5455.67 / positive("tokens", tokens) ** 0.3954
        + 0.4598 / dense**-0.1666
        + 17.26 / (dense**0.1603 * size**0.1595)
        + 0.94
    )


def ludziejewski_loss(parameters: ModelSize | float, tokens: float, experts: float) -> float:
    """Joint law of dense and sparse models (arXiv 2502.05172); loss falls with experts at fixed active parameters.

    L = 35.91 / (E^0.2285 N^(0.1889 - 0.0098 ln E)) + 35.98 / (E^-0.5529 D^(0.1775 + 0.0259 ln E)) + 1.3637

    Args:
        parameters (`ModelSize` or `float`): N, active.
        tokens (`float`): D.
        experts (`float`): Effective number of experts, at least 1; see [`effective_experts`].

    Returns:
        `float`: Nats a token.
    """
    size = size_under(parameters, "active", "ludziejewski")
    log_experts = math.log(_at_least_one("experts", experts))
    of_size = 35.91 / (experts**0.2285 * size ** (0.1889 - 0.0098 * log_experts))
    of_data = 35.98 / (experts**-0.5529 * positive("tokens", tokens) ** (0.1775 + 0.0259 * log_experts))
    return of_size + of_data + 1.3637


def ludziejewski_learning_rate(parameters: ModelSize | float, experts: float) -> float:
    """exp(8.39 - 0.81 ln N - 0.25 ln E) (arXiv 2502.05172).

    Args:
        parameters (`ModelSize` or `float`): N, active.
        experts (`float`): Number of experts, 1 for a dense model.

    Returns:
        `float`: Peak learning rate.
    """
    size = size_under(parameters, "active", "ludziejewski")
    return math.exp(8.39 - 0.81 * math.log(size) - 0.25 * math.log(_at_least_one("experts", experts)))


def experts_loss_ratio(parameters: ModelSize | float, tokens: float, experts: float) -> float:
    """What experts change at equal active parameters and tokens, as a factor on the dense model's loss.

    Args:
        parameters (`ModelSize` or `float`): N, active.
        tokens (`float`): D.
        experts (`float`): Effective number of experts.

    Returns:
        `float`: At most 1 within the law's range; advisory.
    """
    return ludziejewski_loss(parameters, tokens, experts) / ludziejewski_loss(parameters, tokens, 1)


def sparse_loss(law: ParametricLaw, active: ModelSize, tokens: float, experts: float) -> float:
    """The planner's rule for a sparse model: a dense law at the active parameters, times [`experts_loss_ratio`].

    Args:
        law (`ParametricLaw`): A law of dense models with total parameters; a dense model's total is all active.
        active (`ModelSize`): N, active.
        tokens (`float`): D.
        experts (`float`): Effective number of experts; 1 gives the dense law's own loss.

    Returns:
        `float`: Nats a token on the dense law's data; advisory.

    Raises:
        UserError: If the size does not count active parameters, or the law does not count total ones.
    """
    size = size_under(active, "active", "sparse_loss")
    dense = law.loss(ModelSize(size, "total"), tokens)
    return dense * experts_loss_ratio(active, tokens, experts)


def effective_experts(experts: float, start: float, maximum: float) -> float:
    """1 / E' = 1 / (E - 1 + 1 / (1 / E_start - 1 / E_max)) + 1 / E_max: E' saturates (arXiv 2202.01169).

    Args:
        experts (`float`): E.
        start (`float`): E' of a dense model, E_start.
        maximum (`float`): Limit for many experts, E_max.

    Returns:
        `float`: E'.
    """
    if not 0 < start < maximum:
        raise UserError(f"start = {start!r}, maximum = {maximum!r}; 0 < start < maximum is needed.")
    base = 1 / (1 / start - 1 / maximum)
    return 1 / (1 / (_at_least_one("experts", experts) - 1 + base) + 1 / maximum)


def clark_loss(parameters: ModelSize | float, experts: float) -> float:
    """log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d, S-BASE routing (arXiv 2202.01169).

    Args:
        parameters (`ModelSize` or `float`): N of the dense model it grew from, active.
        experts (`float`): E.

    Returns:
        `float`: Nats a token after 130B tokens.
    """
    size = math.log10(size_under(parameters, "active", "clark"))
    routed = math.log10(effective_experts(experts, 1.847, 314.478))
    return 10 ** (-0.082 * size - 0.108 * routed + 0.009 * size * routed + 1.104)


def _at_least_one(name: str, value: float) -> float:
    if positive(name, value) < 1:
        raise UserError(f"{name} = {value!r}; at least 1 is needed.")
    return value

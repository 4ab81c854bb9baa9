"""Loss curves from learning-rate curves: to rank schedules and to place the decay, not to extrapolate across data.

    Tissue (arXiv 2408.11029)       L = L0 + A S1^-alpha - C S2
    Multi-power (arXiv 2503.12811)  L = L0 + A S1^-alpha - B sum_k (lr_k-1 - lr_k) (1 - (1 + C lr_k^-gamma S_k)^-beta)

S1 is the sum of learning rates so far, S2 a decaying memory of how far they fell, S_k the sum from step k on.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from hf_pretrain.planning.quantities import positive
from hf_pretrain.utils.errors import UserError


def annealing_areas(learning_rates: Sequence[float], decay: float = 0.999) -> tuple[float, float]:
    """S1 and S2 of Tissue et al. (arXiv 2408.11029) at the last step.

    Args:
        learning_rates (`Sequence[float]`): One a step, without warm-up.
        decay (`float`, *optional*, defaults to 0.999): lambda, how fast the memory of a fall fades.

    Returns:
        `tuple[float, float]`: S1 = sum of rates, S2 = sum of m_i with m_i = lambda m_(i-1) + lr_(i-1) - lr_i.
    """
    if not learning_rates:
        raise UserError("learning_rates is empty; give one rate a step.")
    memory = area = 0.0
    for before, now in zip(learning_rates, learning_rates[1:], strict=False):
        memory = decay * memory + (before - now)
        area += memory
    return float(sum(learning_rates)), area


@dataclass(frozen=True)
class TissueLaw:
    """L = L0 + A S1^-alpha - C S2 (arXiv 2408.11029) with constants fitted to one model, batch and data set.

    Args:
        L0 (`float`): Irreducible loss.
        A (`float`): Of the power of S1.
        alpha (`float`): Its exponent.
        C (`float`): What a unit of annealing is worth.
        decay (`float`, *optional*, defaults to 0.999): lambda of the memory.
    """

    L0: float
    A: float
    alpha: float
    C: float
    decay: float = 0.999

    def __post_init__(self) -> None:
        for name in ("A", "alpha"):
            positive(name, getattr(self, name))
        if not 0 <= self.decay < 1:
            raise UserError(f"decay = {self.decay!r}; a number in [0, 1) is needed.")

    def loss(self, learning_rates: Sequence[float]) -> float:
        """Loss at the last step.

        Args:
            learning_rates (`Sequence[float]`): One a step, without warm-up, in the unit of the constants.

        Returns:
            `float`: Nats a token.
        """
        total, area = annealing_areas(learning_rates, self.decay)
        return self.L0 + self.A * positive("sum of learning_rates", total) ** -self.alpha - self.C * area


@dataclass(frozen=True)
class MultiPowerLaw:
    """The multi-power law with fitted constants (arXiv 2503.12811); they hold for one model, batch and data set.

    Args:
        L0 (`float`): Irreducible loss.
        A (`float`): Of the power of S1.
        alpha (`float`): Its exponent.
        B (`float`): Of the drop while the rate falls.
        C (`float`): Scale inside the drop.
        beta (`float`): Exponent of the drop.
        gamma (`float`): Exponent of the rate inside the drop.
    """

    L0: float
    A: float
    alpha: float
    B: float
    C: float
    beta: float
    gamma: float

    def loss(self, learning_rates: Sequence[float]) -> float:
        """Loss at the last step.

        Args:
            learning_rates (`Sequence[float]`): One a step, warm-up included: the released constants were fitted with
                its increments in the sum, and leaving them out shifts the loss by 0.15.

        Returns:
            `float`: Nats a token.
        """
        if not learning_rates or not any(rate > 0 for rate in learning_rates):
            raise UserError("learning_rates holds no positive rate; give one rate a step.")
        drop = tail = 0.0
        for index in range(len(learning_rates) - 1, 0, -1):
            rate, before = learning_rates[index], learning_rates[index - 1]
            tail += rate
            if rate > 0 and before != rate:
                drop += (before - rate) * (1 - (1 + self.C * rate**-self.gamma * tail) ** -self.beta)
        total = tail + learning_rates[0]
        return self.L0 + self.A * total**-self.alpha - self.B * drop


# Released with the paper for its 400M model.
MULTI_POWER_400M = MultiPowerLaw(2.37474466, 0.65421216, 0.42878731, 523.42464371, 2.02462735, 0.59350493, 0.63472457)

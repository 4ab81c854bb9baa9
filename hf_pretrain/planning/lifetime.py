"""Models that will be used: the optimum with inference counted (Sardana et al., arXiv 2401.00448), and over-training
(Gadre et al., arXiv 2403.08540).

    min over N of  6 N D_tr c_tr + 2 N (D_in c_in + D_out c_out)   with   L(N, D_tr) = l

A served model should be smaller and trained longer than Chinchilla's. Where it is best,
(alpha A / N^alpha) / (beta B / D^beta) = 1 + D_inf / (3 D_tr) when every FLOP costs the same.
"""

import math
from dataclasses import dataclass

from hf_pretrain.planning.chinchilla import Allocation, ParametricLaw
from hf_pretrain.planning.quantities import ModelSize, minimise, not_negative, positive
from hf_pretrain.utils.errors import UserError


@dataclass(frozen=True)
class LifetimePrices:
    """What a FLOP costs where; the unit is free, and 1 everywhere counts FLOPs.

    Args:
        training (`float`, *optional*, defaults to 1.0): Price of a FLOP over MFU in training.
        input (`float`, *optional*, defaults to 1.0): The same for tokens read at inference.
        output (`float`, *optional*, defaults to 1.0): The same for tokens written; their MFU is far lower.
    """

    training: float = 1.0
    input: float = 1.0
    output: float = 1.0

    def __post_init__(self) -> None:
        positive("training price", self.training)
        not_negative("input price", self.input)
        not_negative("output price", self.output)

    @classmethod
    def from_utilisation(
        cls,
        training_price: float,
        training_mfu: float,
        inference_price: float,
        input_mfu: float,
        output_mfu: float,
    ) -> "LifetimePrices":
        """Price over utilisation, for each kind of work.

        Args:
            training_price (`float`): Of a training device, per hour.
            training_mfu (`float`): Share of the peak used in training, in (0, 1].
            inference_price (`float`): Of a serving device, per hour, at the same peak.
            input_mfu (`float`): Utilisation while reading the prompt.
            output_mfu (`float`): Utilisation while generating.

        Returns:
            `LifetimePrices`: Relative prices of a FLOP.
        """
        for name, value in (("training_mfu", training_mfu), ("input_mfu", input_mfu), ("output_mfu", output_mfu)):
            if positive(name, value) > 1:
                raise UserError(f"{name} = {value:g}; a share between 0 and 1 is needed.")
        return cls(training_price / training_mfu, inference_price / input_mfu, inference_price / output_mfu)


def lifetime_cost(
    parameters: float,
    tokens: float,
    input_tokens: float,
    output_tokens: float = 0.0,
    prices: LifetimePrices | None = None,
) -> float:
    """Training and inference together.

    Args:
        parameters (`float`): N.
        tokens (`float`): Training tokens, D_tr.
        input_tokens (`float`): Tokens read over the model's life.
        output_tokens (`float`, *optional*, defaults to 0.0): Tokens written.
        prices (`LifetimePrices`, *optional*): 1 a FLOP by default.

    Returns:
        `float`: In the prices' unit; FLOPs by default.
    """
    prices = prices or LifetimePrices()
    served = input_tokens * prices.input + output_tokens * prices.output
    return 6 * parameters * tokens * prices.training + 2 * parameters * served


def inference_optimum(
    law: ParametricLaw,
    loss: float,
    input_tokens: float,
    output_tokens: float = 0.0,
    prices: LifetimePrices | None = None,
) -> Allocation:
    """The cheapest model over its life among those with the same loss.

    Args:
        law (`ParametricLaw`): The law.
        loss (`float`): What the model must reach, nats a token.
        input_tokens (`float`): Tokens read over the model's life.
        output_tokens (`float`, *optional*, defaults to 0.0): Tokens written.
        prices (`LifetimePrices`, *optional*): 1 a FLOP by default.

    Returns:
        `Allocation`: N and D_tr; `flops` is the training alone.

    Raises:
        UserError: If the law never reaches the loss.
    """
    not_negative("input_tokens", input_tokens)
    not_negative("output_tokens", output_tokens)
    largest = law.optimum(law.flops_for_loss(loss)).parameters  # inference only ever asks for less than this
    smallest = (law.A / (loss - law.E)) ** (1 / law.alpha)

    def total(log_size: float) -> float:
        size = math.exp(log_size)
        return lifetime_cost(size, law.tokens_for_loss(size, loss), input_tokens, output_tokens, prices)

    size = math.exp(minimise(total, math.log(smallest), math.log(largest) + 0.1, scan=200))
    return Allocation(size, law.tokens_for_loss(size, loss), loss, law.name, law.param_convention)


@dataclass(frozen=True)
class OverTrainingLaw:
    """L(C, M) = E + (a M^eta + b M^-eta) C^-eta with M = D / N (arXiv 2403.08540); validated for M in 20 to 640.

    Args:
        a (`float`): Of the term that grows with M.
        b (`float`): Of the term that falls with M.
        E (`float`): Irreducible loss.
        eta (`float`): Exponent.
        param_convention (`str`, *optional*, defaults to `"total"`): What N counts in M.
    """

    a: float
    b: float
    E: float
    eta: float
    param_convention: str = "total"

    @classmethod
    def from_parametric(cls, law: ParametricLaw) -> "OverTrainingLaw":
        """The same law in other letters; the form needs alpha = beta.

        Args:
            law (`ParametricLaw`): With equal exponents.

        Returns:
            `OverTrainingLaw`: Equal to it everywhere.

        Raises:
            UserError: If the exponents differ.
        """
        if law.alpha != law.beta:
            raise UserError(f"law = {law.name!r}; alpha = {law.alpha:g} and beta = {law.beta:g} must be equal here.")
        eta = law.alpha / 2
        # A / N^(2 eta) with N = (C / 6M)^(1/2) is A (6 M / C)^eta, and B / D^(2 eta) is B (6 / (C M))^eta.
        return cls(law.A * 6**eta, law.B * 6**eta, law.E, eta, law.param_convention)

    @property
    def best_tokens_per_parameter(self) -> float:
        """`float`: M* = (b / a)^(1 / 2 eta)."""
        return (self.b / self.a) ** (1 / (2 * self.eta))

    def loss(self, flops: float, tokens_per_parameter: float) -> float:
        """Loss of a budget spent at a given M.

        Args:
            flops (`float`): C = 6 N D.
            tokens_per_parameter (`float`): M.

        Returns:
            `float`: Nats a token.
        """
        ratio = positive("tokens_per_parameter", tokens_per_parameter) ** self.eta
        return self.E + (self.a * ratio + self.b / ratio) * positive("flops", flops) ** -self.eta


def loss_at_ratio(law: ParametricLaw, flops: float, tokens_per_parameter: float) -> float:
    """Loss of a budget spent at a given D / N, for any parametric law.

    Args:
        law (`ParametricLaw`): The law.
        flops (`float`): C = 6 N D.
        tokens_per_parameter (`float`): M.

    Returns:
        `float`: Nats a token.
    """
    size = math.sqrt(positive("flops", flops) / (6 * positive("tokens_per_parameter", tokens_per_parameter)))
    return law.loss(ModelSize(size, law.param_convention), size * tokens_per_parameter)


def downstream_error(loss: float, epsilon: float, k: float, gamma: float) -> float:
    """Err(L) = epsilon - k exp(-gamma L): average top-1 error of downstream tasks (arXiv 2403.08540).

    Args:
        loss (`float`): Nats a token.
        epsilon (`float`): Error of a model that knows nothing.
        k (`float`): Scale.
        gamma (`float`): Rate.

    Returns:
        `float`: Error; the three constants are fitted for a data set and a set of tasks.
    """
    return epsilon - k * math.exp(-gamma * loss)

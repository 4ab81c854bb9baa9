"""The parametric law of Chinchilla (Hoffmann et al., arXiv 2203.15556, approach 3) with its sets of constants.

    L(N, D) = E + A / N^alpha + B / D^beta,   C = 6 N D
    N_opt = G (C/6)^a,  D_opt = (C/6)^b / G,  a = beta / (alpha + beta),  b = 1 - a,
    G = (alpha A / (beta B))^(1 / (alpha + beta))

N counts embeddings. Losses of different sets were measured on different data and tokenizers: compare differences and
optima, not levels. The constants printed in the paper's body (`hoffmann_rounded`) give 40 to 140 tokens a parameter
between 1e20 and 4e25 FLOPs; the famous 20 comes from approaches 1 and 2 and from the refit `epoch` (arXiv 2404.10102),
which is our default.
"""

import math
from dataclasses import dataclass

from hf_pretrain.planning.quantities import ModelSize, positive, size_under
from hf_pretrain.utils.errors import UserError


FLOP_CONVENTION = "6n_total"


@dataclass(frozen=True)
class Allocation:
    """A split of compute into parameters and tokens.

    Args:
        parameters (`float`): N.
        tokens (`float`): D.
        loss (`float`, *optional*): Nats a token; `None` where the law has no loss.
        law (`str`): The law that advised it.
        param_convention (`str`): What `parameters` counts.
    """

    parameters: float
    tokens: float
    loss: float | None
    law: str
    param_convention: str

    @property
    def flops(self) -> float:
        """`float`: 6 N D."""
        return 6 * self.parameters * self.tokens

    @property
    def tokens_per_parameter(self) -> float:
        """`float`: D / N."""
        return self.tokens / self.parameters


@dataclass(frozen=True)
class ParametricLaw:
    """L(N, D) = E + A / N^alpha + B / D^beta.

    Args:
        name (`str`): Name of the set of constants.
        A (`float`): Of the parameter term.
        B (`float`): Of the data term.
        E (`float`): Irreducible loss in nats a token.
        alpha (`float`): Exponent of N.
        beta (`float`): Exponent of D.
        source (`str`, *optional*): Where the constants come from.
        param_convention (`str`, *optional*, defaults to `"total"`): What N counts.

    Raises:
        UserError: If a constant is not positive.
    """

    name: str
    A: float
    B: float
    E: float
    alpha: float
    beta: float
    source: str = ""
    param_convention: str = "total"

    def __post_init__(self) -> None:
        for name in ("A", "B", "E", "alpha", "beta"):
            positive(f"{self.name}: {name}", getattr(self, name))
        ModelSize(1.0, self.param_convention)

    @property
    def a(self) -> float:
        """`float`: Exponent of N_opt in C."""
        return self.beta / (self.alpha + self.beta)

    @property
    def b(self) -> float:
        """`float`: Exponent of D_opt in C."""
        return self.alpha / (self.alpha + self.beta)

    @property
    def G(self) -> float:
        """`float`: Coefficient of N_opt in (C/6)^a."""
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))

    @property
    def gamma(self) -> float:
        """`float`: Exponent with which the reducible loss falls along the frontier."""
        return self.alpha * self.beta / (self.alpha + self.beta)

    def size(self, parameters: ModelSize | float) -> float:
        """Reads a model size under this law's convention.

        Args:
            parameters (`ModelSize` or `float`): A bare number is in this law's convention.

        Returns:
            `float`: N.

        Raises:
            UserError: If the size is of another convention.
        """
        return size_under(parameters, self.param_convention, self.name)

    def loss(self, parameters: ModelSize | float, tokens: float) -> float:
        """Loss after one pass over fresh tokens.

        Args:
            parameters (`ModelSize` or `float`): N.
            tokens (`float`): D.

        Returns:
            `float`: Nats a token.
        """
        return self.E + self.A / self.size(parameters) ** self.alpha + self.B / positive("tokens", tokens) ** self.beta

    def optimum(self, flops: float) -> Allocation:
        """The compute-optimal split of a budget, in closed form.

        Args:
            flops (`float`): C = 6 N D.

        Returns:
            `Allocation`: N, D and the loss.
        """
        budget = positive("flops", flops) / 6
        return self._allocation(self.G * budget**self.a, budget**self.b / self.G)

    def optimum_for_parameters(self, parameters: ModelSize | float) -> Allocation:
        """The budget for which a model size is compute-optimal.

        Args:
            parameters (`ModelSize` or `float`): N.

        Returns:
            `Allocation`: The point of the frontier with this N.
        """
        size = self.size(parameters)
        tokens = (self.beta * self.B / (self.alpha * self.A) * size**self.alpha) ** (1 / self.beta)
        return self._allocation(size, tokens)

    def optimum_for_tokens(self, tokens: float) -> Allocation:
        """The budget for which an amount of data is compute-optimal.

        Args:
            tokens (`float`): D.

        Returns:
            `Allocation`: The point of the frontier with this D.
        """
        data = positive("tokens", tokens)
        return self._allocation(
            (self.alpha * self.A / (self.beta * self.B) * data**self.beta) ** (1 / self.alpha), data
        )

    def flops_for_loss(self, loss: float) -> float:
        """The least compute that reaches a loss.

        Args:
            loss (`float`): Nats a token.

        Returns:
            `float`: C.

        Raises:
            UserError: If the loss is at or below the irreducible one.
        """
        reducible = self._reducible(loss)
        scale = self.A * self.G**-self.alpha + self.B * self.G**self.beta
        return 6 * (reducible / scale) ** (-1 / self.gamma)

    def tokens_for_loss(self, parameters: ModelSize | float, loss: float) -> float:
        """Tokens after which a model of a given size reaches a loss.

        Args:
            parameters (`ModelSize` or `float`): N.
            loss (`float`): Nats a token.

        Returns:
            `float`: D; infinite when a model of this size never reaches it.
        """
        left = self._reducible(loss) - self.A / self.size(parameters) ** self.alpha
        if left <= 0:
            return math.inf
        try:
            return (self.B / left) ** (1 / self.beta)
        except OverflowError:
            return math.inf

    def overtraining_premium(self, parameters: ModelSize | float, tokens: float) -> float:
        """How much more training compute a split costs than the optimum with the same loss.

        Args:
            parameters (`ModelSize` or `float`): N.
            tokens (`float`): D.

        Returns:
            `float`: At least 1; the price of a model that is cheaper to serve (or of a bad split).
        """
        return 6 * self.size(parameters) * tokens / self.flops_for_loss(self.loss(parameters, tokens))

    def _reducible(self, loss: float) -> float:
        if positive("loss", loss) <= self.E:
            raise UserError(f"loss = {loss:g}; the law '{self.name}' never gets below {self.E:g}.")
        return loss - self.E

    def _allocation(self, parameters: float, tokens: float) -> Allocation:
        return Allocation(parameters, tokens, self.loss(parameters, tokens), self.name, self.param_convention)


EPOCH = ParametricLaw("epoch", 482.01, 2085.43, 1.8172, 0.3478, 0.3658, "refit of approach 3, arXiv 2404.10102")
HOFFMANN_ROUNDED = ParametricLaw(
    "hoffmann_rounded", 406.4, 410.7, 1.69, 0.34, 0.28, "arXiv 2203.15556, as printed in the body"
)
HOFFMANN_TEX = ParametricLaw(
    "hoffmann_tex",
    math.exp(6.0073404),
    math.exp(6.0179186),
    math.exp(0.5267228),
    0.33917084,
    0.2849083,
    "arXiv 2203.15556, from its TeX source",
)
MUENNIGHOFF_C4 = ParametricLaw(
    "muennighoff_c4",
    math.exp(6.255414),
    math.exp(7.3049974),
    math.exp(0.6254804),
    0.3526596,
    0.3526596,
    "arXiv 2305.16264, fitted on C4 with alpha = beta",
)
SARDANA_COEF = ParametricLaw(
    "sardana_coef", 406.4, 410.7, 1.69, 0.336, 0.283, "arXiv 2401.00448, reproduces its figure 1"
)

PARAMETRIC_LAWS: dict[str, ParametricLaw] = {
    law.name: law for law in (EPOCH, HOFFMANN_ROUNDED, HOFFMANN_TEX, MUENNIGHOFF_C4, SARDANA_COEF)
}


@dataclass(frozen=True)
class TokenLaw:
    """A law that says how many tokens a budget wants, and nothing of the loss: D = coefficient C^exponent.

    Args:
        name (`str`): Its name.
        coefficient (`float`): Tokens at C = 1.
        exponent (`float`): Of C.
        source (`str`): Where it comes from.
        param_convention (`str`, *optional*, defaults to `"total"`): What N = C / 6D counts.
    """

    name: str
    coefficient: float
    exponent: float
    source: str
    param_convention: str = "total"

    def optimum(self, flops: float) -> Allocation:
        """The split of a budget.

        Args:
            flops (`float`): C = 6 N D.

        Returns:
            `Allocation`: N and D, without a loss.
        """
        budget = positive("flops", flops)
        tokens = self.coefficient * budget**self.exponent
        return Allocation(budget / (6 * tokens), tokens, None, self.name, self.param_convention)


# Approach 1: log10 D = 1.0075 log10 N + 1.2408, a line through table 3 of the paper, as a law in C = 6 N D.
_SLOPE, _OFFSET = 1.0075, 1.2408
HOFFMANN_TABLE3 = TokenLaw(
    "hoffmann_table3",
    (10**_OFFSET) ** (1 / (1 + _SLOPE)) * (1 / 6) ** (_SLOPE / (1 + _SLOPE)),
    _SLOPE / (1 + _SLOPE),
    "arXiv 2203.15556, approach 1",
)
# Approach 2 (IsoFLOP curves): log10 D = 1.040957 log10 N + 0.935389, a line through its tokens for the same sizes.
_ISO_SLOPE, _ISO_OFFSET = 1.040957, 0.935389
HOFFMANN_ISOFLOP = TokenLaw(
    "hoffmann_isoflop",
    (10**_ISO_OFFSET) ** (1 / (1 + _ISO_SLOPE)) * (1 / 6) ** (_ISO_SLOPE / (1 + _ISO_SLOPE)),
    _ISO_SLOPE / (1 + _ISO_SLOPE),
    "arXiv 2203.15556, approach 2",
)
LLAMA3_ISOFLOP = TokenLaw("llama3_isoflop", 0.299, 0.537, "arXiv 2407.21783, IsoFLOP curves on its own data")
# The paper's summary, 192 tokens a parameter. Its formula (D/N = 100 (C/6)^0.10) gives thousands with C in FLOPs, and
# does not say in what other unit it is meant.
MINICPM_RATIO = 192.0
MINICPM = TokenLaw("minicpm", math.sqrt(MINICPM_RATIO / 6), 0.5, "arXiv 2404.06395, 192 tokens a parameter")
TOKEN_LAWS: dict[str, TokenLaw] = {
    law.name: law for law in (HOFFMANN_TABLE3, HOFFMANN_ISOFLOP, LLAMA3_ISOFLOP, MINICPM)
}


@dataclass(frozen=True)
class Uncertainty:
    """How well a constant of a fit is known.

    Args:
        standard_error (`float`): Of the constant.
        low (`float`): Lower end of its 95 % interval.
        high (`float`): Upper end.
    """

    standard_error: float
    low: float
    high: float


# Of `EPOCH`, from the same paper. A and B move together with their exponents: do not draw them apart.
EPOCH_UNCERTAINTY: dict[str, Uncertainty] = {
    "A": Uncertainty(124.5, 285.0, 744.0),
    "B": Uncertainty(1293.0, 1042.0, 5810.0),
    "E": Uncertainty(0.0257, 1.769, 1.871),
    "alpha": Uncertainty(0.0154, 0.317, 0.373),
    "beta": Uncertainty(0.0206, 0.331, 0.415),
}

"""Learning rate and batch: published power laws, the critical batch, and transfer across widths.

Each law counts a model its own way and was fitted with one optimizer, schedule and data set: they are starting points
to within a factor of about two. Batches are in tokens.
"""

import math
from dataclasses import dataclass

from hf_pretrain.planning.quantities import ModelSize, positive, size_under
from hf_pretrain.utils.errors import UserError


@dataclass(frozen=True)
class StepSizes:
    """A suggestion.

    Args:
        law (`str`): Who says so.
        learning_rate (`float`, *optional*): Peak; `None` where the law says nothing of it.
        batch_tokens (`float`, *optional*): Tokens of an update; `None` likewise.
    """

    law: str
    learning_rate: float | None
    batch_tokens: float | None


@dataclass(frozen=True)
class DeepSeekAllocation:
    """Optimal split by DeepSeek LLM (arXiv 2401.02954), C = M D.

    Args:
        flops_per_token (`float`): M, FLOPs a token without embeddings, attention included.
        tokens (`float`): D.
        param_convention (`str`): What M counts.
    """

    flops_per_token: float
    tokens: float
    param_convention: str = "nonemb_flops_per_token"


def deepseek_step_sizes(flops: float) -> StepSizes:
    """Learning rate 0.3118 C^-0.1250 and batch 0.2920 C^0.3271 tokens (arXiv 2401.02954).

    Args:
        flops (`float`): C = M D without embeddings; 6 N D is close enough, the exponents being small.

    Returns:
        `StepSizes`: Both.
    """
    budget = positive("flops", flops)
    return StepSizes("deepseek", 0.3118 * budget**-0.1250, 0.2920 * budget**0.3271)


def deepseek_allocation(flops: float) -> DeepSeekAllocation:
    """M = 0.1715 C^0.5243 and D = 5.8316 C^0.4757 (arXiv 2401.02954).

    Args:
        flops (`float`): C = M D.

    Returns:
        `DeepSeekAllocation`: The split, on DeepSeek's data.
    """
    budget = positive("flops", flops)
    return DeepSeekAllocation(0.1715 * budget**0.5243, 5.8316 * budget**0.4757)


def deepseek_flops_per_token(num_layers: int, hidden_size: int, seq_length: int) -> ModelSize:
    """M = 72 L d^2 + 12 L d s (arXiv 2401.02954).

    Args:
        num_layers (`int`): L.
        hidden_size (`int`): d.
        seq_length (`int`): s, tokens of a sequence.

    Returns:
        `ModelSize`: FLOPs a token, embeddings left out.
    """
    return ModelSize(
        float(72 * num_layers * hidden_size**2 + 12 * num_layers * hidden_size * seq_length), "nonemb_flops_per_token"
    )


def step_law(parameters: ModelSize | float, tokens: float) -> StepSizes:
    """Learning rate 1.79 N^-0.713 D^0.307 and batch 0.58 D^0.571 tokens (StepLaw, arXiv 2503.04715).

    Args:
        parameters (`ModelSize` or `float`): N without embeddings.
        tokens (`float`): D.

    Returns:
        `StepSizes`: Both; fitted with a final learning rate of 1e-5.
    """
    size, data = size_under(parameters, "non_embedding", "step_law"), positive("tokens", tokens)
    return StepSizes("step_law", 1.79 * size**-0.713 * data**0.307, 0.58 * data**0.571)


def minicpm_batch(loss: float) -> StepSizes:
    """Batch 1.2110e9 / L^6.2393 tokens, L the loss aimed at (MiniCPM, arXiv 2404.06395).

    Args:
        loss (`float`): Nats a token. Levels depend on data and tokenizer, and the power is steep: 0.1 nats are 30 %.

    Returns:
        `StepSizes`: The batch.
    """
    return StepSizes("minicpm", None, 1.2110e9 / positive("loss", loss) ** 6.2393)


@dataclass
class GradientNoiseScale:
    """Critical batch from gradients at two batch sizes (McCandlish et al., arXiv 1812.06162).

    |G|^2 = (B_b |g_b|^2 - B_s |g_s|^2) / (B_b - B_s) and S = (|g_s|^2 - |g_b|^2) / (1/B_s - 1/B_b) are unbiased; their
    ratio is not, so both are averaged before dividing. Measured critical batches of language models can be far larger
    (arXiv 2505.23971).

    Args:
        small_batch (`float`): B_s, e.g. sequences of one micro-batch or rank.
        big_batch (`float`): B_b, sequences of the whole update.
        decay (`float`, *optional*, defaults to 0.99): Of the averages, in [0, 1).
    """

    small_batch: float
    big_batch: float
    decay: float = 0.99

    def __post_init__(self) -> None:
        if positive("small_batch", self.small_batch) >= positive("big_batch", self.big_batch):
            raise UserError(f"small_batch = {self.small_batch:g}; it must be below big_batch = {self.big_batch:g}.")
        if not 0 <= self.decay < 1:
            raise UserError(f"decay = {self.decay!r}; a number in [0, 1) is needed.")
        self._signal, self._noise, self._weight = 0.0, 0.0, 0.0

    def update(self, small_norm_squared: float, big_norm_squared: float) -> None:
        """Takes the squared gradient norms of one step.

        Args:
            small_norm_squared (`float`): |g_s|^2, averaged over the step's small batches.
            big_norm_squared (`float`): |g_b|^2.
        """
        small, big = self.small_batch, self.big_batch
        signal = (big * big_norm_squared - small * small_norm_squared) / (big - small)
        noise = (small_norm_squared - big_norm_squared) / (1 / small - 1 / big)
        self._signal = self.decay * self._signal + (1 - self.decay) * signal
        self._noise = self.decay * self._noise + (1 - self.decay) * noise
        self._weight = self.decay * self._weight + (1 - self.decay)

    @property
    def signal(self) -> float | None:
        """`float`, *optional*: Estimate of |G|^2, `None` before the first step."""
        return self._signal / self._weight if self._weight else None

    @property
    def noise(self) -> float | None:
        """`float`, *optional*: Estimate of S, the trace of a sample's gradient covariance."""
        return self._noise / self._weight if self._weight else None

    @property
    def batch(self) -> float | None:
        """`float`, *optional*: B_simple = S / |G|^2 in samples; `None` while the estimate of |G|^2 is not positive."""
        return self._noise / self._signal if self._weight and self._signal > 0 else None


def batch_trade_off(batch: float, critical_batch: float) -> tuple[float, float]:
    """Steps and samples against their minima, (S / S_min - 1)(E / E_min - 1) = 1 (arXiv 1812.06162).

    Args:
        batch (`float`): B.
        critical_batch (`float`): B_crit in the same unit.

    Returns:
        `tuple[float, float]`: S / S_min = 1 + B_crit / B and E / E_min = 1 + B / B_crit.
    """
    ratio = positive("batch", batch) / positive("critical_batch", critical_batch)
    return 1 + 1 / ratio, 1 + ratio


@dataclass(frozen=True)
class WidthTransfer:
    """Hyperparameters carried to another width by mu-P for Adam (arXiv 2203.03466).

    Args:
        hidden_learning_rate (`float`): Of matrices whose input and output both grow.
        embedding_learning_rate (`float`): Of embeddings, norms and biases: unchanged.
        hidden_std (`float`): Initial standard deviation of those matrices.
        logit_multiplier (`float`): Factor on the logits.
        attention_scale_over_head_dim (`float`): Numerator c of the score scale c / head_dim.
        residual_multiplier (`float`): Factor on each residual branch for the change of depth.
    """

    hidden_learning_rate: float
    embedding_learning_rate: float
    hidden_std: float
    logit_multiplier: float
    attention_scale_over_head_dim: float
    residual_multiplier: float


def transfer_width(
    learning_rate: float,
    std: float,
    base_width: int,
    width: int,
    base_depth: int = 1,
    depth: int = 1,
    depth_exponent: float = 0.5,
    base_head_dim: int = 64,
) -> WidthTransfer:
    """Carries what was tuned on a narrow model to a wide one.

    Args:
        learning_rate (`float`): Best peak at the base width.
        std (`float`): Initial standard deviation there.
        base_width (`int`): Hidden size it was tuned at.
        width (`int`): Hidden size to go to.
        base_depth (`int`, *optional*, defaults to 1): Layers it was tuned at.
        depth (`int`, *optional*, defaults to 1): Layers to go to.
        depth_exponent (`float`, *optional*, defaults to 0.5): 0.5 for depth-mu-P (arXiv 2310.02244), 1 for CompleteP
            (arXiv 2505.01618).
        base_head_dim (`int`, *optional*, defaults to 64): Head width there, where scores keep 1 / sqrt.

    Returns:
        `WidthTransfer`: With m = width / base_width: learning rate / m, std / sqrt(m), logits / m.
    """
    ratio = positive("width", width) / positive("base_width", base_width)
    return WidthTransfer(
        hidden_learning_rate=positive("learning_rate", learning_rate) / ratio,
        embedding_learning_rate=learning_rate,
        hidden_std=positive("std", std) / math.sqrt(ratio),
        logit_multiplier=1 / ratio,
        attention_scale_over_head_dim=math.sqrt(base_head_dim),
        residual_multiplier=(positive("base_depth", base_depth) / positive("depth", depth)) ** depth_exponent,
    )


def transfer_weight_decay(
    weight_decay: float, learning_rate: float, steps: float, new_learning_rate: float, new_steps: float
) -> float:
    """Weight decay that keeps the shrinkage of a whole run: lambda * learning rate * steps stays the same.

    Args:
        weight_decay (`float`): lambda of AdamW as torch has it (multiplied by the learning rate).
        learning_rate (`float`): Peak it was tuned at.
        steps (`float`): Steps it was tuned over.
        new_learning_rate (`float`): Peak to go to.
        new_steps (`float`): Steps to go to.

    Returns:
        `float`: lambda there.
    """
    before = positive("learning_rate", learning_rate) * positive("steps", steps)
    after = positive("new_learning_rate", new_learning_rate) * positive("new_steps", new_steps)
    return positive("weight_decay", weight_decay) * before / after

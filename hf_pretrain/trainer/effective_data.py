"""What a run's tokens are worth where some of them are read again (the data-constrained law, arXiv 2305.16264).

Per source: D tokens drawn of U different ones are worth D' = U + U R* (1 - exp(-(D/U - 1) / R*)) fresh ones, R* = 15.4
(`planning.repetition`). Tokens that earlier stages read count as read: a run's worth is D' after it less D' before it.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_pretrain.data.repeats import SourcePlan
from hf_pretrain.planning.repetition import effective_tokens, repetition_advice


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EffectiveData:
    """The worth of a run's tokens.

    Args:
        tokens (`int`): Tokens that the run reads.
        effective_tokens (`float`): Fresh tokens that would be worth as much.
        by_source (`dict[str, float]`): The same by source.
        warnings (`list[str]`): One sentence a source that is read so often that much is lost.
    """

    tokens: int
    effective_tokens: float
    by_source: dict[str, float]
    warnings: list[str]

    @property
    def share(self) -> float:
        """What a token is worth on average, 1 where nothing is read twice."""
        return self.effective_tokens / self.tokens if self.tokens else 1.0

    def to_json(self) -> dict[str, Any]:
        """Describes it as plain JSON data.

        Returns:
            `dict[str, Any]`: `effective_tokens`, `effective_share` and `effective_tokens_by_source`.
        """
        return {
            "effective_tokens": self.effective_tokens,
            "effective_share": self.share,
            "effective_tokens_by_source": dict(self.by_source),
        }


def effective_data(plans: Sequence[SourcePlan]) -> EffectiveData:
    """Computes what a plan's tokens are worth.

    Args:
        plans (`Sequence[SourcePlan]`): What the run draws from each source, of `MixtureDataset.plan`.

    Returns:
        `EffectiveData`: The worth, in all and by source.
    """

    def worth(tokens: float, held: int) -> float:
        return effective_tokens(tokens, min(tokens, held)) if tokens > 0 else 0.0

    by_source, warnings = {}, []
    for plan in plans:
        if not plan.tokens:
            continue
        after = plan.epochs * plan.unique_tokens
        before = max(after - plan.tokens, 0.0)
        by_source[plan.name] = worth(after, plan.unique_tokens) - worth(before, plan.unique_tokens)
        level, sentence = repetition_advice(plan.epochs)
        if level != "ok":
            warnings.append(f"{plan.name}: {sentence}")
    tokens = sum(plan.tokens for plan in plans)
    return EffectiveData(tokens, sum(by_source.values()), by_source, warnings)


def log_effective_data(data: EffectiveData) -> None:
    """Says it before the first step.

    Args:
        data (`EffectiveData`): The worth of the run's tokens.
    """
    logger.info(
        "Data: %s tokens, worth %s fresh ones (%.1f%%) by the data-constrained law",
        f"{data.tokens:,}",
        f"{data.effective_tokens:,.0f}",
        100 * data.share,
    )
    for sentence in data.warnings:
        logger.warning("Data: %s", sentence)

"""What caused a loss spike, as pure arithmetic on what was measured: bad data, numerics, learning rate, or unknown.

The batch of the step is compared with a reference batch (the one before it) at the same weights, in the same
precision, so that z-loss, router terms and the level of training cancel out. The weights the step was made with are
compared with those of a checkpoint before it. From that:

    bad data       this batch is high, the reference is not, with healthy weights and in fp32 too
    numerics       weights that are not finite or moved further than the optimizer moves them; high in the run's
                   precision and not in fp32; or a value that does not come again from the same batch and weights
    learning rate  more than the schedule says; or all batches are high now and were not at the checkpoint
    unknown        none of these, or what is needed is missing

A cause is often data times state (PaLM, arXiv 2204.02311, section 5.1): the lines say what speaks for the verdict.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal


Cause = Literal["bad data", "numerics", "learning rate", "unknown"]

# Least rise in nats that counts, whatever the spread of the accepted losses.
MIN_RISE = 0.2
# Standard deviations of the accepted losses that a rise must have as well.
RISE_IN_STD = 4.0
# A gradient norm is high at so many times what it is compared with.
NORM_RATIO = 3.0
# A learning rate is wrong at so many times what the schedule says.
RATE_RATIO = 2.0
# Above this share of weights that moved too far it is the step size, below it single weights were changed.
SHARE_OF_CORRUPTION = 0.01


@dataclass(frozen=True)
class Evaluation:
    """The batch at one set of weights, in one precision. Losses are cross-entropies in nats per token.

    Args:
        weights (`str`): `"previous"`, of a checkpoint before the step, or `"current"`.
        precision (`str`): `"float32"` or that of the run, e.g. `"bfloat16"`.
        loss (`float`): Of the batch; NaN or inf where it is.
        reference_loss (`float`, *optional*): Of the reference batch.
        grad_norm (`float`, *optional*): Of the batch's gradient.
        reference_grad_norm (`float`, *optional*): Of the reference's.
        lse_max (`float`, *optional*): Largest logsumexp of the batch's logits.
    """

    weights: str
    precision: str
    loss: float
    reference_loss: float | None = None
    grad_norm: float | None = None
    reference_grad_norm: float | None = None
    lse_max: float | None = None


@dataclass(frozen=True)
class DocumentLoss:
    """A document's part in the batch.

    Args:
        loss (`float`): Mean cross-entropy over its tokens, in nats.
        num_tokens (`int`): Its targets in the batch.
        excess_share (`float`): Its part in what the batch loses above the reference loss, in [0, 1].
        source (`str`, *optional*, defaults to `""`): Its source.
        document (`str`, *optional*, defaults to `""`): Its id, or its number in the source.
        url (`str`, *optional*): Where it came from.
        sample_index (`int`, *optional*, defaults to -1): The sample that held it.
    """

    loss: float
    num_tokens: int
    excess_share: float
    source: str = ""
    document: str = ""
    url: str | None = None
    sample_index: int = -1


@dataclass(frozen=True)
class Evidence:
    """All that the verdict is reached from; what was not measured is left out.

    Args:
        step (`int`): The step, from 1.
        recorded_loss (`float`, *optional*): The loss the run saw; NaN or inf where it was.
        recorded_grad_norm (`float`, *optional*): The gradient norm the run saw, before clipping.
        usual_loss (`float`, *optional*): Mean of the accepted losses before.
        usual_loss_std (`float`, *optional*, defaults to 0.0): Their standard deviation.
        usual_grad_norm (`float`, *optional*): Mean of the accepted gradient norms before.
        evaluations (`Sequence[Evaluation]`, *optional*): The batch evaluated again.
        exact_weights (`bool`, *optional*, defaults to `False`): Whether `"current"` are the weights the step was
            made with, so that the run's own numbers must come again.
        learning_rate (`float`, *optional*): In use at the step.
        planned_learning_rate (`float`, *optional*): By the schedule.
        nonfinite_weights (`int`, *optional*, defaults to 0): Weights of `"current"` that are NaN or inf.
        num_weights (`int`, *optional*, defaults to 0): All weights.
        moved_too_far (`int`, *optional*, defaults to 0): Weights that differ from `"previous"` by more than the
            optimizer can have moved them.
        documents (`Sequence[DocumentLoss]`, *optional*): The batch's documents, worst first.
    """

    step: int
    recorded_loss: float | None = None
    recorded_grad_norm: float | None = None
    usual_loss: float | None = None
    usual_loss_std: float = 0.0
    usual_grad_norm: float | None = None
    evaluations: Sequence[Evaluation] = ()
    exact_weights: bool = False
    learning_rate: float | None = None
    planned_learning_rate: float | None = None
    nonfinite_weights: int = 0
    num_weights: int = 0
    moved_too_far: int = 0
    documents: Sequence[DocumentLoss] = ()

    @property
    def margin(self) -> float:
        """`float`: Rise in nats from which a loss counts as high."""
        return max(MIN_RISE, RISE_IN_STD * self.usual_loss_std)

    def evaluation(self, weights: str, fp32: bool = True) -> Evaluation | None:
        """Finds an evaluation.

        Args:
            weights (`str`): `"previous"` or `"current"`.
            fp32 (`bool`, *optional*, defaults to `True`): In fp32, else in the run's precision where it is another.

        Returns:
            `Evaluation`: It, or `None`.
        """
        fits = [one for one in self.evaluations if one.weights == weights and (one.precision == "float32") == fp32]
        return fits[0] if fits else None


@dataclass(frozen=True)
class Verdict:
    """The cause and what speaks for it.

    Args:
        kind (`str`): `"bad data"`, `"numerics"`, `"learning rate"` or `"unknown"`.
        lines (`list[str]`): The evidence, the weightiest first.
    """

    kind: Cause
    lines: list[str] = field(default_factory=list)


def verdict(evidence: Evidence) -> Verdict:
    """Reaches the verdict.

    Args:
        evidence (`Evidence`): What was measured.

    Returns:
        `Verdict`: The cause and its evidence.
    """
    for rule in (_weights, _rate, _precision, _batch_or_state, _gradient, _not_again):
        found = rule(evidence)
        if found is not None:
            return found
    lines = ["nothing measured sets this batch, these weights, the precision or the learning rate apart"]
    if not evidence.evaluations:
        lines = ["the batch could not be evaluated again: neither its data nor weights near the step are there"]
    return Verdict("unknown", lines)


def _weights(evidence: Evidence) -> Verdict | None:
    """Weights that no update made."""
    far, total = evidence.moved_too_far, max(evidence.num_weights, 1)
    ratio = _rate_ratio(evidence)
    if far and far / total > SHARE_OF_CORRUPTION:
        line = f"{far:,} of {total:,} weights moved further since the checkpoint than the schedule's updates move them"
        return Verdict("learning rate", [line, *_rate_lines(evidence)])
    if evidence.nonfinite_weights and not (ratio is not None and ratio > RATE_RATIO):
        return Verdict("numerics", [f"{evidence.nonfinite_weights:,} of {total:,} weights are not finite"])
    if far:
        line = f"{far:,} of {total:,} weights differ from the checkpoint by more than any update moves a weight"
        return Verdict("numerics", [line, "all others lie within reach: a value was changed outside the optimizer"])
    return None


def _rate(evidence: Evidence) -> Verdict | None:
    """A learning rate that the schedule does not know."""
    ratio = _rate_ratio(evidence)
    if ratio is None or ratio <= RATE_RATIO:
        return None
    return Verdict("learning rate", _rate_lines(evidence) + _state_lines(evidence))


def _precision(evidence: Evidence) -> Verdict | None:
    """High in the run's precision, not in fp32."""
    for weights in ("current", "previous"):
        full, half = evidence.evaluation(weights), evidence.evaluation(weights, fp32=False)
        if full is None or half is None or not math.isfinite(full.loss):
            continue
        if not math.isfinite(half.loss) or half.loss - full.loss > evidence.margin:
            line = f"at the {weights} weights the batch loses {full.loss:.3f} in fp32, {half.loss:.3f} in "
            return Verdict("numerics", [line + half.precision])
        norms = full.grad_norm, half.grad_norm
        if None not in norms and math.isfinite(norms[0]) and not math.isfinite(norms[1]):
            line = f"at the {weights} weights the gradient norm is {norms[0]:.3g} in fp32, {norms[1]} in "
            return Verdict("numerics", [line + half.precision])
    full = evidence.evaluation("current")
    if full is not None and not math.isfinite(full.loss):
        return Verdict("numerics", [f"the batch's loss is {full.loss} even in fp32, with weights that are all finite"])
    return None


def _batch_or_state(evidence: Evidence) -> Verdict | None:
    """This batch alone is high, or all are."""
    now, before = evidence.evaluation("current"), evidence.evaluation("previous")
    state = _state_lines(evidence)
    above = {one.weights: _above_reference(one) for one in (now, before) if one is not None}
    high = {name: rise for name, rise in above.items() if rise is not None and rise > evidence.margin}
    level = now.reference_loss if now is not None else None
    worse = bool(state)
    if high and not worse:
        lines = [
            f"at the {name} weights this batch loses {rise:.2f} nats more per token than the batch before it"
            for name, rise in high.items()
        ]
        return Verdict("bad data", lines + _document_lines(evidence))
    if worse:
        # A batch that was already high at weights that were still healthy is the data's doing all the same.
        if before is not None and "previous" in high and high["previous"] > (level or 0.0) - before.reference_loss:
            line = f"already at the previous weights this batch loses {high['previous']:.2f} nats more than the one"
            return Verdict("bad data", [f"{line} before it", *_document_lines(evidence)])
        return Verdict("learning rate", state + _rate_lines(evidence))
    return None


def _gradient(evidence: Evidence) -> Verdict | None:
    """The loss is ordinary and the gradient is not."""
    for name in ("current", "previous"):
        one = evidence.evaluation(name)
        if one is None or one.grad_norm is None or not one.reference_grad_norm:
            continue
        if one.grad_norm > NORM_RATIO * one.reference_grad_norm:
            line = (
                f"at the {name} weights this batch's gradient norm is {one.grad_norm:.3g}, that of the batch before "
            )
            return Verdict("bad data", [line + f"{one.reference_grad_norm:.3g}", *_document_lines(evidence)])
    now, usual = evidence.evaluation("current"), evidence.usual_grad_norm
    if now is None or not usual or now.reference_grad_norm is None:
        return None
    if now.reference_grad_norm > NORM_RATIO * usual:
        line = f"the gradient norm of another batch is {now.reference_grad_norm:.3g} now, where {usual:.3g} was usual"
        return Verdict("learning rate", [line, *_rate_lines(evidence)])
    return None


def _not_again(evidence: Evidence) -> Verdict | None:
    """What the run saw does not come again."""
    now = evidence.evaluation("current") or evidence.evaluation("previous")
    if now is None or not math.isfinite(now.loss):
        return None
    loss, norm = evidence.recorded_loss, evidence.recorded_grad_norm
    if loss is not None and not math.isfinite(loss):
        return Verdict("numerics", [f"the run saw a loss of {loss}; the same batch now loses {now.loss:.3f}"])
    if norm is not None and not math.isfinite(norm) and (now.grad_norm is None or math.isfinite(now.grad_norm)):
        again = "is finite" if now.grad_norm is None else f"has a gradient norm of {now.grad_norm:.3g}"
        return Verdict("numerics", [f"the run saw a gradient norm of {norm}; the same batch now {again}"])
    if not evidence.exact_weights:
        return None
    if loss is not None and evidence.usual_loss is not None and loss - evidence.usual_loss > evidence.margin:
        line = f"the run saw a loss of {loss:.3f}; the same batch at the same weights now loses {now.loss:.3f}"
        return Verdict("numerics", [line, "the run's value does not come again from what it was made of"])
    usual = evidence.usual_grad_norm
    if norm is not None and usual and now.grad_norm is not None and norm > NORM_RATIO * max(usual, now.grad_norm):
        line = f"the run saw a gradient norm of {norm:.3g}; the same batch at the same weights now has "
        return Verdict("numerics", [line + f"{now.grad_norm:.3g}"])
    return None


def _above_reference(one: Evaluation) -> float | None:
    return None if one.reference_loss is None else one.loss - one.reference_loss


def _rate_ratio(evidence: Evidence) -> float | None:
    if evidence.learning_rate is None or not evidence.planned_learning_rate:
        return None
    return evidence.learning_rate / evidence.planned_learning_rate


def _rate_lines(evidence: Evidence) -> list[str]:
    ratio = _rate_ratio(evidence)
    if ratio is None:
        return []
    planned, used = evidence.planned_learning_rate, evidence.learning_rate
    if ratio > RATE_RATIO:
        return [f"the learning rate was {used:.3g}, {ratio:.3g} times the {planned:.3g} of the schedule"]
    return [f"the learning rate was {used:.3g}, as scheduled: a lower one, or a longer warm-up, is the remedy"]


def _state_lines(evidence: Evidence) -> list[str]:
    """Whether other batches are worse off than before: by the checkpoint, else by the usual loss."""
    now, before = evidence.evaluation("current"), evidence.evaluation("previous")
    if now is None or now.reference_loss is None:
        return []
    if before is not None and before.reference_loss is not None:
        rise, since = now.reference_loss - before.reference_loss, "at the checkpoint before"
        level = before.reference_loss
    elif evidence.usual_loss is not None:
        rise, since, level = now.reference_loss - evidence.usual_loss, "usual", evidence.usual_loss
    else:
        return []
    if math.isfinite(rise) and rise <= evidence.margin:
        return []
    return [f"another batch loses {now.reference_loss:.3f} at the current weights, {level:.3f} was {since}"]


def _document_lines(evidence: Evidence) -> list[str]:
    """How few documents hold half of the excess."""
    held, count = 0.0, 0
    for document in sorted(evidence.documents, key=lambda one: -one.excess_share):
        held, count = held + document.excess_share, count + 1
        if held >= 0.5:
            total = len(evidence.documents)
            worst = max(evidence.documents, key=lambda one: one.excess_share)
            name = f"{worst.source} {worst.document}".strip()
            return [
                f"{count} of {total} documents hold {held:.0%} of the excess, first {name or 'one without a name'}"
            ]
    return []

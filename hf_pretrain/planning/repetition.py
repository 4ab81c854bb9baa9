"""What repeated data is still worth (Muennighoff et al., arXiv 2305.16264).

With U unique tokens and D seen, R = D / U - 1 repeats are worth as much as fresh tokens

    D' = U + U R* (1 - exp(-R / R*)),   R* = 15.387756

so the value of one more token falls as exp(-R / R*): 94 % after two epochs, 1/e at R = R* (16.4 epochs). The same
form with R* = 5.309743 holds for parameters beyond what the unique data can feed.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from hf_pretrain.planning.quantities import parse_count
from hf_pretrain.utils.errors import UserError


REPEAT_CONSTANT = 15.387756
EXCESS_PARAMETER_CONSTANT = 5.309743

WARN_ABOVE_EPOCHS = 4.0
DIMINISHING_ABOVE_EPOCHS = 1.0 + REPEAT_CONSTANT
REFUSE_ABOVE_EPOCHS = 40.0


def effective_tokens(tokens: float, unique_tokens: float) -> float:
    """Fresh tokens that would be worth as much as these, repeats included.

    Args:
        tokens (`float`): Tokens seen, D.
        unique_tokens (`float`): Distinct tokens among them, U.

    Returns:
        `float`: D', at most `tokens` and at most 16.39 U.

    Raises:
        UserError: If a count is not positive.
    """
    _check(tokens, unique_tokens, "tokens", "unique_tokens")
    return _saturating(tokens, unique_tokens, REPEAT_CONSTANT)


def effective_parameters(parameters: float, useful_parameters: float) -> float:
    """Parameters that count, when the unique data can feed only so many.

    Args:
        parameters (`float`): Of the model, N.
        useful_parameters (`float`): Compute-optimal number for the unique tokens, U_N.

    Returns:
        `float`: N', at most `parameters`.

    Raises:
        UserError: If a count is not positive.
    """
    _check(parameters, useful_parameters, "parameters", "useful_parameters")
    return _saturating(parameters, useful_parameters, EXCESS_PARAMETER_CONSTANT)


def repeat_value(epochs: float) -> float:
    """Value of one more token after so many epochs, as a share of a fresh one.

    Args:
        epochs (`float`): D / U.

    Returns:
        `float`: 1 up to one epoch, then exp(-(epochs - 1) / R*).
    """
    return math.exp(-max(epochs - 1.0, 0.0) / REPEAT_CONSTANT)


def repetition_advice(epochs: float) -> tuple[str, str]:
    """What to say about so many epochs over one source.

    Args:
        epochs (`float`): Passes over the source's unique tokens.

    Returns:
        `tuple[str, str]`: Level (`"ok"`, `"warn"`, `"diminishing"` or `"refuse"`) and one sentence.
    """
    kept = f"{epochs:.1f} epochs are worth {_saturating(max(epochs, 1e-9), 1.0, REPEAT_CONSTANT):.2f} of fresh data"
    if epochs <= WARN_ABOVE_EPOCHS:
        return "ok", f"{kept}."
    if epochs <= DIMINISHING_ABOVE_EPOCHS:
        return "warn", f"{kept}; more than {WARN_ABOVE_EPOCHS:g} epochs lose noticeably."
    if epochs <= REFUSE_ABOVE_EPOCHS:
        return "diminishing", f"{kept}; one more token is worth {repeat_value(epochs):.2f} of a fresh one."
    return "refuse", f"{kept}; above {REFUSE_ABOVE_EPOCHS:g} epochs nothing is gained: find more data, or train less."


@dataclass(frozen=True)
class SourceRepeats:
    """How often a plan reads one source.

    Args:
        name (`str`): The source.
        unique_tokens (`float`): What it holds.
        share (`float`): Of the run's tokens.
        epochs (`float`): Passes.
        effective_tokens (`float`): Fresh tokens that would be worth as much.
        level (`str`): `"ok"`, `"warn"`, `"diminishing"` or `"refuse"`.
        advice (`str`): One sentence.
    """

    name: str
    unique_tokens: float
    share: float
    epochs: float
    effective_tokens: float
    level: str
    advice: str


def repeats_by_source(
    tokens: float, unique_tokens: Mapping[str, float], shares: Mapping[str, float] | None = None
) -> list[SourceRepeats]:
    """Epochs of every source of a mixture, and what they are worth.

    Args:
        tokens (`float`): Of the run.
        unique_tokens (`Mapping[str, float]`): Tokens each source holds.
        shares (`Mapping[str, float]`, *optional*): Shares of the run, 1 together; what the sources hold by default.

    Returns:
        `list[SourceRepeats]`: In the order given.

    Raises:
        UserError: If a number is not positive, or the shares are of other sources or do not add up to 1.
    """
    total = sum(unique_tokens.values())
    if shares is None:
        shares = {name: size / total for name, size in unique_tokens.items()}
    if set(shares) != set(unique_tokens):
        odd = ", ".join(sorted(set(shares) ^ set(unique_tokens)))
        raise UserError(f"sources: {odd}; every source needs its tokens and its share.")
    if abs(sum(shares.values()) - 1) > 1e-6:
        raise UserError(f"sources: the shares add up to {sum(shares.values()):g}; they must add up to 1.")
    rows = []
    for name, held in unique_tokens.items():
        _check(tokens * shares[name], held, f"share of {name}", f"tokens of {name}")
        seen = tokens * shares[name]
        level, advice = repetition_advice(seen / held)
        rows.append(SourceRepeats(name, held, shares[name], seen / held, effective_tokens(seen, held), level, advice))
    return rows


def parse_sources(text: str) -> tuple[dict[str, float], dict[str, float] | None]:
    """Reads `"web=4T:0.7,code=300B:0.3"`; without the shares the sources count as what they hold.

    Args:
        text (`str`): Name, tokens and share of each source.

    Returns:
        `tuple`: Tokens by source, and shares by source or `None`.

    Raises:
        UserError: If it cannot be read, a name comes twice, or only some have a share.
    """
    held: dict[str, float] = {}
    shares: dict[str, float] = {}
    for part in text.split(","):
        name, equals, rest = part.strip().partition("=")
        if not equals or not name or name in held:
            raise UserError(f"sources = {text!r}; write each source once, like web=4T:0.7,code=300B:0.3.")
        size, colon, share = rest.partition(":")
        held[name] = parse_count(size, f"tokens of {name}")
        if colon:
            try:
                shares[name] = float(share)
            except ValueError:
                raise UserError(f"sources = {text!r}; the share {share!r} of {name} is no number.") from None
    if shares and len(shares) != len(held):
        raise UserError(f"sources = {text!r}; give all of them a share, or none.")
    return held, shares or None


def _saturating(seen: float, unique: float, constant: float) -> float:
    if seen <= unique:
        return seen
    repeats = seen / unique - 1.0
    return unique + unique * constant * -math.expm1(-repeats / constant)


def _check(first: float, second: float, first_name: str, second_name: str) -> None:
    for name, value in ((first_name, first), (second_name, second)):
        if not (isinstance(value, int | float) and value > 0 and math.isfinite(value)):
            raise UserError(f"{name} = {value!r}; a positive number is needed.")

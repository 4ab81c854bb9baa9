"""How often a run repeats its sources, and the cap on it.

Up to four epochs of a source are worth nearly as much as new tokens; beyond that the worth of a repetition falls fast
(Muennighoff et al. 2023, https://huggingface.co/papers/2305.16264). A plan that goes over a source's cap is refused
before the first step, or the excess is moved to the other sources in proportion to their weights.
"""

import logging
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

DEFAULT_MAX_EPOCHS = 4.0
MaxEpochs = float | Mapping[str, float]
OnExcess = Literal["refuse", "redistribute"]


@dataclass(frozen=True)
class SourcePlan:
    """What a run will draw from one source.

    Args:
        name (`str`): Name of the source.
        samples (`int`): Windows drawn in this run.
        tokens (`int`): Tokens drawn in this run.
        share (`float`): Planned share of the run's tokens.
        unique_tokens (`int`): Tokens the source holds in full windows.
        epochs (`float`): Passes over the source at the end of the run, those of earlier stages included.
        max_epochs (`float`): The cap.
    """

    name: str
    samples: int
    tokens: int
    share: float
    unique_tokens: int
    epochs: float
    max_epochs: float


def epoch_caps(sources: tuple[str, ...], max_epochs: MaxEpochs | None) -> dict[str, float]:
    """Resolves the caps to one a source.

    Args:
        sources (`tuple[str, ...]`): Names of the sources.
        max_epochs (`float` or `Mapping[str, float]`, *optional*): One cap for all, or one a source (4 where none is
            given).

    Returns:
        `dict[str, float]`: The cap of each source.

    Raises:
        UserError: If a name is unknown or a cap is not above 0.
    """
    if max_epochs is None:
        max_epochs = DEFAULT_MAX_EPOCHS
    if isinstance(max_epochs, Mapping):
        for name in max_epochs:
            if name not in sources:
                raise UserError(f"max_epochs: {unknown_name_message('source', name, sources)}")
        caps = {name: max_epochs.get(name, DEFAULT_MAX_EPOCHS) for name in sources}
    else:
        caps = dict.fromkeys(sources, max_epochs)
    for name, cap in caps.items():
        if isinstance(cap, bool) or not isinstance(cap, (int, float)) or not cap > 0:
            raise UserError(
                f"max_epochs for {name} = {cap!r}; allowed are numbers above 0, e.g. {DEFAULT_MAX_EPOCHS:g}"
            )
    return {name: float(cap) for name, cap in caps.items()}


def plan_sources(
    schedule: MixtureSchedule, windows: Mapping[str, int], seq_length: int, max_epochs: MaxEpochs | None = None
) -> list[SourcePlan]:
    """Computes what the whole run will draw.

    Args:
        schedule (`MixtureSchedule`): The schedule.
        windows (`Mapping[str, int]`): Full windows each source holds.
        seq_length (`int`): Tokens of a window.
        max_epochs (`float` or `Mapping[str, float]`, *optional*): The caps.

    Returns:
        `list[SourcePlan]`: One plan a source, in the schedule's order.
    """
    caps = epoch_caps(schedule.sources, max_epochs)
    counts, shares = schedule.counts(schedule.num_samples), schedule.shares()
    plans = []
    for name in schedule.sources:
        drawn = counts[name] + schedule.start_draws.get(name, 0)
        epochs = drawn / windows[name] if windows[name] else 0.0
        plans.append(
            SourcePlan(
                name,
                counts[name],
                counts[name] * seq_length,
                shares[name],
                windows[name] * seq_length,
                epochs,
                caps[name],
            )
        )
    return plans


def fit_repeats(
    schedule: MixtureSchedule,
    windows: Mapping[str, int],
    seq_length: int,
    max_epochs: MaxEpochs | None = None,
    on_excess: OnExcess = "refuse",
    fixed_samples: int = 0,
) -> MixtureSchedule:
    """Makes sure no source is read more often than its cap.

    Args:
        schedule (`MixtureSchedule`): The schedule as asked for.
        windows (`Mapping[str, int]`): Full windows each source holds.
        seq_length (`int`): Tokens of a window.
        max_epochs (`float` or `Mapping[str, float]`, *optional*): The caps; 4 by default.
        on_excess (`"refuse"` or `"redistribute"`, *optional*, defaults to `"refuse"`): What to do with a plan that
            goes over.
        fixed_samples (`int`, *optional*, defaults to 0): Phases that end at or before this sample keep their shares,
            for they were trained on already.

    Returns:
        `MixtureSchedule`: The schedule itself, or one with the excess moved to the other sources.

    Raises:
        UserError: If a source has a weight but no full window, or a cap is exceeded and the excess cannot be moved.
    """
    if on_excess not in ("refuse", "redistribute"):
        raise UserError(f"on_excess = {on_excess!r}; allowed are 'refuse' and 'redistribute'")
    caps = epoch_caps(schedule.sources, max_epochs)
    for name in schedule.sources:
        if not windows[name] and schedule.counts(schedule.num_samples)[name]:
            raise UserError(
                f"source {name!r} holds no full window of {seq_length} tokens; leave it out of "
                "the mixture, give it more "
                "text, or use a shorter seq_length"
            )
    room = {name: caps[name] * windows[name] - schedule.start_draws.get(name, 0) for name in schedule.sources}
    counts = schedule.counts(schedule.num_samples)
    over = {name: math.ceil(count - room[name]) for name, count in counts.items() if count and count > room[name]}
    if not over:
        return schedule
    worst = max(over, key=lambda name: over[name])
    if on_excess == "refuse":
        plan = next(item for item in plan_sources(schedule, windows, seq_length, caps) if item.name == worst)
        earlier = schedule.start_draws.get(worst, 0) / windows[worst]
        raise UserError(
            f"source {worst!r} would be read {plan.epochs:.2f} times ({earlier:.2f} of them in "
            "earlier stages), its cap "
            f"is max_epochs = {caps[worst]:g}: {over[worst] * seq_length:,} tokens too many of "
            f"{plan.tokens:,}; lower its "
            f"weight, train at most {_longest(schedule, room, seq_length):,} tokens, raise "
            "max_epochs, or set on_excess: "
            "redistribute"
        )
    fitted = _redistribute(schedule, room, fixed_samples)
    if fitted is None:
        raise UserError(
            f"the sources cannot fill {schedule.num_samples * seq_length:,} tokens within their caps of max_epochs: "
            f"{worst!r} is {over[worst] * seq_length:,} tokens over and no other source of its phase has room; all "
            f"sources together give {sum(int(max(rows, 0)) for rows in room.values()) * seq_length:,} tokens within "
            f"their caps, this mix {_longest(schedule, room, seq_length):,}: train on fewer tokens, add sources, or "
            "raise max_epochs"
        )
    before, after = schedule.shares(), fitted.shares()
    moved = ", ".join(f"{name} {before[name]:.3f} -> {after[name]:.3f}" for name in schedule.sources)
    logger.warning("Sources over their cap of epochs (%s); shares were moved: %s", ", ".join(sorted(over)), moved)
    return fitted


def _longest(schedule: MixtureSchedule, room: Mapping[str, int], seq_length: int) -> int:
    """The most tokens of a run with this schedule's order before some source passes its cap."""
    low, high = 0, schedule.num_samples
    while low < high:
        middle = (low + high + 1) // 2
        if all(count <= max(room[name], 0) for name, count in schedule.counts(middle).items()):
            low = middle
        else:
            high = middle - 1
    return low * seq_length


def _redistribute(schedule: MixtureSchedule, room: Mapping[str, int], fixed: int) -> MixtureSchedule | None:
    factors = dict.fromkeys(schedule.sources, 1.0)
    fitted = schedule
    # Every round lowers the sources that are over; what they lose can push others over, so it takes some rounds.
    for _ in range(200):
        counts = fitted.counts(fitted.num_samples)
        over = [name for name, count in counts.items() if count and count > room[name]]
        if not over:
            return fitted
        for name in over:
            factors[name] *= max(room[name] - 0.5, 0.0) / counts[name]
        free = [phase for phase in schedule.phases if phase.stop > fixed]
        if any(not any(phase.weights[name] * factors[name] for name in phase.weights) for phase in free):
            return None
        fitted = schedule.scaled(factors, fixed)
    return None

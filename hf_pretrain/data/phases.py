"""A phase of a run: a stretch of samples drawn with one set of weights, and how a recipe writes phases down."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


@dataclass(frozen=True)
class Phase:
    """A stretch of samples drawn with one set of weights.

    Args:
        name (`str`): What the logs call it.
        start (`int`): First sample.
        stop (`int`): End, exclusive.
        weights (`dict[str, float]`): Token share of each source; normalised to sum to 1.
        ramp (`int`, *optional*, defaults to 0): Number of samples over which the weights move linearly from the
            previous phase's to these.
        planned_stop (`int`, *optional*): Where the phase was to end when its order was laid out. A phase that a later
            change cut short keeps its order up to the cut, and one that became longer goes on with its order again.
        seq_length (`int`, *optional*): Context of the phase in tokens, a divisor of the run's. A row then holds
            several sequences of this length, which do not see each other: tokens of a step, and the windows drawn,
            stay the same. By default the run's.
    """

    name: str
    start: int
    stop: int
    weights: dict[str, float]
    ramp: int = 0
    planned_stop: int | None = None
    seq_length: int | None = None

    @property
    def end_of_plan(self) -> int:
        """Where the laid-out order of the phase ends."""
        return self.stop if self.planned_stop is None else self.planned_stop


def phases_from_config(config: Mapping[str, Any], num_samples: int, seq_length: int) -> list[Phase]:
    """Reads the phases of a recipe.

    Args:
        config (`Mapping[str, Any]`): `{phases: [...]}`, as `MixtureSchedule.from_config` takes it.
        num_samples (`int`): Length of the run in samples.
        seq_length (`int`): Tokens of a sample.

    Returns:
        `list[Phase]`: Phases that fill the run exactly.

    Raises:
        UserError: If a key or value is wrong, or the phases do not fill the run exactly.
    """
    others = set(config) - {"phases"}
    if others:
        raise UserError(f"mixture.{min(others)}: beside `phases` no other key is allowed; put weights into the phases")
    entries = config["phases"]
    if not isinstance(entries, Sequence) or isinstance(entries, str) or not entries:
        raise UserError("mixture.phases is empty; give at least one phase with `name` and `weights`")
    phases, position = [], 0
    for index, entry in enumerate(entries):
        length = _phase_length(entry, index, index == len(entries) - 1, position, num_samples, seq_length)
        where = f"mixture.phases[{index}]"
        ramp_fraction = entry.get("ramp_fraction", 0.0)
        if not is_number(ramp_fraction) or not 0 <= ramp_fraction <= 1:
            raise UserError(f"{where}.ramp_fraction = {ramp_fraction!r}; allowed is 0 to 1")
        name = str(entry.get("name", f"phase_{index}"))
        context = entry.get("seq_length")
        if context is not None:
            check_context(context, seq_length, f"{where}.seq_length")
        ramp = round(ramp_fraction * length)
        stop = position + length
        if position + 1 > num_samples or stop > num_samples:
            raise UserError(
                f"{where} ({name!r}) covers samples {position} to {stop}, beyond the end of the run, which has "
                f"{num_samples} of {seq_length} tokens; shorten the phases or train on more tokens"
            )
        phases.append(Phase(name, position, stop, dict(entry["weights"]), ramp, None, context))
        position = stop
    if position != num_samples:
        raise UserError(
            f"mixture.phases cover {position} of the run's {num_samples} samples of {seq_length} tokens; make the "
            "fractions sum to 1 or leave the length of the last phase out"
        )
    return phases


def check_context(context: Any, seq_length: int, where: str) -> None:
    """Makes sure that rows of a run can be cut into sequences of a phase.

    Args:
        context (`int`): Tokens of a sequence of the phase.
        seq_length (`int`): Tokens of a row.
        where (`str`): The field, for the message.

    Raises:
        UserError: If it is no whole number from 2 up that divides the row.
    """
    if isinstance(context, bool) or not isinstance(context, int) or context < 2 or seq_length % context:
        raise UserError(
            f"{where} = {context!r}; allowed are whole numbers from 2 up that divide the run's seq_length = "
            f"{seq_length}, the longest of all phases"
        )


def normalised_shares(phase: Phase, sources: Sequence[str]) -> list[Fraction]:
    """Checks a phase's weights and makes exact shares of them.

    Args:
        phase (`Phase`): The phase.
        sources (`Sequence[str]`): Names of the sources.

    Returns:
        `list[Fraction]`: One share a source, summing to 1.

    Raises:
        UserError: If a name is unknown, or weights are negative, not finite or all zero.
    """
    if not isinstance(phase.weights, Mapping) or not phase.weights:
        raise UserError(f"phase {phase.name!r}: weights = {phase.weights!r}; give a share for each source")
    for name, weight in phase.weights.items():
        if name not in sources:
            raise UserError(f"phase {phase.name!r}: {unknown_name_message('source', name, sources)}")
        if not is_number(weight) or not math.isfinite(weight) or weight < 0:
            raise UserError(f"phase {phase.name!r}: weights.{name} = {weight!r}; allowed are finite numbers from 0 up")
    # The shortest decimal of the float, so that 0.1 means one tenth and all arithmetic stays exact.
    raw = [Fraction(repr(phase.weights.get(name, 0))) for name in sources]
    total = sum(raw)
    if not total:
        raise UserError(f"phase {phase.name!r}: all weights are 0; give at least one source a share")
    return [weight / total for weight in raw]


def check_phases(phases: Sequence[Phase]) -> None:
    """Makes sure that phases join, from sample 0 on.

    Args:
        phases (`Sequence[Phase]`): The phases.

    Raises:
        UserError: If there is none, one is empty or overlaps another, there is a gap, or a ramp does not fit.
    """
    if not phases:
        raise UserError("a mixture needs at least one phase")
    position = 0
    for phase in phases:
        if phase.start != position:
            kind = "overlaps the phase before it" if phase.start < position else "leaves a gap before it"
            raise UserError(
                f"phase {phase.name!r} starts at sample {phase.start} and {kind}, which ends at {position}"
            )
        if phase.stop <= phase.start:
            raise UserError(
                f"phase {phase.name!r} holds no sample (from {phase.start} to {phase.stop}); "
                "make it longer or leave it out"
            )
        if not 0 <= phase.ramp <= phase.end_of_plan - phase.start:
            raise UserError(f"phase {phase.name!r}: a ramp of {phase.ramp} samples is longer than the phase")
        if phase.ramp and position == 0:
            raise UserError(
                f"phase {phase.name!r} is the first and has nothing to ramp from; set its ramp_fraction to 0"
            )
        position = phase.stop


def is_number(value: Any) -> bool:
    """Tells numbers from other values; `True` is none.

    Args:
        value (`Any`): Anything.

    Returns:
        `bool`: Whether it is an `int` or a `float`.
    """
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _phase_length(entry: Any, index: int, is_last: bool, position: int, num_samples: int, seq_length: int) -> int:
    """Converts a phase's `fraction`, `samples` or `tokens` to a number of samples, checking its keys."""
    where = f"mixture.phases[{index}]"
    if not isinstance(entry, Mapping):
        raise UserError(f"{where} = {entry!r}; give a mapping with `name`, `weights` and a length")
    allowed = ("name", "weights", "fraction", "samples", "tokens", "ramp_fraction", "seq_length")
    for key in entry:
        if key not in allowed:
            raise UserError(f"{where}: {unknown_name_message('key', key, allowed)}")
    if not isinstance(entry.get("weights"), Mapping):
        raise UserError(f"{where}.weights = {entry.get('weights')!r}; give a share for each source")
    given = [key for key in ("fraction", "samples", "tokens") if entry.get(key) is not None]
    if len(given) > 1:
        raise UserError(f"{where}: {given[0]} and {given[1]} both give its length; keep one")
    if not given:
        if not is_last:
            raise UserError(f"{where} has no length; give `fraction`, `samples` or `tokens`")
        return num_samples - position
    value = entry[given[0]]
    if not is_number(value) or not math.isfinite(value) or value <= 0:
        raise UserError(f"{where}.{given[0]} = {value!r}; allowed are numbers above 0")
    if given[0] == "fraction":
        if value > 1:
            raise UserError(f"{where}.fraction = {value!r}; allowed is above 0 up to 1")
        # Fractions that sum to 1 must fill the run exactly, whatever each rounds to.
        fills = abs(position / num_samples + value - 1) <= 1e-6 + 1 / num_samples
        return num_samples - position if is_last and fills else round(value * num_samples)
    return round(value / seq_length) if given[0] == "tokens" else round(value)

"""Spike detection as pure arithmetic: no tensors, no Trainer.

A value is a spike when it lies more than `threshold` standard deviations (population) above the mean of the last
`window` accepted values, and also above that mean by `min_rise` and by `min_relative_rise` times it: without a least
rise a constant series makes any change a spike. A value that is not finite is a spike from the first step on. Spikes
never enter the window, so they cannot raise the threshold for the next (bugs S1, S2); after `reset_after` finite
spikes in a row the new level is accepted and the window starts anew, so that a lasting step (another mixture) is no
endless alarm.

Early in a run the fall within a long window is wider than a spike. So a rise of `short_min_rise` is also judged by the
last `min_values` accepted values alone.

`spike_flags` gives the published definitions over a whole curve: OLMo 2's 7 sigma over 1000 values, both sides
(arXiv 2501.00656), and OLMo-core's 6 sigma over 128, one side; both let spikes into their window.
"""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_pretrain.utils.errors import UserError


@dataclass(frozen=True)
class SpikeVerdict:
    """What the detector thinks of one value.

    Args:
        is_spike (`bool`): Whether it is a spike.
        z_score (`float`): Standard deviations above the mean; 0 while the window fills, inf for what is not finite.
        mean (`float`): Centre of the accepted values before this one; NaN if there are none.
        std (`float`): Their spread.
    """

    is_spike: bool
    z_score: float
    mean: float
    std: float


class SpikeDetector:
    """One-sided spike detector over a window of accepted values.

    Args:
        window (`int`, *optional*, defaults to 128): Accepted values that the spread is taken over.
        threshold (`float`, *optional*, defaults to 6.0): Standard deviations above the mean.
        min_rise (`float`, *optional*, defaults to 0.1): Least rise above the mean, in the value's unit.
        min_relative_rise (`float`, *optional*, defaults to 0.0): Least rise as a share of the mean's size.
        min_values (`int`, *optional*, defaults to 16): Accepted values needed before a finite value can be a spike.
        robust (`bool`, *optional*, defaults to `False`): Median and 1.4826 times the median absolute deviation instead
            of mean and standard deviation.
        reset_after (`int`, *optional*, defaults to 64): Finite spikes in a row after which the new level is accepted.
        short_min_rise (`float`, *optional*): Least rise above the last `min_values` accepted values that is judged by
            these alone; by default none is.

    Raises:
        UserError: If an option can never or always fire.
    """

    def __init__(
        self,
        window: int = 128,
        threshold: float = 6.0,
        min_rise: float = 0.1,
        min_relative_rise: float = 0.0,
        min_values: int = 16,
        robust: bool = False,
        reset_after: int = 64,
        short_min_rise: float | None = None,
    ) -> None:
        for name, value, least in (
            ("window", window, 2),
            ("min_values", min_values, 2),
            ("reset_after", reset_after, 1),
        ):
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise UserError(f"{name} = {value!r}; a whole number of at least {least} is needed.")
        if min_values > window:
            raise UserError(f"min_values = {min_values}; the window holds {window}: no spike could ever be seen.")
        for name, value in (
            ("threshold", threshold),
            ("min_rise", min_rise),
            ("min_relative_rise", min_relative_rise),
            ("short_min_rise", 0.0 if short_min_rise is None else short_min_rise),
        ):
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise UserError(f"{name} = {value!r}; a finite number of at least 0 is needed.")
        if threshold == 0:
            raise UserError("threshold = 0; every second value would be a spike; 6 is usual.")
        self.window = window
        self.threshold = float(threshold)
        self.min_rise = float(min_rise)
        self.min_relative_rise = float(min_relative_rise)
        self.min_values = min_values
        self.robust = robust
        self.reset_after = reset_after
        self.short_min_rise = short_min_rise
        self._accepted: deque[float] = deque(maxlen=window)
        self._in_a_row = 0

    def observe(self, value: float) -> SpikeVerdict:
        """Judges a value, and takes it into the window unless it is a spike.

        Args:
            value (`float`): Loss or gradient norm of one step.

        Returns:
            `SpikeVerdict`: The verdict, with the statistics it was reached by.
        """
        mean, std = self.statistics()
        if not math.isfinite(value):
            return SpikeVerdict(True, math.inf, mean, std)
        is_spike, z_score = False, 0.0
        if len(self._accepted) >= self.min_values:
            rise = value - mean
            z_score = rise / std if std > 0 else (math.inf if rise > 0 else 0.0)
            least = max(self.min_rise, self.min_relative_rise * abs(mean))
            is_spike = rise > self.threshold * std and rise > least
            if not is_spike and self.short_min_rise is not None:
                near, spread = self.statistics(self.min_values)
                rise = value - near
                if rise > self.threshold * spread and rise > max(least, self.short_min_rise):
                    is_spike, mean, std = True, near, spread
                    z_score = rise / std if std > 0 else math.inf
        if is_spike:
            self._in_a_row += 1
            if self._in_a_row >= self.reset_after:
                self._accepted.clear()
                self._accepted.append(value)
                self._in_a_row = 0
        else:
            self._in_a_row = 0
            self._accepted.append(value)
        return SpikeVerdict(is_spike, z_score, mean, std)

    def statistics(self, last: int | None = None) -> tuple[float, float]:
        """Centre and spread of the accepted values.

        Args:
            last (`int`, *optional*): Only of so many of them, the newest.

        Returns:
            `tuple[float, float]`: Mean and population standard deviation, or their robust twins; NaN and 0 without
            values.
        """
        values = list(self._accepted)
        if last is not None:
            values = values[-last:]
        if not values:
            return math.nan, 0.0
        if self.robust:
            centre = _median(values)
            return centre, 1.4826 * _median([abs(one - centre) for one in values])
        return _mean_std(values)

    def state(self) -> dict[str, Any]:
        """What is needed to go on after a restart.

        Returns:
            `dict`: Plain JSON.
        """
        return {"accepted": list(self._accepted), "in_a_row": self._in_a_row}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where another detector stopped.

        Args:
            state (`dict`): From `state()`.
        """
        self._accepted = deque((float(one) for one in state["accepted"]), maxlen=self.window)
        self._in_a_row = int(state["in_a_row"])


def spike_flags(
    values: Sequence[float],
    window: int = 1000,
    threshold: float = 7.0,
    two_sided: bool = True,
    min_values: int | None = None,
) -> list[bool]:
    """Marks the spikes of a curve by a published definition: spikes stay in the window of the values after them.

    Args:
        values (`Sequence[float]`): Loss or gradient norm of every step.
        window (`int`, *optional*, defaults to 1000): Previous values that mean and deviation are taken over.
        threshold (`float`, *optional*, defaults to 7.0): Standard deviations. OLMo 2: 7 over 1000, both sides;
            OLMo-core: 6 over 128, one side.
        two_sided (`bool`, *optional*, defaults to `True`): Whether falls count as well.
        min_values (`int`, *optional*): Previous values needed; a full window by default.

    Returns:
        `list[bool]`: One flag a value; never True where the deviation is below 1e-10.
    """
    needed = window if min_values is None else min_values
    flags = []
    for index, value in enumerate(values):
        before = [one for one in values[max(0, index - window) : index] if math.isfinite(one)]
        if not math.isfinite(value):
            flags.append(True)
            continue
        if index < needed or len(before) < 2:
            flags.append(False)
            continue
        mean, std = _mean_std(before)
        rise = abs(value - mean) if two_sided else value - mean
        flags.append(std >= 1e-10 and rise >= threshold * std)
    return flags


def spike_score(flags: Iterable[bool]) -> float:
    """Share of spikes among the steps: OLMo's spike score.

    Args:
        flags (`Iterable[bool]`): From [`spike_flags`] or a detector.

    Returns:
        `float`: In [0, 1]; 0 for no steps.
    """
    flags = list(flags)
    return sum(flags) / len(flags) if flags else 0.0


def _mean_std(values: Iterable[float]) -> tuple[float, float]:
    values = list(values)
    mean = math.fsum(values) / len(values)
    return mean, math.sqrt(math.fsum([(one - mean) * (one - mean) for one in values]) / len(values))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else 0.5 * (ordered[middle - 1] + ordered[middle])

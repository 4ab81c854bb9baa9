"""Which source sample `i` of a run is drawn from, in closed form and in integers.

A run is a line of phases, each with a weight per source. Phase boundaries get whole quotas: after a phase every source
has been drawn its exact cumulative share, rounded to a whole number. Inside a phase with quotas `n_j` the k-th draw of
source `j` has the time `(k + 1/2) / n_j`, and sample `i` of the phase is the i-th of these times in order. So every
prefix of the run holds every source within three samples of its share, nothing is kept in memory, and any sample is
found alone.

A linear ramp from one mix to the next is cut into short pieces of constant weights.
"""

import bisect
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import Any

from hf_pretrain.data.phases import Phase, check_phases, is_number, normalised_shares, phases_from_config
from hf_pretrain.data.placement import Segment, apportion, draws_before, walk_draws
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


RAMP_PIECES = 16


class MixtureSchedule:
    """A pure function from the number of a sample to its source and the number of the draw.

    Build it with [`MixtureSchedule.from_weights`] or [`MixtureSchedule.from_config`].

    Args:
        sources (`Sequence[str]`): Names of the sources; a source's place here is its index.
        phases (`Sequence[Phase]`): Phases without gaps or overlaps, from sample 0.
        start_draws (`Mapping[str, int]`, *optional*): Draws of each source made by earlier stages of the run, so that
            a later stage goes on with windows not yet seen.

    Raises:
        UserError: If phases do not join, a name is unknown, or weights are negative, not finite or all zero.
    """

    def __init__(
        self, sources: Sequence[str], phases: Sequence[Phase], start_draws: Mapping[str, int] | None = None
    ) -> None:
        self.sources = tuple(sources)
        self.phases = tuple(phases)
        self.start_draws = dict(start_draws or {})
        if len(set(self.sources)) != len(self.sources):
            twice = next(name for name in self.sources if self.sources.count(name) > 1)
            raise UserError(f"two sources are called {twice!r}; give each its own name")
        for name in self.start_draws:
            if name not in self.sources:
                raise UserError(unknown_name_message("source", name, self.sources))
        check_phases(self.phases)
        self._phase_starts = [phase.start for phase in self.phases]
        self._shares = [normalised_shares(phase, self.sources) for phase in self.phases]
        self._segments = self._lay_out()
        self._starts = [segment.start for segment in self._segments]

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, float],
        num_samples: int,
        name: str = "stable",
        start_draws: Mapping[str, int] | None = None,
    ) -> "MixtureSchedule":
        """Makes a schedule of one phase.

        Args:
            weights (`Mapping[str, float]`): Token share of each source.
            num_samples (`int`): Length of the run in samples.
            name (`str`, *optional*, defaults to `"stable"`): Name of the phase.
            start_draws (`Mapping[str, int]`, *optional*): Draws made by earlier stages.

        Returns:
            `MixtureSchedule`: The schedule.
        """
        return cls(list(weights), [Phase(name, 0, num_samples, dict(weights))], start_draws)

    @classmethod
    def from_config(
        cls,
        config: Mapping[str, Any],
        num_samples: int,
        seq_length: int,
        start_draws: Mapping[str, int] | None = None,
    ) -> "MixtureSchedule":
        """Makes a schedule of what a recipe says.

        Args:
            config (`Mapping[str, Any]`): Either weights alone (`{web: 0.7, code: 0.3}`) or `{phases: [...]}` where a
                phase has `name`, `weights`, one of `fraction`, `samples`, `tokens` (the last phase may leave it out
                and takes the rest) and, after the first, `ramp_fraction`, the share of the phase over which weights
                move linearly, and `seq_length`, a shorter context of the phase.
            num_samples (`int`): Length of the run in samples.
            seq_length (`int`): Tokens of a sample, to convert `tokens`.
            start_draws (`Mapping[str, int]`, *optional*): Draws made by earlier stages.

        Returns:
            `MixtureSchedule`: The schedule.

        Raises:
            UserError: If a key or value is wrong, or the phases do not fill the run exactly.
        """
        if "phases" not in config:
            return cls.from_weights(config, num_samples, start_draws=start_draws)
        phases = phases_from_config(config, num_samples, seq_length)
        names = list(dict.fromkeys(name for phase in phases for name in phase.weights))
        return cls(names, phases, start_draws)

    @property
    def num_samples(self) -> int:
        """Length of the run in samples."""
        return self.phases[-1].stop

    def locate(self, index: int) -> tuple[int, int]:
        """Finds a sample's source.

        Args:
            index (`int`): Number of the sample. Beyond the last phase the order of its last piece repeats, so that a
                run which skipped samples still finds as many as it planned.

        Returns:
            `tuple[int, int]`: The index of the source, and how many times it was drawn before.
        """
        source, counts = self._place(index)
        return source, counts[source] + self.start_draws.get(self.sources[source], 0)

    def locate_range(self, start: int, stop: int) -> list[tuple[int, int]]:
        """Finds the sources of neighbouring samples, much faster than one by one.

        Args:
            start (`int`): First sample.
            stop (`int`): End, exclusive.

        Returns:
            `list[tuple[int, int]]`: What [`MixtureSchedule.locate`] gives for each.
        """
        earlier = [self.start_draws.get(name, 0) for name in self.sources]
        found: list[tuple[int, int]] = []
        while start < stop:
            number = max(bisect.bisect_right(self._starts, start) - 1, 0)
            segment = self._segments[number]
            rounds, offset = divmod(start - segment.start, segment.length)
            limit = segment.length if number == len(self._segments) - 1 else segment.stop - segment.start
            count = min(stop - start, limit - offset)
            base = [
                early + before + rounds * quota
                for early, before, quota in zip(earlier, segment.base, segment.quotas, strict=True)
            ]
            found += [(source, base[source] + drawn) for source, drawn in walk_draws(segment, offset, count)]
            start += count
        return found

    def counts(self, index: int) -> dict[str, int]:
        """Counts the draws among the first samples.

        Args:
            index (`int`): How many samples.

        Returns:
            `dict[str, int]`: Draws of each source among samples `[0, index)`, without `start_draws`.
        """
        return dict(zip(self.sources, self._place(index)[1], strict=True))

    def phase_at(self, index: int) -> Phase:
        """Finds the phase of a sample.

        Args:
            index (`int`): Number of the sample.

        Returns:
            `Phase`: The last phase that starts at or before it.
        """
        return self.phases[max(bisect.bisect_right(self._phase_starts, index) - 1, 0)]

    def shares(self, stop: int | None = None) -> dict[str, float]:
        """The planned share of each source over the first samples, before rounding to whole draws.

        Args:
            stop (`int`, *optional*): How many samples; by default all.

        Returns:
            `dict[str, float]`: Shares that sum to 1.
        """
        stop = self.num_samples if stop is None else stop
        totals = [Fraction(0)] * len(self.sources)
        for segment in self._segments:
            length = min(stop, segment.stop) - segment.start
            if length > 0:
                totals = [total + share * length for total, share in zip(totals, segment.shares, strict=True)]
        covered = sum(totals) or Fraction(1)
        return {name: float(total / covered) for name, total in zip(self.sources, totals, strict=True)}

    def with_phase(
        self,
        name: str,
        start: int,
        weights: Mapping[str, float],
        ramp_fraction: float = 0.0,
        num_samples: int | None = None,
    ) -> "MixtureSchedule":
        """Changes the mix from one sample on; all samples before it stay what they were.

        Args:
            name (`str`): Name of the new phase, which lasts to the end of the run.
            start (`int`): First sample of the new phase.
            weights (`Mapping[str, float]`): Its weights; sources not named get 0, new ones join at the end of
                `sources`.
            ramp_fraction (`float`, *optional*, defaults to 0.0): Share of the phase over which weights move linearly.
            num_samples (`int`, *optional*): Length of the changed schedule, where samples that are left out make the
                run reach further; by default that of this one.

        Returns:
            `MixtureSchedule`: The changed schedule.

        Raises:
            UserError: If `start` lies outside the run or a weight is wrong.
        """
        num_samples = self.num_samples if num_samples is None else num_samples
        if not 0 <= start < num_samples:
            raise UserError(
                f"phase {name!r} starts at sample {start}; the run has {num_samples}: start it earlier or train longer"
            )
        if not is_number(ramp_fraction) or not 0 <= ramp_fraction <= 1:
            raise UserError(f"ramp_fraction = {ramp_fraction!r}; allowed is 0 to 1")
        kept = []
        for phase in self.phases:
            is_cut = phase.stop > start or phase is self.phases[-1]
            if not is_cut or phase.stop == start:
                kept.append(phase)
            elif phase.start < start:
                kept.append(replace(phase, stop=start, planned_stop=phase.end_of_plan))
        ramp = round(ramp_fraction * (num_samples - start)) if kept else 0
        return MixtureSchedule(
            list(dict.fromkeys([*self.sources, *weights])),
            [*kept, Phase(name, start, num_samples, dict(weights), ramp, None, self.phase_at(start).seq_length)],
            self.start_draws,
        )

    def same_mix_until(self, other: "MixtureSchedule", stop: int) -> bool:
        """Tells whether two schedules have the same weights up to a point, though perhaps another order.

        Args:
            other (`MixtureSchedule`): The other schedule.
            stop (`int`): How many samples are compared.

        Returns:
            `bool`: Whether the weights, and the draws before the run, are the same.
        """

        def mixes(schedule: "MixtureSchedule") -> list[tuple[int, dict[str, Fraction]]]:
            found: list[tuple[int, dict[str, Fraction]]] = []
            for segment in schedule._segments:
                if segment.start < stop:
                    named = zip(schedule.sources, segment.shares, strict=True)
                    mix = {name: share for name, share in named if share}
                    if not found or found[-1][1] != mix:
                        found.append((segment.start, mix))
            return found

        drawn = {name for schedule in (self, other) for name, count in schedule.counts(stop).items() if count}
        starts = all(self.start_draws.get(name, 0) == other.start_draws.get(name, 0) for name in drawn)
        return starts and mixes(self) == mixes(other)

    def scaled(self, factors: Mapping[str, float], start: int = 0) -> "MixtureSchedule":
        """Multiplies the weights of some sources in every phase; the others take the difference in proportion.

        Args:
            factors (`Mapping[str, float]`): A factor per source; 1 where none is given.
            start (`int`, *optional*, defaults to 0): Phases that end at or before this sample stay as they are.

        Returns:
            `MixtureSchedule`: The changed schedule.
        """
        phases = [
            replace(phase, weights={name: weight * factors.get(name, 1.0) for name, weight in phase.weights.items()})
            if phase.stop > start
            else phase
            for phase in self.phases
        ]
        return MixtureSchedule(self.sources, phases, self.start_draws)

    def same_until(self, other: "MixtureSchedule", stop: int) -> bool:
        """Tells whether two schedules give the same samples up to a point.

        Args:
            other (`MixtureSchedule`): The other schedule.
            stop (`int`): How many samples are compared.

        Returns:
            `bool`: Whether samples `[0, stop)` are the same draws of the same sources.
        """

        def prefix(schedule: "MixtureSchedule") -> list[Any]:
            pieces = [segment for segment in schedule._segments if segment.start < stop]
            named = [dict(zip(schedule.sources, segment.quotas, strict=True)) for segment in pieces]
            drawn = [{name: quota for name, quota in quotas.items() if quota} for quotas in named]
            return [
                (segment.start, min(segment.stop, stop), segment.length, list(quotas.items()))
                for segment, quotas in zip(pieces, drawn, strict=True)
            ]

        used = [name for name, count in self.counts(stop).items() if count]
        starts = all(self.start_draws.get(name, 0) == other.start_draws.get(name, 0) for name in used)
        return starts and prefix(self) == prefix(other)

    def to_json(self) -> dict[str, Any]:
        """Describes the schedule as plain JSON data, from which [`MixtureSchedule.from_json`] builds an equal one.

        Returns:
            `dict[str, Any]`: Sources, start draws and phases.
        """
        phases = [
            {
                "name": phase.name,
                "start": phase.start,
                "stop": phase.stop,
                "planned_stop": phase.end_of_plan,
                "ramp": phase.ramp,
                "weights": dict(phase.weights),
                **({"seq_length": phase.seq_length} if phase.seq_length is not None else {}),
            }
            for phase in self.phases
        ]
        return {"sources": list(self.sources), "start_draws": dict(self.start_draws), "phases": phases}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "MixtureSchedule":
        """Builds a schedule of what [`MixtureSchedule.to_json`] wrote.

        Args:
            data (`Mapping[str, Any]`): Plain JSON data.

        Returns:
            `MixtureSchedule`: The schedule.
        """
        return cls(data["sources"], [Phase(**phase) for phase in data["phases"]], data["start_draws"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, MixtureSchedule) and self.to_json() == other.to_json()

    __hash__ = None

    def __repr__(self) -> str:
        phases = ", ".join(f"{phase.name}[{phase.start}, {phase.stop})" for phase in self.phases)
        return f"MixtureSchedule({phases})"

    def _pieces(self) -> Iterable[tuple[int, int, int, int, list[Fraction]]]:
        """Yields `(phase, start, stop, length, shares)`, with each ramp cut into pieces of constant weights."""
        for number, phase in enumerate(self.phases):
            shares, position = self._shares[number], phase.start
            count = min(RAMP_PIECES, phase.ramp)
            for piece in range(count):
                part = Fraction(2 * piece + 1, 2 * count)
                end = phase.start + phase.ramp * (piece + 1) // count
                mixed = [old + (new - old) * part for old, new in zip(self._shares[number - 1], shares, strict=True)]
                if position < phase.stop:
                    yield number, position, min(end, phase.stop), end - position, mixed
                position = end
            length = phase.end_of_plan - position
            length = length if length > 0 else phase.stop - position
            while position < phase.stop:
                yield number, position, min(position + length, phase.stop), length, shares
                position += length

    def _lay_out(self) -> list[Segment]:
        segments: list[Segment] = []
        targets = [Fraction(0)] * len(self.sources)
        base = [0] * len(self.sources)
        for phase, start, stop, length, shares in self._pieces():
            planned = [target + share * length for target, share in zip(targets, shares, strict=True)]
            quotas = apportion(planned, base, shares, length)
            scale = math.lcm(*(quota for quota in quotas if quota))
            segment = Segment(start, stop, phase, tuple(quotas), tuple(base), length, scale, tuple(shares))
            segments.append(segment)
            targets = [target + share * (stop - start) for target, share in zip(targets, shares, strict=True)]
            base = [before + drawn for before, drawn in zip(base, draws_before(segment, stop - start)[1], strict=True)]
        return segments

    def _place(self, index: int) -> tuple[int, tuple[int, ...]]:
        if index < 0:
            raise IndexError(f"sample {index}; samples count from 0")
        segment = self._segments[max(bisect.bisect_right(self._starts, index) - 1, 0)]
        rounds, offset = divmod(index - segment.start, segment.length)
        source, drawn = draws_before(segment, offset)
        counts = tuple(
            before + rounds * quota + count
            for before, quota, count in zip(segment.base, segment.quotas, drawn, strict=True)
        )
        return source, counts

"""Samples that a run leaves out: a pure mapping between positions and samples, and its inverse.

A run that goes back from a loss spike and goes on with other data leaves a range of samples out. What is recorded is
`skipped: [[start, stop], ...]`, ranges of sample numbers as the schedule counts them, in `data_order.json` and in
every checkpoint's manifest. The position `p` counts the samples that were trained on; it stands for the sample

    s(p) = the p-th number, from 0, that lies in no range

so positions before the first range are their own samples, and every later one is moved up by what was left out below.
"""

import bisect
from collections.abc import Iterable, Sequence

from hf_pretrain.utils.errors import UserError


class Skips:
    """The ranges of samples that a run leaves out.

    Args:
        ranges (`Iterable[Sequence[int]]`, *optional*): `[start, stop)` pairs of sample numbers, in any order; those
            that touch or overlap are joined.

    Raises:
        UserError: If a range is no pair of rising whole numbers from 0 up.

    Example:

    ```python
    >>> skips = Skips([[4, 6]])
    >>> [skips.sample_at(position) for position in range(6)], skips.position_of(5), skips.position_of(7)
    ([0, 1, 2, 3, 6, 7], None, 5)
    ```
    """

    def __init__(self, ranges: Iterable[Sequence[int]] = ()) -> None:
        checked = []
        for entry in ranges:
            numbers = list(entry) if isinstance(entry, (list, tuple)) else [None]
            whole = all(isinstance(number, int) and not isinstance(number, bool) for number in numbers)
            if not whole or len(numbers) != 2 or not 0 <= numbers[0] <= numbers[1]:
                raise UserError(
                    f"skipped: {entry!r}; allowed are pairs [start, stop] of sample numbers, start <= stop"
                )
            if numbers[0] < numbers[1]:
                checked.append(numbers)
        self.ranges: list[list[int]] = []
        for start, stop in sorted(checked):
            if self.ranges and start <= self.ranges[-1][1]:
                self.ranges[-1][1] = max(self.ranges[-1][1], stop)
            else:
                self.ranges.append([start, stop])
        self._starts = [start for start, _ in self.ranges]
        # Position at which each range takes effect, and how much is left out up to and with it.
        self._positions, self._totals = [], []
        total = 0
        for start, stop in self.ranges:
            self._positions.append(start - total)
            total += stop - start
            self._totals.append(total)

    @property
    def total(self) -> int:
        """How many samples are left out in all."""
        return self._totals[-1] if self._totals else 0

    def sample_at(self, position: int) -> int:
        """Finds the sample that a position stands for.

        Args:
            position (`int`): Number of samples trained on before it.

        Returns:
            `int`: Its number in the schedule.
        """
        passed = bisect.bisect_right(self._positions, position)
        return position + (self._totals[passed - 1] if passed else 0)

    def position_of(self, sample: int) -> int | None:
        """Finds the position of a sample: the inverse of [`Skips.sample_at`].

        Args:
            sample (`int`): Its number in the schedule.

        Returns:
            `int`: The position, or `None` for a sample that is left out.
        """
        passed = bisect.bisect_right(self._starts, sample)
        if passed and sample < self.ranges[passed - 1][1]:
            return None
        return sample - (self._totals[passed - 1] if passed else 0)

    def end_after(self, positions: int) -> int:
        """Finds where the schedule stands after so many positions.

        Args:
            positions (`int`): How many samples were trained on.

        Returns:
            `int`: One more than the number of the last of them; 0 if there are none.
        """
        return self.sample_at(positions - 1) + 1 if positions else 0

    def below(self, sample: int) -> list[tuple[int, int]]:
        """Lists what is left out below a sample.

        Args:
            sample (`int`): A sample number.

        Returns:
            `list[tuple[int, int]]`: `[start, stop)` ranges, the last one cut there.
        """
        return [(start, min(stop, sample)) for start, stop in self.ranges if start < sample]

    def with_range(self, start: int, stop: int) -> "Skips":
        """Leaves another range out.

        Args:
            start (`int`): First sample left out.
            stop (`int`): End, exclusive.

        Returns:
            `Skips`: The joined ranges.
        """
        return Skips([*self.ranges, [start, stop]])

    def to_json(self) -> list[list[int]]:
        """The recorded form.

        Returns:
            `list[list[int]]`: Joined `[start, stop]` pairs, rising.
        """
        return [list(entry) for entry in self.ranges]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Skips) and self.ranges == other.ranges

    __hash__ = None

    def __repr__(self) -> str:
        return f"Skips({self.ranges})"

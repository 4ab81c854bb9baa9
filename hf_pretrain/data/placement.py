"""Where the draws of each source fall inside a piece of constant weights, in whole numbers.

In a piece with quotas `n_j` the k-th draw of source `j` has the time `(k + 1/2) / n_j`, and sample `i` of the piece is
the i-th of these times in order. Any sample is found alone; a run of samples is walked with a heap.
"""

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True)
class Segment:
    """Samples `[start, stop)` drawn with constant weights.

    Args:
        start (`int`): First sample.
        stop (`int`): End, exclusive.
        phase (`int`): Number of its phase.
        quotas (`tuple[int, ...]`): Draws of each source over `[start, start + length)`.
        base (`tuple[int, ...]`): Draws of each source before it.
        length (`int`): Samples its order was laid out for, at least `stop - start`.
        scale (`int`): Least common multiple of the quotas: half-draw times become integers.
        shares (`tuple[Fraction, ...]`): Planned share of each source.
    """

    start: int
    stop: int
    phase: int
    quotas: tuple[int, ...]
    base: tuple[int, ...]
    length: int
    scale: int
    shares: tuple[Fraction, ...]


def draws_before(segment: Segment, offset: int) -> tuple[int, list[int]]:
    """Finds the source of the draw number `offset` in a segment, and the draws of each source before it.

    At the time `t` source `j` has been drawn `floor(n_j t + 1/2)` times, together within half the number of sources of
    `N t`. So draw `offset` lies in a narrow window of time, and only the draws inside it need sorting. Times are
    integers in units of `1 / (2 scale)`; equal times go by the order of the sources.

    Args:
        segment (`Segment`): The piece.
        offset (`int`): Number of the draw in it.

    Returns:
        `tuple[int, list[int]]`: The source, and the draws of each source in the piece before it.
    """
    active = [(index, quota) for index, quota in enumerate(segment.quotas) if quota]
    total, scale = segment.length, segment.scale
    if offset == total:
        return active[0][0], list(segment.quotas)
    early = max(scale * (2 * offset - len(active)) // total, 0)
    late = -(-scale * (2 * offset + 2 + len(active)) // total)
    counts = [0] * len(segment.quotas)
    window = []
    for index, quota in active:
        step = scale // quota
        count = min((early + step) // (2 * step), quota)
        counts[index] = count
        time = (2 * count + 1) * step
        while time <= late and count < quota:
            window.append((time, index))
            count += 1
            time += 2 * step
    window.sort()
    skip = offset - sum(counts)
    for _, index in window[:skip]:
        counts[index] += 1
    return window[skip][1], counts


def apportion(planned: Sequence[Fraction], base: Sequence[int], shares: Sequence[Fraction], length: int) -> list[int]:
    """Rounds cumulative shares to whole draws of this piece (largest remainder).

    Args:
        planned (`Sequence[Fraction]`): Share of each source in draws, up to the end of the piece.
        base (`Sequence[int]`): Draws before the piece.
        shares (`Sequence[Fraction]`): Shares in the piece; a source of share 0 gets no draw.
        length (`int`): Samples of the piece.

    Returns:
        `list[int]`: Draws of each source, which sum to `length`.
    """
    wanted = [target - before for target, before in zip(planned, base, strict=True)]
    quotas = [max(math.floor(want), 0) if share else 0 for want, share in zip(wanted, shares, strict=True)]
    active = [index for index, share in enumerate(shares) if share]
    while (missing := length - sum(quotas)) > 0:
        for index in sorted(active, key=lambda j: (quotas[j] - wanted[j], j))[:missing]:
            quotas[index] += 1
    while sum(quotas) > length:
        index = max((j for j in active if quotas[j]), key=lambda j: (quotas[j] - wanted[j], j))
        quotas[index] -= 1
    return quotas


def walk_draws(segment: Segment, offset: int, count: int) -> Iterator[tuple[int, int]]:
    """Goes through the draws of a piece in their order.

    Args:
        segment (`Segment`): The piece.
        offset (`int`): The first draw, from 0.
        count (`int`): How many; the piece must hold them.

    Returns:
        `Iterator[tuple[int, int]]`: The source of each draw, and how often the piece has drawn it before.
    """
    drawn = draws_before(segment, offset)[1] if offset else [0] * len(segment.quotas)
    heap = [
        ((2 * drawn[index] + 1) * (segment.scale // quota), index)
        for index, quota in enumerate(segment.quotas)
        if quota and drawn[index] < quota
    ]
    heapq.heapify(heap)
    steps = [2 * (segment.scale // quota) if quota else 0 for quota in segment.quotas]
    for _ in range(count):
        time, index = heap[0]
        before = drawn[index]
        yield index, before
        drawn[index] = before + 1
        if before + 1 < segment.quotas[index]:
            heapq.heapreplace(heap, (time + steps[index], index))
        else:
            heapq.heappop(heap)

"""A schedule that changes while a run goes on: longer, or with other weights from some sample on.

The samples already trained on stay what they were, and the draws of every source go on where they stand. So no window
comes twice in an epoch and none is lost, however often the mix changes.
"""

from dataclasses import replace

from hf_pretrain.data.schedule import MixtureSchedule


def continued_from(given: MixtureSchedule, earlier: MixtureSchedule, start: int) -> MixtureSchedule:
    """Lays a run out anew from one sample on.

    Args:
        given (`MixtureSchedule`): The weights from there on.
        earlier (`MixtureSchedule`): The schedule the first samples were drawn with.
        start (`int`): First sample that is drawn with `given`.

    Returns:
        `MixtureSchedule`: `earlier` before `start`, the weights of `given` after it.
    """
    kept, rest = [], []
    for phase in earlier.phases:
        if phase.start < start:
            stop = start if phase is earlier.phases[-1] else min(phase.stop, start)
            kept.append(replace(phase, stop=stop, planned_stop=phase.end_of_plan))
    for phase in given.phases:
        if phase.stop > start:
            first = max(phase.start, start)
            ramp = max(phase.start + phase.ramp - first, 0) if kept or rest else 0
            rest.append(replace(phase, start=first, ramp=ramp, planned_stop=max(phase.end_of_plan, phase.stop)))
    return MixtureSchedule(
        list(dict.fromkeys([*earlier.sources, *given.sources])),
        [*kept, *rest],
        {**given.start_draws, **earlier.start_draws},
    )

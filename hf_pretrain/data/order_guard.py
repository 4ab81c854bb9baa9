"""A look at the order of a mix: changes so large that a model may forget what it learnt from the phases before.

Better data late in a run helps (MiniCPM, https://huggingface.co/papers/2404.06395), but mixes that worked keep part of
the old one; about half of OLMo 2's last phase is web text (https://huggingface.co/papers/2501.00656). The distance of
two mixes is half the sum of the differences of their shares: the share of tokens that come from elsewhere.
"""

from hf_pretrain.data.schedule import MixtureSchedule


MOST_MOVED = 0.75
LEAST_SHARE = 0.1


def order_warnings(schedule: MixtureSchedule) -> list[str]:
    """Names the changes of a schedule that are worth a control run in no order.

    Args:
        schedule (`MixtureSchedule`): The schedule.

    Returns:
        `list[str]`: One sentence a change; empty where every phase keeps much of the one before.
    """
    found = []
    mixes = []
    for phase in schedule.phases:
        total = sum(phase.weights.values())
        mixes.append((phase.name, {name: weight / total for name, weight in phase.weights.items()}))
    for (before, old), (after, new) in zip(mixes[:-1], mixes[1:], strict=True):
        moved = sum(abs(new.get(name, 0.0) - old.get(name, 0.0)) for name in {*old, *new}) / 2
        lost = [name for name, share in old.items() if share >= LEAST_SHARE and not new.get(name)]
        if moved > MOST_MOVED + 1e-9:
            found.append(f"from phase {before!r} to {after!r} {moved:.0%} of the tokens change their source")
        elif lost:
            shares = ", ".join(f"{name} ({old[name]:.0%})" for name in lost)
            found.append(f"phase {after!r} reads nothing more of {shares}")
    return found

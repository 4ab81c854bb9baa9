"""`hf-pretrain plan --from-run RUN`: the plan of a run, or of another, with what that run reached."""

import argparse
from pathlib import Path
from typing import Any

from hf_pretrain.planning.closed_loop import Efficiency, measured_efficiency
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


def take_over(arguments: argparse.Namespace) -> tuple[Efficiency, dict[str, Any] | None, float | None]:
    """Reads a run, and sets the arguments that were not given to what it reached.

    Args:
        arguments (`argparse.Namespace`): Of `hf-pretrain plan`; `mfu` and `goodput` are filled in where they are
            `None` and the run measured them.

    Returns:
        `tuple`: What the run reached; its model and its tokens, or `None` for both where the arguments name a model,
        tokens or a budget.

    Raises:
        UserError: If the folder holds no run, or none with a measured speed.
    """
    folder = Path(arguments.from_run)
    if not (folder / "facts.json").is_file():
        raise UserError(f"--from-run {folder}; it holds no facts.json: give the folder of a run, e.g. runs/tiny_cpu.")
    facts = Facts(folder).load()
    reached = measured_efficiency(facts)
    if arguments.mfu is None:
        arguments.mfu = reached.mfu
    if arguments.goodput is None:
        arguments.goodput = reached.goodput
    given = (arguments.recipe, arguments.config, arguments.params, arguments.tokens, arguments.flops, arguments.days)
    if any(value is not None for value in given):
        return reached, None, None
    stage = facts["stages"][reached.stage]
    if arguments.seq_length is None:
        arguments.seq_length = stage["data"]["seq_length"]
    return reached, stage["model"]["config"], float(stage["data"]["train_tokens"])


def measured_lines(found: dict[str, Any]) -> list[str]:
    """Writes them for people.

    Args:
        found (`dict[str, Any]`): From [`~hf_pretrain.planning.closed_loop.replan`].

    Returns:
        `list[str]`: Lines.
    """
    lines = [
        "",
        f"at the speed of {found['stage']} on {found['devices']} of its devices",
        f"  {'speed':<16} {found['flops_per_device_second']:.3g} FLOP/s a device ({found['flop_convention']}), "
        f"goodput {found['goodput']:.2f}",
        f"  {'device hours':<16} {found['device_hours']:,.3g}",
        f"  {'days':<16} {found['days']:,.3g}",
    ]
    if found["cost"] is not None:
        lines.append(f"  {'cost':<16} {found['cost']:,.2f}")
    return lines

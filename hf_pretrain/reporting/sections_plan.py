"""The section that holds a run against its plan."""

from typing import Any

from hf_pretrain.planning.closed_loop import compare, compare_losses
from hf_pretrain.reporting.blocks import Block, Column, Section, Table
from hf_pretrain.reporting.run_data import RunData
from hf_pretrain.utils.number_text import count, duration, number, size


def plan_section(run: RunData) -> list[Section]:
    """Plan against measured: tokens, speed, MFU, memory, time, cost, and the loss at shares of the budget.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: One section; empty where no plan was recorded.
    """
    plans = run.facts.get("plans", {})
    blocks: list[Block] = []
    for name in run.stages("pretrain"):
        plan = plans.get(name)
        if plan:
            blocks += _stage_blocks(run, name, plan)
    if blocks:
        blocks.append(
            Block(
                "note",
                "The plan is made before the first step. Speed, time and cost are planned where the peak of the "
                "device is known; cost is the middle of a dated range of prices. Planned memory is that of tensors "
                "on a device, which only a GPU measures. The law's losses are of other data and another tokenizer: "
                "compare how far they fall, not where they stand; left out where they are worse than a guess.",
            )
        )
    return [Section("plan", "Plan and measured", blocks)]


def held_against_plan(run: RunData, name: str) -> dict[str, Any]:
    """What a finished stage took beside its plan; recorded as a fact, since the page shows nothing else.

    Args:
        run (`RunData`): Facts, with the stage's and its plan's, and logs.
        name (`str`): A pretraining stage with a plan.

    Returns:
        `dict[str, Any]`: `rows` and `losses`, from [`~hf_pretrain.planning.closed_loop.compare`] and
        [`~hf_pretrain.planning.closed_loop.compare_losses`].
    """
    plan = run.facts["plans"][name]
    log = next((item for item in run.logs if item.name == name), None)
    losses: list[dict[str, float | None]] = []
    if log is not None:
        places, measured = log.values("ce_loss", "loss")
        losses = compare_losses(plan, [place - log.offset for place in places], measured)
    return {"rows": compare(plan, run.facts["stages"][name]), "losses": losses}


def _stage_blocks(run: RunData, name: str, plan: dict[str, Any]) -> list[Block]:
    held = plan.get("held_against") or held_against_plan(run, name)
    rows = [
        [
            row["name"],
            _text(row["planned"], row["unit"]),
            _text(row["measured"], row["unit"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ]
        for row in held["rows"]
    ]
    columns = [Column(name), Column("planned", True), Column("measured", True), Column("ratio", True)]
    blocks = [Block("table", table=Table(columns, rows))]
    if held["losses"]:
        law = str(plan.get("law", ""))
        columns = [Column("tokens", True), Column(f"loss by '{law}'", True), Column("measured", True)]
        found = [[count(row["tokens"]), number(row["planned"]), number(row["measured"])] for row in held["losses"]]
        blocks.append(Block("table", title=f"Training loss of {name} along its budget", table=Table(columns, found)))
    return blocks


def _text(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "bytes":
        return size(value)
    if unit == "s" and value >= 60:
        return duration(value)
    if unit in ("tokens", "tokens/s"):
        return f"{count(value)}{' /s' if unit.endswith('/s') else ''}"
    return f"{number(value, 3)} {unit}".strip()

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
    for name, stage in run.stages("pretrain").items():
        plan = plans.get(name)
        if plan:
            blocks += _stage_blocks(run, name, plan, stage)
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


def _stage_blocks(run: RunData, name: str, plan: dict[str, Any], stage: dict[str, Any]) -> list[Block]:
    rows = [
        [
            row["name"],
            _text(row["planned"], row["unit"]),
            _text(row["measured"], row["unit"]),
            "-" if row["ratio"] is None else f"{row['ratio']:.2f}",
        ]
        for row in compare(plan, stage)
    ]
    columns = [Column(name), Column("planned", True), Column("measured", True), Column("ratio", True)]
    blocks = [Block("table", table=Table(columns, rows))]
    log = next((item for item in run.logs if item.name == name), None)
    if log is not None:
        places, losses = log.values("ce_loss", "loss")
        found = compare_losses(plan, [place - log.offset for place in places], losses)
        if found:
            law = str(plan.get("law", ""))
            columns = [Column("tokens", True), Column(f"loss by '{law}'", True), Column("measured", True)]
            table = Table(
                columns, [[count(row["tokens"]), number(row["planned"]), number(row["measured"])] for row in found]
            )
            blocks.append(Block("table", title=f"Training loss of {name} along its budget", table=table))
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

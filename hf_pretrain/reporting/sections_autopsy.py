"""What the autopsies of loss spikes found, and whether every switch was seen to act."""

from typing import Any

from hf_pretrain.reporting.blocks import Block, Column, Table
from hf_pretrain.utils.number_text import number


def autopsy_blocks(stages: dict[str, dict[str, Any]]) -> list[Block]:
    """Verdicts with their evidence and where the whole autopsy lies.

    Args:
        stages (`dict[str, dict]`): Facts of the training stages by name.

    Returns:
        `list[Block]`: A table; empty without autopsies.
    """
    rows = [
        [
            name,
            number(one.get("step")),
            str(one.get("verdict", "-")),
            "; ".join(str(line) for line in one.get("lines") or []),
            str(one.get("document", "-")),
            f"{name}/{one.get('file', '')}",
        ]
        for name, facts in stages.items()
        for one in facts.get("autopsies") or []
    ]
    if not rows:
        return []
    heads = [Column("stage"), Column("step", True)]
    heads += [Column(head) for head in ("verdict", "evidence", "worst document", "autopsy")]
    return [Block("table", title="Autopsies of spikes", table=Table(heads, rows))]


def effect_blocks(stages: dict[str, dict[str, Any]]) -> list[Block]:
    """Which switches were seen to act before the first update, and the types of the run's numbers.

    Args:
        stages (`dict[str, dict]`): Facts of the training stages by name.

    Returns:
        `list[Block]`: One note a stage; empty where nothing was recorded.
    """
    blocks = []
    for name, facts in stages.items():
        checks = facts.get("effect_checks") or {}
        acting = [check.replace("_", " ") for check, text in checks.items() if text == "acts"]
        precision = facts.get("precision") or {}
        parts = [f"seen to act before the first update: {', '.join(acting)}"] if acting else []
        if precision:
            weights = " and ".join(precision.get("weights", {}))
            parts.append(f"products in {precision.get('compute')} over weights in {weights}")
        if parts:
            blocks.append(Block("note", f"{name}: {'; '.join(parts)}."))
    return blocks

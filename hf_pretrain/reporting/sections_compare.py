"""What a run tells of its data beside the main line: controls in no order, scored sources, averaged models."""

from typing import Any

from hf_pretrain.reporting.blocks import Block, Column, Table
from hf_pretrain.reporting.run_data import RunData
from hf_pretrain.utils.number_text import count, number


def comparison_blocks(run: RunData) -> list[Block]:
    """Tables of the extra runs.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Block]`: One table a control or scored source, and one of averages; nothing where there are none.
    """
    blocks = []
    for stage, found in run.facts.get("controls", {}).items():
        title = f"{stage} in its order and with the same tokens in no order"
        blocks.append(_scores(title, found["scores"], ("ordered", "uniform")))
    for name, found in run.facts.get("micro_anneals", {}).items():
        share = f"{found['candidate_share']:.0%}"
        title = f"{name}: short anneals of {count(found['train_tokens'])} tokens, {share} of it and without it"
        blocks.append(_scores(title, found["scores"], ("with", "without")))
    averages = run.facts.get("averages", {})
    if averages:
        rows = [[name, ", ".join(item["path"] for item in found["members"])] for name, found in averages.items()]
        blocks.append(Block("table", title="Averages", table=Table([Column("model"), Column("mean of")], rows)))
    return blocks


def _scores(title: str, scores: dict[str, dict[str, Any]], heads: tuple[str, str]) -> Block:
    rows = [[source, *(number(row[key]) for key in (*heads, "difference"))] for source, row in scores.items()]
    columns = [Column("held out"), *(Column(head, True) for head in (*heads, "difference"))]
    return Block("table", title=title, table=Table(columns, rows))

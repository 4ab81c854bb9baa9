"""Sections on the text that was trained on: where documents went, what is left, which instructions were chosen."""

from collections.abc import Sequence
from typing import Any

from hf_pretrain.reporting.blocks import Block, Column, Figure, Section, Table
from hf_pretrain.reporting.figures import Series, bars, both, line_chart
from hf_pretrain.reporting.run_data import RunData
from hf_pretrain.reporting.sections import how_smoothed, joined, safe
from hf_pretrain.utils.number_text import duration, number, size


def corpus_sections(run: RunData) -> list[Section]:
    """Where the documents went, and what is left.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: One section.
    """
    facts = run.stage("corpus")
    funnel = facts.get("funnel", {})
    blocks: list[Block] = []
    stages = _in_order(funnel.get("stages", []), funnel.get("rows", []))
    if stages:
        totals = facts.get("totals", {})
        rows = [("raw", totals.get("raw_documents", 0), None, number(totals.get("raw_documents")), "c8")]
        for row in stages:
            note = f"{number(row['documents_out'])} of {number(row['documents_in'])}"
            rows.append((row["stage"], row["documents_out"], row["documents_in"], note, "c1"))
        rows.append(("kept", totals.get("documents", 0), None, number(totals.get("documents")), "c3"))
        drawing = both(lambda variant: bars(variant, rows, "Documents into and out of each stage"))
        table = Table(
            [Column("stage"), *(Column(head, True) for head in ("in", "out", "bytes out", "trimmed", "time"))],
            [
                [
                    row["stage"],
                    number(row["documents_in"]),
                    number(row["documents_out"]),
                    size(row["bytes_out"]),
                    size(row["bytes_trimmed"]),
                    duration(row["seconds"]),
                ]
                for row in stages
            ],
        )
        caption = (
            "Documents that left each stage, of those that went in (outline). A stage sees only the sources it is for."
        )
        blocks.append(Block("figure", figure=Figure("Funnel", safe(drawing), caption, table=table)))
        blocks += [Block("note", f"Alarm: {alarm}.") for alarm in funnel.get("alarms", [])]
        blocks += _reasons(stages, funnel.get("rows", []))
    blocks += _sources(facts)
    blocks += _corpus_notes(facts)
    return [Section("corpus", "Corpus", blocks)]


def _in_order(stages: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Stages in an order that agrees with that of every source, for not every source goes through every stage."""
    paths: dict[str, list[str]] = {}
    for row in rows:
        paths.setdefault(row["source"], []).append(row["stage"])
    by_name = {stage["stage"]: stage for stage in stages}
    ordered: list[str] = []
    while len(ordered) < len(by_name):
        waiting = {
            name
            for path in paths.values()
            for place, name in enumerate(path)
            if any(earlier not in ordered for earlier in path[:place])
        }
        free = [name for name in by_name if name not in ordered and name not in waiting]
        # Sources that disagree on the order leave none free; then the order of the record stands.
        ordered += free[:1] or [name for name in by_name if name not in ordered]
    return [by_name[name] for name in ordered]


def _reasons(stages: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> list[Block]:
    removed = [
        (row["stage"], reason, counts["documents"], counts["bytes"])
        for row in stages
        for reason, counts in sorted(row["removed"].items(), key=lambda item: -item[1]["documents"])
    ]
    blocks = []
    if removed:
        table = Table(
            [Column("stage"), Column("reason"), Column("documents", True), Column("text", True)],
            [[stage, reason, number(documents), size(text)] for stage, reason, documents, text in removed],
        )
        blocks.append(Block("details", title="Documents removed, by reason", table=table))
    names = list(dict.fromkeys(row["source"] for row in rows))
    if names:
        out = {(row["stage"], row["source"]): row["documents_out"] for row in rows}
        first = {row["source"]: row["documents_in"] for row in reversed(rows)}
        table = Table(
            [Column("source"), Column("raw", True), *(Column(row["stage"], True) for row in stages)],
            [
                [name, number(first[name]), *(number(out.get((row["stage"], name))) for row in stages)]
                for name in names
            ],
        )
        blocks.append(Block("details", title="Documents left, by source and stage", table=table))
    return blocks


def _sources(facts: dict[str, Any]) -> list[Block]:
    sources = facts.get("sources", {})
    if not sources:
        return []
    keys = ("documents", "bytes", "tokens", "validation_tokens")
    total = facts.get("totals", {})

    def cells(row: dict[str, Any]) -> list[str]:
        return [number(row.get(keys[0])), size(row.get(keys[1])), *(number(row.get(key)) for key in keys[2:])]

    rows = [[name, *cells(row)] for name, row in sources.items()]
    if total:
        rows.append(["all", *cells(total)])
    heads = ("documents", "text", "tokens", "held out")
    table = Table([Column("source"), *(Column(head, True) for head in heads)], rows, ("all",))
    blocks = [Block("table", title="What is left, by source", table=table)]
    derived = [name for name, row in sources.items() if row.get("derived")]
    if derived:
        text = f"{', '.join(derived)}: documents of the other sources once more; not counted in the sum."
        blocks.append(Block("note", text))
    return blocks


def _corpus_notes(facts: dict[str, Any]) -> list[Block]:
    notes = []
    for name, row in facts.get("dedup", {}).items():
        notes.append(f"{number(row.get('removed'))} {name} duplicates removed")
    pii = facts.get("pii", {})
    if pii:
        notes.append("masked personal data: " + ", ".join(f"{number(value)} {kind}" for kind, value in pii.items()))
    tokenizer = facts.get("tokenizer", {})
    if tokenizer:
        notes.append(
            f"tokenizer of {number(tokenizer.get('vocab_size'))} tokens, "
            f"{number(tokenizer.get('bytes_per_token'), 2)} "
            "bytes a token"
        )
    text = "; ".join(notes)
    return [Block("note", text[:1].upper() + text[1:] + ".")] if notes else []


def sft_section(run: RunData) -> list[Section]:
    """Instruction tuning.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: One section.
    """
    facts = run.stage("sft")
    curation = facts.get("curation", {})
    blocks: list[Block] = []
    if curation:
        rows = [("rows", curation["rows"], None, number(curation["rows"]), "c8")]
        rows += [(reason, gone, None, number(gone), "c2") for reason, gone in curation["dropped"].items() if gone]
        rows += [("kept", curation["kept"], None, number(curation["kept"]), "c1")]
        drawing = both(lambda variant: bars(variant, rows, "Instruction rows by fate"))
        table = Table(
            [Column("source"), Column("rows", True), Column("kept", True)],
            [
                [name, number(source["rows"]), number(source["kept"])]
                for name, source in curation.get("sources", {}).items()
            ],
        )
        caption = "Rows of instruction data, those dropped by reason, and those kept for training and measuring."
        blocks.append(Block("figure", figure=Figure("Curation", safe(drawing), caption, table=table)))
    logs = run.sft_logs[-1:]
    x, raw, running, window = joined(logs, "loss")
    if len(x) > 1:
        series = [Series("loss", x, running, "c4", raw)]
        drawing = both(
            lambda variant: line_chart(
                variant, series, "Loss on assistant tokens over updates", "updates", "nats a token", height=220.0
            )
        )
        caption = f"On training batches{how_smoothed(window)}."
        blocks.append(Block("figure", figure=Figure("Loss on the assistant's tokens", safe(drawing), caption)))
    loss = facts.get("assistant_loss", {})
    if loss:
        rows_of_loss = [
            [kind, number(loss.get(f"{key}_before")), number(loss.get(f"{key}_after"))]
            for kind, key in (("training rows", "train"), ("held-out rows", "validation"))
            if f"{key}_before" in loss
        ]
        table = Table([Column("loss on"), Column("before", True), Column("after", True)], rows_of_loss)
        blocks.append(Block("table", table=table))
        balance = facts.get("router_balance", {})
        text = f"Convention: {facts.get('convention', 'not recorded')}. "
        if balance.get("active"):
            text += f"Router balancing was active with coefficient {balance.get('coefficient'):g}."
        else:
            text += "Router balancing was off."
        blocks.append(Block("note", text))
    return [Section("sft", "Instruction tuning", blocks)]

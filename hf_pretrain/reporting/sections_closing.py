"""Sections at the end of the page: where the text is from, what the model says, with what it was made."""

from hf_pretrain.reporting.blocks import Block, Column, Section, Table
from hf_pretrain.reporting.run_data import RunData
from hf_pretrain.utils.number_text import duration, number


def closing_sections(run: RunData) -> list[Section]:
    """Licences, the reloaded model, versions.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `list[Section]`: Three sections; what was not recorded is empty.
    """
    return [
        Section("licences", "Sources and licences", _licences(run)),
        Section("sample", "Sample", _sample(run)),
        Section("versions", "Versions", _versions(run)),
    ]


def _licences(run: RunData) -> list[Block]:
    rows = []
    for name, source in run.stage("corpus").get("sources", {}).items():
        languages = source.get("languages", {})
        rows.append(
            [
                name,
                ", ".join(source.get("licenses", [])) or "unknown",
                ", ".join(f"{code} {number(documents)}" for code, documents in languages.items()) or "-",
            ]
        )
    for license_name, kept in run.stage("sft").get("curation", {}).get("licenses", {}).items():
        rows.append(["instruction rows", license_name, f"{number(kept)} rows"])
    if not rows:
        return []
    return [Block("table", table=Table([Column("source"), Column("licences"), Column("documents by language")], rows))]


def _sample(run: RunData) -> list[Block]:
    reload = run.stage("push").get("reload", {})
    if not reload:
        return []
    return [
        Block(
            "text",
            "A fresh process without this package loaded the pushed folder and generated, greedily. Its logits differ "
            f"from those of the model in memory by at most {reload.get('max_logit_difference', 0):.3g}.",
        ),
        Block("quote", f"{reload.get('prompt', '')}\n\n{reload.get('text', '')}"),
    ]


def _versions(run: RunData) -> list[Block]:
    environment = run.facts.get("environment", {})
    blocks = []
    versions = environment.get("versions", {})
    if versions:
        rows = [[name, str(version)] for name, version in versions.items()]
        blocks.append(Block("table", table=Table([Column("package"), Column("version")], rows)))
    stages = run.facts.get("stages", {})
    rows = [[name, facts.get("kind", ""), duration(facts.get("seconds"))] for name, facts in stages.items()]
    if rows:
        columns = [Column("stage"), Column("kind"), Column("time", True)]
        blocks.append(Block("table", title="Stages", table=Table(columns, rows)))
    return blocks

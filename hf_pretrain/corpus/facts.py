"""The facts of a corpus, for `facts.json`: what went in, what came out, and what was found on the way.

    {"funnel": {"stages": [...], "rows": [...], "alarms": [...]},
     "totals": {SIZES}, "sources": {name: {SIZES, "licenses", "languages", "derived"}},
     "dedup": {"exact": {"removed", "rate"}, "near": {"removed", "rate", "candidate_probability"}},
     "filters": {"words", "classifier"}, "pii": {type: count}, "contamination": {benchmark: {...}},
     "instructions": {name: rows},
     "tokenizer": {"vocab_size", "bytes_per_token", "trained_on_bytes"}, "step_seconds": {step: seconds}, "seconds": s}

SIZES stands for "raw_documents", "raw_bytes", "documents", "bytes", "tokens", "train_tokens", "validation_tokens".
Sizes are UTF-8 bytes of text (of HTML where a raw source is HTML). `derived` marks the source of long documents, whose
documents are counted in their own sources already.
"""

from typing import Any

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.dedup.minhash import collision_probability
from hf_pretrain.corpus.stage import StepResult


def corpus_facts(
    config: CorpusConfig,
    results: list[StepResult],
    funnel: dict[str, Any],
    summaries: list[dict[str, Any]],
    report: dict[str, Any] | None,
    instruction_rows: dict[str, int],
) -> dict[str, Any]:
    """Sums up a built corpus.

    Args:
        config (`CorpusConfig`): Its settings.
        results (`list[StepResult]`): Its steps.
        funnel (`dict`): Content of `funnel.json`.
        summaries (`list[dict]`): Every `source.json`.
        report (`dict`, *optional*): Content of `contamination.json`.
        instruction_rows (`dict[str, int]`): Rows of every instruction set.

    Returns:
        `dict`: Plain JSON data.
    """
    sources = _source_facts(config, funnel, summaries)
    own = [facts for facts in sources.values() if not facts["derived"]]
    totals = {
        key: sum(facts[key] for facts in own)
        for key in (
            "raw_documents",
            "raw_bytes",
            "documents",
            "bytes",
            "tokens",
            "train_tokens",
            "validation_tokens",
        )
    }
    by_name = {result.name: result for result in results}
    facts: dict[str, Any] = {
        "funnel": {key: funnel[key] for key in ("stages", "rows", "alarms")},
        "totals": totals,
        "sources": sources,
        "dedup": _dedup_facts(config, funnel),
        "filters": {
            "words": config.filters.words,
            "classifier": by_name["quality"].details.get("classifier") if "quality" in by_name else None,
        },
        "pii": by_name["pii"].details["masked"] if "pii" in by_name else {},
        "contamination": report["benchmarks"] if report else {},
        "contamination_action": config.contamination.action if report else "none",
        "instructions": instruction_rows,
        "tokenizer": {
            "vocab_size": summaries[0]["vocab_size"],
            "bytes_per_token": round(totals["bytes"] / max(totals["tokens"], 1), 4),
            "trained_on_bytes": by_name["tokenizer"].details["trained_on_bytes"],
        },
        "step_seconds": {result.name: round(result.seconds, 3) for result in results},
        "seconds": round(sum(result.seconds for result in results), 3),
    }
    return facts


def _source_facts(
    config: CorpusConfig, funnel: dict[str, Any], summaries: list[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    sources: dict[str, dict[str, Any]] = {}
    for name in [*config.source_names, config.long_documents.name]:
        parts = [summary for summary in summaries if summary["name"] == name]
        first = next((row for row in funnel["rows"] if row["source"] == name), None)
        if not parts and first is None:
            continue
        # A routed document was counted raw where it came in.
        raw = first if first and first["stage"] != "route" else {}
        languages: dict[str, int] = {}
        for part in parts:
            for code, count in part["languages"].items():
                languages[code] = languages.get(code, 0) + count
        tokens = {part["split"]: part["num_tokens"] for part in parts}
        sources[name] = {
            "raw_documents": raw.get("documents_in", 0),
            "raw_bytes": raw.get("bytes_in", 0),
            "documents": sum(part["num_documents"] for part in parts),
            "bytes": sum(part["num_bytes"] for part in parts),
            "tokens": sum(tokens.values()),
            "train_tokens": tokens.get("train", 0),
            "validation_tokens": tokens.get("validation", 0),
            "licenses": sorted({name for part in parts for name in part["licenses"]}),
            "languages": dict(sorted(languages.items(), key=lambda item: (-item[1], item[0]))),
            "derived": name == config.long_documents.name,
        }
    return sources


def _dedup_facts(config: CorpusConfig, funnel: dict[str, Any]) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    for row in funnel["stages"]:
        if row["stage"] in ("exact", "near"):
            removed = row["documents_in"] - row["documents_out"]
            facts[row["stage"]] = {"removed": removed, "rate": round(removed / max(row["documents_in"], 1), 6)}
    if "near" in facts:
        setting = config.dedup.minhash
        facts["near"]["similarity_threshold"] = setting.similarity_threshold
        facts["near"]["candidate_probability"] = round(
            collision_probability(setting.similarity_threshold, setting.num_buckets, setting.hashes_per_bucket), 6
        )
    return facts

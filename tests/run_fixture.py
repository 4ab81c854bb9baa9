"""A run folder with facts and logs in the shape that the stages write, for tests of card and report.

The values are made up but hang together: funnel sums agree, token counts agree with the logs.
"""

import json
import math
from pathlib import Path
from typing import Any


SOURCES = {
    "books": {"licenses": ["public domain"], "languages": {"en": 74}, "documents": [91, 83, 74], "tokens": 812_331},
    "code": {"licenses": ["PSF-2.0"], "languages": {"und": 371}, "documents": [402, 390, 371], "tokens": 640_118},
    "encyclopedic": {
        "licenses": ["CC-BY-SA-4.0"],
        "languages": {"en": 1204, "fr": 610},
        "documents": [2100, 1950, 1814],
        "tokens": 433_905,
    },
    "howto": {
        "licenses": ["CC-BY-SA-3.0"],
        "languages": {"en": 907},
        "documents": [1100, 980, 907],
        "tokens": 188_442,
    },
    "web": {"licenses": ["PSF-2.0"], "languages": {"en": 498}, "documents": [690, 571, 498], "tokens": 921_650},
}
MODELS = ["untrained", "2_pretrain", "3_anneal", "4_long_context", "5_sft"]
_STAGES = ["extract", "quality", "exact"]
_TRAINING = {"2_pretrain": (256, 200, 32), "3_anneal": (256, 80, 32), "4_long_context": (1024, 40, 8)}


def funnel() -> dict[str, Any]:
    """The content of `funnel.json`."""
    rows = []
    for position, stage in enumerate(_STAGES):
        for name, source in SOURCES.items():
            before = source["documents"][position - 1] if position else source["documents"][0] + 7
            after = source["documents"][position]
            reason = ["empty_page", "gopher_short_doc", "exact_duplicate"][position]
            rows.append(
                {
                    "stage": stage,
                    "source": name,
                    "documents_in": before,
                    "documents_out": after,
                    "bytes_in": before * 3000,
                    "bytes_out": after * 3000,
                    "bytes_trimmed": 0,
                    "removed": {reason: {"documents": before - after, "bytes": (before - after) * 3000}},
                    "seconds": 0.5,
                }
            )
    stages = []
    for stage in _STAGES:
        mine = [row for row in rows if row["stage"] == stage]
        total = {key: sum(row[key] for row in mine) for key in mine[0] if isinstance(mine[0][key], (int, float))}
        reason = next(iter(mine[0]["removed"]))
        removed = {reason: {key: sum(row["removed"][reason][key] for row in mine) for key in ("documents", "bytes")}}
        stages.append({"stage": stage, "source": "all", **total, "removed": removed})
    tokens = {name: source["tokens"] for name, source in SOURCES.items()}
    return {"schema": 1, "stages": stages, "rows": rows, "tokens": tokens, "alarms": []}


def facts() -> dict[str, Any]:
    """The content of `facts.json`."""
    sources = {
        name: {
            "raw_documents": source["documents"][0] + 7,
            "raw_bytes": (source["documents"][0] + 7) * 3000,
            "documents": source["documents"][-1],
            "bytes": source["documents"][-1] * 3000,
            "tokens": source["tokens"],
            "train_tokens": source["tokens"] - source["tokens"] // 50,
            "validation_tokens": source["tokens"] // 50,
            "licenses": source["licenses"],
            "languages": source["languages"],
            "derived": False,
        }
        for name, source in SOURCES.items()
    }
    counts = [key for key, value in sources["web"].items() if type(value) is int]
    totals = {key: sum(source[key] for source in sources.values()) for key in counts}
    stages: dict[str, Any] = {
        "1_corpus": {
            "kind": "corpus",
            "sources": sources,
            "totals": totals,
            "funnel": {key: funnel()[key] for key in ("stages", "rows", "alarms")},
            "dedup": {"exact": {"removed": 310, "rate": 0.0779}, "near": {"removed": 41, "rate": 0.0112}},
            "pii": {"email": 120, "ipv4": 3},
            "tokenizer": {"vocab_size": 4096, "bytes_per_token": 3.41, "trained_on_bytes": 4_000_000},
            "contamination": {
                "humaneval": {
                    "revision": "1.0.3",
                    "published": "2021-07-07",
                    "items": 164,
                    "checked": 163,
                    "unchecked": 1,
                    "contaminated": 12,
                    "documents": 14,
                }
            },
            "contamination_action": "drop",
            "instructions": {"sample": 900},
            "seconds": 48.2,
        }
    }
    for name, (length, steps, batch) in _TRAINING.items():
        stages[name] = _training(name, length, steps, batch)
    stages["5_sft"] = _sft()
    stages["6_evaluate"] = _evaluation()
    stages["7_push"] = {
        "kind": "push",
        "model": "5_sft",
        "files": {"model.safetensors": 8_421_376, "config.json": 1_650},
        "reload": {
            "prompt": "How do I boil an egg?",
            "text": "Put the egg | into <b>boiling</b> water.",
            "new_tokens": 11,
            "max_new_tokens": 24,
            "max_logit_difference": 0.0,
            "model_class": "StrataForCausalLM",
            "load_seconds": 2.1,
        },
        "hub": None,
    }
    return {
        "schema": 1,
        "recipe": {"name": "tiny_cpu", "stages": ["1_corpus", *_TRAINING, "5_sft", "6_evaluate", "7_push"]},
        "environment": {
            "versions": {"hf_pretrain": "0.1.0", "python": "3.12.3", "torch": "2.13.0", "transformers": "5.24.0"},
            "machine": {"system": "Linux", "architecture": "x86_64", "cpu_cores": 2},
        },
        "run": {"seconds": 412.7, "peak_memory_bytes": 2_147_483_648},
        "stages": stages,
    }


def _training(name: str, length: int, steps: int, batch: int) -> dict[str, Any]:
    total = steps * batch * length
    weights = {"books": 0.25, "code": 0.2, "encyclopedic": 0.15, "howto": 0.1, "web": 0.3}
    spikes = [{"step": 61, "score": 7.4, "action": "log", "loss": 6.1}] if name == "2_pretrain" else []
    return {
        "kind": "pretrain",
        "model": {
            "total_parameters": 2_098_304,
            "active_parameters": 1_115_264,
            "non_embedding_parameters": 1_574_016,
            "tied": True,
            "config": {
                "num_hidden_layers": 4,
                "num_experts": 8,
                "num_experts_per_tok": 2,
                "max_position_embeddings": length,
            },
        },
        "data": {
            "train_tokens": total,
            "seq_length": length,
            "global_batch_tokens": batch * length,
            "steps": steps,
            "sources": {
                source: {
                    "tokens": int(total * weight),
                    "share": weight,
                    "planned_share": weight,
                    "epochs": round(total * weight / SOURCES[source]["tokens"], 3),
                    "unique_tokens": SOURCES[source]["tokens"],
                }
                for source, weight in weights.items()
            },
        },
        "schedule": {"type": "wsd", "learning_rate": 0.003, "warmup_steps": 20},
        "loss": {"first": 8.31, "last": 4.02},
        "head_memory": {
            "num_tokens": 8 * length,
            "vocab_size": 8192,
            "hidden_size": 128,
            "dtype": "float32",
            "logits": 8 * length * 8192 * 4,
            "naive": 3 * 8 * length * 8192 * 4,
            "chunked": 77_000_000,
            "liger": 9_000_000,
        },
        "throughput": {
            "tokens_per_second": 18_400.5,
            "seconds": 89.0,
            "mfu": None,
            "flop_convention": "6 N_active + attention",
        },
        "spikes": spikes,
        "rewinds": [
            {
                "spike_step": spike["step"],
                "to_step": 60,
                "skipped": [3840, 3968],
                "attempt": 1,
                "lr_factor": 0.5,
                "spikes": spikes,
                "strategy": "back to step 60, samples 3840 to 3967 left out, learning rate times 0.5",
            }
            for spike in spikes
        ],
        "router": {"max_vio": [0.31, 0.22, 0.4, 0.37], "load_balance": 1.08, "entropy": 1.9, "dead_experts": 0},
        "peak_memory_bytes": 1_503_238_553,
        "seconds": 93.1,
    }


def _sft() -> dict[str, Any]:
    return {
        "kind": "sft",
        "init_from": "4_long_context",
        "curation": {
            "rows": 900,
            "kept": 216,
            "dropped": {"short_answer": 210, "refusal": 3, "duplicate_prompt": 41, "over_budget": 430},
            "sources": {
                "faq": {"rows": 300, "kept": 116, "dropped": {"short_answer": 10, "over_budget": 174}},
                "chat": {"rows": 600, "kept": 100, "dropped": {"short_answer": 200, "over_budget": 300}},
            },
            "licenses": {"BSD-3-Clause": 100, "PSF-2.0": 116},
        },
        "data": {"rows": 200, "assistant_tokens": 21_040, "tokens": 33_418, "lost_tokens": 0, "lost_turns": 0},
        "steps": 50,
        "epochs": 2.0,
        "tokens_trained": 66_836,
        "loss": {"first": 4.4, "last": 3.1},
        "assistant_loss": {
            "train_before": 4.41,
            "train_after": 3.02,
            "validation_before": 4.45,
            "validation_after": 3.4,
        },
        "convention": "nats a token over the assistant's tokens, its end-of-turn tokens among them",
        "router_balance": {"active": True, "coefficient": 0.001, "first": 2.1, "last": 2.05},
        "seconds": 21.9,
    }


def _evaluation() -> dict[str, Any]:
    gain = {"untrained": 1.0, "2_pretrain": 0.66, "3_anneal": 0.61, "4_long_context": 0.615, "5_sft": 0.64}
    start = {"books": 3.31, "code": 3.62, "encyclopedic": 3.28, "howto": 3.25, "web": 3.47}
    bits = {
        model: {**{source: round(value * factor, 4) for source, value in start.items()}, "all": round(3.4 * factor, 4)}
        for model, factor in gain.items()
    }
    benchmarks = {
        model: {
            "all": {"items": 164, "bits_per_byte": 2.1 * factor, "low": 2.0 * factor, "high": 2.2 * factor},
            "clean": {"items": 152, "bits_per_byte": 2.11 * factor, "low": 2.0 * factor, "high": 2.22 * factor},
            "contaminated": {"items": 12, "bits_per_byte": 2.05 * factor, "low": 1.8 * factor, "high": 2.4 * factor},
        }
        for model, factor in gain.items()
    }
    return {
        "kind": "evaluate",
        "bits_per_byte": bits,
        "ratio": {model: values["all"] / bits["untrained"]["all"] for model, values in bits.items()},
        "convention": "nats of predicted tokens / ln 2 / UTF-8 bytes of these tokens",
        "scored": {name: {"tokens": 8000, "bytes": 27_000, "documents": 12} for name in [*SOURCES, "all"]},
        "benchmarks": {"humaneval": benchmarks},
        "benchmark_convention": "bits per byte of the reference answer given the question, pooled over items",
        "long_context": {
            "edges": [1, 64, 256, 512, 1024],
            "documents": 8,
            "bits_per_byte": {
                "3_anneal": {"256": [2.5, 2.2, 2.21, 2.2], "1024": [2.5, 2.2, 2.9, 3.6]},
                "4_long_context": {"256": [2.5, 2.21, 2.22, 2.2], "1024": [2.5, 2.2, 2.12, 2.08]},
            },
            "convention": "bits per byte of the tokens between two positions of a document",
        },
        "seconds": 31.0,
    }


def log_lines(name: str) -> list[dict[str, Any]]:
    """The content of a stage's `log.jsonl`."""
    if name == "5_sft":
        return [
            {"step": step, "loss": 3.0 + 1.4 * math.exp(-step / 15), "learning_rate": 1e-4 * (1 - step / 50)}
            for step in range(1, 51)
        ]
    length, steps, batch = _TRAINING[name]
    start, floor = {"2_pretrain": (8.3, 4.3), "3_anneal": (4.3, 4.0), "4_long_context": (4.1, 3.98)}[name]
    weights = {"books": 0.25, "code": 0.2, "encyclopedic": 0.15, "howto": 0.1, "web": 0.3}
    lines, seen = [], dict.fromkeys(weights, 0.0)
    for step in range(1, steps + 1):
        drift = step / steps if name == "3_anneal" else 0.0
        for source, weight in weights.items():
            target = {"books": 0.35, "encyclopedic": 0.3, "howto": 0.2, "code": 0.1, "web": 0.05}[source]
            seen[source] += batch * length * ((1 - drift) * weight + drift * target)
        noise = 0.06 * math.sin(step * 12.9898)
        loss = floor + (start - floor) * math.exp(-step / (steps / 5)) + noise + (2.0 if step == 61 else 0.0)
        lines.append(
            {
                "step": step,
                "loss": loss + 0.02,
                "ce_loss": loss,
                "learning_rate": 3e-3 * min(step / 20, 1.0) * (1 - 0.9 * drift),
                "grad_norm": 0.8 + noise,
                "tokens_seen": step * batch * length,
                "router/max_vio": 1.2 * math.exp(-step / 40) + 0.3,
                "router/load": [
                    [batch * length * 2 / 8 * (1 + 0.3 * math.sin(layer + expert)) for expert in range(8)]
                    for layer in range(4)
                ],
                **{f"data/{source}/tokens": round(tokens) for source, tokens in seen.items()},
            }
        )
    return lines


def write_run(folder: Path, stages: list[str] | None = None) -> Path:
    """Writes a run folder; `stages` limits it to the first ones."""
    content = facts()
    if stages is not None:
        content["stages"] = {name: content["stages"][name] for name in stages}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "facts.json").write_text(json.dumps(content), encoding="utf-8")
    for name in [*_TRAINING, "5_sft"]:
        if name in content["stages"]:
            (folder / name).mkdir(exist_ok=True)
            lines = "".join(json.dumps(line) + "\n" for line in log_lines(name))
            (folder / name / "log.jsonl").write_text(lines, encoding="utf-8")
    return folder

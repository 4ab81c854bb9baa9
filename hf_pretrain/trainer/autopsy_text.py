"""An autopsy on disk: `autopsies/step-N.json` and the same as `step-N.md`, each complete or absent.

Texts of documents, ids and URLs come from the web: in Markdown everything that could be read as markup is escaped.
"""

import html
import re
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import read_json, write_json, write_text


FOLDER = "autopsies"
_MARKUP = re.compile(r"([\\`*_{}\[\]()#+!|~-])")
# Documents in the Markdown table; the JSON file has more.
_SHOWN = 20


def autopsy_path(stage_dir: str | Path, step: int) -> Path:
    """Names the JSON file of an autopsy.

    Args:
        stage_dir (`str` or `Path`): The stage's folder.
        step (`int`): The step.

    Returns:
        `Path`: The file; the Markdown file lies beside it.
    """
    return Path(stage_dir) / FOLDER / f"step-{step}.json"


def write_autopsy(stage_dir: str | Path, report: dict[str, Any]) -> Path:
    """Writes an autopsy as JSON and Markdown.

    Args:
        stage_dir (`str` or `Path`): The stage's folder.
        report (`dict`): Of `hf_pretrain.trainer.autopsy.examine`.

    Returns:
        `Path`: The Markdown file.
    """
    path = autopsy_path(stage_dir, report["step"])
    write_json(path, report)
    markdown = path.with_suffix(".md")
    write_text(markdown, autopsy_markdown(report))
    return markdown


def autopsy_summaries(stage_dir: str | Path) -> list[dict[str, Any]]:
    """Lists a stage's autopsies, for its facts.

    Args:
        stage_dir (`str` or `Path`): The stage's folder.

    Returns:
        `list[dict[str, Any]]`: `step`, `verdict`, `lines`, `file` (relative to the stage's folder) and the worst
        `document` of each, by step.
    """
    found = []
    for path in (Path(stage_dir) / FOLDER).glob("step-*.json"):
        report = read_json(path)
        worst = next(iter(report["documents"]), None)
        found.append(
            {
                "step": report["step"],
                "verdict": report["verdict"]["kind"],
                "lines": report["verdict"]["lines"],
                "file": f"{FOLDER}/{path.stem}.md",
                **({"document": f"{worst['source']} {worst['document']}"} if worst else {}),
            }
        )
    return sorted(found, key=lambda one: one["step"])


def escape_markdown(text: Any) -> str:
    """Makes a text show as it is, on one line.

    Args:
        text (`Any`): The text.

    Returns:
        `str`: Without control characters or line breaks, markup escaped.
    """
    plain = "".join(letter if letter.isprintable() else " " for letter in str(text))
    return _MARKUP.sub(r"\\\1", html.escape(" ".join(plain.split()), quote=False))


def _number(value: Any, digits: int = 4) -> str:
    if value is None:
        return "-"
    return f"{value:.{digits}g}" if isinstance(value, float) else escape_markdown(value)


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def autopsy_markdown(report: dict[str, Any]) -> str:
    """Writes an autopsy for people.

    Args:
        report (`dict`): The autopsy.

    Returns:
        `str`: Markdown.
    """
    lines = [f"# Step {report['step']}: {escape_markdown(report['verdict']['kind'])}", ""]
    lines += [f"- {escape_markdown(line)}" for line in report["verdict"]["lines"]] + [""]
    lines += [*_facts(report), "## Losses and gradient norms", ""]
    rows = [
        [
            f"{one['weights']}, {one['precision']}",
            *[_number(one[key]) for key in ("loss", "reference_loss", "grad_norm", "reference_grad_norm", "lse_max")],
        ]
        for one in report["evaluations"]
    ]
    if rows:
        head = ["weights", "loss", "loss of the reference", "gradient norm", "of the reference", "largest lse"]
        lines += _table(head, rows)
        lines += ["Cross-entropies in nats per token; the reference is the batch beside this one.", ""]
    else:
        lines += ["Not evaluated again.", ""]
    lines += [*_documents(report), *_norms(report), *_routers(report)]
    return "\n".join(lines).rstrip() + "\n"


def _facts(report: dict[str, Any]) -> list[str]:
    lines = []
    for event in report["events"]:
        score = "" if event.get("z_score") is None else f", {event['z_score']:.1f} standard deviations above the mean"
        usual = "" if event.get("mean") is None else f" of {event['mean']:.4g}"
        lines.append(f"- the run saw: {event['kind'].replace('_', ' ')} {_number(event['value'])}{score}{usual}")
    for name, weights in report["weights"].items():
        exact = "exactly those the step was made with" if weights["exact"] else f"after {weights['step']} updates"
        lines.append(f"- {name} weights: {escape_markdown(weights['name'])}, {exact}")
    batch = report["batch"]
    if batch:
        lines.append(f"- {batch['evaluated']} of {batch['sequences']} sequences of the step were read")
    rate = report["learning_rate"]
    if rate["used"] is not None:
        lines.append(f"- learning rate {_number(rate['used'])}, by the schedule {_number(rate['planned'])}")
    return [*lines, *[f"- {escape_markdown(note)}" for note in report["notes"]], ""]


def _documents(report: dict[str, Any]) -> list[str]:
    if not report["documents"]:
        return []
    rows = []
    for rank, one in enumerate(report["documents"][:_SHOWN], start=1):
        texts = [escape_markdown(one[key] or "-") for key in ("source", "document", "url")]
        numbers = [_number(one["loss"]), str(one["num_tokens"]), f"{one['excess_share']:.1%}"]
        rows.append([str(rank), *texts, *numbers, escape_markdown(one.get("text", ""))])
    head = ["", "source", "document", "URL", "loss", "targets", "share of the excess", "begins"]
    title = f"## Documents, worst first ({min(_SHOWN, len(rows))} of {report['num_documents']}, "
    return [title + f"at the {report['documents_at']} weights, fp32)", "", *_table(head, rows)]


def _norms(report: dict[str, Any]) -> list[str]:
    norms = report["gradient_norms"]
    if not norms:
        return []
    parts = list(dict.fromkeys(part for values in norms.values() for part in values))
    names = {"previous": "previous weights", "current": "current weights", "step": "the step itself"}
    rows = [[part, *[_number(norms[key].get(part)) for key in norms]] for part in parts]
    return ["## Gradient norm by layer", "", *_table(["", *[names[key] for key in norms]], rows)]


def _routers(report: dict[str, Any]) -> list[str]:
    lines = []
    for name, routers in report["routers"].items():
        rows = [
            [str(layer), *[_number(one[key], 3) for key in ("max_vio", "entropy", "lse_max")], _load(one["load"])]
            for layer, one in enumerate(routers)
        ]
        head = ["router", "MaxVio", "entropy of the load", "largest lse", "load in percent"]
        lines += [f"## Routers at the {name} weights", "", *_table(head, rows)]
    return lines


def _load(shares: list[Any]) -> str:
    most = 16
    text = " ".join(f"{share:.0%}".rstrip("%") if isinstance(share, float) else str(share) for share in shares[:most])
    return text + (f" and {len(shares) - most} more" if len(shares) > most else "")

"""The model card, from `facts.json` alone.

The header is checked offline against what the Hub accepts; the text holds no number that is not a fact, written
shortly, and `numbers_not_in_facts` proves it. What was not recorded is left out, never guessed.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_pretrain.hub.card_memorisation import memorisation_text
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.number_text import count, duration, number, size


TEMPLATE = Path(__file__).parent / "templates" / "model_card.md"

# Licences as sources name them, and as the Hub does; others become "other" with a file that names them.
HUB_LICENSES = {
    "apache-2.0": "apache-2.0",
    "mit": "mit",
    "bsd-2-clause": "bsd-2-clause",
    "bsd-3-clause": "bsd-3-clause",
    "bsd": "bsd",
    "cc0-1.0": "cc0-1.0",
    "cc-by-2.5": "cc-by-2.5",
    "cc-by-3.0": "cc-by-3.0",
    "cc-by-4.0": "cc-by-4.0",
    "cc-by-sa-3.0": "cc-by-sa-3.0",
    "cc-by-sa-4.0": "cc-by-sa-4.0",
    "gfdl": "gfdl",
    "gpl": "gpl",
    "gpl-2.0": "gpl-2.0",
    "gpl-3.0": "gpl-3.0",
    "lgpl-3.0": "lgpl-3.0",
    "mpl-2.0": "mpl-2.0",
    "odc-by": "odc-by",
    "openrail": "openrail",
    "pddl": "pddl",
    "unlicense": "unlicense",
    "other": "other",
    "unknown": "unknown",
}
PIPELINE_TAG = "text-generation"
_REPOSITORY = re.compile(r"^[\w.-]+/[\w.-]+$")
_NUMBER = re.compile(
    r"(?<![\w.,/@#-])(?P<clock>\d+:\d\d(?::\d\d)?)(?![\w])"
    r"|(?<![\w.,/@#-])(?P<sign>-)?(?P<digits>\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?)(?P<exponent>e[+-]?\d+)?"
    r"(?: ?(?P<unit>kB|MB|GB|[kMBs%](?![\w])))?(?![\w])"
)
_UNITS = {"k": 1e3, "M": 1e6, "B": 1e9, "kB": 1e3, "MB": 1e6, "GB": 1e9, "%": 0.01, "s": 1.0}


def render_card(facts: Mapping[str, Any], load_from: str | None = None) -> str:
    """Renders the card of a run.

    Args:
        facts (`Mapping`): Content of `facts.json`.
        load_from (`str`, *optional*): Repository or folder named in the example; by default `path/to/this/folder`.

    Returns:
        `str`: Markdown with a YAML header.

    Raises:
        UserError: If the header would not be accepted by the Hub.
    """
    from huggingface_hub import ModelCard, ModelCardData

    header = card_header(facts)
    card = ModelCard.from_template(
        ModelCardData(**header),
        template_path=str(TEMPLATE),
        **_content(facts, load_from or "path/to/this/folder"),
    )
    text = re.sub(r"\n{3,}", "\n\n", str(card.content)).rstrip() + "\n"
    check_card(text)
    return text


def card_header(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Metadata of the card.

    Args:
        facts (`Mapping`): Content of `facts.json`.

    Returns:
        `dict`: Fields of `huggingface_hub.ModelCardData`; none of them empty.
    """
    licenses = source_licenses(facts)
    known = [HUB_LICENSES.get(_plain_license(name)) for name in licenses]
    header: dict[str, Any] = {"library_name": "transformers", "pipeline_tag": PIPELINE_TAG}
    chosen = _stage(facts, "push").get("license")
    if chosen:
        header["license"] = chosen
    elif len(set(known)) == 1 and known[0]:
        header["license"] = known[0]
    else:
        # Several licences make no new one; the reader gets all of them in a file.
        header |= {"license": "other", "license_name": "see-license-file", "license_link": "LICENSE.md"}
    languages = sorted(
        {
            code
            for source in _stage(facts, "corpus").get("sources", {}).values()
            for code in source.get("languages", {})
            if re.fullmatch(r"[a-z]{2,3}", code) and code != "und"
        }
    )
    if languages:
        header["language"] = languages
    config = _model(facts).get("config", {})
    tags = ["hf-pretrain", str(config.get("model_type", "strata"))]
    if config.get("num_experts"):
        tags.append("moe")
    if _stage(facts, "sft"):
        tags.append("conversational")
    header["tags"] = tags
    base = _base_model(facts)
    if base and _REPOSITORY.match(str(base)):
        header["base_model"] = base
    return header


def license_file(facts: Mapping[str, Any]) -> str:
    """Text of `LICENSE.md`: what the training text is licensed as.

    Args:
        facts (`Mapping`): Content of `facts.json`.

    Returns:
        `str`: Markdown.
    """
    rows = [
        [name, ", ".join(source.get("licenses", [])) or "unknown"]
        for name, source in _stage(facts, "corpus").get("sources", {}).items()
    ]
    kept = _stage(facts, "sft").get("curation", {}).get("licenses", {})
    rows += [["instruction rows", name] for name in kept]
    return (
        "# Licences of the training data\n\nThis model was trained on text under these licences. Whether and how they "
        "bind the weights is not settled; this file states what went in.\n\n"
        + table(["source", "licences"], rows)
        + "\n"
    )


def source_licenses(facts: Mapping[str, Any]) -> list[str]:
    """All licences of the training data.

    Args:
        facts (`Mapping`): Content of `facts.json`.

    Returns:
        `list[str]`: Names as the sources give them, sorted.
    """
    names = {
        name
        for source in _stage(facts, "corpus").get("sources", {}).values()
        for name in source.get("licenses", []) or ["unknown"]
    }
    return sorted(names | set(_stage(facts, "sft").get("curation", {}).get("licenses", {})))


def check_card(text: str) -> None:
    """Makes sure, offline, that the Hub would take a card's header.

    Args:
        text (`str`): The card.

    Raises:
        UserError: If there is no header, it is no YAML, holds an empty or non-finite value, an unknown licence, or a
            base model that is no `user/name`.
    """
    import yaml

    match = re.match(r"^---\n(.*?)\n---\n", text, re.DOTALL)
    if match is None:
        raise UserError("card: it has no YAML header between two lines of ---.")
    try:
        header = yaml.safe_load(match.group(1))
    except yaml.YAMLError as error:
        raise UserError(f"card: its header is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(header, dict):
        raise UserError("card: its header is no mapping.")
    for where, value in _leaves(header, "card"):
        if value is None or value == "" or (isinstance(value, float) and not math.isfinite(value)):
            raise UserError(f"{where} = {value}; the Hub refuses empty and non-finite values: leave the key out.")
    if header.get("license") not in set(HUB_LICENSES.values()):
        raise UserError(f"card.license = {header.get('license')}; it is no licence id of the Hub: use 'other'.")
    if header["license"] == "other" and not (header.get("license_name") and header.get("license_link")):
        raise UserError("card.license = other; license_name and license_link must say what it is.")
    bases = header.get("base_model", [])
    for base in [bases] if isinstance(bases, str) else bases:
        if not _REPOSITORY.match(base):
            raise UserError(f"card.base_model = {base}; the Hub wants user/name, not a path: leave it out.")


def numbers_not_in_facts(text: str, facts: Any) -> list[str]:
    """Finds the numbers of a text that no fact backs.

    A number is backed when a fact, rounded to as many digits and divided by the same unit (k, M, B, kB, MB, GB, %),
    reads the same, or a clock time when a fact is that many seconds; numbers inside the texts and keys of facts count
    too.

    Args:
        text (`str`): The text; its YAML header counts as well.
        facts (`Any`): Plain JSON data.

    Returns:
        `list[str]`: Numbers as they stand in the text, in order.
    """
    values: list[float] = []
    words: set[str] = set()
    for value in _scalars(facts):
        if isinstance(value, str):
            words |= {match.group(0).strip() for match in _NUMBER.finditer(value)}
        elif isinstance(value, (int, float)) and not isinstance(value, bool):
            values.append(float(value))
    missing = []
    for match in _NUMBER.finditer(text):
        shown = match.group(0).strip()
        if shown not in words and not _is_backed(match, values):
            missing.append(shown)
    return missing


def _is_backed(match: re.Match[str], values: Sequence[float]) -> bool:
    if match.group("clock"):
        seconds = 0
        for part in match.group("clock").split(":"):
            seconds = seconds * 60 + int(part)
        return any(round(value) == seconds for value in values)
    digits = match.group("digits").replace(",", "")
    shown = float((match.group("sign") or "") + digits + (match.group("exponent") or ""))
    unit = _UNITS.get(match.group("unit") or "", 1.0)
    if match.group("exponent"):
        places = len(digits.partition(".")[2])
        return any(value and float(f"{value / unit:.{places}e}") == shown for value in values)
    places = len(digits.partition(".")[2])
    # Python rounds halves to even in formatting; the same call is made here, so that the two always agree.
    return any(f"{value / unit:.{places}f}" == f"{shown:.{places}f}" for value in values)


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield str(key)
            yield from _scalars(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _scalars(item)
    else:
        yield value


def _leaves(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{where}.{key}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _leaves(item, f"{where}[{index}]")
    else:
        yield where, value


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], numeric_from: int | None = None) -> str:
    """A Markdown table.

    Args:
        heads (`Sequence[str]`): Column heads.
        rows (`Sequence[Sequence[str]]`): Cells; pipes and line breaks in them are made harmless.
        numeric_from (`int`, *optional*): Columns from this one on are aligned to the right.

    Returns:
        `str`: The table; empty without rows.
    """
    if not rows:
        return ""
    right = len(heads) if numeric_from is None else numeric_from
    lines = [heads, ["---:" if place >= right else "---" for place in range(len(heads))]]
    body = [[cell(text) for text in row] for row in rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in [*lines, *body])


def cell(text: Any) -> str:
    """Makes a text harmless inside a Markdown table or quote.

    Args:
        text (`Any`): The text.

    Returns:
        `str`: On one line; pipes escaped, angle brackets as entities.
    """
    line = " ".join(str(text).split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")


def _stages(facts: Mapping[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    known = facts.get("stages", {})
    order = [name for name in facts.get("recipe", {}).get("stages", []) if name in known]
    names = [*order, *sorted(name for name in known if name not in order)]
    return {name: known[name] for name in names if known[name].get("kind") == kind}


def _stage(facts: Mapping[str, Any], kind: str) -> dict[str, Any]:
    return next(reversed(_stages(facts, kind).values()), {})


def _model(facts: Mapping[str, Any]) -> dict[str, Any]:
    return _stage(facts, "pretrain").get("model", {})


def _base_model(facts: Mapping[str, Any]) -> str | None:
    """What the first stage started from, where it did not start from nothing."""
    names = [stage.get("base_model") for stage in _stages(facts, "pretrain").values()]
    return next((name for name in names if name), None)


def _plain_license(name: str) -> str:
    return re.sub(r"-(only|or-later)$", "", name.strip().lower().replace(" ", "-"))


def _content(facts: Mapping[str, Any], load_from: str) -> dict[str, Any]:
    reload = _stage(facts, "push").get("reload", {})
    prompt = str(reload.get("prompt") or "How are you?")
    return {
        "title": cell(facts.get("recipe", {}).get("name", "Model")),
        "summary": _summary(facts),
        "sample": {"prompt": cell(prompt), "text": cell(reload.get("text") or "(nothing)")} if reload else None,
        "load_from": load_from,
        "load_prompt": cell(prompt).replace("\\", "\\\\").replace('"', '\\"'),
        "new_tokens": reload.get("max_new_tokens"),
        "custom_code": bool(_model(facts)),
        "evaluation": _evaluation(facts),
        "memorisation": memorisation_text(facts),
        "long_context": _long_context(facts),
        "contamination": _contamination(facts),
        "corpus": _corpus(facts),
        "mixture": _mixture(facts),
        "training": _training(facts),
        "sft": _sft(facts),
        "limits": _limits(),
        "versions": _versions(facts),
    }


def _summary(facts: Mapping[str, Any]) -> str:
    model, corpus = _model(facts), _stage(facts, "corpus").get("totals", {})
    config = model.get("config", {})
    text = []
    if model:
        experts = config.get("num_experts") or 0
        kind = "mixture-of-experts" if experts else "dense"
        text.append(f"A {kind} language model of {count(model.get('total_parameters'))} parameters")
        if experts:
            text[-1] += (
                f", of which a token uses {count(model.get('active_parameters'))} "
                f"({number(config.get('num_experts_per_tok'))}"
                f" of {number(experts)} experts in each sparse layer)"
            )
        text[-1] += "; head and embeddings are tied." if model.get("tied") else "."
    if corpus:
        text.append(
            f"Its corpus holds {count(corpus.get('train_tokens'))} tokens for training: "
            f"{number(corpus.get('documents'))} documents kept of {number(corpus.get('raw_documents'))} raw ones."
        )
    read = [
        f"{count(stage.get('data', {}).get('train_tokens'))} tokens in {name}"
        for name, stage in _stages(facts, "pretrain").items()
    ]
    if read:
        text.append(f"Trained{'' if _base_model(facts) else ' from scratch'}, it read {', '.join(read)}.")
    whole = facts.get("run", {})
    if whole.get("seconds"):
        machine = facts.get("environment", {}).get("machine", {})
        cores = f" on {number(machine.get('cpu_cores'))} {machine.get('architecture', '')} cores" if machine else ""
        text.append(f"Everything up to this card took {duration(whole['seconds'])}{cores}.")
    return " ".join(text) or "A language model; nothing is recorded about it yet."


def _evaluation(facts: Mapping[str, Any]) -> dict[str, str] | None:
    stage = _stage(facts, "evaluate")
    bits = stage.get("bits_per_byte", {})
    if not bits:
        return None
    models = list(bits)
    sources = [*sorted({name for values in bits.values() for name in values} - {"all"}), "all"]
    rows = [[source, *(number(bits[model].get(source)) for model in models)] for source in sources]
    return {"table": table(["source", *models], rows, 1), "convention": stage.get("convention", "not recorded")}


def _long_context(facts: Mapping[str, Any]) -> dict[str, str] | None:
    context = _stage(facts, "evaluate").get("long_context", {})
    if not context:
        return None
    edges = context["edges"]
    heads = [f"{low} to {high}" for low, high in zip(edges[:-1], edges[1:], strict=True)]
    rows = [
        [f"{model}, {length}", *map(number, values)]
        for model, by_length in context["bits_per_byte"].items()
        for length, values in by_length.items()
    ]
    return {
        "table": table(["model, window", *heads], rows, 1),
        "convention": f"{context.get('convention', 'not recorded')}, {number(context.get('documents'))} documents",
    }


def _contamination(facts: Mapping[str, Any]) -> dict[str, str] | None:
    corpus, stage = _stage(facts, "corpus"), _stage(facts, "evaluate")
    found = corpus.get("contamination", {})
    if not found:
        return None
    keys = ("items", "checked", "unchecked", "contaminated", "documents")
    rows = [[name, row.get("revision") or "-", *(number(row.get(key)) for key in keys)] for name, row in found.items()]
    heads = ["benchmark", "revision", "items", "checked", "too short", "found", "in documents"]
    scores = [
        [benchmark, model, *(_interval(groups.get(group, {})) for group in ("all", "clean", "contaminated"))]
        for benchmark, models in stage.get("benchmarks", {}).items()
        for model, groups in models.items()
    ]
    action = corpus.get("contamination_action", "")
    text = "Items were looked for in the raw corpus before training"
    return {
        "found": table(heads, rows, 2),
        "text": f"{text}; the action on documents that held one: {action}." if action else f"{text}.",
        "scores": table(["benchmark", "model", "all items", "clean", "contaminated"], scores, 2),
        "convention": stage.get("benchmark_convention", "not recorded"),
    }


def _interval(score: Mapping[str, Any]) -> str:
    if "bits_per_byte" not in score:
        return "no items"
    return f"{number(score['bits_per_byte'])} ({number(score['low'])} to {number(score['high'])})"


def _corpus(facts: Mapping[str, Any]) -> dict[str, str] | None:
    stage = _stage(facts, "corpus")
    sources = stage.get("sources", {})
    if not sources:
        return None
    rows = [
        [
            name,
            number(row.get("raw_documents")),
            number(row.get("documents")),
            size(row.get("bytes")),
            count(row.get("tokens")),
            ", ".join(row.get("languages", {})) or "-",
            ", ".join(row.get("licenses", [])) or "unknown",
        ]
        for name, row in sources.items()
    ]
    heads = ["source", "raw documents", "kept", "text", "tokens", "languages", "licences"]
    funnel = [
        [
            row["stage"],
            number(row["documents_in"]),
            number(row["documents_out"]),
            size(row["bytes_out"]),
            ", ".join(f"{reason} {number(lost['documents'])}" for reason, lost in _largest(row["removed"])) or "-",
        ]
        for row in stage.get("funnel", {}).get("stages", [])
    ]
    notes = [
        f"{number(row.get('removed'))} {name} duplicates were removed." for name, row in stage.get("dedup", {}).items()
    ]
    if stage.get("pii"):
        masked = ", ".join(f"{number(value)} {kind}" for kind, value in stage["pii"].items())
        notes.append(f"Masked personal data: {masked}.")
    tokenizer = stage.get("tokenizer", {})
    if tokenizer:
        notes.append(
            f"The tokenizer is a byte-level BPE of {number(tokenizer.get('vocab_size'))} tokens, trained on the "
            f"cleaned text, with {number(tokenizer.get('bytes_per_token'), 2)} bytes a token."
        )
    return {
        "text": "Every document can be traced from a training step back to its source, id and address.",
        "sources": table(heads, rows),
        "funnel": table(["stage", "documents in", "out", "text out", "most removed for"], funnel),
        "notes": " ".join(notes),
    }


def _largest(removed: Mapping[str, Mapping[str, int]]) -> list[tuple[str, Mapping[str, int]]]:
    return sorted(removed.items(), key=lambda item: (-item[1]["documents"], item[0]))[:3]


def _mixture(facts: Mapping[str, Any]) -> str:
    rows = [
        [
            stage,
            source,
            count(data.get("tokens")),
            number(data.get("share")),
            number(data.get("planned_share")),
            number(data.get("epochs"), 2),
        ]
        for stage, row in _stages(facts, "pretrain").items()
        for source, data in row.get("data", {}).get("sources", {}).items()
    ]
    return table(["stage", "source", "tokens", "share", "planned", "epochs"], rows, 2)


def _training(facts: Mapping[str, Any]) -> dict[str, str] | None:
    stages = _stages(facts, "pretrain")
    if not stages:
        return None
    rows, notes = [], []
    for name, row in stages.items():
        data, loss, speed = row.get("data", {}), row.get("loss", {}), row.get("throughput", {})
        rows.append(
            [
                name,
                count(data.get("train_tokens")),
                number(data.get("steps")),
                number(data.get("seq_length")),
                f"{number(loss.get('first'))} to {number(loss.get('last'))}",
                count(speed.get("tokens_per_second")),
                duration(speed.get("seconds")),
            ]
        )
        if speed.get("mfu") is not None:
            notes.append(f"{name}: MFU {number(speed['mfu'])} ({speed.get('flop_convention', '')}).")
        for spike in row.get("spikes") or []:
            values = {key: value for key, value in spike.items() if key != "step"}
            notes.append(f"{name}: loss spike at step {number(spike.get('step'))} ({_pairs(values)}).")
        for rewind in row.get("rewinds") or []:
            notes.append(f"{name}: spike at step {number(rewind.get('spike_step'))}: {rewind.get('strategy')}.")
        if data.get("skipped_samples"):
            notes.append(f"{name}: {count(data['skipped_samples'])} samples of the plan were left out after spikes.")
        router = {key: value for key, value in (row.get("router") or {}).items() if isinstance(value, (int, float))}
        if router:
            notes.append(f"{name}: routers at the end: {_pairs(router)}.")
    if not any(row.get("spikes") for row in stages.values()):
        notes.append("No loss spike was detected.")
    heads = ["stage", "tokens", "updates", "window", "loss in nats a token", "tokens/s", "time"]
    return {"table": table(heads, rows, 1), "notes": "\n".join(f"- {cell(note)}" for note in notes)}


def _pairs(values: Mapping[str, Any]) -> str:
    shown = {key: number(value) if isinstance(value, (int, float)) else value for key, value in values.items()}
    return ", ".join(f"{key.rpartition('/')[2].replace('_', ' ')} {value}" for key, value in shown.items())


def _sft(facts: Mapping[str, Any]) -> dict[str, str] | None:
    stage = _stage(facts, "sft")
    curation = stage.get("curation", {})
    if not curation:
        return None
    dropped = ", ".join(f"{reason} {number(gone)}" for reason, gone in curation["dropped"].items() if gone)
    text = f"Of {number(curation['rows'])} instruction rows {number(curation['kept'])} were kept"
    text += f" (dropped: {dropped})." if dropped else "."
    text += (
        f" Trained for {number(stage.get('steps'))} updates on the assistant's tokens alone; "
        f"{number(stage.get('data', {}).get('lost_tokens'))} tokens were lost to cutting."
    )
    balance = stage.get("router_balance", {})
    if balance.get("active"):
        text += f" Router balancing was active with coefficient {balance['coefficient']:g}."
    elif balance:
        text += " Router balancing was off."
    loss = stage.get("assistant_loss", {})
    rows = [
        [name, number(loss.get(f"{key}_before")), number(loss.get(f"{key}_after"))]
        for name, key in (("training rows", "train"), ("held-out rows", "validation"))
        if f"{key}_before" in loss
    ]
    shown = table(["loss on", "before", "after"], rows, 1)
    return {"text": text, "table": f"{shown}\n\nConvention: {stage['convention']}." if rows else ""}


def _limits() -> str:
    return (
        "This model is the product of a recipe that shows a whole pretraining run, not a useful assistant. It makes "
        "facts up, repeats itself, and carries whatever bias its sources have. It was not tested for safety and not "
        "aligned with anybody's preferences. Do not deploy it."
    )


def _versions(facts: Mapping[str, Any]) -> str:
    versions = facts.get("environment", {}).get("versions", {})
    return (
        table(["package", "version"], [[name, str(version)] for name, version in versions.items()]) or "Not recorded."
    )

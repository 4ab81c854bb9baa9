"""The report: one HTML file for a run, whatever stages are done.

Every number is one of `facts.json`, written shortly; curves are log lines. Text from the run is escaped by the
template.
"""

import os
from pathlib import Path
from typing import Any

from hf_pretrain import __version__
from hf_pretrain.reporting.blocks import Section, Tile
from hf_pretrain.reporting.run_data import RunData, load_run
from hf_pretrain.reporting.sections import evaluation_sections, short_name, training_sections
from hf_pretrain.reporting.sections_closing import closing_sections
from hf_pretrain.reporting.sections_data import corpus_sections, sft_section
from hf_pretrain.reporting.sections_plan import plan_section
from hf_pretrain.utils.atomic import write_text
from hf_pretrain.utils.number_text import count, duration, number, size


_TEMPLATES = Path(__file__).parent / "templates"

# Name of the variable: light, dark. c1 to c8 keep their distance for the common kinds of colour blindness.
THEME = {
    "ground": ("#fcfcfa", "#15171a"),
    "panel": ("#ffffff", "#1b1e22"),
    "ink": ("#1d2126", "#e6e6e3"),
    "soft": ("#5d646d", "#a0a6ad"),
    "faint": ("#a9afb6", "#5a6068"),
    "rule": ("#e4e5e2", "#2c3036"),
    "on-deep": ("#ffffff", "#0f1113"),
    "c1": ("#2a63a8", "#7db1ee"),
    "c2": ("#b4531b", "#eb9a63"),
    "c3": ("#2b7d5b", "#6cc7a0"),
    "c4": ("#8a4690", "#cf97d6"),
    "c5": ("#8a6d12", "#d6b955"),
    "c6": ("#a83250", "#ee8aa2"),
    "c7": ("#2c7f93", "#72c4d6"),
    "c8": ("#6a6f76", "#a9aeb5"),
}


def write_report(run_dir: str | os.PathLike, path: str | os.PathLike) -> Path:
    """Writes the report of a run.

    Args:
        run_dir (`str` or `os.PathLike`): The run folder.
        path (`str` or `os.PathLike`): The HTML file to write.

    Returns:
        `Path`: The file.

    Raises:
        UserError: If the folder holds no facts.
    """
    write_text(path, render_report(load_run(run_dir)))
    return Path(path)


def render_report(run: RunData) -> str:
    """Renders the page.

    Args:
        run (`RunData`): Facts and logs.

    Returns:
        `str`: A whole HTML document that needs nothing else.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined
    from markupsafe import Markup

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    sections: list[Section] = [
        *evaluation_sections(run),
        *training_sections(run),
        *plan_section(run),
        *corpus_sections(run),
        *sft_section(run),
        *closing_sections(run),
    ]
    style = (_TEMPLATES / "report.css").read_text(encoding="utf-8").replace("@@THEMES@@", _themes())
    return environment.get_template("report.html").render(
        title=str(run.facts.get("recipe", {}).get("name", "Run")),
        lead=_lead(run),
        tiles=_tiles(run),
        sections=[section for section in sections if section.blocks],
        style=Markup(style),
        version=__version__,
    )


def _themes() -> str:
    """Light by default, dark by the system's wish, and a switch that turns either around; no script."""
    palettes = []
    for place, scheme in ((0, "light"), (1, "dark")):
        values = "; ".join(f"--{name}: {values[place]}" for name, values in THEME.items())
        palettes.append(f"color-scheme: {scheme}; {values};")
    light, dark = palettes
    return (
        f":root {{ {light} }}\n:root:has(#scheme:checked) {{ {dark} }}\n"
        f"@media (prefers-color-scheme: dark) {{\n  :root {{ {dark} }}\n  :root:has(#scheme:checked) {{ {light} }}\n}}"
    )


def _lead(run: RunData) -> str:
    parts = []
    training = run.stage("pretrain")
    model = training.get("model", {})
    if model:
        experts = model.get("config", {}).get("num_experts") or 0
        kind = "mixture-of-experts" if experts else "dense"
        active = f" ({count(model.get('active_parameters'))} active)" if experts else ""
        parts.append(f"A {kind} language model of {count(model.get('total_parameters'))} parameters{active}.")
    totals = run.stage("corpus").get("totals", {})
    if totals:
        parts.append(
            f"Its corpus: {number(totals.get('documents'))} documents, {count(totals.get('tokens'))} tokens, kept of "
            f"{number(totals.get('raw_documents'))} raw documents."
        )
    done, known = run.facts.get("stages", {}), run.facts.get("recipe", {}).get("stages", [])
    missing = [name for name in known if name not in done]
    if missing:
        parts.append(f"Not run yet: {', '.join(missing)}.")
    return " ".join(parts) or "Nothing has been run yet."


def _tiles(run: RunData) -> list[Tile]:
    tiles = []
    bits = run.stage("evaluate").get("bits_per_byte", {})
    if bits:
        models = list(bits)
        # The last pretrained model is the run's result; instruction tuning trades general text for answers.
        pretrained = [name for name in models if name in run.stages("pretrain")]
        final = pretrained[-1] if pretrained else models[-1]
        ratio = run.stage("evaluate").get("ratio", {}).get(final)
        detail = f"after {short_name(final)}"
        if models[0] != final and ratio is not None:
            detail += f"; {number(ratio, 2)} of {short_name(models[0])} ({number(bits[models[0]]['all'])})"
        tiles.append(Tile("Held-out bits per byte", number(bits[final]["all"]), "", detail))
    training = list(run.stages("pretrain").items())
    if training:
        name, first = training[0]
        throughput = first.get("throughput", {})
        tiles.append(
            Tile("Training speed", count(throughput.get("tokens_per_second")), "tokens/s", f"in {short_name(name)}")
        )
        model = training[-1][1].get("model", {})
        if model.get("total_parameters"):
            experts = model.get("config", {}).get("num_experts") or 0
            detail = f"{count(model.get('active_parameters'))} active a token" if experts else "dense"
            tiles.append(Tile("Parameters", count(model["total_parameters"]), "", detail))
    totals = run.stage("corpus").get("totals", {})
    if totals:
        tiles.append(
            Tile(
                "Corpus", count(totals.get("tokens")), "tokens", f"{size(totals.get('bytes'))} of text after cleaning"
            )
        )
    whole = run.facts.get("run", {})
    if whole.get("seconds"):
        tiles.append(Tile("Whole run", duration(whole["seconds"]), "", _machine(run.facts)))
    if whole.get("peak_memory_bytes"):
        tiles.append(Tile("Peak memory", size(whole["peak_memory_bytes"]), "", "largest process"))
    return tiles


def _machine(facts: dict[str, Any]) -> str:
    machine = facts.get("environment", {}).get("machine", {})
    cores = machine.get("cpu_cores")
    return f"{cores} cores, {machine.get('architecture', '')}".strip(", ") if cores else ""

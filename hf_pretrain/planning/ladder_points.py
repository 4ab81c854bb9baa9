"""Finished runs as points of a fit: from a CSV file, or from the facts that runs left.

Everything that would bend a fit quietly is refused here with the line it is in: missing columns, values that are no
numbers, units that are off by a billion, compute that does not fit N and D.
"""

import csv
import io
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_pretrain.planning.fitting import LadderPoint
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


COUNTS = ("total", "non_embedding")
# Columns and what they may be called, in lower case with spaces for underscores.
_COLUMNS = {
    "parameters": ("parameters", "params", "n", "model size", "num parameters", "size"),
    "tokens": ("tokens", "d", "training tokens", "train tokens", "num tokens"),
    "loss": ("loss", "final loss", "eval loss", "validation loss"),
}
_OPTIONAL = {
    "name": ("name", "run", "id"),
    "held_out": ("held out", "holdout", "test"),
    "flops": ("flops", "c", "compute", "training flop", "training flops"),
}
# No ladder spans this much; a single value beyond it has lost or gained its unit.
_WIDEST = 1e6
_SMALLEST_COUNT, _LARGEST_COUNT = 1e4, 1e15
_FLOPS_OFF = 3.0


@dataclass(frozen=True)
class RunPoint:
    """A finished run.

    Args:
        name (`str`): What to call it.
        parameters (`float`): N.
        tokens (`float`): D, as consumed.
        loss (`float`): Nats a token on held-out text, learning rate decayed.
        held_out (`bool`, *optional*, defaults to `False`): Whether it tests the fit.
        epochs (`float`, *optional*): Most epochs over a source, where it is known.
    """

    name: str
    parameters: float
    tokens: float
    loss: float
    held_out: bool = False
    epochs: float | None = None

    @property
    def flops(self) -> float:
        """`float`: 6 N D."""
        return 6.0 * self.parameters * self.tokens

    def ladder_point(self, convention: str) -> LadderPoint:
        """The run for the fitting functions.

        Args:
            convention (`str`): What `parameters` counts.

        Returns:
            `LadderPoint`: The point.
        """
        return LadderPoint(ModelSize(self.parameters, convention), self.tokens, self.loss)


def read_points(paths: Sequence[str | Path], count: str = "total") -> list[RunPoint]:
    """Reads runs from CSV files, `facts.json` files, run folders and ladder folders.

    Args:
        paths (`Sequence[str | Path]`): Where they are. A folder is searched for facts in itself, in its folders and in
            its `rungs/`.
        count (`str`, *optional*, defaults to `"total"`): N of facts: `"total"` or `"non_embedding"` parameters. Of a
            CSV it says what the column holds.

    Returns:
        `list[RunPoint]`: The runs, in the order of their compute.

    Raises:
        UserError: If a file holds no runs, or a value cannot be right.
    """
    if count not in COUNTS:
        raise UserError(unknown_name_message("count", count, COUNTS))
    points: list[RunPoint] = []
    for path in map(Path, paths):
        points += _read_csv(path) if path.suffix.lower() in (".csv", ".tsv") else _read_facts(path, count)
    check_points(points)
    return sorted(points, key=lambda point: (point.held_out, point.flops))


def points_csv(points: Sequence[RunPoint]) -> str:
    """Writes runs as a CSV that [`read_points`] reads.

    Args:
        points (`Sequence[RunPoint]`): The runs.

    Returns:
        `str`: A head line and a line a run.
    """
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(["name", "parameters", "tokens", "loss", "held_out"])
    for point in points:
        writer.writerow(
            [point.name, f"{point.parameters:.0f}", f"{point.tokens:.0f}", f"{point.loss:.6f}", int(point.held_out)]
        )
    return stream.getvalue()


def check_points(points: Sequence[RunPoint]) -> None:
    """Refuses values that have lost their unit.

    Args:
        points (`Sequence[RunPoint]`): The runs.

    Raises:
        UserError: If N or D are too small, too large or too far apart, or a loss is none in nats.
    """
    for name in ("parameters", "tokens"):
        values = sorted((getattr(point, name), point.name) for point in points)
        if not values:
            continue
        (low, low_name), (high, high_name) = values[0], values[-1]
        if high < _SMALLEST_COUNT:
            raise UserError(
                f"{name} = {high:g} at most ({high_name}); are these billions? Give them in full, like 7e9."
            )
        if high > _LARGEST_COUNT:
            raise UserError(
                f"{name} = {high:g} ({high_name}); nobody has trained that: is it off by 10^9, or are these FLOPs?"
            )
        if high > _WIDEST * low:
            raise UserError(
                f"{name} span {low:g} ({low_name}) to {high:g} ({high_name}); one of them is off, perhaps by 10^9: "
                "give all of them in full, like 7e9."
            )
    for point in points:
        if point.loss > 20:
            raise UserError(f"loss = {point.loss:g} ({point.name}); nats a token are needed: is this a perplexity?")


def _read_csv(path: Path) -> list[RunPoint]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise UserError(f"{path} does not exist; give a CSV file with parameters, tokens and loss.") from error
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no text file; give a CSV file with parameters, tokens and loss.") from error
    rows = list(csv.reader(text.splitlines(), delimiter="\t" if path.suffix.lower() == ".tsv" else ","))
    if not rows:
        raise UserError(f"{path} is empty; a head line and a line a run are needed.")
    head = [cell.strip().lower().replace("_", " ") for cell in rows[0]]
    places: dict[str, int] = {}
    for column, names in {**_COLUMNS, **_OPTIONAL}.items():
        found = next((head.index(name) for name in names if name in head), None)
        if found is not None:
            places[column] = found
    missing = [column for column in _COLUMNS if column not in places]
    if missing:
        raise UserError(
            f"{path}: no column {', '.join(missing)}; it has {', '.join(cell.strip() for cell in rows[0])}: a CSV of "
            "runs has parameters, tokens and loss (nats a token), and if wanted name, held_out and flops."
        )
    points = []
    for number, row in enumerate(rows[1:], start=2):
        if not any(cell.strip() for cell in row):
            continue
        if len(row) != len(head):
            raise UserError(f"{path}, line {number}: {len(row)} values under {len(head)} columns.")
        values = {column: row[place].strip() for column, place in places.items()}
        numbers = {column: _number(values[column], f"{path}, line {number}: {column}") for column in _COLUMNS}
        point = RunPoint(
            name=values.get("name") or f"line {number}",
            held_out=values.get("held_out", "").lower() in ("1", "true", "yes", "x"),
            **numbers,
        )
        if values.get("flops"):
            flops = _number(values["flops"], f"{path}, line {number}: flops")
            if not 1 / _FLOPS_OFF < flops / point.flops < _FLOPS_OFF:
                raise UserError(
                    f"{path}, line {number}: flops = {flops:g}, but 6 N D = {point.flops:.3g}; a unit is off."
                )
        points.append(point)
    return points


def _number(text: str, where: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise UserError(f"{where} = {text!r}; a number is needed.") from None
    if not math.isfinite(value) or value <= 0:
        raise UserError(f"{where} = {text}; a positive number is needed: leave the run out if it failed.")
    return value


def _read_facts(path: Path, count: str) -> list[RunPoint]:
    if path.is_file():
        files = [path]
    elif path.is_dir():
        files = sorted({*path.glob("facts.json"), *path.glob("rungs/*/facts.json"), *path.glob("*/facts.json")})
    else:
        raise UserError(f"{path} does not exist; give a CSV file, a run folder, or the folder of a ladder.")
    held_out = _held_out_names(path if path.is_dir() else path.parent)
    points = []
    for file in files:
        facts = _json(file)
        stages = facts.get("stages") if isinstance(facts, Mapping) else None
        for stage_name, stage in (stages or {}).items():
            if stage.get("kind") != "pretrain" or "held_out" not in stage:
                continue
            name = file.parent.name
            trained = [other for other, value in stages.items() if value.get("kind") == "pretrain"]
            if len(trained) > 1:
                if stage_name != trained[0]:
                    continue  # it goes on from the first: its loss is not that of its own tokens
                name = f"{name}/{stage_name}"
            points.append(point_from_facts(stage, name, count, name in held_out))
    if not points:
        raise UserError(
            f"{path} holds no finished pretraining with a held-out loss; run the ladder first "
            "(hf-pretrain ladder FOLDER --run), or give a CSV file."
        )
    return points


def point_from_facts(stage: Mapping[str, Any], name: str, count: str = "total", held_out: bool = False) -> RunPoint:
    """Reads a pretraining stage's facts as a point.

    Args:
        stage (`Mapping[str, Any]`): The stage's facts.
        name (`str`): What to call the run.
        count (`str`, *optional*, defaults to `"total"`): Which parameters N counts.
        held_out (`bool`, *optional*, defaults to `False`): Whether it tests the fit.

    Returns:
        `RunPoint`: Loss pooled over the held-out tokens of all sources, D the tokens consumed.

    Raises:
        UserError: If the facts are incomplete.
    """
    try:
        scores = stage["held_out"]["end"].values()
        tokens = sum(score["tokens"] for score in scores)
        loss = sum(score["loss"] * score["tokens"] for score in scores) / tokens
        sources = stage["data"].get("sources", {}).values()
        return RunPoint(
            name=name,
            parameters=float(stage["model"][f"{count}_parameters"]),
            tokens=float(stage["data"]["train_tokens"]),
            loss=float(loss),
            held_out=held_out,
            epochs=max((float(source["epochs"]) for source in sources if "epochs" in source), default=None),
        )
    except (KeyError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise UserError(f"{name}: its facts are incomplete ({error!r}); run it again.") from error


def _held_out_names(folder: Path) -> set[str]:
    file = folder / "ladder.json"
    if not file.is_file():
        return set()
    rungs = _json(file).get("rungs", [])
    return {str(rung.get("name")) for rung in rungs if rung.get("held_out")}


def _json(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read as JSON ({error}).") from error
    if not isinstance(value, dict):
        raise UserError(f"{file} is no JSON object.")
    return value

"""Facts and logs of a run, as what the page shows.

Nothing is computed here that is a result of the run: results are in `facts.json`. Log lines give the curves; their
horizontal axis is the tokens seen, summed over the training stages in the order of the recipe.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


@dataclass
class TrainingLog:
    """One training stage's log.

    Args:
        name (`str`): Name of the stage.
        offset (`float`): Tokens seen before it.
        lines (`list[dict]`): Log entries with a step, rising.
        tokens (`list[float]`): Tokens seen at each entry, from the start of the first stage.
    """

    name: str
    offset: float
    lines: list[dict[str, Any]]
    tokens: list[float]

    def values(self, *keys: str) -> tuple[list[float], list[float]]:
        """A metric over tokens.

        Args:
            keys (`str`): Names of the metric; in each entry the first that is there counts.

        Returns:
            `tuple[list[float], list[float]]`: Tokens and finite values, from entries that have one.
        """
        x, y = [], []
        for place, line in zip(self.tokens, self.lines, strict=True):
            value = next((line[key] for key in keys if key in line), None)
            if isinstance(value, (list, tuple)):
                value = max(value) if value and all(isinstance(item, (int, float)) for item in value) else None
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
                x.append(place)
                y.append(float(value))
        return x, y


@dataclass
class RunData:
    """What a run folder holds for a page.

    Args:
        facts (`dict`): Content of `facts.json`.
        logs (`list[TrainingLog]`): Pretraining stages in order.
        sft_logs (`list[TrainingLog]`): SFT stages in order; their tokens are steps.
    """

    facts: dict[str, Any]
    logs: list[TrainingLog] = field(default_factory=list)
    sft_logs: list[TrainingLog] = field(default_factory=list)

    def stages(self, kind: str) -> dict[str, dict[str, Any]]:
        """Facts of the stages of a kind.

        Args:
            kind (`str`): `corpus`, `pretrain`, `sft`, `evaluate` or `push`.

        Returns:
            `dict[str, dict]`: By name, in the order of the recipe.
        """
        known = self.facts.get("stages", {})
        order = [name for name in self.facts.get("recipe", {}).get("stages", []) if name in known]
        names = [*order, *sorted(name for name in known if name not in order)]
        return {name: known[name] for name in names if known[name].get("kind") == kind}

    def stage(self, kind: str) -> dict[str, Any]:
        """Facts of the last stage of a kind.

        Args:
            kind (`str`): The kind.

        Returns:
            `dict`: Empty where there is none.
        """
        return next(reversed(self.stages(kind).values()), {})


def load_run(run_dir: str | Path) -> RunData:
    """Reads a run folder.

    Args:
        run_dir (`str` or `Path`): The folder.

    Returns:
        `RunData`: Whatever stages are done.

    Raises:
        UserError: If there are no facts.
    """
    run_dir = Path(run_dir)
    if not (run_dir / "facts.json").is_file():
        raise UserError(f"run = {run_dir}; it holds no facts.json: give the folder of a run, e.g. runs/tiny_cpu.")
    data = RunData(Facts(run_dir).load())
    offset = 0.0
    for name, facts in data.stages("pretrain").items():
        lines = _log_lines(run_dir / name / "log.jsonl")
        per_step = float(facts.get("data", {}).get("global_batch_tokens") or 0) or 1.0
        seen = _tokens_seen(lines, per_step)
        if lines:
            data.logs.append(TrainingLog(name, offset, lines, [offset + value for value in seen]))
        offset += float(facts.get("data", {}).get("train_tokens") or (seen[-1] if seen else 0.0))
    for name in data.stages("sft"):
        lines = _log_lines(run_dir / name / "log.jsonl")
        if lines:
            data.sft_logs.append(TrainingLog(name, 0.0, lines, [float(line["step"]) for line in lines]))
    return data


def _tokens_seen(lines: Sequence[Mapping[str, Any]], per_step: float) -> list[float]:
    """Tokens of this stage at each line; a counter that goes on from an earlier stage is cut to this stage's."""
    found = []
    for line in lines:
        value = line.get("tokens_seen")
        by_step = line["step"] * per_step
        found.append(min(float(value), by_step) if isinstance(value, (int, float)) else by_step)
    return found


def _log_lines(path: Path) -> list[dict[str, Any]]:
    """Entries by rising step; half a line is passed over, and of a step that a resume wrote again the last counts."""
    if not path.is_file():
        return []
    by_step: dict[int, dict[str, Any]] = {}
    for text in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        if isinstance(line, dict) and isinstance(line.get("step"), int):
            by_step.setdefault(line["step"], {}).update(line)
    return [by_step[step] for step in sorted(by_step)]


def mixture_over_time(logs: Sequence[TrainingLog], most: int = 48) -> tuple[list[float], dict[str, list[float]]]:
    """Shares of the sources in the tokens read between log entries.

    Args:
        logs (`Sequence[TrainingLog]`): The stages.
        most (`int`, *optional*, defaults to 48): Most stretches in all; more are joined.

    Returns:
        `tuple[list[float], dict[str, list[float]]]`: Borders of the stretches in tokens, and each source's share in
        them. Empty where the logs do not say.
    """
    names = sorted({_source_of(key) for log in logs for line in log.lines for key in line if _source_of(key)})
    borders: list[float] = []
    shares: dict[str, list[float]] = {name: [] for name in names}
    for log in logs:
        rows = [(x, line) for x, line in zip(log.tokens, log.lines, strict=True) if any(map(_source_of, line))]
        stride = max(1, round(len(rows) * len(logs) / most))
        # The last entry of every stretch, counted from the end so that the stage's last one is among them.
        chosen = rows[::-1][::stride][::-1]
        before = dict.fromkeys(names, 0.0)
        for x, line in chosen:
            now = {name: float(line.get(f"data/{name}/tokens", before[name])) for name in names}
            read = {name: max(now[name] - before[name], 0.0) for name in names}
            total = sum(read.values())
            if not total:
                continue
            if not borders:
                borders.append(log.offset)
            elif borders[-1] < log.offset:
                # What was read after the last entry of a stage is taken to be as before it.
                borders[-1] = log.offset
            borders.append(x)
            for name in names:
                shares[name].append(read[name] / total)
            before = now
    return borders, shares if borders else {}


def _source_of(key: str) -> str | None:
    parts = key.split("/")
    return parts[1] if len(parts) == 3 and parts[0] == "data" and parts[2] == "tokens" else None


def last_router_load(logs: Sequence[TrainingLog]) -> tuple[str, list[list[float]]]:
    """The last logged load of the experts, relative to equal load.

    Args:
        logs (`Sequence[TrainingLog]`): The stages.

    Returns:
        `tuple[str, list[list[float]]]`: Name of the stage, and for each layer the load of each expert over the layer's
        mean. Empty for a dense model.
    """
    for log in reversed(logs):
        for line in reversed(log.lines):
            load = line.get("router/load")
            if isinstance(load, list) and load and all(isinstance(row, list) and row for row in load):
                rows = []
                for row in load:
                    mean = sum(row) / len(row)
                    rows.append([value / mean if mean else 0.0 for value in row])
                return log.name, rows
    return "", []

"""`rewinds.json`: every time a run went back from a spike, written before it does.

The file is the one moment at which a rewind happens: with it the run stands at the checkpoint it went back to and
leaves the samples out, whatever is killed afterwards; without it nothing has happened. Sample ranges and steps are
absolute, so they hold after any restart.
"""

import dataclasses
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

JOURNAL_FILE = "rewinds.json"
SCHEMA = 1


@dataclass(frozen=True)
class Rewind:
    """One return to a checkpoint.

    Args:
        spike_step (`int`): The update that was not made.
        to_step (`int`): Updates that the checkpoint had made.
        skipped (`tuple[int, int]`): Samples left out from there on, `[start, stop)`.
        attempt (`int`): The how manieth for this spike, from 1.
        lr_factor (`float`): Factor on the learning rate of every later update.
        spikes (`list[dict]`): What was seen, as in `LossSpikeCallback.events`.
    """

    spike_step: int
    to_step: int
    skipped: tuple[int, int]
    attempt: int
    lr_factor: float
    spikes: list[dict[str, Any]] = field(default_factory=list)

    @property
    def strategy(self) -> str:
        """What was done, in words."""
        start, stop = self.skipped
        words = f"back to step {self.to_step}, samples {start} to {stop - 1} left out"
        return words + ("" if self.lr_factor == 1.0 else f", learning rate times {self.lr_factor:g}")


def write_journal(folder: str | Path, run_id: str, rewinds: Sequence[Rewind]) -> None:
    """Writes the journal atomically.

    Args:
        folder (`str` or `Path`): The stage's folder.
        run_id (`str`): The run they belong to.
        rewinds (`Sequence[Rewind]`): All of them.
    """
    entries = [dataclasses.asdict(rewind) for rewind in rewinds]
    write_json(Path(folder) / JOURNAL_FILE, {"schema": SCHEMA, "run_id": run_id, "rewinds": entries})


def read_journal(folder: str | Path) -> tuple[str, list[Rewind]]:
    """Reads the journal.

    Args:
        folder (`str` or `Path`): The stage's folder.

    Returns:
        `tuple[str, list[Rewind]]`: The run and its rewinds; an empty name and list where there is no file.

    Raises:
        UserError: If the file is damaged: going on without it would read the samples again that were left out.
    """
    path = Path(folder) / JOURNAL_FILE
    try:
        data = read_json(path)
        if data["schema"] != SCHEMA:
            raise UserError(f"{path}: schema = {data['schema']!r}; this version reads schema {SCHEMA}")
        rewinds = [Rewind(**{**entry, "skipped": tuple(entry["skipped"])}) for entry in data["rewinds"]]
        return data["run_id"], rewinds
    except FileNotFoundError:
        return "", []
    except UserError:
        raise
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UserError(
            f"{path} is damaged, so nobody knows which samples the run leaves out; restore it, or start a new run "
            "folder"
        ) from error


def abandoned_after(rewinds: Sequence[Rewind], known: int, step: int) -> int | None:
    """Says whether a checkpoint lies on a line that the run has left by going back.

    Args:
        rewinds (`Sequence[Rewind]`): All rewinds of the run.
        known (`int`): How many had been made when the checkpoint was.
        step (`int`): Updates it had made.

    Returns:
        `int`: The step the run went back to behind it; `None` where the checkpoint is good.
    """
    behind = [rewind.to_step for rewind in rewinds[known:] if rewind.to_step < step]
    return min(behind, default=None)


def rate_factor(rewinds: Sequence[Rewind], updates_done: int) -> float:
    """Computes what rewinds make of the learning rate.

    Args:
        rewinds (`Sequence[Rewind]`): All rewinds of the run.
        updates_done (`int`): Updates made before the one whose rate is asked for.

    Returns:
        `float`: A factor on the rate.
    """
    factor = 1.0
    for rewind in rewinds:
        if updates_done >= rewind.to_step:
            factor *= rewind.lr_factor
    return factor

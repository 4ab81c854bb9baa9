"""`hf-pretrain autopsy RUN [--step N]`: what caused the spike of a training step.

The step's batch is read again at the weights before it and after, in fp32 and in the run's precision. Works from the
run folder alone, during the run or after it, and on a copy elsewhere as long as checkpoints and token shards came
along. Writes `autopsies/step-N.md` and `.json` into the stage's folder.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.scripts.trace import find_stage
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


def choose_step(folder: Path, step: int | None) -> int:
    """Chooses the step that is meant.

    Args:
        folder (`Path`): The stage's folder.
        step (`int`, *optional*): What the user asked for; by default the last spike.

    Returns:
        `int`: The step.

    Raises:
        UserError: If none was asked for and no spike is recorded.
    """
    from hf_pretrain.trainer.autopsy_sources import recorded_spikes

    if step is not None:
        return step
    spikes = recorded_spikes(folder)
    if not spikes:
        raise UserError(f"{folder}: no spike is recorded there; say which step is meant with --step N")
    return max(spikes)


def record(folder: Path) -> None:
    """Adds the stage's autopsies to the run's facts, where the stage is in them.

    Args:
        folder (`Path`): The stage's folder.
    """
    from hf_pretrain.trainer.autopsy_text import autopsy_summaries

    facts = Facts(folder.parent)
    if facts.path.is_file() and folder.name in facts.load().get("stages", {}):
        facts.annotate_stage(folder.name, autopsies=autopsy_summaries(folder))


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain autopsy`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain autopsy", description="Say what caused the loss spike of a training step."
    )
    parser.add_argument("run", type=Path, metavar="RUN", help="run folder, or a stage's folder")
    parser.add_argument("--step", type=int, metavar="N", help="optimizer step, from 1; the last spike by default")
    parser.add_argument("--stage", help="name of the stage, e.g. 3_anneal; the first training stage by default")
    parser.add_argument("--device", help="where to evaluate, e.g. cuda; an accelerator by default where there is one")
    parser.add_argument("--json", action="store_true", help="the whole autopsy as one JSON document")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        folder = find_stage(arguments.run, arguments.stage).resolve()
        report, path = _examine(folder, choose_step(folder, arguments.step), arguments.device)
        if arguments.json:
            print(json.dumps(report, indent=2, ensure_ascii=False))
            return
        print(f"{folder.name} step {report['step']}: {report['verdict']['kind']}")
        for line in [*report["verdict"]["lines"], *report["notes"]]:
            print(f"  {line}")
        print(path)

    return guarded(work)


def _examine(folder: Path, step: int, device: str | None) -> tuple[dict[str, Any], Path]:
    import torch
    from transformers.utils import logging as transformers_logging

    from hf_pretrain.trainer.autopsy_sources import autopsy_folder
    from hf_pretrain.trainer.autopsy_text import write_autopsy

    transformers_logging.disable_progress_bar()
    try:
        place = torch.device(device) if device else torch.accelerator.current_accelerator(check_available=True)
    except RuntimeError as error:
        raise UserError(f"--device {device}; no device is called so: leave it out, or give cpu or cuda") from error
    report = autopsy_folder(folder, step, place or "cpu")
    path = write_autopsy(folder, report)
    record(folder)
    return report, path


if __name__ == "__main__":
    raise SystemExit(main())

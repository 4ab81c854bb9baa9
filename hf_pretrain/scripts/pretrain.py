"""`hf-pretrain pretrain`: one training stage. Pretrain, anneal and long context are the same verb with another YAML.

Writes `model/`, `checkpoints/`, `log.jsonl` and `data_order.json` into the stage's folder and records the facts. A run
that was interrupted goes on from its newest complete checkpoint. Distributed:

    accelerate launch --config_file recipes/accelerate_configs/ddp.yaml -m hf_pretrain.scripts.pretrain --config F
    torchrun --nproc_per_node 2 -m hf_pretrain.scripts.pretrain --config F
"""

import argparse
import dataclasses
import logging
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hf_pretrain.scripts.execution import is_main_process, run_folder_lock, stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.duration import parse_duration
from hf_pretrain.utils.errors import Interrupted, UserError
from hf_pretrain.utils.facts import Facts


if TYPE_CHECKING:
    from hf_pretrain.trainer.pretrain_config import PretrainConfig
    from hf_pretrain.trainer.stage_options import StageOptions
    from hf_pretrain.trainer.stage_run import StageRun

logger = logging.getLogger(__name__)


def check(spec: StageSpec) -> None:
    """Validates a pretrain stage's file; no input needs to exist.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If a key is unknown, or a value has the wrong type or range.
    """
    _options(spec)


def run(spec: StageSpec, effect_checks: bool = True) -> None:
    """Trains in the stage's folder and records the facts.

    Args:
        spec (`StageSpec`): The stage.
        effect_checks (`bool`, *optional*, defaults to `True`): `False` skips them whatever the stage's file says.

    Raises:
        UserError: If corpus or model are missing or do not fit.
        Interrupted: If a signal stopped the training; a complete checkpoint was saved before.
    """
    from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
    from hf_pretrain.trainer.stage_run import StageRun

    options, args = _options(spec)
    options.effect_checks &= effect_checks
    corpus = spec.resolve(options.corpus)
    if not isinstance(corpus, Path):
        raise UserError(f"corpus = {options.corpus}; there is no such stage or folder.")
    start = None if options.init_from is None else spec.resolve(options.init_from)
    checkpoint = latest_complete_checkpoint(args.output_dir)
    stage = StageRun(options, args, spec.stage_dir, corpus, start)
    if checkpoint is not None:
        logger.info("%s: going on from %s", spec.name, checkpoint)
    if is_main_process():
        _record_plan(Facts(spec.run_dir), spec.name, stage, resumed=checkpoint is not None)
    facts = stage.train(checkpoint)
    stop = stage.trainer.interrupted_by
    if stop is not None:
        raise Interrupted(stop, f"interrupted at step {stage.trainer.state.global_step}, a checkpoint is saved")
    if is_main_process():
        Facts(spec.run_dir).record_stage(spec.name, spec.kind, facts)
        _hold_against_plan(spec)
        first, last = facts["loss"].get("first", math.nan), facts["loss"].get("last", math.nan)
        logger.info("%s: loss %.3f -> %.3f in %d steps", spec.name, first, last, args.max_steps)
    stage.trainer.accelerator.wait_for_everyone()


def _record_plan(facts: Facts, name: str, stage: "StageRun", resumed: bool) -> None:
    """Records the plan before the first step; a resumed stage keeps the one it started with."""
    plans = facts.load().get("plans", {})
    if not (resumed and name in plans):
        facts.record("plans", {**plans, name: stage.plan()})


def _hold_against_plan(spec: StageSpec) -> None:
    """Records what the stage took beside its plan."""
    from hf_pretrain.reporting.run_data import load_run
    from hf_pretrain.reporting.sections_plan import held_against_plan

    run = load_run(spec.run_dir)
    plans = run.facts["plans"]
    plan = {**plans[spec.name], "held_against": held_against_plan(run, spec.name)}
    Facts(spec.run_dir).record("plans", {**plans, spec.name: plan})


def _options(spec: StageSpec) -> tuple["StageOptions", "PretrainConfig"]:
    from hf_pretrain.trainer.stage_options import check_options, make_arguments, read_options

    where = str(spec.path)
    options = read_options(spec.config, where)
    entries = [dataclasses.replace(entry, path=str(spec.resolve(entry.path))) for entry in options.datasets]
    options = dataclasses.replace(options, datasets=entries)
    args = make_arguments(options, spec.stage_dir, where)
    check_options(options, args, where)
    return options, args


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--go-on", action="store_true", help="go on from the stage's checkpoint though its file changed, e.g. longer"
    )
    parser.add_argument(
        "--max-runtime",
        metavar="TIME",
        help="save a checkpoint and stop after e.g. 3h50m, with exit code 143 as at SIGTERM; the same command goes on",
    )
    parser.add_argument(
        "--no-effect-checks", action="store_true", help="do not prove every switch before the first update"
    )
    beside = parser.add_mutually_exclusive_group()
    beside.add_argument(
        "--control",
        choices=["uniform"],
        help="train the stage once more with the same tokens in no order, and compare",
    )
    beside.add_argument(
        "--micro-anneal", metavar="SOURCE", help="score a source by two short anneals, with it and without"
    )
    parser.add_argument(
        "--micro-anneal-tokens", type=int, metavar="N", help="tokens of each short anneal; a tenth of the stage's"
    )


def _beside(spec: StageSpec, arguments: argparse.Namespace) -> bool:
    if arguments.micro_anneal_tokens is not None and arguments.micro_anneal is None:
        raise UserError("--micro-anneal-tokens: give --micro-anneal SOURCE too, or leave it out")
    if arguments.max_runtime is not None:
        parse_duration("--max-runtime", arguments.max_runtime)
        spec.config["max_runtime"] = arguments.max_runtime
    if arguments.control is None and arguments.micro_anneal is None:
        return False
    from hf_pretrain.scripts.compare import run_control, run_micro_anneal

    options, args = _options(spec)
    with run_folder_lock(spec.run_dir):
        if arguments.control is not None:
            table = run_control(spec, options, args)
        else:
            table = run_micro_anneal(spec, options, args, arguments.micro_anneal, arguments.micro_anneal_tokens)
    if is_main_process():
        print(table)
    return True


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain pretrain`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    chosen = {}

    def beside(spec: StageSpec, arguments: argparse.Namespace) -> bool:
        chosen["effect_checks"] = not arguments.no_effect_checks
        return _beside(spec, arguments)

    code = stage_main("pretrain", lambda spec: run(spec, **chosen), argv, _add_arguments, beside)
    # A process that ends with its group open is killed by it (gloo), and the launcher reports a failure.
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
    return code


if __name__ == "__main__":
    raise SystemExit(main())

"""`hf-pretrain ladder`: small runs over model sizes and token counts, for `hf-pretrain fit`.

Writes one recipe a rung into the ladder's folder, all on one corpus; `--run` runs them here, cheapest first, skipping
what is done, and `--slurm` writes a script that submits them as an array of jobs.
"""

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import Any

from hf_pretrain.planning.ladder import LadderConfig, Rung, plan_ladder, stage_keys, time_left
from hf_pretrain.planning.quantities import format_count
from hf_pretrain.scripts.execution import claim_run_folder, guarded, prepare_process, run_folder_lock, stage_module
from hf_pretrain.scripts.recipe import StageSpec, load_recipe, load_stage, read_yaml
from hf_pretrain.scripts.run import plan_stages, run_recipe
from hf_pretrain.utils.atomic import write_json, write_text
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.progress import format_duration, is_quiet
from hf_pretrain.utils.strict import build


LADDER_FILE = "ladder.yaml"
RECORD = "ladder.json"


def read_ladder(path: Path, run_dir: str | None = None) -> LadderConfig:
    """Reads a ladder's file.

    Args:
        path (`Path`): The file, or the folder that holds `ladder.yaml`.
        run_dir (`str`, *optional*): Folder of the ladder, instead of the file's.

    Returns:
        `LadderConfig`: The ladder.

    Raises:
        UserError: If the file cannot be read, or a key is unknown, missing or wrong.
    """
    path = path / LADDER_FILE if path.is_dir() else path
    values = read_yaml(path)
    if run_dir is not None:
        values["run_dir"] = run_dir
    try:
        return build(LadderConfig, values, str(path))
    except UserError as error:
        text = str(error)
        raise UserError(text if text.startswith(str(path)) else f"{path}: {text}") from error


def corpus_stage(config: LadderConfig, folder: Path) -> StageSpec | None:
    """The corpus stage that a ladder builds on, if it is a file beside the ladder's.

    Args:
        config (`LadderConfig`): The ladder.
        folder (`Path`): Where its file lies.

    Returns:
        `StageSpec`: The stage; `None` where `corpus` is the folder of a finished one.

    Raises:
        UserError: If it is neither.
    """
    file = folder / f"{config.corpus}.yaml"
    if file.is_file():
        return load_stage(file, config.run_dir)
    if not (Path(config.corpus) / "tokens").is_dir():
        raise UserError(
            f"corpus = {config.corpus}; there is no file {file} and no corpus stage in that folder: run one first "
            "(hf-pretrain corpus), or name its stage file."
        )
    return None


def rung_specs(config: LadderConfig, rungs: list[Rung], corpus: str) -> list[StageSpec]:
    """Makes the stages of the rungs, checked but not written.

    Args:
        config (`LadderConfig`): The ladder.
        rungs (`list[Rung]`): Its runs.
        corpus (`str`): Folder of the corpus stage.

    Returns:
        `list[StageSpec]`: One a rung.

    Raises:
        UserError: If a key under `model` or `training` is unknown or wrong.
    """
    root = Path(config.run_dir)
    specs = []
    for rung in rungs:
        keys = stage_keys(rung, config, corpus, str(root / "rungs" / rung.name))
        path = root / "recipes" / rung.name / "1_pretrain.yaml"
        values = {key: value for key, value in keys.items() if key not in ("stage", "run_dir")}
        spec = StageSpec(path.stem, "pretrain", values, Path(keys["run_dir"]), path, [path.stem])
        stage_module(spec).check(spec)
        specs.append(spec)
    return specs


def write_ladder(config: LadderConfig, rungs: list[Rung], specs: list[StageSpec]) -> None:
    """Writes the recipes of the rungs and what `hf-pretrain fit` has to know of them.

    Args:
        config (`LadderConfig`): The ladder.
        rungs (`list[Rung]`): Its runs.
        specs (`list[StageSpec]`): From [`rung_specs`].
    """
    import yaml

    for spec in specs:
        keys = {"stage": spec.kind, "run_dir": str(spec.run_dir), **spec.config}
        text = yaml.safe_dump(keys, sort_keys=False)
        if not spec.path.is_file() or spec.path.read_text(encoding="utf-8") != text:
            write_text(spec.path, text)
    record = [ladder_row(rung) for rung in rungs]
    write_json(Path(config.run_dir) / RECORD, {"schema": 1, "vocab_size": config.vocab_size, "rungs": record})


def ladder_row(rung: Rung) -> dict[str, Any]:
    """A rung as plain JSON.

    Args:
        rung (`Rung`): The run.

    Returns:
        `dict[str, Any]`: Name, counts, tokens, FLOPs, learning rate, whether it is held out.
    """
    return {
        "name": rung.name,
        "non_embedding_parameters": rung.counts.non_embedding,
        "total_parameters": rung.counts.total,
        "tokens": rung.tokens,
        "flops": rung.flops,
        "learning_rate": rung.learning_rate,
        "held_out": rung.held_out,
    }


def run_rungs(rungs: list[Rung], specs: list[StageSpec]) -> list[str]:
    """Runs what is not done, one after the other.

    Args:
        rungs (`list[Rung]`): The runs.
        specs (`list[StageSpec]`): Their stages, written.

    Returns:
        `list[str]`: Names of the rungs that ran.
    """
    plans = [load_recipe(spec.path.parent) for spec in specs]
    pending = [
        (rung, stages)
        for rung, stages in zip(rungs, plans, strict=True)
        if any(reason for _, reason in plan_stages(stages, []))
    ]
    spent: list[float] = []
    for number, (rung, stages) in enumerate(pending, start=1):
        left = time_left(
            [r.flops for r, _ in pending[: number - 1]], spent, [r.flops for r, _ in pending[number - 1 :]]
        )
        _say(
            f"\nrung {number}/{len(pending)} {rung.name}" + ("" if left is None else f", {format_duration(left)} left")
        )
        begin = time.monotonic()
        with run_folder_lock(stages[0].run_dir):
            run_recipe(stages, [])
        spent.append(time.monotonic() - begin)
    return [rung.name for rung, _ in pending]


def slurm_script(
    config: LadderConfig, specs: list[StageSpec], corpus: str, name: str, options: list[str], at_once: int | None
) -> str:
    """Writes the script of an array of jobs, one a rung.

    Args:
        config (`LadderConfig`): The ladder.
        specs (`list[StageSpec]`): Stages of the rungs.
        corpus (`str`): Folder of the corpus stage.
        name (`str`): Of the job.
        options (`list[str]`): Of `sbatch`, like `--gpus=1`.
        at_once (`int`, *optional*): Jobs that may run together.

    Returns:
        `str`: For `sbatch`.

    Raises:
        UserError: If an option is none.
    """
    for option in options:
        if not option.startswith("-") or any(character in option for character in "\n\r"):
            raise UserError(f"--sbatch {option!r}; one option of sbatch is expected, like --sbatch=--partition=gpu.")
    limit = "" if at_once is None else f"%{at_once}"
    lines = [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --array=0-{len(specs) - 1}{limit}",
        f"#SBATCH --output={config.run_dir}/slurm_%A_%a.log",
        "#SBATCH --requeue",
        "# A checkpoint is saved at the signal; the requeued job goes on from it.",
        "#SBATCH --signal=USR1@120",
        *(f"#SBATCH {option}" for option in options),
        "set -euo pipefail",
        f"test -d {shlex.quote(corpus)}/tokens || {{ echo 'no corpus there: run its stage first' >&2; exit 2; }}",
        "recipes=(",
        *(f"  {shlex.quote(str(spec.path.parent))}" for spec in specs),
        ")",
        'srun hf-pretrain run "${recipes[$SLURM_ARRAY_TASK_ID]}"',
    ]
    return "\n".join(lines) + "\n"


def ladder_lines(rungs: list[Rung]) -> list[str]:
    """Writes a ladder for people.

    Args:
        rungs (`list[Rung]`): Its runs.

    Returns:
        `list[str]`: A table.
    """
    lines = [f"{'rung':<18} {'no embeddings':>13} {'total':>8} {'tokens':>8} {'a param.':>8} {'FLOPs':>9} {'rate':>9}"]
    for rung in rungs:
        lines.append(
            f"{rung.name:<18} {format_count(rung.counts.non_embedding):>13} {format_count(rung.counts.total):>8} "
            f"{format_count(rung.tokens):>8} {rung.tokens / rung.counts.total:>8.2g} {rung.flops:>9.2e} "
            f"{rung.learning_rate:>9.2e}{'  held out' if rung.held_out else ''}"
        )
    total = sum(rung.flops for rung in rungs)
    return [*lines, f"{len(rungs)} rungs, {total:.3g} FLOPs (6 N D with embeddings)"]


def _say(text: str) -> None:
    if not is_quiet():
        print(text, flush=True)


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain ladder`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain ladder", description="Write, run or submit small runs over sizes and tokens, for a fit."
    )
    parser.add_argument("ladder", type=Path, nargs="?", help="folder with ladder.yaml, or that file")
    parser.add_argument("--budget", metavar="C", help="instead of a file: FLOPs of the whole ladder, like 1e18")
    parser.add_argument("--corpus", metavar="FOLDER", help="with --budget: a finished corpus stage")
    parser.add_argument("--vocab-size", type=int, metavar="V", help="with --budget: of the corpus' tokenizer")
    parser.add_argument("--seq-length", type=int, default=1024, help="with --budget: of the runs (%(default)s)")
    parser.add_argument("--run-dir", metavar="FOLDER", help="folder of the ladder, instead of the file's")
    parser.add_argument("--run", action="store_true", help="run the rungs that are not done, cheapest first")
    parser.add_argument("--slurm", type=Path, metavar="FILE", help="write a script for sbatch")
    parser.add_argument(
        "--sbatch", action="append", default=[], metavar="OPTION", help="line of it: --sbatch=--gpus=1"
    )
    parser.add_argument("--at-once", type=int, metavar="JOBS", help="jobs of the script that may run together")
    parser.add_argument("--dry-run", action="store_true", help="show the rungs, validate them, and write nothing")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    arguments = parser.parse_args(argv)
    prepare_process(arguments.quiet or arguments.json)

    def work() -> None:
        config, folder, name = _configuration(arguments)
        rungs = plan_ladder(config)
        stage = corpus_stage(config, folder)
        corpus = config.corpus if stage is None else str(stage.stage_dir)
        if stage is not None:
            stage_module(stage).check(stage)
        specs = rung_specs(config, rungs, corpus)
        script = None
        if arguments.slurm is not None:
            script = slurm_script(config, specs, corpus, name, arguments.sbatch, arguments.at_once)
        if not arguments.json:
            print("\n".join(ladder_lines(rungs)))
        ran: list[str] = []
        if not arguments.dry_run:
            if stage is not None:
                claim_run_folder(stage)
            write_ladder(config, rungs, specs)
            if script is not None:
                write_text(arguments.slurm, script)
                _say(f"\nsubmit with: sbatch {shlex.quote(str(arguments.slurm))}")
            if arguments.run:
                if stage is not None and any(reason for _, reason in plan_stages([stage], [])):
                    with run_folder_lock(stage.run_dir):
                        run_recipe([stage], [])
                ran = run_rungs(rungs, specs)
                _say("" if ran else "\nNothing to do: every rung is done and unchanged.")
            _say(f"\nthen: hf-pretrain fit {config.run_dir}")
        if arguments.json:
            rows = [ladder_row(rung) for rung in rungs]
            print(json.dumps({"run_dir": config.run_dir, "corpus": corpus, "rungs": rows, "ran": ran}))

    return guarded(work)


def _configuration(arguments: argparse.Namespace) -> tuple[LadderConfig, Path, str]:
    """The ladder, the folder its file lies in, and its name."""
    if (arguments.ladder is None) == (arguments.budget is None):
        raise UserError("give a folder with ladder.yaml, or --budget with --corpus, --vocab-size and --run-dir.")
    if arguments.ladder is not None:
        folder = arguments.ladder if arguments.ladder.is_dir() else arguments.ladder.parent
        return read_ladder(arguments.ladder, arguments.run_dir), folder, folder.resolve().name
    missing = [option for option in ("corpus", "vocab_size", "run_dir") if getattr(arguments, option) in (None, "")]
    if missing:
        named = ", ".join("--" + option.replace("_", "-") for option in missing)
        raise UserError(f"--budget {arguments.budget}: {named} missing; the rungs need to know.")
    config = LadderConfig(
        corpus=arguments.corpus,
        run_dir=arguments.run_dir,
        vocab_size=arguments.vocab_size,
        budget=arguments.budget,
        training={"seq_length": arguments.seq_length},
    )
    return config, Path(), Path(arguments.run_dir).name


if __name__ == "__main__":
    raise SystemExit(main())

"""Two extra runs of a pretrain stage that tell what its data is worth, beside the stage and without touching it.

`--control uniform` trains the stage once more with the same tokens in no order: one phase with the shares that the
whole run has. If the ordered run is not better than that, its order bought nothing (or harmed).

`--micro-anneal SOURCE` scores a source before a run is spent on it: two short anneals from the same start, the
learning rate falling to zero, one with half of its tokens from the candidate and one with the stage's mix alone
(Blakeney et al. 2024, https://huggingface.co/papers/2406.03476; OLMo 2, https://huggingface.co/papers/2501.00656).
Both are measured in bits per byte on every held-out source.
"""

import dataclasses
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.scripts.execution import is_main_process
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.atomic import write_json
from hf_pretrain.utils.errors import Interrupted, UserError
from hf_pretrain.utils.facts import Facts


if TYPE_CHECKING:
    from hf_pretrain.trainer.stage_options import StageOptions

CANDIDATE_SHARE = 0.5
MICRO_FRACTION = 0.1


def score_table(rows: dict[str, dict[str, float]], heads: tuple[str, str]) -> str:
    """Lays two scores and their difference out as lines.

    Args:
        rows (`dict[str, dict[str, float]]`): By held-out source: the two scores and `difference`.
        heads (`tuple[str, str]`): Names of the two scores.

    Returns:
        `str`: A table; below zero is better than the second score.
    """
    lines = [f"{'bits per byte':<20} {heads[0]:>10} {heads[1]:>10} {'difference':>11}"]
    for source, row in rows.items():
        lines.append(f"{source:<20} {row[heads[0]]:>10.4f} {row[heads[1]]:>10.4f} {row['difference']:>+11.4f}")
    return "\n".join(lines)


def difference(first: dict[str, Any], second: dict[str, Any], heads: tuple[str, str]) -> dict[str, dict[str, float]]:
    """Compares the held-out scores of two runs.

    Args:
        first (`dict`): Facts of the run that is judged.
        second (`dict`): Facts of the run it is judged against.
        heads (`tuple[str, str]`): Names of the two.

    Returns:
        `dict[str, dict[str, float]]`: By held-out source, in bits per byte; nats per token where the tokenizer does
        not tell bytes.

    Raises:
        UserError: If there is no held-out text.
    """
    rows = {}
    ends = [facts.get("held_out", {}).get("end", {}) for facts in (first, second)]
    for source in ends[0]:
        if source in ends[1]:
            key = "bits_per_byte" if "bits_per_byte" in ends[0][source] else "loss"
            values = [end[source][key] for end in ends]
            rows[source] = {heads[0]: values[0], heads[1]: values[1], "difference": values[0] - values[1]}
    if not rows:
        raise UserError(
            "corpus: it holds no validation tokens to compare on; run the corpus stage with a held-out split"
        )
    return rows


def _train(spec: StageSpec, options: "StageOptions", folder: Path) -> dict[str, Any]:
    """Trains a variant of a stage in a folder of its own and returns its facts; resumed where it was interrupted."""
    from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
    from hf_pretrain.trainer.stage_options import check_options, make_arguments
    from hf_pretrain.trainer.stage_run import StageRun

    where = str(spec.path)
    args = make_arguments(options, folder, where)
    check_options(options, args, where)
    corpus = spec.resolve(options.corpus)
    if not isinstance(corpus, Path):
        raise UserError(f"corpus = {options.corpus}; there is no such stage or folder.")
    start = None if options.init_from is None else spec.resolve(options.init_from)
    stage = StageRun(options, args, folder, corpus, start)
    facts = stage.train(latest_complete_checkpoint(args.output_dir))
    stop = stage.trainer.interrupted_by
    if stop is not None:
        raise Interrupted(stop, f"interrupted at step {stage.trainer.state.global_step}, a checkpoint is saved")
    return facts


def uniform_options(options: "StageOptions", args: Any, corpus: Path, start: Path | str | None) -> "StageOptions":
    """Makes the control of a stage: its tokens by source, in one phase.

    Args:
        options (`StageOptions`): The stage's keys.
        args (`PretrainConfig`): Its training arguments.
        corpus (`Path`): The corpus stage's folder.
        start (`Path` or `str`, *optional*): What it starts from.

    Returns:
        `StageOptions`: The keys of the control.

    Raises:
        UserError: If the stage has one phase only.
    """
    from hf_pretrain.trainer.stage_run import planned_shares

    phased = options.anneal_mixture or "phases" in (options.mixture or {})
    if not phased:
        raise UserError(
            "--control uniform: the stage reads one mix from start to end, so its order has no control: give it "
            "anneal_mixture or phases first"
        )
    shares = planned_shares(options, args, corpus, start)
    return dataclasses.replace(options, mixture=shares, anneal_mixture=None)


def run_control(spec: StageSpec, options: "StageOptions", args: Any) -> str:
    """Trains the uniform control of a stage and compares.

    Args:
        spec (`StageSpec`): The stage, which has been trained.
        options (`StageOptions`): Its keys.
        args (`PretrainConfig`): Its training arguments.

    Returns:
        `str`: A table.

    Raises:
        UserError: If the stage has not been trained, or has one phase only.
    """
    done = Facts(spec.run_dir).load()["stages"].get(spec.name, {})
    if not done.get("held_out"):
        raise UserError(f"--control uniform: {spec.name} is not done in {spec.run_dir}; train it first.")
    corpus = spec.resolve(options.corpus)
    start = None if options.init_from is None else spec.resolve(options.init_from)
    control = uniform_options(options, args, Path(corpus), start)
    facts = _train(spec, control, spec.stage_dir / "control")
    rows = difference(done, facts, ("ordered", "uniform"))
    result = {"mixture": control.mixture, "scores": rows, "train_tokens": facts["data"]["train_tokens"]}
    if is_main_process():
        write_json(spec.stage_dir / "control.json", result)
        Facts(spec.run_dir).record("controls", {**Facts(spec.run_dir).load().get("controls", {}), spec.name: result})
    return score_table(rows, ("ordered", "uniform"))


def micro_anneal_options(options: "StageOptions", source: str, train_tokens: int) -> dict[str, "StageOptions"]:
    """Makes the two short anneals that score a source.

    Args:
        options (`StageOptions`): The stage's keys.
        source (`str`): The candidate.
        train_tokens (`int`): Tokens of each anneal.

    Returns:
        `dict[str, StageOptions]`: Under `with` and `without`. Both read the same mix, of which the candidate takes
        half in the first and nothing in the second.

    Raises:
        UserError: If the stage names no mix, or nothing but the candidate.
    """
    mix = options.anneal_mixture or options.mixture
    if not mix or "phases" in mix:
        raise UserError(
            "--micro-anneal: the stage's file needs `mixture` or `anneal_mixture` as weights to compare with"
        )
    base = {name: weight for name, weight in mix.items() if name != source and weight}
    total = sum(base.values())
    if not total:
        raise UserError(
            f"--micro-anneal {source}: the stage reads nothing else, so there is nothing to compare it with"
        )
    training = {
        **{key: value for key, value in options.training.items() if key not in ("max_steps", "warmup_steps")},
        "train_tokens": train_tokens,
        "schedule": "wsd",
        "warmup_fraction": 0.0,
        "decay_fraction": 1.0,
        "decay_shape": "linear",
        "min_lr_ratio": 0.0,
        "save_strategy": "no",
    }
    rest = {name: weight / total for name, weight in base.items()}
    mixed = {source: CANDIDATE_SHARE, **{name: share * (1 - CANDIDATE_SHARE) for name, share in rest.items()}}
    plain = dataclasses.replace(options, anneal_mixture=None, training=training)
    return {"with": dataclasses.replace(plain, mixture=mixed), "without": dataclasses.replace(plain, mixture=rest)}


def run_micro_anneal(
    spec: StageSpec, options: "StageOptions", args: Any, source: str, train_tokens: int | None
) -> str:
    """Scores a source by two short anneals from the stage's start.

    Args:
        spec (`StageSpec`): The stage; `init_from` is the checkpoint that both anneals start from.
        options (`StageOptions`): Its keys.
        args (`PretrainConfig`): Its training arguments.
        source (`str`): The candidate, a source of the corpus.
        train_tokens (`int`, *optional*): Tokens of each anneal; by default a tenth of the stage's.

    Returns:
        `str`: A table.

    Raises:
        UserError: If the stage starts from no model, or the candidate is unknown.
    """
    if options.init_from is None:
        raise UserError("--micro-anneal: the stage needs init_from, the model that the short anneals start from.")
    samples = args.max_steps * args.sequences_per_step
    planned = samples * args.seq_length
    tokens = max(round(planned * MICRO_FRACTION), args.tokens_per_step) if train_tokens is None else train_tokens
    folder = spec.stage_dir / "micro_anneals" / Path(source).name
    facts = {}
    for name, variant in micro_anneal_options(options, source, tokens).items():
        if is_main_process():
            shutil.rmtree(folder / name, ignore_errors=True)
            (folder / name).mkdir(parents=True)
        facts[name] = _train(spec, variant, folder / name)
    rows = difference(facts["with"], facts["without"], ("with", "without"))
    data = facts["with"]["data"]
    result = {
        "source": source,
        "start": options.init_from,
        "train_tokens": data["train_tokens"],
        "candidate_share": data["sources"][source]["share"],
        "candidate_epochs": data["sources"][source]["epochs"],
        "seed": args.seed,
        "scores": rows,
    }
    if is_main_process():
        write_json(folder / "score.json", result)
        known = Facts(spec.run_dir).load().get("micro_anneals", {})
        Facts(spec.run_dir).record("micro_anneals", {**known, f"{spec.name}/{source}": result})
        for name in facts:
            # Two throw-away models; their scores, logs and data orders stay.
            shutil.rmtree(folder / name / "model", ignore_errors=True)
    return score_table(rows, ("with", "without"))

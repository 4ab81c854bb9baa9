"""`hf-pretrain sft`: curate instruction rows, train on the assistant's tokens with TRL, save the model.

The stage's file holds the keys of `SftStage` and, flat beside them, any field of TRL's `SFTConfig`.
"""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.scripts.execution import stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from hf_pretrain.sft.build import SftOptions
    from hf_pretrain.sft.curation import CurationConfig


@dataclass(frozen=True)
class SftStage:
    """Keys of an SFT stage's file beside the fields of `SFTConfig`.

    Args:
        init_from (`str`): The stage or model folder to start from.
        corpus (`str`): The corpus stage, for tokenizer, instruction rows and benchmarks.
        data (`str`, *optional*): A .jsonl file or folder of rows; by default the corpus stage's `sft` folder.
        curation (`dict`, *optional*): Fields of [`~hf_pretrain.sft.curation.CurationConfig`].
        lora (`dict`, *optional*): Fields of [`~hf_pretrain.sft.build.LoraOptions`]; all weights are trained without
            it.
        validation_rows (`int`, *optional*, defaults to 16): Curated rows kept out of training to measure on.
    """

    init_from: str
    corpus: str
    data: str | None = None
    curation: dict[str, Any] = field(default_factory=dict)
    lora: dict[str, Any] | None = None
    validation_rows: int = 16

    def __post_init__(self) -> None:
        if self.validation_rows < 0:
            raise UserError(f"validation_rows = {self.validation_rows}; 0 or more is expected.")


def check(spec: StageSpec) -> "tuple[SftStage, CurationConfig, SftOptions]":
    """Validates the stage's file without doing any work.

    Args:
        spec (`StageSpec`): The stage.

    Returns:
        `tuple[SftStage, CurationConfig, SftOptions]`: The stage's own keys, the curation rules, how to train.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    from hf_pretrain.sft.build import LoraOptions, SftOptions, check_arguments
    from hf_pretrain.sft.curation import CurationConfig
    from hf_pretrain.utils.strict import build

    own = {item.name for item in dataclasses.fields(SftStage)}
    stage = build(SftStage, {key: value for key, value in spec.config.items() if key in own}, str(spec.path))
    curation = build(CurationConfig, stage.curation, f"{spec.path}: curation")
    lora: LoraOptions | None = None
    if stage.lora is not None:
        lora = build(LoraOptions, stage.lora, f"{spec.path}: lora")
    rest = {key: value for key, value in spec.config.items() if key not in own}
    return stage, curation, SftOptions(check_arguments(rest, str(spec.path)), lora)


def run(spec: StageSpec) -> None:
    """Curates, trains and saves; goes on from the latest checkpoint if there is one.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If rows, tokenizer or model are missing, or no row is left.
    """
    import datasets
    from transformers import set_seed
    from transformers.utils import logging as transformers_logging

    from hf_pretrain.models.loading import load_causal_lm, load_saved_tokenizer
    from hf_pretrain.sft.build import assistant_loss, build_config, build_trainer, encode_conversations, merged_model
    from hf_pretrain.sft.callbacks import JsonLinesLog, MainProgress
    from hf_pretrain.sft.checkpoints import latest_checkpoint
    from hf_pretrain.sft.curation import curate
    from hf_pretrain.sft.formats import read_conversations
    from hf_pretrain.utils.atomic import atomic_directory
    from hf_pretrain.utils.facts import Facts

    # The progress lines say what is going on; bars of the libraries would break them.
    transformers_logging.disable_progress_bar()
    datasets.disable_progress_bars()
    stage, curation, options = check(spec)
    corpus = Path(spec.resolve(stage.corpus))
    if not (corpus / "tokenizer").is_dir():
        raise UserError(f"corpus = {stage.corpus}; {corpus / 'tokenizer'} is missing: run the corpus stage first.")
    tokenizer = load_saved_tokenizer(corpus / "tokenizer", f"corpus = {stage.corpus}")
    # Before the curation, so that a wrong name shows at once.
    model = load_causal_lm(_model_path(spec, stage.init_from), f"init_from = {stage.init_from}")
    rows = read_conversations(spec.resolve(stage.data) if stage.data else corpus / "sft")
    funnel = curate(rows, curation, _benchmark_index(corpus) if curation.decontaminate else None)
    held_out, chosen = funnel.kept[: stage.validation_rows], funnel.kept[stage.validation_rows :]
    if not chosen:
        raise UserError(
            f"curation left {len(funnel.kept)} of {sum(funnel.rows.values())} rows and validation_rows = "
            f"{stage.validation_rows}: loosen the curation or keep fewer rows out."
        )
    checkpoints = spec.stage_dir / "checkpoints"
    config = build_config(options.arguments, checkpoints)
    train = encode_conversations(chosen, tokenizer, config.max_length)
    validation = encode_conversations(held_out, tokenizer, config.max_length) if held_out else None

    set_seed(config.seed)
    losses = {"train_before": assistant_loss(model, train.rows)}
    if validation:
        losses["validation_before"] = assistant_loss(model, validation.rows)
    resume = latest_checkpoint(checkpoints)
    trainer = build_trainer(
        model,
        tokenizer,
        train,
        checkpoints,
        options,
        callbacks=[JsonLinesLog(spec.stage_dir / "log.jsonl"), MainProgress(spec.name)],
    )
    output = trainer.train(resume_from_checkpoint=str(resume) if resume else None)
    trained = merged_model(trainer)
    losses["train_after"] = assistant_loss(trained, train.rows)
    if validation:
        losses["validation_after"] = assistant_loss(trained, validation.rows)
    if not trainer.is_world_process_zero():
        return
    with atomic_directory(spec.stage_dir / "model") as staging:
        trained.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
    logged = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    balance = [line["aux_loss"] for line in trainer.state.log_history if "aux_loss" in line]
    facts = train.as_facts()
    epochs = trainer.state.epoch or 0.0
    payload: dict[str, Any] = {
        "init_from": stage.init_from,
        "curation": funnel.as_facts(),
        "validation_rows": len(held_out),
        "data": facts,
        "steps": trainer.state.global_step,
        "epochs": round(epochs, 4),
        "tokens_trained": round(facts["tokens"] * epochs),
        "assistant_tokens_trained": round(facts["assistant_tokens"] * epochs),
        "loss": {"first": logged[0], "last": logged[-1]} if logged else {},
        "assistant_loss": {key: round(value, 6) for key, value in losses.items()},
        "convention": "nats a token over the assistant's tokens, its end-of-turn tokens among them",
        "packing": bool(config.packing),
        "lora": dataclasses.asdict(options.lora) if options.lora else None,
        "router_balance": {
            "active": bool(balance),
            "coefficient": trainer.router_aux_loss_coef if balance else 0.0,
            "convention": "load balance pooled over layers as TRL computes it; equal load gives num_experts_per_tok",
            **({"first": balance[0], "last": balance[-1]} if balance else {}),
        },
        "throughput": {"tokens_per_second": _rate(facts["tokens"] * epochs, output.metrics)},
        "template": dataclasses.asdict(train.template),
    }
    Facts(spec.run_dir).record_stage(spec.name, spec.kind, payload)


def _rate(tokens: float, metrics: dict[str, float]) -> float | None:
    seconds = metrics.get("train_runtime", 0.0)
    return round(tokens / seconds, 1) if seconds > 0 else None


def _model_path(spec: StageSpec, reference: str) -> Path | str:
    folder = spec.resolve(reference)
    if not isinstance(folder, Path):
        return folder
    path = folder / "model" if (folder / "model").is_dir() else folder
    if not (path / "config.json").exists():
        raise UserError(
            f"init_from = {reference}; {path} holds no model: run that stage first or name a model folder."
        )
    return path


def _benchmark_index(corpus: Path) -> Any:
    """The index of the benchmarks that the corpus stage protected; `None` where it protected none."""
    from hf_pretrain.corpus.contamination.index import ContaminationIndex

    folder = corpus / "contamination_index"
    return ContaminationIndex.load(folder) if folder.is_dir() else None


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain sft`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    return stage_main("sft", run, argv)


if __name__ == "__main__":
    raise SystemExit(main())

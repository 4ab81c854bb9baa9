"""One pretrain stage from its keys to its facts: sources, mixture, model, trainer, final model.

Used by `scripts/pretrain.py`. Everything here runs on all processes alike; only the first one writes.
"""

import logging
import math
import os
import shutil
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging as transformers_logging

import hf_pretrain.models  # noqa: F401  (registers Strata with the Auto classes)
from hf_pretrain.callbacks.annealing_mix import anneal_start_step
from hf_pretrain.callbacks.effect_checks import EffectChecksCallback
from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.callbacks.throughput import ThroughputCallback
from hf_pretrain.data.mixture import MixtureDataset, WindowDataset
from hf_pretrain.data.order import ORDER_FILE, DataOrder
from hf_pretrain.data.order_guard import order_warnings
from hf_pretrain.data.packing import Packing, make_rows
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import SOURCE_FILE, TokenSource
from hf_pretrain.data.weights import outside_published_shares
from hf_pretrain.models.loading import load_saved_tokenizer
from hf_pretrain.optim.schedules import lr_lambda
from hf_pretrain.planning.closed_loop import plan_stage
from hf_pretrain.planning.head_memory import head_memory
from hf_pretrain.trainer.autopsy_text import autopsy_summaries
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
from hf_pretrain.trainer.dataset_keys import open_entry
from hf_pretrain.trainer.effective_data import effective_data
from hf_pretrain.trainer.launch_layout import check_stage_layout
from hf_pretrain.trainer.precision import PrecisionCallback, to_pure_bf16
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.trainer.rewind_journal import Rewind
from hf_pretrain.trainer.run_log import plain
from hf_pretrain.trainer.stage_options import StageOptions, make_model_config
from hf_pretrain.trainer.stages import load_start_model, optimizer_checkpoint
from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import TrainingStopped, UserError
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.memory import peak_memory_bytes
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

BEGIN_FILE = "held_out_begin.json"


def open_sources(corpus: Path, split: str) -> list[TokenSource]:
    """Opens all sources of a split.

    Args:
        corpus (`Path`): The corpus stage's folder.
        split (`str`): `"train"` or `"validation"`.

    Returns:
        `list[TokenSource]`: In the order of their names; empty where the corpus has no such split.
    """
    folder = corpus / "tokens" / split
    found = sorted(item for item in folder.iterdir() if (item / SOURCE_FILE).is_file()) if folder.is_dir() else []
    return [TokenSource.open(item) for item in found]


def training_sources(options: StageOptions, corpus: Path, tokenizer: Any = None) -> list[TokenSource]:
    """Opens the sources that a stage trains on.

    Args:
        options (`StageOptions`): The stage's keys.
        corpus (`Path`): The corpus stage's folder.
        tokenizer (`PreTrainedTokenizerBase`, *optional*): Checks ids and document ends of datasets.

    Returns:
        `list[TokenSource]`: Those that `datasets` names, else those of the corpus.

    Raises:
        UserError: If there is none, or one cannot be opened.
    """
    if options.datasets:
        return [open_entry(entry, tokenizer) for entry in options.datasets]
    sources = open_sources(corpus, "train")
    if not sources:
        raise UserError(
            f"corpus = {options.corpus}; {corpus / 'tokens' / 'train'} holds no source: run the corpus stage"
        )
    return sources


def earlier_draws(
    stage_dir: Path, sources: list[TokenSource], seq_length: int, packing: Packing = "concat"
) -> dict[str, int]:
    """Counts what an earlier stage of the run already read, so that this one goes on with other windows.

    Args:
        stage_dir (`Path`): The earlier stage's folder.
        sources (`list[TokenSource]`): The sources of this stage.
        seq_length (`int`): Tokens of a window in this stage.
        packing (`"concat"` or `"best_fit"`, *optional*, defaults to `"concat"`): How documents share rows in this
            stage.

    Returns:
        `dict[str, int]`: Draws of each source that both stages share, in rows of this stage. Rows of another kind or
        length are converted by the share of the source that they are.
    """
    if not (stage_dir / ORDER_FILE).is_file():
        return {}
    order = DataOrder.read(stage_dir)
    shared = {entry["name"] for entry in order.sources}
    shards = {source.name: fingerprint(source.metadata.get("files", [])) for source in sources}
    same = {entry["name"] for entry in order.sources if shards.get(entry["name"]) == entry["fingerprint"]}
    counts = order.schedule.counts(order.skips.end_after(order.num_samples))
    draws = {name: counts[name] + order.schedule.start_draws.get(name, 0) for name in shared & same}
    if order.packing == packing == "concat":
        return {name: math.ceil(count * order.seq_length / seq_length) for name, count in draws.items() if count}
    by_name = {source.name: source for source in sources}
    found = {}
    for name, count in draws.items():
        if count and order.packing == packing and order.seq_length == seq_length:
            found[name] = count
        elif count:
            before = make_rows(by_name[name], order.seq_length, order.packing).num_rows
            found[name] = math.ceil(count * make_rows(by_name[name], seq_length, packing).num_rows / max(before, 1))
    return found


def make_mixture(
    options: StageOptions, args: PretrainConfig, sources: list[TokenSource], start: Path | str | None = None
) -> MixtureDataset:
    """Makes the training data of a stage, without its anneal.

    Args:
        options (`StageOptions`): The stage's keys.
        args (`PretrainConfig`): Its training arguments.
        sources (`list[TokenSource]`): The sources of the corpus.
        start (`Path` or `str`, *optional*): What it starts from; windows that an earlier stage read come later.

    Returns:
        `MixtureDataset`: The dataset.

    Raises:
        UserError: If the mixture does not fit the sources.
    """
    samples = args.max_steps * args.sequences_per_step
    weights = options.mixture or {
        source.name: source.num_tokens for source in sources if source.num_windows(args.seq_length)
    }
    names = set(weights) if "phases" not in weights else {n for p in weights["phases"] for n in p["weights"]}
    names |= set(options.anneal_mixture or {})
    draws = earlier_draws(start, sources, args.seq_length, options.packing) if isinstance(start, Path) else {}
    schedule = MixtureSchedule.from_config(weights, samples, args.seq_length)
    draws = {name: count for name, count in draws.items() if name in names}
    schedule = MixtureSchedule(
        list(dict.fromkeys([*schedule.sources, *(options.anneal_mixture or {})])), schedule.phases, draws
    )
    if options.mixture:
        for phase in schedule.phases:
            total = sum(phase.weights.values())
            if abs(total - 1) > 1e-6:
                logger.warning(
                    "Mixture: the weights of phase %s sum to %g; shares are taken of that sum", phase.name, total
                )
    for sentence in outside_published_shares(schedule.shares()):
        logger.info("Mixture: %s", sentence)
    caps = args.max_epochs
    if isinstance(caps, dict):
        known = [source.name for source in sources]
        for name in caps:
            if name not in known:
                raise UserError(f"max_epochs: {unknown_name_message('source', name, known)}")
        # A cap of a source that this mix leaves out waits for one that reads it.
        caps = {name: cap for name, cap in caps.items() if name in schedule.sources}
    return MixtureDataset(
        sources,
        schedule,
        args.seq_length,
        args.seed,
        max_epochs=caps,
        on_excess=args.on_excess,
        packing=options.packing,
    )


def planned_shares(
    options: StageOptions, args: PretrainConfig, corpus: Path, start: Path | str | None = None
) -> dict[str, float]:
    """Computes what share of a stage's tokens comes from each source, its anneal included.

    Args:
        options (`StageOptions`): The stage's keys.
        args (`PretrainConfig`): Its training arguments.
        corpus (`Path`): The corpus stage's folder.
        start (`Path` or `str`, *optional*): What it starts from.

    Returns:
        `dict[str, float]`: Shares that sum to 1.
    """
    dataset = make_mixture(options, args, training_sources(options, corpus), start)
    if options.anneal_mixture:
        factor = lr_lambda(**args.schedule_options(args.max_steps))
        step = anneal_start_step(factor, args.max_steps, args.anneal_fraction)
        schedule = dataset.requested_schedule.with_phase(
            "anneal", step * args.sequences_per_step, options.anneal_mixture, args.anneal_ramp_fraction
        )
        dataset.set_schedule(schedule)
    counts = dataset.schedule.counts(args.max_steps * args.sequences_per_step)
    total = sum(counts.values())
    return {name: count / total for name, count in counts.items() if count}


class StageRun:
    """A pretrain stage, ready to train.

    Args:
        options (`StageOptions`): The stage's keys.
        args (`PretrainConfig`): Its training arguments.
        stage_dir (`Path`): The stage's folder.
        corpus (`Path`): The corpus stage's folder.
        start (`Path` or `str`, *optional*): What `init_from` means: a stage's folder, a model folder, a Hub name.

    Raises:
        UserError: If corpus, tokenizer or model are missing or do not fit.
    """

    def __init__(
        self,
        options: StageOptions,
        args: PretrainConfig,
        stage_dir: Path,
        corpus: Path,
        start: Path | str | None = None,
    ) -> None:
        check_stage_layout(os.environ)
        self.args = args
        self.stage_dir = stage_dir
        # The progress line says what is going on; bars of the library would break it.
        transformers_logging.disable_progress_bar()
        self.tokenizer = self._load_tokenizer(corpus)
        sources = training_sources(options, corpus, self.tokenizer)
        self.dataset = make_mixture(options, args, sources, start)
        self.held_out = {
            source.name: WindowDataset(source, args.seq_length, args.max_eval_windows)
            for source in open_sources(corpus, "validation")
            if source.num_windows(args.seq_length)
        }
        self.model = self._make_model(options, start)
        if options.pure_bf16:
            to_pure_bf16(self.model)
        self.trainer = PretrainTrainer(
            self.model,
            args,
            train_dataset=self.dataset,
            eval_dataset=self.held_out or None,
            processing_class=self.tokenizer,
            anneal_weights=options.anneal_mixture,
            callbacks=[
                PrecisionCallback(options.pure_bf16),
                EffectChecksCallback(options.effect_checks, options.pure_bf16),
            ],
            async_save=options.async_save,
        )
        if args.continue_optimizer:
            self.trainer.optimizer_checkpoint = optimizer_checkpoint(Path(start or ""))

    def _load_tokenizer(self, corpus: Path) -> Any:
        folder = corpus / "tokenizer"
        if not folder.is_dir():
            raise UserError(f"corpus = {corpus}; {folder} is missing: run the corpus stage first")
        return load_saved_tokenizer(folder, f"corpus = {corpus}")

    def _make_model(self, options: StageOptions, start: Path | str | None) -> Any:
        vocabulary = max(len(self.tokenizer), *(source.vocab_size for source in self.dataset.sources))
        if options.model is None:
            folder = start / "model" if isinstance(start, Path) and (start / "model").is_dir() else start
            model = load_start_model(folder or "", self.args.extend_context)
        else:
            config = make_model_config(
                options.model,
                "recipe",
                vocab_size=vocabulary,
                max_position_embeddings=self.args.seq_length,
                eos_token_id=self.tokenizer.eos_token_id,
                bos_token_id=self.tokenizer.bos_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            # Seeded right here: the same seed and configuration give the same start, whatever was done before.
            torch.manual_seed(self.args.seed)
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        if model.config.vocab_size < vocabulary:
            raise UserError(
                f"model.vocab_size = {model.config.vocab_size}; the tokens of the corpus need "
                f"{vocabulary} ids: leave it out or "
                "raise it"
            )
        if model.config.max_position_embeddings < self.args.seq_length:
            raise UserError(
                f"seq_length = {self.args.seq_length}; the model's max_position_embeddings is "
                f"{model.config.max_position_embeddings}: use extend_context or shorter sequences"
            )
        return model

    def plan(self) -> dict[str, Any]:
        """What the stage should take, before its first step.

        Returns:
            `dict[str, Any]`: From [`~hf_pretrain.planning.closed_loop.plan_stage`].
        """
        args = self.args
        return plan_stage(
            self.model.config.to_dict(),
            args.max_steps * args.tokens_per_step,
            args.seq_length,
            args.tokens_per_step,
            args.train_batch_size,
            args.gradient_accumulation_steps,
            args.world_size,
            torch.cuda.get_device_name() if args.device.type == "cuda" else args.device.type,
            mixed_precision=args.bf16 or args.fp16,
            checkpointing=args.gradient_checkpointing,
            sharded=self.trainer.is_fsdp_enabled or self.trainer.is_deepspeed_enabled,
        )

    def train(self, checkpoint: Path | None) -> dict[str, Any]:
        """Scores held-out text, trains, scores again and saves the model.

        Args:
            checkpoint (`Path`, *optional*): The checkpoint to go on from.

        Returns:
            `dict[str, Any]`: The stage's facts. They are incomplete if a signal stopped the training; see
            `trainer.interrupted_by`.

        Raises:
            TrainingStopped: If a loss spike stopped the training.
        """
        begin = self._score_start(checkpoint)
        self.trainer.train(checkpoint)
        if self.trainer.interrupted_by is not None:
            return {}
        spikes = self.trainer.find_callback(LossSpikeCallback)
        if spikes is not None and spikes.stopped_at is not None:
            raise TrainingStopped(
                f"training stopped at the spike of step {spikes.stopped_at} (spike_action: {self.args.spike_action}); "
                f"the last good checkpoint is {latest_complete_checkpoint(self.args.output_dir) or 'none, too early'}"
            )
        end = self._score()
        self._save_model()
        return self.facts(begin, end)

    def _score(self) -> dict[str, dict[str, float]]:
        if not self.held_out:
            return {}
        metrics = self.trainer.evaluate()
        return {
            name: {
                "loss": metrics[f"eval_{name}_loss"],
                "tokens": metrics[f"eval_{name}_tokens"],
                **({"bits_per_byte": bits} if (bits := metrics.get(f"eval_bits_per_byte/{name}")) else {}),
            }
            for name in self.held_out
            if f"eval_{name}_loss" in metrics
        }

    def _score_start(self, checkpoint: Path | None) -> dict[str, dict[str, float]]:
        """The loss before the first step; a resumed run has it on disk, its weights are no longer those of the
        start."""
        path = self.stage_dir / BEGIN_FILE
        if checkpoint is not None:
            return read_json(path) if path.is_file() else {}
        scores = self._score()
        if self.trainer.is_world_process_zero():
            write_json(path, scores)
        return scores

    def _save_model(self) -> None:
        """Saves model and tokenizer to `model/`, complete or not at all."""
        target, staging = self.stage_dir / "model", self.stage_dir / ".model.tmp"
        main = self.trainer.is_world_process_zero()
        if main:
            shutil.rmtree(staging, ignore_errors=True)
        self.trainer.accelerator.wait_for_everyone()
        self.trainer.save_model(str(staging))
        self.trainer.accelerator.wait_for_everyone()
        if main:
            # A pickle that nobody should have to trust.
            (staging / "training_args.bin").unlink(missing_ok=True)
            shutil.rmtree(target, ignore_errors=True)
            staging.replace(target)

    def facts(self, begin: dict[str, Any], end: dict[str, Any]) -> dict[str, Any]:
        """Collects what the stage has earned.

        Args:
            begin (`dict`): Held-out scores before the first step.
            end (`dict`): Held-out scores after the last.

        Returns:
            `dict[str, Any]`: Plain JSON data with finite numbers.
        """
        args = self.args
        steps = [entry for entry in self.trainer.state.log_history if "loss" in entry]
        last = steps[-1] if steps else {}
        samples = args.max_steps * args.sequences_per_step
        consumed = self.dataset.consumed(samples)
        sources = {
            plan.name: {
                "tokens": consumed[plan.name]["tokens"],
                "planned_tokens": plan.tokens,
                "share": consumed[plan.name]["share"],
                "planned_share": plan.share,
                "epochs": consumed[plan.name]["epochs"],
                "unique_tokens": plan.unique_tokens,
                "unique_tokens_read": consumed[plan.name]["unique_tokens"],
            }
            for plan in self.dataset.plan()
        }
        phases = self.dataset.schedule.to_json()["phases"]
        spikes = self.trainer.find_callback(LossSpikeCallback)
        facts = {
            "seed": args.seed,
            "model": model_facts(self.trainer.accelerator.unwrap_model(self.trainer.model)),
            "data": {
                "train_tokens": samples * args.seq_length,
                "seq_length": args.seq_length,
                "global_batch_tokens": args.tokens_per_step,
                "steps": args.max_steps,
                "sources": sources,
                **effective_data(self.dataset.plan()).to_json(),
                "phases": phases,
                "order_warnings": order_warnings(self.dataset.schedule),
                "skipped_samples": self.dataset.skips.total,
            },
            "schedule": {
                "name": args.schedule,
                "learning_rate": args.learning_rate,
                "warmup_steps": args.warmup_updates(args.max_steps),
                "decay_steps": args.decay_updates(args.max_steps),
                "decay_shape": args.decay_shape if args.decay_updates(1) is not None else None,
                "min_lr_ratio": args.min_lr_ratio,
            },
            "loss": {"first": steps[0]["loss"], "last": last["loss"]} if steps else {},
            "held_out": {"begin": begin, "end": end},
            "head_memory": head_facts(self.trainer.accelerator.unwrap_model(self.trainer.model), args),
            "throughput": throughput_facts(
                self.trainer.find_callback(ThroughputCallback),
                steps,
                sum(rewind.spike_step - rewind.to_step for rewind in self.trainer.recovery.rewinds),
            ),
            "spikes": _all_spikes(spikes, self.trainer.recovery.rewinds),
            "rewinds": self.trainer.recovery.facts(),
            "autopsies": autopsy_summaries(self.stage_dir),
            "precision": self.trainer.find_callback(PrecisionCallback).audit,
            "effect_checks": self.trainer.find_callback(EffectChecksCallback).found,
            "router": _router_facts(last),
            "empty_steps": self.trainer.num_empty_steps,
            "processes": args.world_size,
            "peak_memory_bytes": peak_memory_bytes(),
            "peak_gpu_memory_bytes": torch.cuda.max_memory_allocated() if torch.cuda.is_available() else None,
        }
        return _without_nothing(plain(facts))


def _all_spikes(callback: LossSpikeCallback | None, rewinds: list[Rewind]) -> list[dict[str, Any]]:
    """The spikes of the run, those of steps that were taken back too, of which the checkpoints know nothing."""
    events = [event for rewind in rewinds for event in rewind.spikes]
    events += [event for event in (callback.events if callback else []) if event not in events]
    return sorted(events, key=lambda event: event["step"])


def _router_facts(line: dict[str, Any]) -> dict[str, Any]:
    """What the last log line says of the routers, and the load over the mean of its layer, as the report shows it."""
    facts = {key.removeprefix("router/"): line[key] for key in line if key.startswith("router/")}
    if facts.get("load"):
        facts["relative_load"] = [[value * len(row) / (sum(row) or 1.0) for value in row] for row in facts["load"]]
    return facts


def model_facts(model: Any) -> dict[str, Any]:
    """Counts a model's parameters.

    Args:
        model (`PreTrainedModel`): The model.

    Returns:
        `dict[str, Any]`: Total, active and non-embedding parameters, whether the head is tied, and the configuration.
    """
    config = model.config.to_dict()
    facts = {"tied": bool(model.config.tie_word_embeddings), "config": config}
    if hasattr(model, "parameter_counts"):
        counts = model.parameter_counts()
        numbers = (counts.total, counts.active, counts.non_embedding)
    else:
        total = model.num_parameters()
        numbers = (total, total, model.num_parameters(exclude_embeddings=True))
    return {
        **dict(zip(("total_parameters", "active_parameters", "non_embedding_parameters"), numbers, strict=True)),
        **facts,
    }


def head_facts(model: Any, args: PretrainConfig) -> dict[str, Any]:
    """Bytes that the head and the loss of one micro-batch take on a device, for three ways to compute them.

    Args:
        model (`PreTrainedModel`): The model.
        args (`PretrainConfig`): The arguments.

    Returns:
        `dict[str, Any]`: From [`~hf_pretrain.planning.head_memory.head_memory`]; by formula, not measured.
    """
    rows, width = model.get_output_embeddings().weight.shape
    weight = str(model.dtype).removeprefix("torch.")
    dtype = "bfloat16" if args.bf16 else "float16" if args.fp16 else weight
    tokens = args.train_batch_size * args.seq_length
    return head_memory(tokens, rows, width, dtype, weight, args.device.type).to_dict()


def throughput_facts(
    callback: ThroughputCallback | None, steps: list[dict[str, Any]], steps_taken_back: int = 0
) -> dict[str, Any]:
    """Reads the speed of this process's part of the run, savings and evaluations left out.

    Args:
        callback (`ThroughputCallback`, *optional*): The callback that measured it.
        steps (`list[dict]`): Training log lines.
        steps_taken_back (`int`, *optional*, defaults to 0): Updates that rewinds threw away.

    Returns:
        `dict[str, Any]`: `tokens_per_second` (mean) and `seconds` of this process; of the whole run `lost_seconds` by
        `saves`, `evaluation` and `rewinds` (at the mean time of a step) and `goodput`, the share of its time that
        went to steps that stayed; the median `mfu` with its convention where it is known.
    """
    if callback is None or not callback.train_seconds:
        return {}
    facts = {
        "tokens_per_second": callback.train_tokens / callback.train_seconds,
        "seconds": callback.train_seconds,
    }
    lost = callback.seconds
    kept = lost.pop("steps")
    # Checkpoints hold the seconds up to them, so the steps that were taken back are in no count.
    lost["rewinds"] = steps_taken_back * kept / steps[-1]["step"] if steps else 0.0
    facts |= {"goodput": kept / (kept + sum(lost.values())), "lost_seconds": lost}
    utilisation = sorted(entry["mfu"] for entry in steps if "mfu" in entry)
    if utilisation:
        facts["mfu"] = utilisation[len(utilisation) // 2]
        facts["flop_convention"] = next(entry["flop_convention"] for entry in steps if "flop_convention" in entry)
    return facts


def _without_nothing(value: Any) -> Any:
    """Drops keys whose value is `None`: facts say what was measured."""
    if isinstance(value, dict):
        return {key: _without_nothing(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nothing(item) for item in value]
    return value

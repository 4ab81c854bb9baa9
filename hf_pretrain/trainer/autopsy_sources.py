"""Two ways to an autopsy: of the run that is training now, and of a run folder, wherever it was copied to.

While a run trains, the weights are exactly those of the step. From a folder they are those of the nearest complete
checkpoints, and the autopsy says which.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.skips import Skips
from hf_pretrain.models.loading import load_causal_lm, load_saved_tokenizer
from hf_pretrain.optim.schedules import lr_lambda
from hf_pretrain.trainer.autopsy import Batch, StepRecord, Weights, examine, take_batch
from hf_pretrain.trainer.autopsy_text import FOLDER, autopsy_path
from hf_pretrain.trainer.batch_probe import gradient_norms_held
from hf_pretrain.trainer.checkpoint import checkpoint_step, list_checkpoints, read_manifest, why_incomplete
from hf_pretrain.trainer.precision import run_precision
from hf_pretrain.trainer.run_log import LOG_FILE
from hf_pretrain.utils.atomic import read_json, read_jsonl
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer

logger = logging.getLogger(__name__)

# Sequences read while the run waits, and from a folder.
ROWS_LIVE, ROWS_FOLDER = 64, 1024


def complete_checkpoints(folder: str | Path) -> dict[int, Path]:
    """Finds a run's complete checkpoints.

    Args:
        folder (`str` or `Path`): Where they lie.

    Returns:
        `dict[int, Path]`: By step, in order.
    """
    found = [path for path in list_checkpoints(folder) if why_incomplete(path, hashes=False) is None]
    return {checkpoint_step(path) or 0: path for path in found}


def _distance(rate: Callable[[int], float], optimizer: str, start: int, stop: int) -> float | None:
    """Sum of the rates of the updates between two steps; `None` where an update can move a weight any far."""
    if not optimizer.startswith("adamw"):
        return None
    return sum(rate(update) for update in range(start, stop))


# ---- a run that trains ----


def autopsy_live(trainer: "PretrainTrainer", step: int, events: list[dict[str, Any]]) -> dict[str, Any]:
    """Examines the step that a trainer is in: after its gradients, before its update.

    Args:
        trainer (`PretrainTrainer`): The trainer.
        step (`int`): The step, from 1.
        events (`list[dict]`): The spikes seen in it.

    Returns:
        `dict[str, Any]`: The autopsy.
    """
    args, model = trainer.args, trainer.accelerator.unwrap_model(trainer.model)
    record = StepRecord(step, events, run_precision(args, model), weight_decay=args.weight_decay)
    record.learning_rate = float(trainer.optimizer.param_groups[0]["lr"])
    rate = _rate_of(trainer)
    record.planned_learning_rate = None if rate is None else rate(step - 1)
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        record.notes.append(
            "the weights are spread over processes: the batch was not evaluated again; `hf-pretrain autopsy` does it "
            "from the checkpoints"
        )
        return examine(record, None, None, None, None)
    record.gradient_norms = _unclipped(gradient_norms_held(model), events)
    batch, reference = _live_batches(trainer, step, record.notes)
    previous = None
    checkpoints = {at: path for at, path in complete_checkpoints(args.output_dir).items() if at < step}
    if not checkpoints:
        record.notes.append("there is no complete checkpoint before the step to compare the weights with")
    elif not _has_room(model):
        record.notes.append(
            "the device has no room for the checkpoint's weights beside the model: they were not evaluated; "
            "`hf-pretrain autopsy` does it after the run"
        )
    else:
        at = max(checkpoints)
        loaded = load_causal_lm(checkpoints[at], f"checkpoint = {checkpoints[at]}")
        previous = Weights(loaded.to(args.device), checkpoints[at].name, at)
        if rate is not None:
            record.planned_distance = _distance(rate, str(getattr(args.optim, "value", args.optim)), at, step - 1)
    current = Weights(model, "those in memory", step - 1)
    return examine(record, batch, reference, previous, current, trainer.processing_class)


def _rate_of(trainer: "PretrainTrainer") -> Callable[[int], float] | None:
    """The learning rate by update, as the arguments and the schedule have it."""
    scheduler = getattr(trainer.lr_scheduler, "scheduler", trainer.lr_scheduler)
    factors = getattr(scheduler, "lr_lambdas", None)
    return None if not factors else lambda update: trainer.args.learning_rate * factors[0](update)


def _unclipped(norms: dict[str, float], events: list[dict[str, Any]]) -> dict[str, float]:
    """Gradient norms before clipping, where the whole norm before it is known."""
    seen = [float(event["value"]) for event in events if event["kind"] == "grad_norm"]
    held = sum(norm**2 for norm in norms.values()) ** 0.5
    if not seen or not held > 0 or not 0 < seen[0] < float("inf"):
        return norms
    return {part: norm * seen[0] / held for part, norm in norms.items()}


def _live_batches(trainer: "PretrainTrainer", step: int, notes: list[str]) -> tuple[Batch | None, Batch | None]:
    dataset = trainer.train_dataset
    if not isinstance(dataset, MixtureDataset):
        notes.append("the training data are no MixtureDataset: the rows of a step are not known")
        return None, None

    def positions_of(number: int) -> range:
        return range(trainer.samples_after(number - 1), trainer.samples_after(number))

    batch = take_batch(dataset, positions_of(step), ROWS_LIVE)
    positions = positions_of(step - 1 if step > 1 else step + 1)
    reference = take_batch(dataset, positions, ROWS_LIVE) if positions.stop <= len(dataset) else None
    return batch, reference


def _has_room(model: torch.nn.Module) -> bool:
    """Whether another copy of the weights and its gradients fit on the model's device."""
    device = next(model.parameters()).device
    if device.type != "cuda":
        return True
    needed = 3 * 4 * sum(one.numel() for one in model.parameters())
    return torch.cuda.mem_get_info(device)[0] > needed


# ---- a run folder ----


def recorded_spikes(stage_dir: str | Path) -> dict[int, list[dict[str, Any]]]:
    """Finds the spikes that a stage recorded: in its autopsies, its checkpoints and the run's facts.

    Args:
        stage_dir (`str` or `Path`): The stage's folder.

    Returns:
        `dict[int, list[dict]]`: The events of each step, by step.
    """
    stage_dir = Path(stage_dir)
    found: dict[int, list[dict[str, Any]]] = {}

    def take(events: Any) -> None:
        fresh: dict[int, list[dict[str, Any]]] = {}
        for event in events if isinstance(events, list) else []:
            if isinstance(event, dict) and {"step", "kind", "value"} <= event.keys():
                fresh.setdefault(int(event["step"]), []).append({"mean": None, "std": None, "z_score": None, **event})
        for step, entries in fresh.items():
            found.setdefault(step, entries)

    for path in (stage_dir / FOLDER).glob("step-*.json"):
        take(read_json(path).get("events"))
    for path in complete_checkpoints(stage_dir / "checkpoints").values():
        state = path / "trainer_state.json"
        if state.is_file():
            for saved in read_json(state).get("stateful_callbacks", {}).values():
                progress = saved.get("attributes", {}).get("progress") if isinstance(saved, dict) else None
                if isinstance(progress, dict):
                    take(progress.get("events"))
    facts = stage_dir.parent / "facts.json"
    if facts.is_file():
        take(read_json(facts).get("stages", {}).get(stage_dir.name, {}).get("spikes"))
    return dict(sorted(found.items()))


def autopsy_folder(stage_dir: str | Path, step: int, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Examines a step of a run from its folder.

    Args:
        stage_dir (`str` or `Path`): The stage's folder, with `data_order.json`, `checkpoints/` and perhaps `model/`.
        step (`int`): The step, from 1.
        device (`str` or `torch.device`, *optional*, defaults to `"cpu"`): Where to evaluate.

    Returns:
        `dict[str, Any]`: The autopsy.

    Raises:
        UserError: If the step is not one of the run, or its data or all of its weights are gone.
    """
    stage_dir = Path(stage_dir)
    order = DataOrder.read(stage_dir)
    checkpoints = complete_checkpoints(stage_dir / "checkpoints")
    places = {**checkpoints}
    end = _steps_made(stage_dir, checkpoints)
    if (stage_dir / "model" / "config.json").is_file() and end is not None:
        places.setdefault(end, stage_dir / "model")
    if end is not None and step > end + 1:
        raise UserError(f"--step {step}; this run made {end} steps: ask for one of them")
    if not places:
        raise UserError(
            f"{stage_dir}: neither a complete checkpoint nor a model is there, so nothing can be evaluated again"
        )
    record = StepRecord(step, recorded_spikes(stage_dir).get(step, []))
    samples = _known_samples(stage_dir, step)
    batch, reference = _folder_batches(order, step, samples)
    rate, settings = _schedule_of(checkpoints)
    record.precision = _saved_precision(stage_dir, checkpoints)
    record.weight_decay = float(settings.get("weight_decay", 0.0))
    chosen = _choose_weights(places, step, record)
    models = {name: _load(places[at], at, device) for name, at in chosen.items()}
    previous, current = models.get("previous"), models.get("current")
    _read_rates(stage_dir, step, rate, record)
    if rate is not None and len(chosen) == 2:
        optimizer = settings.get("optim", "adamw")
        record.planned_distance = _distance(rate, optimizer, chosen["previous"], chosen["current"])
    tokenizer = None
    for path in places.values():
        if (path / "tokenizer.json").is_file():
            tokenizer = load_saved_tokenizer(path, f"checkpoint = {path}")
            break
    return examine(record, batch, reference, previous, current, tokenizer)


def _choose_weights(places: Mapping[int, Path], step: int, record: StepRecord) -> dict[str, int]:
    """Which weights stand for those before the step and those it was made with."""
    before = [at for at in places if at < step]
    after = [at for at in places if at >= step]
    if step - 1 in places:
        chosen = {"current": step - 1}
        before.remove(step - 1)
    elif after:
        chosen = {"current": min(after)}
        record.notes.append(
            f"the weights that step {step} was made with are not kept; the nearest later ones stand for them"
        )
    else:
        chosen = {}
        record.notes.append("no weights of the step or later are kept")
    if before:
        chosen["previous"] = max(before)
    else:
        record.notes.append("there is no complete checkpoint before the step to compare the weights with")
    return chosen


def _load(path: Path, step: int, device: str | torch.device) -> Weights:
    model = load_causal_lm(path, f"checkpoint = {path}").to(device)
    return Weights(model, path.name if path.name != "model" else "the model at the end", step)


def _steps_made(stage_dir: Path, checkpoints: Mapping[int, Path]) -> int | None:
    steps = [max(checkpoints)] if checkpoints else []
    if (stage_dir / LOG_FILE).is_file():
        steps += [int(line["step"]) for line in read_jsonl(stage_dir / LOG_FILE) if "step" in line]
    return max(steps, default=None)


def _known_samples(stage_dir: Path, step: int) -> list[int] | None:
    """The samples of a step as the run recorded them; after a rewind the order gives the step others."""
    path = autopsy_path(stage_dir, step)
    if not path.is_file():
        return None
    batch = read_json(path).get("batch")
    return batch["samples"] if batch and batch["samples"] else None


def _folder_batches(order: DataOrder, step: int, samples: list[int] | None) -> tuple[Batch, Batch | None]:
    positions = order.positions_of_step(step)
    if positions.stop > order.num_samples:
        raise UserError(f"--step {step}; this run plans {order.num_samples} samples, which end before it")
    dataset = order.build()
    if samples is None or set(samples) <= set(order.samples_of_step(step)):
        batch = take_batch(dataset, positions, ROWS_FOLDER)
    else:
        whole = dataclasses.replace(order, skips=Skips(), num_samples=max(max(samples) + 1, order.num_samples))
        batch = take_batch(whole.build(), samples, ROWS_FOLDER)
    beside = order.positions_of_step(step - 1 if step > 1 else step + 1)
    reference = take_batch(dataset, beside, ROWS_FOLDER) if beside.stop <= order.num_samples else None
    return batch, reference


def _schedule_of(checkpoints: Mapping[int, Path]) -> tuple[Callable[[int], float] | None, dict[str, Any]]:
    """The learning rate by update, as the newest checkpoint's settings give it."""
    settings = (read_manifest(checkpoints[max(checkpoints)]) or {}).get("settings", {}) if checkpoints else {}
    if not {"schedule", "max_steps", "learning_rate", "warmup_updates"} <= settings.keys():
        return None, settings
    factor = lr_lambda(
        name=settings["schedule"],
        num_training_steps=settings["max_steps"],
        num_warmup_steps=settings["warmup_updates"],
        num_decay_steps=settings["decay_updates"],
        min_lr_ratio=settings["min_lr_ratio"],
        decay_type=settings["decay_shape"],
    )
    return (lambda update: settings["learning_rate"] * factor(update)), settings


def _saved_precision(stage_dir: Path, checkpoints: Mapping[int, Path]) -> torch.dtype:
    """The precision a run computed in, of a checkpoint's manifest or the run's facts."""
    names = [(read_manifest(path) or {}).get("precision") for path in reversed(checkpoints.values())]
    facts = stage_dir.parent / "facts.json"
    if facts.is_file():
        names.append(read_json(facts).get("stages", {}).get(stage_dir.name, {}).get("precision", {}).get("compute"))
    known = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}
    return next((known[name] for name in names if name in known), torch.float32)


def _read_rates(stage_dir: Path, step: int, rate: Callable[[int], float] | None, record: StepRecord) -> None:
    """The learning rate of the log line at the step or the last one before it, and the schedule's of the same step."""
    if not (stage_dir / LOG_FILE).is_file():
        return
    lines = [line for line in read_jsonl(stage_dir / LOG_FILE) if line.get("learning_rate") is not None]
    lines = [line for line in lines if line["step"] <= step]
    if not lines:
        return
    line = max(lines, key=lambda one: one["step"])
    record.learning_rate = float(line["learning_rate"])
    if rate is not None:
        record.planned_learning_rate = rate(line["step"] - 1)

"""Going back from a loss spike: a loop around `train()`, since a callback cannot rewind the data.

When a step's loss, gradient norm or logits spike, its update is dropped and training stops. Weights, optimizer,
schedule, random numbers and detectors are then restored from a complete checkpoint before the spike, and the data goes
on after the offending window, which is left out for good (PaLM, arXiv 2204.02311, section 5.1: about 100 steps back,
200 to 500 batches left out). The result is that of a run that had started from that checkpoint without those samples.

The same spike again changes the strategy, and after the last one training stops with its good checkpoints on disk:

    attempt 1   the newest checkpoint before the spike, `rewind_skip_batches` left out, rate times `rewind_lr_factor`
    attempt 2   the checkpoint before that one, twice as many batches
    attempt 3   one more back, four times as many, and half the learning rate from there on

A step whose gradient norm alone spikes loses its update and no more: dropping it undoes all of it. Three such steps in
a row are a spike like any other.

A spike is the same until the run is as far behind it as it went back, and at least `rewind_skip_batches`.
"""

import logging
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.detector import SpikeVerdict
from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import ORDER_FILE, DataOrder
from hf_pretrain.data.skips import Skips
from hf_pretrain.trainer.checkpoint import (
    checkpoint_step,
    latest_complete_checkpoint,
    list_checkpoints,
    read_manifest,
    why_incomplete,
)
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.rewind_journal import (
    JOURNAL_FILE,
    Rewind,
    abandoned_after,
    rate_factor,
    read_journal,
    write_journal,
)
from hf_pretrain.utils.errors import TrainingStopped, UserError


if TYPE_CHECKING:
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer

logger = logging.getLogger(__name__)

MAX_ATTEMPTS = 3
# Steps in a row whose gradient alone spiked, after which the run goes back.
MAX_DROPPED = 3
_LAST_RATE_FACTOR = 0.5


class RewindCallback(LossSpikeCallback):
    """Detects spikes as [`~hf_pretrain.callbacks.loss_spike.LossSpikeCallback`] does; at the first one of loss or
    logsumexp the update is dropped and training stops, and `PretrainTrainer` goes back. `stopped_at` is the step of
    the spike. Where the gradient norm alone spikes, the update is dropped and training goes on.
    """

    actions = ("rewind",)

    def __init__(self, action: str = "rewind", *args: Any, **kwargs: Any) -> None:
        super().__init__(action, *args, **kwargs)

    def _action_for(self, spikes: list[tuple[str, float, SpikeVerdict]]) -> str:
        only_gradient = all(kind == "grad_norm" for kind, _, _ in spikes)
        return "skip_update" if only_gradient and self._consecutive + 1 < MAX_DROPPED else "rewind"

    def _after_skip(self, step: int, control: TrainerControl, action: str) -> None:
        if action == "rewind":
            self.stopped_at = step
            control.should_training_stop = True

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keeps the Trainer from scoring a step that is taken back.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self.stopped_at is not None:
            control.should_evaluate = False


def check_rewind(args: PretrainConfig, dataset: Any) -> None:
    """Makes sure that a run can go back, where its configuration asks for it.

    Args:
        args (`PretrainConfig`): The arguments.
        dataset (`Dataset`): The training data.

    Raises:
        UserError: If samples cannot be left out of this data.
    """
    if args.spike_action == "rewind" and dataset is not None and not isinstance(dataset, MixtureDataset):
        raise UserError(
            f"spike_action = 'rewind'; samples can be left out of a MixtureDataset, and this is a "
            f"{type(dataset).__name__}: give a MixtureDataset, or use 'skip_update'"
        )


def with_rewinds(factor: Callable[[int], float], rewinds: list[Rewind]) -> Callable[[int], float]:
    """Lowers a schedule where a run went back with a lower learning rate.

    Args:
        factor (`Callable[[int], float]`): Updates made to the factor of the next one.
        rewinds (`list[Rewind]`): The rewinds so far.

    Returns:
        `Callable[[int], float]`: Of the same kind, and can be pickled.
    """
    if all(rewind.lr_factor == 1.0 for rewind in rewinds):
        return factor
    return partial(_lowered, factor=factor, rewinds=tuple(rewinds))


def _lowered(updates_done: int, factor: Callable[[int], float], rewinds: tuple[Rewind, ...]) -> float:
    return factor(updates_done) * rate_factor(rewinds, updates_done)


class Recovery:
    """What a `PretrainTrainer` does about spikes between two calls of the Trainer's loop.

    Args:
        trainer (`PretrainTrainer`): The trainer.
    """

    def __init__(self, trainer: "PretrainTrainer") -> None:
        self._trainer = trainer
        self.rewinds: list[Rewind] = []

    @property
    def _folder(self) -> Path:
        return Path(self._trainer.args.output_dir)

    @property
    def spike_step(self) -> int | None:
        """The step whose update was dropped and which will be taken back, or `None`."""
        callback = self._trainer.find_callback(RewindCallback)
        return None if callback is None else callback.stopped_at

    # ---- before the first step ----

    def start(self, checkpoint: Path | None) -> Path | None:
        """Takes up the rewinds of the run that is gone on with.

        Args:
            checkpoint (`Path`, *optional*): The checkpoint chosen.

        Returns:
            `Path`: The checkpoint to go on from: another one if the run had left the line of that one.

        Raises:
            UserError: If the checkpoint that the run went back to is gone.
        """
        self.rewinds = []
        record_dir = self._trainer.record_dir
        run_id, rewinds = read_journal(record_dir)
        if not rewinds:
            return checkpoint
        if checkpoint is None:
            if not list_checkpoints(self._folder):
                raise UserError(
                    f"{record_dir / JOURNAL_FILE}: the run went back to step {rewinds[-1].to_step}, and no checkpoint "
                    f"is left in {self._folder}: restore it, or remove the file to train from the start"
                )
            return None
        manifest = read_manifest(checkpoint) or {}
        if manifest.get("run_id") != run_id:
            return checkpoint
        behind = abandoned_after(rewinds, manifest.get("num_rewinds", 0), checkpoint_step(checkpoint) or 0)
        if behind is not None:
            target = self._folder / f"checkpoint-{behind}"
            fault = why_incomplete(target)
            if fault is not None:
                raise UserError(
                    f"resume_from_checkpoint = {checkpoint}; the run went back from there to {target}, which is gone "
                    f"({fault}): restore it, or choose an older checkpoint"
                )
            logger.warning("%s was left behind by a rewind: going on from %s", checkpoint, target)
            return self.start(target)
        self.rewinds = rewinds
        dataset = self._trainer.train_dataset
        if isinstance(dataset, MixtureDataset):
            dataset.skips = Skips([*dataset.skips.ranges, *(rewind.skipped for rewind in rewinds)])
        return checkpoint

    def save_start(self) -> None:
        """Saves a checkpoint of the start, so that there is one before any spike."""
        trainer = self._trainer
        if trainer.args.spike_action == "rewind" and trainer.state.global_step == 0:
            if not (self._folder / "checkpoint-0").exists() or not self.rewinds:
                trainer._save_checkpoint(trainer.model, None)

    # ---- after a spike ----

    def next_checkpoint(self) -> Path | None:
        """Goes back if the loop ended at a spike: writes the journal and the data order, on all processes alike.

        Returns:
            `Path`: The checkpoint to train on from, or `None` if there is nothing to do.

        Raises:
            TrainingStopped: If every strategy was tried for this spike, or the run went back too often.
        """
        step = self.spike_step
        if step is None:
            return None
        trainer = self._trainer
        events = [event for event in trainer.find_callback(RewindCallback).events if event["step"] == step]
        attempt = self._attempt(step)
        if attempt > MAX_ATTEMPTS:
            self._give_up(step, f"the same spike came back after {MAX_ATTEMPTS} rewinds, each with another strategy")
        if len(self.rewinds) >= trainer.args.max_rewinds:
            self._give_up(step, f"max_rewinds = {trainer.args.max_rewinds} are used up")
        target = self._find_target(step, attempt)
        if target is None:
            self._give_up(step, "no complete checkpoint before it is left")
        to_step = checkpoint_step(target) or 0
        rewind = Rewind(step, to_step, self._window(step, to_step, attempt), attempt, self._rate(attempt), events)
        self._commit(rewind)
        logger.warning("Spike at step %d, attempt %d of %d: %s", step, attempt, MAX_ATTEMPTS, rewind.strategy)
        return target

    def _batches(self, attempt: int) -> int:
        args = self._trainer.args
        first = args.rewind_skip_batches or max(1, min(200, args.max_steps // 50))
        return first * 2 ** (attempt - 1)

    def _rate(self, attempt: int) -> float:
        factors = {1: self._trainer.args.rewind_lr_factor, MAX_ATTEMPTS: _LAST_RATE_FACTOR}
        return factors.get(attempt, 1.0)

    def _is_near(self, step: int) -> bool:
        """Whether a step is not yet past the last spike."""
        if not self.rewinds:
            return False
        last = self.rewinds[-1]
        return step <= last.spike_step + max(self._batches(1), last.spike_step - last.to_step)

    def _attempt(self, step: int) -> int:
        return self.rewinds[-1].attempt + 1 if self._is_near(step) else 1

    def _find_target(self, step: int, attempt: int) -> Path | None:
        """The first process looks, and tells the others."""
        found: list[Path | None] = [None]
        if self._trainer.is_world_process_zero():
            limit = step if attempt == 1 else self.rewinds[-1].to_step
            found = [self._newest_below(limit) or (self._newest_below(limit + 1) if attempt > 1 else None)]
        if self._trainer.args.world_size > 1:
            torch.distributed.broadcast_object_list(found)
        return found[0]

    def _newest_below(self, limit: int) -> Path | None:
        for path in reversed(list_checkpoints(self._folder)):
            if (checkpoint_step(path) or 0) < limit and self._is_own(path) and why_incomplete(path) is None:
                return path
        return None

    def _is_own(self, path: Path) -> bool:
        return (read_manifest(path) or {}).get("run_id") == self._trainer.run_id

    def _window(self, step: int, to_step: int, attempt: int) -> tuple[int, int]:
        """The samples to leave out: from the checkpoint on, through the spike."""
        trainer = self._trainer
        skips, position = trainer.train_dataset.skips, trainer.samples_after
        least = position(to_step) + self._batches(attempt) * trainer.args.sequences_per_step
        return skips.end_after(position(to_step)), skips.end_after(max(position(step), least))

    def _commit(self, rewind: Rewind) -> None:
        trainer = self._trainer
        self.rewinds = [*self.rewinds, rewind]
        dataset = trainer.train_dataset
        dataset.skips = dataset.skips.with_range(*rewind.skipped)
        if trainer.is_world_process_zero():
            write_journal(trainer.record_dir, trainer.run_id, self.rewinds)
            if (trainer.record_dir / ORDER_FILE).is_file():
                replace(DataOrder.read(trainer.record_dir), skips=dataset.skips).write(trainer.record_dir)
            for path in list_checkpoints(self._folder):
                if (checkpoint_step(path) or 0) > rewind.to_step and self._is_own(path):
                    shutil.rmtree(path, ignore_errors=True)
        trainer.accelerator.wait_for_everyone()

    def _give_up(self, step: int, why: str) -> None:
        good = latest_complete_checkpoint(self._folder)
        raise TrainingStopped(f"training stops at the spike of step {step}: {why}; the last good checkpoint is {good}")

    # ---- records ----

    def protected(self) -> list[Path]:
        """Checkpoints that rotation must leave: what the run last went back to, until it is past that spike.

        Returns:
            `list[Path]`: None or one.
        """
        if not self._is_near(self._trainer.state.global_step):
            return []
        return [self._folder / f"checkpoint-{self.rewinds[-1].to_step}"]

    def facts(self) -> list[dict[str, Any]]:
        """Describes the rewinds for the stage's facts.

        Returns:
            `list[dict[str, Any]]`: Plain JSON data, one entry a rewind.
        """
        return [
            {**asdict(rewind), "skipped": list(rewind.skipped), "strategy": rewind.strategy} for rewind in self.rewinds
        ]

"""How `PretrainTrainer` saves a checkpoint: at once, or from a copy in host memory by a thread beside the training.

Either way it is complete or absent (`checkpoint`). With `async_save` the step waits only for the copy; weights and
optimizer are written, hashed, flushed and renamed while training goes on. A second save waits for the first, an error
of the thread is raised at the end of the step that finds it, and `train()` does not return before the last file is
written.
"""

import contextlib
import copy
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers.trainer_callback import ExportableState

from hf_pretrain.trainer.checkpoint import publish_checkpoint, rotate_checkpoints, staging_folder
from hf_pretrain.trainer.optimizing import OptimizerMixin
from hf_pretrain.trainer.precision import dtype_name, run_precision
from hf_pretrain.trainer.resume_rules import settings_of
from hf_pretrain.utils.errors import UserError


class CheckpointWriter:
    """Does one piece of writing at a time in a thread."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    def submit(self, work: Callable[[], None]) -> None:
        """Starts a piece of work, after the one before it has ended.

        Args:
            work (`Callable[[], None]`): What to do.

        Raises:
            BaseException: What the one before it raised.
        """
        self.wait()
        # Not a daemon: a program that ends waits for its last checkpoint.
        self._thread = threading.Thread(target=self._run, args=(work,), name="checkpoint-writer")
        self._thread.start()

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            # Raised where the training sees it; a thread's own error would only be printed.
            self._error = error

    def raise_error(self) -> None:
        """Raises what the last piece of work raised, once, if it has.

        Raises:
            BaseException: That.
        """
        error, self._error = self._error, None
        if error is not None:
            raise error

    def wait(self) -> None:
        """Waits until nothing is being written.

        Raises:
            BaseException: What the last piece of work raised.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        self.raise_error()


def to_host(value: Any, seen: dict[Any, torch.Tensor] | None = None) -> Any:
    """Copies nested containers with their tensors to host memory; tensors that share memory still do.

    Args:
        value (`Any`): A state dict.
        seen (`dict`, *optional*): Copies made so far.

    Returns:
        `Any`: The copy.
    """
    seen = {} if seen is None else seen
    if torch.is_tensor(value):
        key = (value.untyped_storage().data_ptr(), value.storage_offset(), value.shape, value.stride(), value.dtype)
        if value.numel() == 0:
            return value.detach().to("cpu", copy=True)
        if key not in seen:
            seen[key] = value.detach().to("cpu", copy=True)
        return seen[key]
    if isinstance(value, dict):
        return type(value)((name, to_host(item, seen)) for name, item in value.items())
    if isinstance(value, (list, tuple)):
        return type(value)(to_host(item, seen) for item in value)
    return copy.deepcopy(value)


class SavingMixin(OptimizerMixin):
    """Checkpoints of a `PretrainTrainer`."""

    async_save = False

    def check_async_save(self) -> None:
        """Makes sure that checkpoints can be written beside the training.

        Raises:
            UserError: If the model is sharded, or each checkpoint is pushed.
        """
        if not self.async_save:
            return
        if self.is_fsdp_enabled or self.is_deepspeed_enabled or self.is_distributed_loading_by_transformers:
            raise UserError(
                "async_save = true; a sharded model is saved by all processes together, which must not train "
                "meanwhile: leave it out"
            )
        if self.args.push_to_hub:
            raise UserError("async_save = true; push_to_hub uploads a checkpoint as soon as it is saved: keep one")

    @property
    def writer(self) -> CheckpointWriter:
        """`CheckpointWriter`: What writes beside the training."""
        if not hasattr(self, "_writer"):
            self._writer = CheckpointWriter()
        return self._writer

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        if self.recovery.spike_step is not None:
            return  # this step is taken back
        self.writer.wait()
        target = Path(self._get_output_dir(trial=trial)) / f"checkpoint-{self.state.global_step}"
        staging = staging_folder(target)
        if self.is_world_process_zero():
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        self.accelerator.wait_for_everyone()
        self.store_flos()
        with _removed_on_error(staging):
            write_large = self._snapshot(staging) if self.async_save else None
            if write_large is None:
                self.save_model(str(staging), _internal_call=True)
                if not self.args.save_only_model:
                    self._save_optimizer_and_scheduler(str(staging))
            if not self.args.save_only_model:
                self._save_scaler(str(staging))
                self._save_rng_state(str(staging))
            if self.args.should_save:
                self._save_trainer_state(target, staging)
            self.accelerator.wait_for_everyone()
            manifest = self._manifest_entries()
        if write_large is None:
            with _removed_on_error(staging):
                if self.is_world_process_zero():
                    publish_checkpoint(target, self.run_id, **manifest)
            self.accelerator.wait_for_everyone()
            if self.args.push_to_hub:
                self._push_from_checkpoint(str(target))
            self._rotate(target)
        elif self.is_world_process_zero():
            protected = self._protected(target)

            def finish() -> None:
                with _removed_on_error(staging):
                    write_large()
                    publish_checkpoint(target, self.run_id, **manifest)
                self._rotate(target, protected)

            self.writer.submit(finish)

    def _snapshot(self, staging: Path) -> Callable[[], None]:
        """Copies what is large, writes what is small, and returns the writing of the copies."""
        if not self.is_world_process_zero():
            return lambda: None
        weights = to_host(self.accelerator.unwrap_model(self.model).state_dict())
        optimizer = None
        if not self.args.save_only_model:
            optimizer = to_host(self.optimizer.state_dict())
            torch.save(self.lr_scheduler.state_dict(), staging / "scheduler.pt")
            self.save_clipping(staging)

        def write() -> None:
            self._save(str(staging), state_dict=weights)
            if optimizer is not None:
                torch.save(optimizer, staging / "optimizer.pt")

        return write

    def _save_trainer_state(self, target: Path, staging: Path) -> None:
        self._collect_callback_states()
        if self.state.best_global_step:
            best = target.parent / f"checkpoint-{self.state.best_global_step}"
            if best == target or best.exists():
                self.state.best_model_checkpoint = str(best)
        self.state.save_to_json(str(staging / "trainer_state.json"))

    def _manifest_entries(self) -> dict[str, Any]:
        return {
            **self._data_state.to_json(self.train_dataset, self.state.global_step),
            "settings": settings_of(self.args),
            "rewarm": None if self._choice.rewarm is None else vars(self._choice.rewarm),
            "precision": dtype_name(run_precision(self.args, self.model)),
            "num_empty_steps": self.num_empty_steps,
            "num_rewinds": len(self.recovery.rewinds),
        }

    def _protected(self, target: Path) -> list[Any]:
        return [target, self.state.best_model_checkpoint, *self.recovery.protected()]

    def _rotate(self, target: Path, protected: list[Any] | None = None) -> None:
        if self.is_world_process_zero():
            stays = self._protected(target) if protected is None else protected
            rotate_checkpoints(target.parent, self.run_id, self.args.save_total_limit, stays)

    def _collect_callback_states(self) -> None:
        states: dict[str, Any] = {}
        for callback in [*self.callback_handler.callbacks, self.control]:
            if not isinstance(callback, ExportableState):
                continue
            name, state = type(callback).__name__, callback.state()
            if name not in states:
                states[name] = state
            elif isinstance(states[name], list):
                states[name].append(state)
            else:
                states[name] = [states[name], state]
        self.state.stateful_callbacks = states

    def _load_best_model(self) -> None:
        self.writer.wait()
        super()._load_best_model()


@contextlib.contextmanager
def _removed_on_error(staging: Path) -> Any:
    """The older checkpoints are whole; a half-written one must not take their room on a full disk."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):
            shutil.rmtree(staging)
        raise

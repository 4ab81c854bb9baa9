"""`ThroughputCallback`: tokens per second and model FLOPs utilisation, at every log line.

Tokens are counted from the shapes of the batches times the number of processes: no device sync, no gather; padding
counts as it is computed. The clock leaves out evaluation and saving, whose seconds are kept apart: `goodput` is the
share of the run's time that steps took. The FLOP convention is logged beside the MFU, which is missing for a device
whose peak is not in the table of `planning.hardware`.
"""

import logging
import time
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from hf_pretrain.callbacks.log_lines import add_to_line, is_training_line, unwrap
from hf_pretrain.planning.compute import (
    DEFAULT_CONVENTION,
    FLOP_CONVENTIONS,
    model_flops_utilisation,
    training_flops_per_token,
)
from hf_pretrain.planning.hardware import find_device, load_devices, peak_flops
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)


class ThroughputCallback(TrainerCallback, ExportableState):
    """Logs `tokens_per_second` (of all processes), `tokens_seen`, `goodput` (share of the time in steps), and where
    the peak is known `mfu` and `flop_convention`.

    Args:
        flop_convention (`str`, *optional*, defaults to `"matmul_causal"`): One of `planning.compute.FLOP_CONVENTIONS`;
            experts count as far as a token uses them.
        peak_tflops (`float`, *optional*): Dense peak of one device in TFLOP/s, instead of the table's.
        devices (`str`, *optional*): YAML file with devices that come before the table's, as `hf-pretrain plan` reads.

    Raises:
        UserError: If the convention is unknown, the peak not positive, or the file cannot be read.
    """

    def __init__(
        self,
        flop_convention: str = DEFAULT_CONVENTION,
        peak_tflops: float | None = None,
        devices: str | None = None,
    ) -> None:
        if flop_convention not in FLOP_CONVENTIONS:
            raise UserError(unknown_name_message("FLOP convention", flop_convention, FLOP_CONVENTIONS))
        if peak_tflops is not None and (isinstance(peak_tflops, bool) or not peak_tflops > 0):
            raise UserError(f"peak_tflops = {peak_tflops!r}; a positive number is needed, dense and for bf16.")
        self.flop_convention = flop_convention
        self.peak_tflops = peak_tflops
        self.devices = devices
        self._own_devices = () if devices is None else load_devices(devices)
        self.tokens_seen = 0
        self.train_seconds = 0.0
        self.train_tokens = 0
        self.step_seconds = {"steps": 0.0, "saves": 0.0, "evaluation": 0.0}
        self._restored = False
        self._hook: Any = None
        self._model: Any = None

    @property
    def counted(self) -> int:
        """`int`: Tokens of the whole run; settable, which is how a resumed Trainer restores it."""
        return self.tokens_seen

    @counted.setter
    def counted(self, tokens: int) -> None:
        self.tokens_seen = int(tokens)
        self._restored = True

    @property
    def seconds(self) -> dict[str, float]:
        """`dict[str, float]`: What the run's time went to: `steps`, `saves`, `evaluation`; settable, as `counted`."""
        spent = dict(self.step_seconds)
        if self._hook is not None and self._begin is not None:
            spent["steps"] += self._mark - self._begin - self._excluded
        return spent

    @seconds.setter
    def seconds(self, spent: dict[str, float]) -> None:
        self.step_seconds = {name: float(value) for name, value in spent.items()}
        self._restored = True

    def state(self) -> dict[str, Any]:
        """What a resumed Trainer needs to make this callback again.

        Returns:
            `dict`: Constructor arguments and the tokens so far.
        """
        return {
            "args": {
                "flop_convention": self.flop_convention,
                "peak_tflops": self.peak_tflops,
                "devices": self.devices,
            },
            "attributes": {"counted": self.tokens_seen, "seconds": self.seconds},
        }

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Hooks the model's forward to see the shapes of the batches.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()
        self._model = unwrap(kwargs["model"])
        self._hook = self._model.register_forward_pre_hook(self._count, with_kwargs=True)
        if not self._restored:
            self.tokens_seen = 0
            self.step_seconds = dict.fromkeys(self.step_seconds, 0.0)
        self._steps_before = 0 if self._restored else state.global_step
        self._restored = False
        self.train_seconds, self.train_tokens = 0.0, 0
        self._window_tokens = 0
        self._seq_length = 0
        self._begin: float | None = None
        self._excluded = 0.0
        self._mark = time.perf_counter()
        self._flops: float | None = None
        self._flops_length = 0
        name = torch.cuda.get_device_name() if args.device.type == "cuda" else args.device.type
        own = find_device(name, self._own_devices) if self._own_devices else None
        self._peak = peak_flops(name, self.peak_tflops) if own is None or self.peak_tflops else own.peak_flops
        if self._peak is None:
            logger.info(
                "No MFU: the peak of %r is not known; give ThroughputCallback(peak_tflops=...) or (devices=FILE).",
                name,
            )

    def _count(self, module: torch.nn.Module, inputs: tuple, kwargs: dict[str, Any]) -> None:
        """Forward pre-hook: counts the tokens of a training batch by its shape."""
        if not module.training:
            return
        batch = kwargs.get("input_ids")
        if batch is None:
            batch = inputs[0] if inputs and torch.is_tensor(inputs[0]) else kwargs.get("inputs_embeds")
        if batch is not None:
            self._window_tokens += batch.shape[0] * batch.shape[1]
            self._seq_length = max(self._seq_length, batch.shape[1])

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock at the first step.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._hook is not None and self._begin is None:
            self._begin = self._mark = time.perf_counter()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Marks the end of a step.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._hook is None:
            return
        self._mark = time.perf_counter()
        if self._steps_before:
            # resumed without a saved count: earlier steps are taken to have been like the first of this run
            self.tokens_seen = self._steps_before * self._window_tokens * args.world_size
            self._steps_before = 0

    def on_evaluate(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Takes the evaluation's time out of the clock.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._leave_out("evaluation")

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Takes the saving's time out of the clock.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._leave_out("saves")

    def _leave_out(self, kind: str) -> None:
        if self._hook is not None and self._begin is not None:
            now = time.perf_counter()
            self._excluded += now - self._mark
            self.step_seconds[kind] += now - self._mark
            self._mark = now

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the rates since the last training line.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._hook is None or self._begin is None or not is_training_line(logs):
            return
        now = time.perf_counter()
        seconds = now - self._begin - self._excluded
        tokens = self._window_tokens * args.world_size
        self._begin = self._mark = now
        self._excluded, self._window_tokens = 0.0, 0
        self.tokens_seen += tokens
        self.step_seconds["steps"] += max(seconds, 0.0)
        if seconds <= 0 or tokens == 0:
            return
        self.train_seconds += seconds
        self.train_tokens += tokens
        rate = tokens / seconds
        entries: dict[str, Any] = {"tokens_per_second": rate, "tokens_seen": self.tokens_seen}
        entries["goodput"] = self.step_seconds["steps"] / sum(self.step_seconds.values())
        if self._peak is not None:
            mfu = model_flops_utilisation(rate, self._flops_per_token(), self._peak, args.world_size)
            if mfu:
                entries.update({"mfu": mfu, "flop_convention": self.flop_convention})
        add_to_line(logs, state, entries)

    def _flops_per_token(self) -> float:
        """Training FLOPs per token of this model at the longest row seen; 0 for a family that cannot be counted."""
        if self._flops is None or self._flops_length != self._seq_length:
            try:
                self._flops = training_flops_per_token(
                    self._model.config.to_dict(), self._seq_length, self.flop_convention
                )
            except UserError as error:
                logger.info("No MFU: %s", error)
                self._flops, self._peak = 0.0, None
            self._flops_length = self._seq_length
        return self._flops

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts what was not logged yet and removes the hook. `train_tokens / train_seconds` is the mean rate.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._hook is not None:
            self.tokens_seen += self._window_tokens * args.world_size
            self._window_tokens = 0
            self.step_seconds = self.seconds
        self._release()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._hook = self._model = None

"""`PreemptionCallback`: a signal, or the end of the time given, saves a checkpoint at the end of the step and stops.

Schedulers announce the end of a job by SIGTERM (or SIGUSR1), people by Ctrl-C; `max_runtime` is for those that kill
without a word. The step in progress is finished, a complete checkpoint is written, and `train()` returns; the caller
reads `signal_number` to choose its exit code, 128 + the number: 143 for SIGTERM and for the end of the time (the job
is to be queued again), 138 for SIGUSR1, 130 for Ctrl-C. A second Ctrl-C stops at once.
"""

import logging
import signal
import threading
import time
from types import FrameType
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.utils.duration import parse_duration


logger = logging.getLogger(__name__)


class PreemptionCallback(TrainerCallback):
    """Saves and stops cleanly on SIGTERM, SIGUSR1 and SIGINT, on all processes at the same step.

    Args:
        signals (`list[str]`, *optional*): Names of the signals to obey; SIGTERM, SIGUSR1 and SIGINT by default, those
            that the system has.
        max_runtime (`str`, *optional*): Time from the start of training, e.g. `"3h50m"`, after which SIGTERM is taken
            to have come.

    Raises:
        UserError: If the time is no duration.
    """

    def __init__(self, signals: list[str] | None = None, max_runtime: str | None = None) -> None:
        names = ["SIGTERM", "SIGUSR1", "SIGINT"] if signals is None else signals
        self.signals = [getattr(signal, name) for name in names if hasattr(signal, name)]
        self.max_seconds = None if max_runtime is None else parse_duration("max_runtime", max_runtime)
        self.signal_number: int | None = None
        self._begin: float | None = None
        self._previous: dict[int, Any] = {}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Installs the handlers; signals reach only a program's main thread, elsewhere nothing is done.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self.signal_number = None
        # A training that goes on after a rewind has used its time already.
        self._begin = time.monotonic() if self._begin is None else self._begin
        if threading.current_thread() is threading.main_thread() and not self._previous:
            self._previous = {number: signal.signal(number, self._receive) for number in self.signals}

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Asks for a checkpoint and a stop if a signal came to any process.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        number = self.signal_number or 0
        if not number and self.max_seconds is not None and time.monotonic() - self._begin >= self.max_seconds:
            logger.warning("max_runtime is over: a checkpoint is saved, then training stops")
            number = signal.SIGTERM
        if args.world_size > 1:
            # Signals reach processes at different moments; all must stop after the same step.
            flag = torch.tensor(number, device=args.device)
            torch.distributed.all_reduce(flag, torch.distributed.ReduceOp.MAX)
            number = int(flag)
        if number:
            self.signal_number = number
            control.should_save = state.global_step > 0
            control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Puts the handlers back.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self.restore_handlers()

    def restore_handlers(self) -> None:
        """Puts back the handlers found at the start; call it where an error may have skipped `on_train_end`."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous = {}

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT and self.signal_number is not None:
            self.restore_handlers()
            raise KeyboardInterrupt
        self.signal_number = number
        logger.warning("%s: a checkpoint is saved after this step, then training stops", signal.Signals(number).name)

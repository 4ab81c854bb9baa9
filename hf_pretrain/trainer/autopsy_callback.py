"""`AutopsyCallback`: an autopsy at every spike, while weights and batch are exactly those of the step.

It changes nothing of the run and never ends it: what goes wrong here is told and the training goes on.
"""

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.trainer.autopsy_sources import autopsy_live
from hf_pretrain.trainer.autopsy_text import write_autopsy
from hf_pretrain.utils.errors import UserError, one_line


if TYPE_CHECKING:
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer

logger = logging.getLogger(__name__)


class AutopsyCallback(TrainerCallback):
    """Writes `autopsies/step-N.md` and `.json` beside the run's log at each spike that `LossSpikeCallback` sees.

    Args:
        limit (`int`, *optional*, defaults to 10): Autopsies of one call of `train()`; 0 writes none.
        min_distance (`int`, *optional*, defaults to 5): Steps from one to the next: spikes in a row have one cause.
    """

    def __init__(self, limit: int = 10, min_distance: int = 5) -> None:
        self.limit = limit
        self.min_distance = min_distance
        self.trainer: PretrainTrainer | None = None
        self.written: dict[int, str] = {}
        self._told_of_limit = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Asks the spike callback, which a resume may have replaced, to tell of spikes.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self.written, self._told_of_limit = {}, False
        spikes = None if self.trainer is None else self.trainer.find_callback(LossSpikeCallback)
        if spikes is not None and state.is_world_process_zero:
            spikes.on_spike = self.examine

    def examine(self, step: int) -> None:
        """Writes the autopsy of a step.

        Args:
            step (`int`): The step, from 1.
        """
        trainer = self.trainer
        if trainer is None or any(abs(step - done) < self.min_distance for done in self.written):
            return
        if len(self.written) >= self.limit:
            if self.limit and not self._told_of_limit:
                self._told_of_limit = True
                logger.warning("%d autopsies are written; `hf-pretrain autopsy` makes further ones", self.limit)
            return
        begin = time.monotonic()
        events = [event for event in trainer.find_callback(LossSpikeCallback).events if event["step"] == step]
        devices = [trainer.args.device] if trainer.args.device.type == "cuda" else []
        try:
            with torch.random.fork_rng(devices):
                report = autopsy_live(trainer, step, events)
            path = write_autopsy(Path(trainer.args.record_dir or trainer.args.output_dir), report)
        except (UserError, OSError, RuntimeError) as error:  # no room on disk or device, a file that is gone
            logger.warning("No autopsy of step %d: %s", step, one_line(error, 240))
            return
        self.written[step] = report["verdict"]["kind"]
        logger.warning(
            "Autopsy of step %d after %.1f s: %s (%s); %s",
            step,
            time.monotonic() - begin,
            report["verdict"]["kind"],
            report["verdict"]["lines"][0],
            path,
        )

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets the spike callback go; `written` stays.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        spikes = None if self.trainer is None else self.trainer.find_callback(LossSpikeCallback)
        if spikes is not None:
            spikes.on_spike = None

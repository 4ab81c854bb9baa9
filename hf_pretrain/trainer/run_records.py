"""What `PretrainTrainer` itself does at the events of the Trainer's loop, beside all other callbacks."""

from typing import TYPE_CHECKING, Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.data.mixture import MixtureDataset


if TYPE_CHECKING:
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer


class RunRecords(TrainerCallback):
    """What the trainer itself does at the loop's events.

    Args:
        trainer (`PretrainTrainer`): The trainer.
    """

    def __init__(self, trainer: "PretrainTrainer") -> None:
        self._trainer = trainer
        self._order_is_written = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Saves the start of a run that may have to go back to it.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._order_is_written = False
        self._trainer.recovery.save_start()

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Tells the model that a step begins, and writes the data order before the first.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if hasattr(model, "start_optimizer_step"):
            model.start_optimizer_step()
        # By now every callback has had its say about the mixture.
        if not self._order_is_written:
            self._order_is_written = True
            self._trainer.write_data_order()

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Moves the routers' biases, once an update.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        model = self._trainer.accelerator.unwrap_model(self._trainer.model)
        if getattr(model.config, "router_bias_update_rate", None) is None or not hasattr(model, "update_router_bias"):
            return
        spikes = self._trainer.find_callback(LossSpikeCallback)
        if spikes is not None and spikes.skipped_last_step:
            # A skipped update changes nothing: what its batch was routed to is forgotten, not counted later.
            model.update_router_bias(torch.zeros(model.config.num_hidden_layers, model.config.num_experts))
        else:
            model.update_router_bias()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Says how much of the run is done.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._trainer.writer.raise_error()
        # A resumed loop counts its own batches from 0; the share of the run that is done comes from the step.
        if isinstance(self._trainer.train_dataset, MixtureDataset):
            state.epoch = state.global_step / state.max_steps

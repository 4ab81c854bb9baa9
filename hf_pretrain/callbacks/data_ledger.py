"""`DataLedgerCallback`: what the run has read so far, per source, at every log line.

Nothing is counted along the way: the numbers are computed from the schedule and the step, so a resumed run logs the
same as one that never stopped.
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.log_lines import add_to_line, is_training_line
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import BatchSpan, position_after
from hf_pretrain.utils.errors import UserError


def global_batch(args: TrainingArguments) -> int:
    """Counts the sequences of one optimizer step over all processes.

    Args:
        args (`TrainingArguments`): The arguments.

    Returns:
        `int`: Micro-batch times accumulation times processes.
    """
    return args.train_batch_size * args.gradient_accumulation_steps * args.world_size


def find_mixture(train_dataloader: Any, name: str) -> MixtureDataset:
    """Reaches the mixture behind a trainer's data loader.

    Args:
        train_dataloader (`DataLoader`): What callbacks get from the Trainer.
        name (`str`): Who asks, for the message.

    Returns:
        `MixtureDataset`: The dataset.

    Raises:
        UserError: If the Trainer reads another dataset, or reads this one in random order.
    """
    dataset = getattr(train_dataloader, "dataset", None)
    if not isinstance(dataset, MixtureDataset):
        raise UserError(
            f"{name}: the train_dataset is a {type(dataset).__name__}; give a MixtureDataset, "
            "whose mix follows a schedule"
        )
    batch_sampler = train_dataloader.batch_sampler
    sampler = getattr(getattr(batch_sampler, "batch_sampler", batch_sampler), "sampler", None)
    if "Random" in type(sampler).__name__:
        raise UserError(
            f"{name}: the Trainer reads the mixture in random order, which mixes its phases; set "
            "train_sampling_strategy='sequential' (the samples are shuffled already)"
        )
    return dataset


class DataLedgerCallback(TrainerCallback):
    """Adds `data/<source>/tokens`, `planned_tokens`, `share`, `epochs` and `unique_tokens`, and `data/phase`, to the
    training logs.

    `tokens` and `share` count this run, `planned_tokens` are those of the whole run; `epochs` and `unique_tokens` (the
    different ones among those read) count earlier stages as well. Works in any Trainer that reads a
    [`~hf_pretrain.data.mixture.MixtureDataset`] sequentially.
    """

    def __init__(self) -> None:
        self._dataset: MixtureDataset | None = None
        # How the run's batches were cut, where a trainer knows of more than one way; else all are as now.
        self.spans: list[BatchSpan] | None = None

    def samples_after(self, step: int, args: TrainingArguments) -> int:
        """Counts the samples trained on.

        Args:
            step (`int`): Optimizer steps made.
            args (`TrainingArguments`): The arguments.

        Returns:
            `int`: The position of the next sample.
        """
        return step * global_batch(args) if self.spans is None else position_after(self.spans, step)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Binds the mixture of the Trainer.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._dataset = find_mixture(kwargs["train_dataloader"], type(self).__name__)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Adds the ledger to a training log line.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._dataset is None or not is_training_line(logs):
            return
        samples = self.samples_after(state.global_step, args)
        last = self._dataset.skips.sample_at(max(samples - 1, 0))
        entries: dict[str, Any] = {"data/phase": self._dataset.schedule.phase_at(last).name}
        planned = self._dataset.consumed(self.samples_after(state.max_steps, args))
        for name, counts in self._dataset.consumed(samples).items():
            counts["planned_tokens"] = planned[name]["tokens"]
            entries.update({f"data/{name}/{key}": value for key, value in counts.items()})
        add_to_line(logs, state, entries)

"""`TrainingProgressCallback`: how far the training is, at what speed, and how long it still takes.

On a terminal one line that updates, in a log plain lines, nothing when `HF_PRETRAIN_QUIET=1`. It takes the place of
the Trainer's own bar, which fills log files with control characters.
"""

from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.callbacks.data_ledger import global_batch
from hf_pretrain.utils.progress import Progress


class TrainingProgressCallback(TrainerCallback):
    """Shows tokens, tokens per second, time left, step, loss and learning rate.

    Args:
        label (`str`, *optional*, defaults to `"training"`): What the line begins with.
        seq_length (`int`, *optional*): Tokens of a sample; by default the training dataset's `seq_length`, and without
            one sequences are counted instead of tokens.
        every (`float`, *optional*, defaults to 5.0): Seconds between two lines of a log.
    """

    def __init__(self, label: str = "training", seq_length: int | None = None, every: float = 5.0) -> None:
        self.label = label
        self.seq_length = seq_length
        self.every = every
        self._progress: Progress | None = None
        self._note = ""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if not state.is_world_process_zero:
            return
        dataset = getattr(kwargs.get("train_dataloader"), "dataset", None)
        length = self.seq_length or getattr(dataset, "seq_length", None)
        self._per_step = global_batch(args) * (length or 1)
        total = (state.max_steps - state.global_step) * self._per_step
        self._note = ""
        self._progress = Progress(self.label, total, "tokens" if length else "sequences", every=self.every)
        self._progress.__enter__()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts a step.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._progress is not None:
            step = f"step {state.global_step}/{state.max_steps}"
            self._progress.update(self._per_step, f"{step}, {self._note}" if self._note else step)

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Takes the numbers to show.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The log line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if logs and "loss" in logs:
            self._note = f"loss {logs['loss']:.3f}, lr {logs.get('learning_rate', 0.0):.2e}"

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Shows the last state.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None

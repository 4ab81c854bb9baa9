"""What an SFT run writes while it trains: one JSON line a log entry, and progress for the user."""

import json
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.utils.progress import Progress


class JsonLinesLog(TrainerCallback):
    """Appends the Trainer's log entries to a file of JSON lines.

    After a resume, lines of steps that are trained again are taken out first.

    Args:
        path (`str` or `Path`): The file.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Keeps the lines up to the step that training starts from."""
        if not state.is_world_process_zero:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        kept = [line for line in lines if _step_of(line) <= state.global_step]
        self.path.write_text("".join(f"{line}\n" for line in kept) if state.global_step else "", encoding="utf-8")

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Writes one line."""
        if state.is_world_process_zero and logs:
            with open(self.path, "a", encoding="utf-8") as stream:
                stream.write(json.dumps({"step": state.global_step, **logs}) + "\n")


def _step_of(line: str) -> int:
    try:
        return int(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        # A line cut off by a kill belongs to no step.
        return 1 << 62


class MainProgress(TrainerCallback):
    """Shows steps, rate and time left on the main process.

    Args:
        label (`str`): Name shown.
    """

    def __init__(self, label: str) -> None:
        self.label = label
        self._progress: Progress | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Starts the clock."""
        if state.is_world_process_zero:
            self._progress = Progress(self.label, total=state.max_steps - state.global_step, unit="steps").__enter__()

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Counts a step."""
        if self._progress is not None:
            self._progress.update(1)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Stops the clock."""
        if self._progress is not None:
            self._progress.__exit__(None, None, None)
            self._progress = None

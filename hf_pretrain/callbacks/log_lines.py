"""What the callbacks of this room share: the model behind its wrappers, and adding numbers to a log line."""

from typing import Any

from torch import nn
from transformers import TrainerState


def unwrap(model: nn.Module) -> nn.Module:
    """Finds the causal LM inside DDP, `torch.compile` and PEFT wrappers.

    Args:
        model (`torch.nn.Module`): What the Trainer hands to callbacks.

    Returns:
        `torch.nn.Module`: The innermost model.
    """
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod
        elif hasattr(model, "get_base_model"):
            model = model.get_base_model()
        elif isinstance(getattr(model, "module", None), nn.Module) and not hasattr(model, "config"):
            model = model.module
        else:
            return model


def is_training_line(logs: dict[str, Any] | None) -> bool:
    """Tells the lines of training steps from those of evaluation and the final summary.

    Args:
        logs (`dict`, *optional*): What `on_log` gets.

    Returns:
        `bool`: Whether the line holds a training loss.
    """
    return logs is not None and "loss" in logs


def add_to_line(logs: dict[str, Any], state: TrainerState, entries: dict[str, Any]) -> None:
    """Adds entries to the line that is being logged.

    The Trainer stores a copy of the line in `log_history` before it calls the callbacks, so both are written.

    Args:
        logs (`dict`): The line.
        state (`TrainerState`): Holds the history.
        entries (`dict`): Key to number.
    """
    logs.update(entries)
    if state.log_history and state.log_history[-1].get("step") == state.global_step:
        state.log_history[-1].update(entries)

"""Whether a checkpoint is one of this model, read from the file's header before anything is loaded."""

from pathlib import Path
from typing import Any

from safetensors import safe_open

from hf_pretrain.utils.errors import UserError


def saved_shapes(checkpoint: str | Path) -> dict[str, tuple[int, ...]]:
    """Reads names and shapes of a checkpoint's tensors.

    Args:
        checkpoint (`str` or `Path`): The checkpoint.

    Returns:
        `dict[str, tuple[int, ...]]`: Empty where the weights are not in `model*.safetensors`, e.g. sharded ones.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    for path in sorted(Path(checkpoint).glob("model*.safetensors")):
        with safe_open(path, framework="pt") as tensors:
            shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}
    return shapes


def check_fits(model: Any, checkpoint: str | Path) -> None:
    """Makes sure that a run goes on with the model it was begun with.

    Args:
        model (`PreTrainedModel`): The model.
        checkpoint (`str` or `Path`): The checkpoint to go on from.

    Raises:
        UserError: If tensors of one name have other shapes, or no name is shared.
    """
    saved = saved_shapes(checkpoint)
    own = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    if not saved:
        return
    shared = own.keys() & saved.keys()
    wrong = sorted(name for name in shared if own[name] != saved[name])
    if wrong:
        raise UserError(
            f"resume_from_checkpoint = {checkpoint}; it is of another model: {wrong[0]} has the shape "
            f"{saved[wrong[0]]} there and {own[wrong[0]]} here: restore the model's configuration, or start a new run "
            "folder"
        )
    if not shared:
        raise UserError(
            f"resume_from_checkpoint = {checkpoint}; it is of another model: it holds {min(saved)} and so on, none of "
            "this model's tensors: restore the model's configuration, or start a new run folder"
        )

"""Packed documents stay apart in any causal model of transformers, whatever it is called with.

transformers looks for packed documents in `position_ids` only where it is given neither an attention mask nor a cache.
With an all-ones mask, or with `use_cache` left at the configuration's default, later documents read earlier ones and
nothing warns. A hook before the forward pass takes both away where positions restart, and refuses what it cannot mend.
"""

import inspect
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.utils.errors import UserError


_MARK = "_keeps_documents_apart"


def keep_documents_apart(model: Any) -> None:
    """Makes a model keep packed documents apart with an all-ones mask and with a cache, too.

    Only calls whose `position_ids` restart inside a row are touched: padding, generation and plain rows stay as they
    are. A second call changes nothing.

    Args:
        model (`Module`): A causal language model; anything else is left alone.
    """
    if isinstance(model, torch.nn.Module) and not hasattr(model, _MARK):
        setattr(model, _MARK, model.register_forward_pre_hook(_before_forward, with_kwargs=True))


class PackedDocumentsCallback(TrainerCallback):
    """Calls [`keep_documents_apart`] on the model of a stock `Trainer`. `PretrainTrainer` does so itself."""

    def on_init_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Guards the model.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        keep_documents_apart(kwargs["model"])


def _before_forward(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    if len(args) > 1:
        names = list(inspect.signature(model.forward).parameters)
        kwargs = {**dict(zip(names[1:], args[1:], strict=False)), **kwargs}
        args = args[:1]
    positions, mask = kwargs.get("position_ids"), kwargs.get("attention_mask")
    if not isinstance(positions, torch.Tensor) or positions.dim() != 2 or positions.shape[1] < 2:
        return None
    # transformers renamed the argument; both names are in use.
    caches = {name: kwargs[name] for name in ("cache", "past_key_values") if kwargs.get(name) is not None}
    use_cache = kwargs.get("use_cache")
    if use_cache is None:
        use_cache = getattr(getattr(model, "config", None), "use_cache", False)
    # Nothing in the way: transformers finds the documents. This is every call of a training loop, and costs nothing.
    if mask is None and not caches and not use_cache:
        return None
    if not bool((positions[:, 1:] != positions[:, :-1] + 1).any()):
        return None
    for name, cache in caches.items():
        if cache.get_seq_length():
            raise UserError(f"position_ids restart inside a row and {name} holds tokens; packed rows have no past")
    changed = {**kwargs, "use_cache": False, **dict.fromkeys(caches)}
    if isinstance(mask, torch.Tensor) and mask.dim() == 2:
        if not bool(mask.all()):
            if _is_padding(positions, mask):
                return None
            raise UserError(
                "attention_mask has zeros in a packed row (position_ids restart), and with any mask documents would "
                "read each other; leave it out and give padding the label -100"
            )
        changed["attention_mask"] = None
    return args, changed


def _is_padding(positions: torch.Tensor, mask: torch.Tensor) -> bool:
    """Whether positions restart only where padding begins or ends, as they do in batches of single texts."""
    mask = mask.bool()
    restarts = positions[:, 1:] != positions[:, :-1] + 1
    return mask.shape == positions.shape and not bool((restarts & mask[:, 1:] & mask[:, :-1]).any())

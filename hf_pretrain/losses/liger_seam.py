"""The seam through which a loss object gets the hidden states of a model whose forward Liger has replaced.

Liger's forwards (`use_liger_kernel=True`, or `kernels.liger_table.install_fused_forward`) do not ask the model's
`loss_function` while training: they hand hidden states and the head's weight to a function of Liger's `loss_utils`,
the same one for all its model types, which drops the z part (bugs Z3). `LigerSeam` routes that one function: a call
made while the seam's model runs goes to the seam's loss, every other call to Liger's own code.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import torch

from hf_pretrain.utils.errors import UserError


_LOSS_UTILS = "liger_kernel.transformers.model.loss_utils"
_NAME = "fixed_fused_linear_cross_entropy"
_NEEDED = ("hidden_states", "lm_head_weight", "target", "num_items_in_batch", "ignore_index")
_SOFTCAP = "final_logit_softcapping"
# Options that Liger's forwards may hand on and that the loss object has a say in itself or does not know.
_FOREIGN = (
    "lse_square_scale",
    "label_smoothing",
    "ce_weight",
    "use_token_scaling",
    "return_token_accuracy",
    "return_predicted_tokens",
)

# The losses of the models that run now, innermost last; a context variable, so that threads do not see each other's.
_active: ContextVar[tuple[Callable[..., torch.Tensor], ...]] = ContextVar("hf_pretrain_liger_loss", default=())


def has_liger_forward(model: Any) -> bool:
    """Tells whether a model's forward is one of Liger's, on the instance or on its class.

    Args:
        model (`torch.nn.Module`): The model, without wrappers.

    Returns:
        `bool`: Whether it computes its loss by Liger's fused cross-entropy while training.
    """
    function = inspect.unwrap(getattr(model.forward, "__func__", model.forward))
    return function.__module__.startswith("liger_kernel.transformers.model.")


class LigerSeam:
    """Routes the loss of one model's Liger forward to a loss object until `remove` is called.

    Args:
        model (`torch.nn.Module`): With a Liger forward.
        loss (`Callable`): Called as `loss(hidden_states=, lm_head_weight=, shift_labels=, ...)`, returns a scalar.

    Raises:
        UserError: If the installed Liger has no such function, or one with other arguments.
    """

    def __init__(self, model: Any, loss: Callable[..., torch.Tensor]) -> None:
        _install_router()
        self._loss = loss
        self._handles = [
            model.register_forward_pre_hook(self._enter),
            model.register_forward_hook(self._leave, always_call=True),
        ]

    def remove(self) -> None:
        """Gives the loss back to Liger's code; a second call does nothing."""
        while self._handles:
            self._handles.pop().remove()

    def _enter(self, module: Any, inputs: Any) -> None:
        _active.set((*_active.get(), self._loss))

    def _leave(self, module: Any, inputs: Any, output: Any) -> None:
        _active.set(_active.get()[:-1])


def _install_router() -> None:
    """Puts the router in front of Liger's function, once a process."""
    utils = importlib.import_module(_LOSS_UTILS)
    original = getattr(utils, _NAME, None)
    if getattr(original, "is_hf_pretrain_router", False):
        return
    parameters = inspect.signature(original).parameters if original is not None else {}
    missing = [name for name in (*_NEEDED, _SOFTCAP) if name not in parameters]
    if missing:
        raise UserError(
            f"liger_kernel: this version's {_NAME} lacks {', '.join(missing)}, so z-loss could not act in its fused "
            "forward; use liger-kernel 0.8, or liger_kernel_config={'fused_linear_cross_entropy': False}."
        )
    order = list(parameters)

    def routed(*args: Any, **kwargs: Any) -> Any:
        """Liger's fused loss, or the loss of the model that runs now."""
        running = _active.get()
        if not running:
            return original(*args, **kwargs)
        loss = running[-1]
        given = {**dict(zip(order, args, strict=False)), **kwargs}
        foreign = [name for name in _FOREIGN if given.get(name)]
        if foreign:
            raise UserError(
                f"{foreign[0]} = {given[foreign[0]]}; it cannot be passed to the model's forward while a loss of "
                "this package is installed; set it on the loss (ZLossCallback, CausalLMObjective) or leave it out."
            )
        return loss(
            hidden_states=given["hidden_states"],
            lm_head_weight=given["lm_head_weight"],
            shift_labels=given["target"],
            num_items_in_batch=given.get("num_items_in_batch"),
            ignore_index=given.get("ignore_index", -100),
            logit_softcap=given.get(_SOFTCAP),
        )

    routed.is_hf_pretrain_router = True
    routed.__wrapped__ = original
    setattr(utils, _NAME, routed)

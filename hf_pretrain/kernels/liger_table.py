"""Liger's table of model types: Strata's entry in it, and its fused forwards for other families.

`register_strata()` makes `TrainingArguments(use_liger_kernel=True, liger_kernel_config={...})` work on Strata in a
stock `Trainer`, as it does on the families that Liger knows; without it `transformers` patches nothing and says
nothing. `ZLossCallback` and `FusedKernelsCallback` call it when the arguments ask for Liger.

`install_fused_forward(model)` takes only Liger's forward, the one without logits, for a model of its table. The loss
in it is then routed to ours by `losses.liger_seam`, so it runs on any device: chunked on a CPU, Liger's kernel on a
GPU.
"""

import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

from hf_pretrain.kernels.liger_patch import patch_with_liger, why_kernels_cannot_run
from hf_pretrain.losses.liger_seam import has_liger_forward
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.losses.selection import resolve_loss_implementation
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import is_available, require


logger = logging.getLogger(__name__)

_TABLE = "liger_kernel.transformers.monkey_patch"


class _TableObjective(CausalLMObjective):
    """The loss that Strata gets through the table; a second call knows it by its class."""


def apply_liger_kernel_to_strata(
    rope: bool = True,
    rms_norm: bool = True,
    swiglu: bool = True,
    cross_entropy: bool = False,
    fused_linear_cross_entropy: bool = True,
    lse_square_scale: float = 0.0,
    label_smoothing: float = 0.0,
    model: Any = None,
) -> None:
    """Patches a Strata model for good, with the arguments of Liger's own functions of this kind.

    A second call (every `Trainer.train` makes one) replaces the loss of the first.

    Args:
        rope (`bool`, *optional*, defaults to `True`): Liger's rotary embedding (all Strata models of the process).
        rms_norm (`bool`, *optional*, defaults to `True`): Liger's RMSNorm.
        swiglu (`bool`, *optional*, defaults to `True`): Liger's SwiGLU.
        cross_entropy (`bool`, *optional*, defaults to `False`): Not available; the fused one replaces it.
        fused_linear_cross_entropy (`bool`, *optional*, defaults to `True`): Loss without logits, by Liger's kernel.
        lse_square_scale (`float`, *optional*, defaults to 0.0): z-loss coefficient, Liger's name for it.
        label_smoothing (`float`, *optional*, defaults to 0.0): Weight of the uniform target.
        model (`StrataForCausalLM`): The model.

    Raises:
        UserError: If the kernels cannot run on the model's device, or an option makes no sense.
    """
    if model is None:
        raise UserError("model = None; Strata is patched one model at a time; pass model=...")
    if cross_entropy:
        raise UserError("cross_entropy = True; Strata takes fused_linear_cross_entropy=True instead, which has it.")
    reason = why_kernels_cannot_run(model.device)
    if reason is not None and (rope or rms_norm or swiglu or fused_linear_cross_entropy):
        raise UserError(
            f"use_liger_kernel = True; {reason}; leave it out (our loss without logits runs anywhere: ZLossCallback, "
            "FusedKernelsCallback)."
        )
    has_loss = fused_linear_cross_entropy and hasattr(type(model), "loss_function")
    if not has_loss and (lse_square_scale or label_smoothing):
        raise UserError(
            f"lse_square_scale = {lse_square_scale}, label_smoothing = {label_smoothing}; both act in the fused loss: "
            "leave fused_linear_cross_entropy on, on a model with a loss."
        )
    objective = None
    if has_loss:
        resolve_loss_implementation("liger", model.device)
        objective = _TableObjective(lse_square_scale, "liger", label_smoothing, fused_evaluation=False)
    present = vars(model).get("_loss_function")
    if isinstance(present, _TableObjective):
        present.detach()
    report = patch_with_liger(model, rope=rope, rms_norm=rms_norm, swiglu=swiglu)
    if objective is not None:
        objective.attach(model)
        report.patched["fused_ce"] = f"z-loss {lse_square_scale:g}" if lse_square_scale else "no z-loss"
    logger.info("Liger on %s: %s.", type(model).__name__, report)


def register_strata() -> None:
    """Enters Strata in Liger's table, so that `use_liger_kernel=True` acts on it; again is no harm.

    Raises:
        ImportError: If Liger is not installed.
    """
    table = require(_TABLE, "liger", "use_liger_kernel")
    table.MODEL_TYPE_TO_APPLY_LIGER_FN["strata"] = apply_liger_kernel_to_strata


def prepare_use_liger_kernel(args: Any) -> None:
    """What callbacks do when a Trainer is made: `use_liger_kernel=True` acts on Strata, or says what is missing.

    Args:
        args (`TrainingArguments`): The arguments.

    Raises:
        UserError: If Liger is asked for and not installed.
    """
    if not getattr(args, "use_liger_kernel", False):
        return
    if not is_available("liger_kernel"):
        raise UserError(
            'use_liger_kernel = True; liger_kernel is not installed: run `pip install "hf-pretrain[liger]"`, or leave '
            "it out (our loss without logits runs anywhere)."
        )
    register_strata()


def install_fused_forward(model: Any) -> Callable[[], None] | str:
    """Replaces a model's forward by Liger's, which computes the loss from hidden states while training.

    Args:
        model (`PreTrainedModel`): Of a family that Liger knows.

    Returns:
        `Callable[[], None]` or `str`: What puts the forward back, or the reason why nothing was changed.
    """
    if has_liger_forward(model):
        return lambda: None
    name = type(model).__name__
    if not is_available("liger_kernel"):
        return f'{name} builds its logits itself; Liger has a forward without: run `pip install "hf-pretrain[liger]"`'
    apply = importlib.import_module(_TABLE).MODEL_TYPE_TO_APPLY_LIGER_FN.get(model.config.model_type)
    parameters = inspect.signature(apply).parameters if apply is not None else {}
    if "fused_linear_cross_entropy" not in parameters or "model" not in parameters:
        return f"{name} builds its logits itself, and Liger has no forward for {model.config.model_type!r} without"
    if "forward" in vars(model):
        return f"{name}'s forward was replaced by something else before"
    switches = {key: False for key, one in parameters.items() if isinstance(one.default, bool)}
    apply(**{**switches, "fused_linear_cross_entropy": True, "model": model})
    if not has_liger_forward(model):
        vars(model).pop("forward", None)
        return f"{name} builds its logits itself, and Liger's forward for it is of another kind"
    return lambda: vars(model).pop("forward", None)

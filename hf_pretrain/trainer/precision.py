"""Which number has which type in this run, and what pure half precision loses.

The default is mixed precision over fp32 master weights: products in bf16 (autocast, or FSDP's policy), weights,
moments and sums over processes in fp32. Weights in bf16 keep 8 bits: around a weight w values lie `2^-7 |w|` apart or
closer, and an update below half of that rounds to nothing. With AdamW at a rate of 1e-3 a weight of 1.0 never moves
(half of its distance to the next value is 0.002 below and 0.004 above), so a norm stays at its start and the loss
levels off with no error. That is why bf16 weights have to be asked for, and the share of lost updates is shown.
"""

import dataclasses
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

HALF = (torch.bfloat16, torch.float16)
# Elements of each tensor that the lost updates are counted in.
_SAMPLE = 65_536


def dtype_name(dtype: torch.dtype) -> str:
    """Names a type, e.g. `"bfloat16"`.

    Args:
        dtype (`torch.dtype`): The type.

    Returns:
        `str`: Its name without `torch.`.
    """
    return str(dtype).removeprefix("torch.")


def half_dtypes(model: torch.nn.Module) -> list[torch.dtype]:
    """Finds the half-precision types among trained weights.

    Args:
        model (`torch.nn.Module`): The model.

    Returns:
        `list[torch.dtype]`: Sorted by name; empty with fp32 master weights.
    """
    return sorted({one.dtype for one in model.parameters() if one.requires_grad} & set(HALF), key=str)


def run_precision(args: Any, model: torch.nn.Module | None = None) -> torch.dtype:
    """What a run computes its products in.

    Args:
        args (`TrainingArguments`): The arguments.
        model (`torch.nn.Module`, *optional*): The model; weights in half precision are computed with as they are.

    Returns:
        `torch.dtype`: fp32, bf16 or fp16.
    """
    held = [] if model is None else half_dtypes(model)
    if held:
        return held[0]
    if getattr(args, "bf16", False):
        return torch.bfloat16
    return torch.float16 if getattr(args, "fp16", False) else torch.float32


def check_precision(model: torch.nn.Module, args: Any, pure_bf16: bool = False) -> None:
    """Refuses weights in half precision that nobody asked for, and fp16 where it cannot run.

    Args:
        model (`torch.nn.Module`): The model.
        args (`TrainingArguments`): The arguments.
        pure_bf16 (`bool`, *optional*, defaults to `False`): Whether bf16 weights were asked for.

    Raises:
        UserError: If the weights are not what was asked for, or fp16 has no device or no fp32 weights.
    """
    held = half_dtypes(model)
    names = ", ".join(dtype_name(one) for one in held)
    if args.fp16 and args.device.type == "cpu":
        raise UserError("fp16 = True; fp16 with its loss scaling needs an accelerator: use bf16, or leave it out")
    if torch.float16 in held:
        raise UserError(
            f"the model's weights are {names}; gradients of fp16 weights cannot be unscaled: load with "
            "dtype=torch.float32"
        )
    if held and not pure_bf16:
        raise UserError(
            f"the model's weights are {names}, and updates smaller than half a unit in the last place would be lost: "
            "load with dtype=torch.float32 (and set bf16=True for speed), or ask for it with pure_bf16"
        )
    if pure_bf16 and not held:
        raise UserError("pure_bf16 = True; the model's weights are fp32: load it in bfloat16, or leave pure_bf16 out")
    if pure_bf16 and args.fp16:
        raise UserError("pure_bf16 = True and fp16 = True; choose one")


def to_pure_bf16(model: torch.nn.Module) -> torch.nn.Module:
    """Turns a model's weights into bf16, except for those its class keeps in fp32 (routers).

    Args:
        model (`PreTrainedModel`): The model; changed in place.

    Returns:
        `PreTrainedModel`: The same model.
    """
    kept: set[str] = set()
    for module in model.modules():
        kept |= set(getattr(module, "_keep_in_fp32_modules_strict", None) or ())
    for name, parameter in model.named_parameters():
        if not any(part in name for part in kept):
            parameter.data = parameter.data.to(torch.bfloat16)
    return model


def sum_in_fp32(accelerator: Any) -> bool:
    """Lets FSDP add gradients up over processes in fp32; accelerate's default is the type of the products.

    Args:
        accelerator (`Accelerator`): Before the model is prepared.

    Returns:
        `bool`: Whether something was changed.
    """
    plugin = getattr(getattr(accelerator, "state", None), "fsdp_plugin", None)
    policy = getattr(plugin, "mixed_precision_policy", None)
    if policy is None or getattr(policy, "reduce_dtype", None) not in HALF:
        return False
    plugin.mixed_precision_policy = dataclasses.replace(policy, reduce_dtype=torch.float32)
    return True


def lost_updates(weights: torch.Tensor, updates: torch.Tensor, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """Which updates round to nothing when they are added to weights of a type.

    Args:
        weights (`torch.Tensor`): The weights, any shape.
        updates (`torch.Tensor`): What is added to them, same shape, in fp32.
        dtype (`torch.dtype`, *optional*, defaults to `torch.bfloat16`): The type the weights are kept in.

    Returns:
        `torch.Tensor`: bool, same shape: the update is not zero and the sum is the weight.
    """
    held = weights.to(dtype)
    return (updates != 0) & ((held.float() + updates.float()).to(dtype) == held)


def _count(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Elements by type."""
    found: Counter[str] = Counter()
    for tensor in tensors:
        found[dtype_name(tensor.dtype)] += tensor.numel()
    return dict(sorted(found.items()))


def precision_audit(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | None = None,
    compute: torch.dtype = torch.float32,
    gradients: dict[str, int] | None = None,
    loss: torch.dtype | None = None,
    reductions: torch.dtype | None = None,
    loss_scale: float | None = None,
) -> dict[str, Any]:
    """Names the type of everything that training adds up.

    Args:
        model (`torch.nn.Module`): The model, out of its wrappers.
        optimizer (`torch.optim.Optimizer`, *optional*): Its moments are counted, where it has made a step.
        compute (`torch.dtype`, *optional*, defaults to `torch.float32`): Of the products.
        gradients (`dict[str, int]`, *optional*): Elements by type as seen before the update; by default the
            gradients that are there now.
        loss (`torch.dtype`, *optional*): Of the loss the model returned.
        reductions (`torch.dtype`, *optional*): Of sums over processes; by default that of the gradients.
        loss_scale (`float`, *optional*): Of fp16's scaler.

    Returns:
        `dict[str, Any]`: `compute`, `loss`, `reductions` by name; `weights`, `gradients`, `moments`, `router` as
        numbers of elements by type; what is not known is left out.
    """
    parameters = dict(model.named_parameters())
    if gradients is None:
        gradients = _count(one.grad for one in parameters.values() if one.grad is not None)
    moments: dict[str, int] = {}
    if optimizer is not None:
        states = getattr(optimizer, "optimizer", optimizer).state.values()
        moments = _count(
            value
            for state in states
            for key, value in state.items()
            if isinstance(value, torch.Tensor) and value.is_floating_point() and key != "step"
        )
    routers = [
        one
        for module in model.modules()
        if type(module).__name__.endswith("Router")
        for one in [*module.parameters(), *module.buffers()]
        if one.is_floating_point()
    ]
    if reductions is None and gradients:
        reductions = next(one for one in (torch.float32, *HALF, torch.float64) if dtype_name(one) in gradients)
    found = {
        "compute": dtype_name(compute),
        "weights": _count(parameters.values()),
        "gradients": gradients,
        "moments": moments,
        "router": _count(routers),
        "loss": None if loss is None else dtype_name(loss),
        "reductions": None if reductions is None else dtype_name(reductions),
        "loss_scale": loss_scale,
    }
    return {key: value for key, value in found.items() if value not in (None, {})}


def audit_line(audit: dict[str, Any]) -> str:
    """Says an audit in one line.

    Args:
        audit (`dict`): Of [`precision_audit`].

    Returns:
        `str`: E.g. `"products bfloat16, weights float32, ..."`.
    """
    parts = [f"products {audit['compute']}"]
    for key in ("weights", "gradients", "moments", "router"):
        if key in audit:
            parts.append(f"{key} {' and '.join(audit[key])}")
    parts += [f"{key} {audit[key]}" for key in ("loss", "reductions") if key in audit]
    if "loss_scale" in audit:
        parts.append(f"loss scale {audit['loss_scale']:g}")
    return ", ".join(parts)


class PrecisionCallback(TrainerCallback):
    """Looks at every type once, at the first update, and logs it; of bf16 weights it counts the updates that are lost.

    Works in any Trainer. `audit` is `None` until then; with `pure_bf16` it holds `lost_updates` too: the share of
    weights with a gradient that the first update did not move, and the share that would not move at the peak rate.

    Args:
        pure_bf16 (`bool`, *optional*, defaults to `False`): Whether weights in bf16 are wanted.
    """

    def __init__(self, pure_bf16: bool = False) -> None:
        self.pure_bf16 = pure_bf16
        self.audit: dict[str, Any] | None = None
        self._hook: Any = None
        self._forget()

    def _forget(self) -> None:
        self._loss: torch.dtype | None = None
        self._gradients: dict[str, int] = {}
        self._before: list[tuple[torch.nn.Parameter, torch.Tensor, torch.Tensor]] = []

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Begins to look.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()
        self._forget()
        self.audit = None
        self._hook = kwargs["model"].register_forward_hook(self._see_loss)

    def _see_loss(self, module: torch.nn.Module, inputs: tuple, output: Any) -> None:
        loss = output.get("loss") if isinstance(output, dict) else getattr(output, "loss", None)
        if module.training and torch.is_grad_enabled() and isinstance(loss, torch.Tensor):
            self._loss = loss.dtype
            self._release()

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Looks at the gradients, and remembers some weights.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self.audit is not None:
            return
        held = [one for one in kwargs["model"].parameters() if one.grad is not None]
        self._gradients = _count(one.grad for one in held)
        self._before = []
        for one in held:
            if one.dtype in HALF:
                weights, gradient = _local(one.detach()), _local(one.grad.detach())
                stride = max(1, weights.numel() // _SAMPLE)
                sample = weights.reshape(-1)[::stride].clone(), gradient.reshape(-1)[::stride].clone()
                self._before.append((one, *sample))

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Writes the audit down, once an update was made.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self.audit is not None or not self._gradients:
            return
        model, optimizer = kwargs["model"], kwargs.get("optimizer")
        scaler = getattr(optimizer, "scaler", None)
        self.audit = precision_audit(
            model,
            optimizer,
            run_precision(args, model),
            self._gradients,
            self._loss,
            loss_scale=None if scaler is None else float(scaler.get_scale()),
        )
        if self._before:
            self.audit["lost_updates"] = self._lost(args)
        self._before = []
        logger.info("Precision: %s", audit_line(self.audit))

    def _lost(self, args: TrainingArguments) -> dict[str, float]:
        """Counts the lost updates among the remembered weights and warns of them."""
        first = peak = total = 0
        for parameter, before, gradient in self._before:
            flat = _local(parameter.detach()).reshape(-1)
            after = flat[:: max(1, flat.numel() // _SAMPLE)]
            moves = gradient != 0
            total += int(moves.sum())
            first += int((moves & (after == before)).sum())
            # Adam's first update is the rate times the sign of the gradient, whatever its size.
            peak += int(lost_updates(before, -args.learning_rate * gradient.float().sign(), before.dtype).sum())
        shares = {"first_update": first / max(total, 1), "at_peak_rate": peak / max(total, 1)}
        logger.warning(
            "The weights are bfloat16 and there are no fp32 master weights: of the weights with a gradient %.0f%% did "
            "not move at the first update, and %.0f%% would not move by one update of Adam at the peak rate of %g. "
            "With fp32 weights all would (pure_bf16: false).",
            100 * shares["first_update"],
            100 * shares["at_peak_rate"],
            args.learning_rate,
        )
        return shares

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Removes the hook; `audit` stays.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._release()

    def _release(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """This process's part of a sharded tensor, or the tensor itself."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor

"""One batch read again at given weights: loss of every token, logsumexp, gradient norm of every layer, router state.

Nothing of the run is touched. The model is asked in evaluation mode and gradients are taken by `torch.autograd.grad`,
so no `.grad`, no router counter, no hook of DDP and no random number changes; what was changed is put back. Rows go
through one at a time, so that a large vocabulary needs no room for the logits of a batch.
"""

import contextlib
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F


IGNORED = -100
_LAYER = re.compile(r"(?:^|\.)(layers|h|blocks)\.(\d+)\.")


@dataclass
class BatchReading:
    """What one batch gives at one set of weights. Losses are plain cross-entropies in nats.

    Args:
        token_losses (`torch.Tensor` of shape `(rows, sequence)`): Loss of predicting each token, on the CPU; NaN where
            the label is ignored.
        loss (`float`): Their mean over the targets; 0 without targets.
        lse_max (`float`): Largest logsumexp of the logits at a target.
        grad_norm (`float`, *optional*): Norm of the mean loss's gradient.
        layer_grad_norms (`dict[str, float]`): The same by part: `embedding`, `layer 0`, ..., `head`, `norm`.
        routers (`list[dict]`): One entry a router in order: `load` (shares by expert), `max_vio`, `entropy` (of the
            load, 1 if even), `lse_max`.
    """

    token_losses: torch.Tensor
    loss: float
    lse_max: float
    grad_norm: float | None = None
    layer_grad_norms: dict[str, float] = field(default_factory=dict)
    routers: list[dict[str, Any]] = field(default_factory=list)


def read_batch(
    model: torch.nn.Module,
    rows: Sequence[dict[str, Any]],
    precision: torch.dtype = torch.float32,
    gradients: bool = True,
) -> BatchReading:
    """Reads a batch.

    Args:
        model (`torch.nn.Module`): A causal language model, out of its wrappers.
        rows (`Sequence[dict]`): `input_ids`, `labels` and, of packed documents, `position_ids`, each of shape
            `(sequence,)`.
        precision (`torch.dtype`, *optional*, defaults to `torch.float32`): fp32: weights and products in fp32,
            whatever type they are kept in. Another: autocast to it where the weights are fp32, else the weights as
            they are.
        gradients (`bool`, *optional*, defaults to `True`): Whether to take the gradient too.

    Returns:
        [`BatchReading`]
    """
    parameters = {name: one for name, one in model.named_parameters() if one.requires_grad and gradients}
    device = next(model.parameters()).device
    total = sum(int((torch.as_tensor(row["labels"])[1:] != IGNORED).sum()) for row in rows)
    sums: dict[str, torch.Tensor] = {}
    losses, top = [], -math.inf
    with _left_alone(model), _routers(model) as seen, torch.set_grad_enabled(gradients):
        for row in rows:
            ids, labels = (torch.as_tensor(row[name]).to(device)[None] for name in ("input_ids", "labels"))
            inputs = {"input_ids": ids, "use_cache": False}
            if "position_ids" in row:
                inputs["position_ids"] = torch.as_tensor(row["position_ids"]).to(device)[None]
            logits = _logits(model, inputs, precision)[0, :-1].float()
            targets = labels[0, 1:]
            each = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="none")
            valid = targets != IGNORED
            if parameters and total and bool(valid.any()):
                found = torch.autograd.grad(each.sum() / total, list(parameters.values()), allow_unused=True)
                for name, gradient in zip(parameters, found, strict=True):
                    if gradient is not None:
                        gradient = gradient.float()
                        sums[name] = gradient if name not in sums else sums[name].add_(gradient)
            with torch.no_grad():
                if bool(valid.any()):
                    top = max(top, float(torch.logsumexp(logits.detach()[valid], -1).max()), key=_nan_last)
                held = torch.where(valid, each.detach(), math.nan)
                losses.append(torch.cat([held.new_tensor([math.nan]), held]).cpu())
    table = torch.stack(losses)
    labelled = torch.stack([_targets(row) for row in rows])
    loss = float(table[labelled].double().mean()) if total else 0.0
    norms = _norms_by_part(sums)
    whole = math.sqrt(math.fsum(norm**2 for norm in norms.values())) if norms else None
    return BatchReading(table, loss, top, whole, norms, [_router_state(entry) for entry in seen.values()])


def _nan_last(value: float) -> float:
    return math.inf if math.isnan(value) else value


def _targets(row: dict[str, Any]) -> torch.Tensor:
    """Which tokens of a row are predicted."""
    mask = torch.as_tensor(row["labels"]).cpu() != IGNORED
    mask = mask.clone()
    mask[0] = False
    return mask


def _logits(model: torch.nn.Module, inputs: dict[str, Any], precision: torch.dtype) -> torch.Tensor:
    """Logits in a precision; accelerate's own autocast, wrapped around `forward`, is passed by."""
    forward = vars(model).get("_original_forward", model.forward)
    kind = next(model.parameters()).device.type
    half = any(one.dtype != torch.float32 for one in model.parameters() if one.is_floating_point())
    if precision == torch.float32:
        with torch.autocast(kind, enabled=False):
            if not half:
                return forward(**inputs).logits
            wide = {name: one.float() if one.is_floating_point() else one for name, one in model.named_parameters()}
            return torch.func.functional_call(model, wide, kwargs=inputs).logits
    with torch.autocast(kind, dtype=precision, enabled=not half):
        return forward(**inputs).logits


@contextlib.contextmanager
def _left_alone(model: torch.nn.Module) -> Iterator[None]:
    """Evaluation mode inside; modes, random numbers and what the model remembers of its routers as before after it."""
    modes = {module: module.training for module in model.modules()}
    kept = [
        (module, name, vars(module)[name])
        for module in modes
        for name in ("router_losses", "_router_totals", "_window_totals", "_steps_without_update")
        if name in vars(module)
    ]
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices):
            model.eval()
            yield
    finally:
        for module, mode in modes.items():
            module.training = mode
        for module, name, value in kept:
            setattr(module, name, value)


@contextlib.contextmanager
def _routers(model: torch.nn.Module) -> Iterator[dict[str, dict[str, torch.Tensor]]]:
    """Collects what every router gives: counts by expert and the largest logsumexp."""
    seen: dict[str, dict[str, torch.Tensor]] = {}
    hooks = []

    def watch(name: str) -> Any:
        def take(module: torch.nn.Module, inputs: tuple, output: Any) -> None:
            logits, indices = output[0].detach().float(), output[2]
            counts = torch.bincount(indices.reshape(-1), minlength=logits.shape[-1])
            top = torch.logsumexp(logits, -1).max()
            entry = seen.get(name)
            if entry is None:
                seen[name] = {"counts": counts, "lse_max": top}
            else:
                entry["counts"] = entry["counts"] + counts
                entry["lse_max"] = torch.maximum(entry["lse_max"], top)

        return take

    for name, module in model.named_modules():
        # Routers of transformers' families and of Strata give (logits, weights, indices, ...).
        if type(module).__name__.endswith("Router"):
            hooks.append(module.register_forward_hook(watch(name)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _router_state(entry: dict[str, torch.Tensor]) -> dict[str, Any]:
    counts = entry["counts"].double()
    share = counts / counts.sum().clamp(min=1.0)
    experts = share.numel()
    entropy = -float(torch.special.xlogy(share, share).sum()) / max(math.log(experts), 1e-12)
    return {
        "load": share.tolist(),
        "max_vio": float(share.max()) * experts - 1.0,
        "entropy": entropy,
        "lse_max": float(entry["lse_max"]),
    }


def part_of(name: str) -> str:
    """Names the part of the model that a parameter belongs to.

    Args:
        name (`str`): The parameter's name.

    Returns:
        `str`: `embedding`, `layer N`, `head` or `norm`; else the name itself.
    """
    layer = _LAYER.search(name)
    if layer:
        return f"layer {layer.group(2)}"
    for word, part in (("embed", "embedding"), ("wte", "embedding"), ("lm_head", "head"), ("norm", "norm")):
        if word in name:
            return part
    return name


def _norms_by_part(gradients: dict[str, torch.Tensor]) -> dict[str, float]:
    squares: dict[str, list[float]] = {}
    for name, gradient in gradients.items():
        squares.setdefault(part_of(name), []).append(float(gradient.double().square().sum()))
    return {part: math.sqrt(math.fsum(values)) for part, values in squares.items()}


def gradient_norms_held(model: torch.nn.Module) -> dict[str, float]:
    """Norms of the gradients that a model holds now, by part, as they are.

    Args:
        model (`torch.nn.Module`): The model.

    Returns:
        `dict[str, float]`: By part; empty where there are none.
    """
    return _norms_by_part({name: one.grad.detach() for name, one in model.named_parameters() if one.grad is not None})

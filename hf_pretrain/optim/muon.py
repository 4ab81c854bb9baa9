"""Muon for matrices, AdamW for the rest, as one optimizer.

Muon (arXiv 2502.16982) replaces the momentum of a matrix by the nearest orthogonal one. `torch.optim.Muon` does that
for 2-D parameters and is used for them. It refuses a bank of experts `(E, out, in)`, whose matrices are its slices:
these are orthogonalised here, each expert by itself, in one batched product. A stacked `gate_up_proj` is two matrices.

Rates are scaled by `0.2 sqrt(max(out, in))`, so that an update is as large as AdamW's and its rate and decay carry
over. Embeddings, head, routers' gates, norms and biases are AdamW's: a lookup table has no spectrum to level, and a
gate whose rows all move alike cannot tell its experts apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hf_pretrain.optim.param_groups import parameter_groups
from hf_pretrain.utils.errors import UserError


# The quintic iteration of Muon's authors, as torch has it.
NS_COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: torch.Tensor, steps: int = 5, eps: float = 1e-7) -> torch.Tensor:
    """Brings the singular values of each matrix near 1 by Newton-Schulz iterations in bf16.

    Args:
        matrices (`torch.Tensor`): Shape `(..., out, in)`; leading dimensions count matrices.
        steps (`int`, *optional*, defaults to 5): Iterations.
        eps (`float`, *optional*, defaults to 1e-7): Least norm divided by.

    Returns:
        `torch.Tensor`: In bf16, of the same shape.
    """
    a, b, c = NS_COEFFICIENTS
    found = matrices.bfloat16()
    tall = matrices.shape[-2] > matrices.shape[-1]
    if tall:
        found = found.mT
    found = found / found.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = found @ found.mT
        found = a * found + (b * gram + c * (gram @ gram)) @ found
    return found.mT if tall else found


def matrix_parts(name: str) -> int:
    """How many matrices lie stacked along the output dimension of an expert bank.

    Args:
        name (`str`): The parameter's name.

    Returns:
        `int`: 2 for a gate and an up projection in one, else 1.
    """
    return 2 if name.rpartition(".")[2] == "gate_up_proj" else 1


class MuonWithAdamW(torch.optim.Optimizer):
    """Muon for the matrices of a model's blocks, AdamW for all other parameters.

    Args:
        model (`torch.nn.Module`): The model; its trainable parameters are taken, each once.
        lr (`float`): Learning rate of both.
        weight_decay (`float`, *optional*, defaults to 0.1): Decay of matrices; norms, biases and embeddings have none.
        betas (`tuple[float, float]`, *optional*, defaults to `(0.9, 0.95)`): Of AdamW.
        eps (`float`, *optional*, defaults to 1e-8): Of AdamW.
        momentum (`float`, *optional*, defaults to 0.95): Of Muon, with Nesterov's look ahead.
        ns_steps (`int`, *optional*, defaults to 5): Newton-Schulz iterations.

    Raises:
        UserError: If the model has no matrix that Muon could train, or an option is out of range.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: float,
        weight_decay: float = 0.1,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        momentum: float = 0.95,
        ns_steps: int = 5,
    ) -> None:
        if not 0 <= momentum < 1:
            raise UserError(f"momentum = {momentum}; allowed is 0 up to (not including) 1; 0.95 is usual.")
        if isinstance(ns_steps, bool) or not isinstance(ns_steps, int) or not 1 <= ns_steps < 100:
            raise UserError(f"ns_steps = {ns_steps!r}; a whole number from 1 to 99 is needed; 5 is usual.")
        groups = _split(model, weight_decay)
        if not any(group["kind"] != "adamw" for group in groups):
            raise UserError(
                "optim = muon; the model has no matrix beside embeddings, head and routers, so nothing would be "
                "Muon's: use adamw_torch."
            )
        for group in groups:
            if group["kind"] == "adamw":
                group |= {**_defaults(torch.optim.AdamW), "betas": tuple(betas), "eps": eps}
            else:
                group |= {**_defaults(torch.optim.Muon), "momentum": momentum, "ns_steps": ns_steps}
                group["adjust_lr_fn"] = "match_rms_adamw"
            group["lr"] = lr
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay})
        # torch's own optimizers do the work on groups and state that are this one's.
        self._inner = {
            "muon": torch.optim.Muon([nn.Parameter(torch.zeros(1, 1))]),
            "adamw": torch.optim.AdamW([nn.Parameter(torch.zeros(1))]),
        }

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Makes one update.

        Args:
            closure (`Callable`, *optional*): Computes the loss again.

        Returns:
            `Any`: What the closure returned.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for kind, optimizer in self._inner.items():
            optimizer.param_groups = [group for group in self.param_groups if group["kind"] == kind]
            optimizer.state = self.state
            optimizer.step()
        for group in self.param_groups:
            if group["kind"] == "muon_bank":
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        self._update_bank(parameter, group)
        return loss

    def _update_bank(self, bank: torch.Tensor, group: dict[str, Any]) -> None:
        state = self.state[bank]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(bank.grad)
        average = state["momentum_buffer"]
        average.lerp_(bank.grad, 1 - group["momentum"])
        update = bank.grad.lerp(average, group["momentum"])
        experts, rows, columns = bank.shape
        rows //= group["parts"]
        update = orthogonalise(update.reshape(experts, group["parts"], rows, columns), group["ns_steps"], group["eps"])
        bank.mul_(1 - group["lr"] * group["weight_decay"])
        bank.add_(update.reshape(bank.shape), alpha=-group["lr"] * 0.2 * math.sqrt(max(rows, columns)))


def _defaults(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    """The group entries that an optimizer of torch expects."""
    found = kind([nn.Parameter(torch.zeros(1, 1))]).param_groups[0]
    return {key: value for key, value in found.items() if key not in ("params", "lr", "weight_decay")}


def _split(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Parameter groups with their `kind`: matrices, banks of them (by stacked parts), and the rest by decay."""
    apart = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            apart.add(id(module.weight))
        last = name.rpartition(".")[2]
        if last in ("gate", "router", "lm_head"):
            apart |= {id(parameter) for parameter in module.parameters()}
    head = getattr(model, "get_output_embeddings", lambda: None)()
    if head is not None:
        apart |= {id(parameter) for parameter in head.parameters()}
    groups = []
    parameter_groups(model, weight_decay)  # refuses a wrong decay
    for group in parameter_groups(model, 1.0):
        decays = group["weight_decay"] > 0
        chosen: dict[tuple[str, int], dict[str, Any]] = {}
        for name, parameter in zip(group["names"], group["params"], strict=True):
            kind, parts = "adamw", 1
            if decays and id(parameter) not in apart and parameter.dim() in (2, 3):
                kind = "muon" if parameter.dim() == 2 else "muon_bank"
                parts = matrix_parts(name) if kind == "muon_bank" else 1
                if parameter.dim() == 3 and parameter.shape[1] % parts:
                    raise UserError(
                        f"optim = muon; {name} has the shape {tuple(parameter.shape)}, which does not hold {parts} "
                        "matrices of a size: use adamw_torch."
                    )
            place = chosen.setdefault((kind, parts), {"params": [], "names": [], "kind": kind, "parts": parts})
            place["params"].append(parameter)
            place["names"].append(name)
        groups += [{**made, "weight_decay": weight_decay if decays else 0.0} for made in chosen.values()]
    return groups

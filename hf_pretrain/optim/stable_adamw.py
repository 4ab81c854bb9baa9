"""StableAdamW: AdamW whose step shrinks where the second moment is out of date (arXiv 2304.13013, algorithm 2).

Per tensor, with bias-corrected moments `m` and `v` of the gradient `g`:

    RMS = sqrt(mean(g ** 2 / max(v, eps ** 2)))
    rate = lr / max(1, RMS)
    w = w - rate * (weight_decay * w + m / (sqrt(v) + eps))

The bound is on the update, so gradients need no clipping to a norm; `max_grad_norm = 0` leaves it out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from hf_pretrain.utils.errors import UserError


def update_rms(gradient: torch.Tensor, second_moment: torch.Tensor, eps: float) -> torch.Tensor:
    """How far a gradient lies outside of what its second moment expects.

    Args:
        gradient (`torch.Tensor`): The gradient.
        second_moment (`torch.Tensor`): Bias-corrected second moment, of the same shape.
        eps (`float`): Its square bounds the second moment from below.

    Returns:
        `torch.Tensor`: A scalar; about 1 in steady training.
    """
    return (gradient.square() / second_moment.clamp(min=eps * eps)).mean().sqrt()


class StableAdamW(torch.optim.Optimizer):
    """AdamW with the update clipped per tensor.

    Args:
        params (`Iterable`): Parameters or parameter groups.
        lr (`float`, *optional*, defaults to 1e-3): Learning rate.
        betas (`tuple[float, float]`, *optional*, defaults to `(0.9, 0.95)`): Decay rates of the moments.
        eps (`float`, *optional*, defaults to 1e-8): Added to the denominator.
        weight_decay (`float`, *optional*, defaults to 0.1): Decoupled weight decay, times the rate.

    Raises:
        UserError: If an option is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.1,
    ) -> None:
        if not lr >= 0:
            raise UserError(f"lr = {lr}; a number of at least 0 is needed.")
        if not all(0 <= beta < 1 for beta in betas):
            raise UserError(f"betas = {betas}; both must be at least 0 and below 1.")
        if not eps > 0:
            raise UserError(f"eps = {eps}; a number above 0 is needed: it bounds the second moment from below.")
        if not weight_decay >= 0:
            raise UserError(f"weight_decay = {weight_decay}; a number of at least 0 is needed.")
        super().__init__(params, {"lr": lr, "betas": tuple(betas), "eps": eps, "weight_decay": weight_decay})

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
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self._update(parameter, group)
        return loss

    def _update(self, parameter: torch.Tensor, group: dict[str, Any]) -> None:
        gradient = parameter.grad
        if gradient.is_sparse:
            raise UserError("a gradient is sparse, which StableAdamW cannot use; embeddings need sparse=False.")
        state = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(parameter)
            state["exp_avg_sq"] = torch.zeros_like(parameter)
        state["step"] += 1
        step = float(state["step"])
        beta1, beta2 = group["betas"]
        # Moments that start at the first gradient need no correction later: beta grows from 0 to its value.
        beta1 = beta1 * (1 - beta1 ** (step - 1)) / (1 - beta1**step)
        beta2 = beta2 * (1 - beta2 ** (step - 1)) / (1 - beta2**step)
        first, second = state["exp_avg"], state["exp_avg_sq"]
        first.lerp_(gradient, 1 - beta1)
        second.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
        rate = group["lr"] / update_rms(gradient, second, group["eps"]).clamp(min=1.0)
        update = first / (second.sqrt() + group["eps"])
        if group["weight_decay"]:
            update.add_(parameter, alpha=group["weight_decay"])
        parameter.sub_(update * rate)

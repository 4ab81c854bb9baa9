"""Clipping that follows the run: ZClip on the global norm, AdaGC on the norm of each parameter.

- Global norm: gradients times `min(1, max_norm / (norm + 1e-6))`.
- ZClip (arXiv 2504.02507): `max_norm` is what [`ZClipStatistics`] makes of the norm, and at most `max_grad_norm`.
- AdaGC (arXiv 2502.11034): each parameter's gradient times `min(1, relative * gamma / norm)`, `gamma` being a moving
  mean of that parameter's clipped norms; in the warm-up the global norm is clipped and `gamma` is the smallest norm.

A norm that is not finite leaves no trace in either. The norms are those of the summed gradient, equal on all ranks.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from hf_pretrain.utils.errors import UserError


CLIPPINGS = ("norm", "zclip", "adagc")


def clip_factor(norm: float, max_norm: float) -> float:
    """The factor that brings a gradient of norm `norm` to at most `max_norm`.

    Args:
        norm (`float`): Norm before clipping.
        max_norm (`float`): Largest norm wanted.

    Returns:
        `float`: At most 1.

    Example:

        >>> round(clip_factor(2.5, 1.0), 8)
        0.39999984
    """
    return min(1.0, max_norm / (norm + 1e-6))


class ZClipStatistics:
    """ZClip's running statistics of a gradient norm (arXiv 2504.02507), and what it would clip a norm to.

    Mean and variance move by `momentum`; a norm with `z > threshold` is replaced by
    `mean + threshold * std / (z / threshold)`, and that value enters, so that a spike moves them little.

    Args:
        threshold (`float`, *optional*, defaults to 2.5): Standard deviations above the mean that are clipped.
        momentum (`float`, *optional*, defaults to 0.97): Weight of the old statistics.
        warmup (`int`, *optional*, defaults to 25): Norms whose mean and population variance the statistics start from.
        mean (`float`, *optional*): Start value; with `variance` there is no warm-up.
        variance (`float`, *optional*): Start value.

    Raises:
        UserError: If an option is out of range.
    """

    def __init__(
        self,
        threshold: float = 2.5,
        momentum: float = 0.97,
        warmup: int = 25,
        mean: float | None = None,
        variance: float | None = None,
    ) -> None:
        if not 0 < threshold < math.inf:
            raise UserError(f"threshold = {threshold}; a finite number above 0 is needed.")
        if not 0 <= momentum < 1:
            raise UserError(f"momentum = {momentum}; 0 up to (not including) 1 is needed: at 1 nothing ever moves.")
        if warmup < 2:
            raise UserError(f"warmup = {warmup}; at least 2 norms are needed for a variance.")
        if (mean is None) != (variance is None):
            raise UserError("mean and variance; give both or none.")
        self.threshold = threshold
        self.momentum = momentum
        self.warmup = warmup
        self.mean = mean
        self.variance = variance
        self._first: list[float] = []

    def observe(self, norm: float) -> float:
        """Takes a norm in.

        Args:
            norm (`float`): Gradient norm of one step.

        Returns:
            `float`: What it is clipped to; itself if it is no spike or the statistics warm up. One that is not finite
            leaves no trace and gives the mean (0 in the warm-up).
        """
        if not math.isfinite(norm):
            return self.mean or 0.0
        if self.mean is None or self.variance is None:
            self._first.append(norm)
            if len(self._first) >= self.warmup:
                self.mean = math.fsum(self._first) / len(self._first)
                self.variance = math.fsum([(one - self.mean) ** 2 for one in self._first]) / len(self._first)
                self._first = []
            return norm
        std = math.sqrt(self.variance)
        z_score = (norm - self.mean) / (std + 1e-6)
        clipped = norm
        if z_score > self.threshold:
            clipped = self.mean + self.threshold * std / (z_score / self.threshold)
        self.mean = self.momentum * self.mean + (1 - self.momentum) * clipped
        self.variance = self.momentum * self.variance + (1 - self.momentum) * (clipped - self.mean) ** 2
        return clipped

    def state(self) -> dict[str, Any]:
        """What is needed to go on after a restart.

        Returns:
            `dict`: Plain JSON.
        """
        return {"mean": self.mean, "variance": self.variance, "first": list(self._first)}

    def load_state(self, state: dict[str, Any]) -> None:
        """Goes on where other statistics stopped.

        Args:
            state (`dict`): From `state()`.
        """
        self.mean, self.variance, self._first = state["mean"], state["variance"], list(state["first"])


class AdaGC:
    """AdaGC's moving norm of each parameter, and the factor it puts on each gradient (arXiv 2502.11034).

    After the warm-up, with `gamma` the moving norm and `g` the parameter's gradient norm,

        factor = min(1, relative * gamma / g);  gamma = beta * gamma + (1 - beta) * factor * g

    In the warm-up all gradients get the factor of the global norm, and `gamma` is the smallest norm after it.

    Args:
        relative (`float`, *optional*, defaults to 1.05): Times `gamma` that a norm may have.
        beta (`float`, *optional*, defaults to 0.98): Weight of the old mean.
        warmup (`int`, *optional*, defaults to 100): Updates with global clipping.

    Raises:
        UserError: If an option is out of range.
    """

    def __init__(self, relative: float = 1.05, beta: float = 0.98, warmup: int = 100) -> None:
        if not 1 <= relative < math.inf:
            raise UserError(
                f"relative = {relative}; below 1 every gradient would shrink at every step; 1.05 is usual."
            )
        if not 0 <= beta < 1:
            raise UserError(f"beta = {beta}; 0 up to (not including) 1 is needed: at 1 nothing ever moves.")
        if isinstance(warmup, bool) or not isinstance(warmup, int) or warmup < 1:
            raise UserError(f"warmup = {warmup!r}; a whole number from 1 up is needed: gamma starts from these norms.")
        self.relative = relative
        self.beta = beta
        self.warmup = warmup
        self.updates = 0
        self.gamma: torch.Tensor | None = None

    def observe(self, norms: torch.Tensor, max_norm: float) -> torch.Tensor:
        """Takes the norms of one update in.

        Args:
            norms (`torch.Tensor`): Gradient norm of each parameter, fp32; 0 where it has no gradient.
            max_norm (`float`): Largest global norm in the warm-up.

        Returns:
            `torch.Tensor`: The factor of each gradient. No device is waited for.
        """
        total = torch.linalg.vector_norm(norms)
        # A step that is not finite is the spike detector's; it must not move the means.
        counts = torch.isfinite(total) & (total > 0)
        before = torch.full_like(norms, math.inf) if self.gamma is None else self.gamma
        if self.updates < self.warmup:
            factor = (max_norm / (total + 1e-6)).clamp(max=1.0).expand_as(norms)
            seen = torch.where(norms > 0, factor * norms, before)
            after = torch.minimum(before, seen)
        else:
            # A parameter that never had a gradient starts at its first one.
            start = torch.where(torch.isfinite(before), before, norms)
            factor = torch.where(norms > 0, self.relative * start / norms, torch.ones_like(norms)).clamp(max=1.0)
            moved = self.beta * start + (1 - self.beta) * factor * norms
            after = torch.where(norms > 0, moved, before)
        self.gamma = torch.where(counts, after, before)
        self.updates += 1
        return factor

    def state(self) -> dict[str, Any]:
        """What is needed to go on after a restart.

        Returns:
            `dict`: Plain JSON; a norm not seen yet is `None`.
        """
        gamma = None if self.gamma is None else [one if math.isfinite(one) else None for one in self.gamma.tolist()]
        return {"updates": self.updates, "gamma": gamma}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where another one stopped.

        Args:
            state (`Mapping`): From `state()`.
        """
        self.updates = int(state["updates"])
        gamma: Sequence[float | None] | None = state["gamma"]
        self.gamma = None if gamma is None else torch.tensor([math.inf if one is None else one for one in gamma])

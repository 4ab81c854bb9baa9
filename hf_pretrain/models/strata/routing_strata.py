"""Routing of tokens to experts: scores, selection, balance terms, bias, capacity, noise; the router module at the end.

Everything is a pure function of tensors, in float32, without a device sync (re-routing excepted). A dropped assignment
keeps a valid expert id and gets weight 0: an out-of-range id makes the stock expert functions return wrong gradients.

Sources: load balance arXiv 2101.03961 (scaled to 1 when balanced, for any k), its global scope arXiv 2501.11873,
router z-loss arXiv 2202.08906, loss-free bias arXiv 2408.15664, learned gaussian noise arXiv 1701.06538,
batch-prioritised capacity arXiv 2106.05974, Gumbel-top-k arXiv 1903.06059.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from .configuration_strata import StrataConfig


# Scalars a layer reports after its two blocks of `num_experts` columns (probability sums, counts).
STATISTICS = ("tokens", "lse_sq_sum", "lse_tokens", "entropy_sum", "dropped", "overflow")


class Routing(NamedTuple):
    """What a router decides for T tokens: `logits (T, E)`, `weights (T, k)`, `indices (T, k)`, `statistics (G, 2E+6)`.

    `statistics` is `None` when nobody asked for it. Its columns are read by `unpack_statistics`.
    """

    logits: torch.Tensor
    weights: torch.Tensor
    indices: torch.Tensor
    statistics: torch.Tensor | None


def router_scores(logits: torch.Tensor, scoring_func: str = "softmax") -> torch.Tensor:
    """Scores of the experts.

    Args:
        logits (`torch.Tensor`): Router logits, shape `(..., E)`.
        scoring_func (`str`, *optional*, defaults to `"softmax"`): `"softmax"` or `"sigmoid"`.

    Returns:
        `torch.Tensor`: Scores in (0, 1), same shape; rows sum to 1 for softmax.
    """
    return logits.softmax(dim=-1) if scoring_func == "softmax" else logits.sigmoid()


def select_experts(scores: torch.Tensor, k: int, bias: torch.Tensor | None = None) -> torch.Tensor:
    """The k best experts of each token; the bias takes part in the choice only, never in the gate.

    Args:
        scores (`torch.Tensor`): Shape `(T, E)`.
        k (`int`): Experts per token.
        bias (`torch.Tensor`, *optional*): Loss-free balancing bias, shape `(E,)`.

    Returns:
        `torch.Tensor`: Expert ids, shape `(T, k)`, best first.
    """
    return torch.topk(scores if bias is None else scores + bias, k, dim=-1).indices


def count_assignments(
    indices: torch.Tensor, num_experts: int, token_mask: torch.Tensor | None = None, num_groups: int = 1
) -> torch.Tensor:
    """How many assignments each expert got.

    Args:
        indices (`torch.Tensor`): Expert ids, shape `(T, k)`.
        num_experts (`int`): Number of experts E.
        token_mask (`torch.Tensor`, *optional*): Shape `(T,)`; tokens at 0 or False do not count.
        num_groups (`int`, *optional*, defaults to 1): Consecutive groups of equal size that are counted apart.

    Returns:
        `torch.Tensor`: Float counts, shape `(num_groups, E)`.
    """
    grouped = indices.reshape(num_groups, -1)
    if token_mask is None:
        ones = torch.ones((), device=indices.device).expand(grouped.shape)
    else:
        ones = token_mask.float().unsqueeze(-1).expand(indices.shape).reshape(num_groups, -1)
    return torch.zeros(num_groups, num_experts, device=indices.device).scatter_add_(1, grouped, ones)


def load_balance_loss(
    counts: torch.Tensor, probability_sum: torch.Tensor, num_tokens: torch.Tensor, k: int, count_tokens=None
) -> torch.Tensor:
    """`E / (k T) * sum_i c_i P_i`: 1 when the experts are used evenly, `E / k` when k experts take all.

    Args:
        counts (`torch.Tensor`): Assignments per expert c, shape `(..., E)`; no gradient.
        probability_sum (`torch.Tensor`): Sum over tokens of the scores, shape `(..., E)`; P is its mean.
        num_tokens (`torch.Tensor`): Tokens behind `probability_sum`, shape `(...)`.
        k (`int`): Experts per token.
        count_tokens (`torch.Tensor`, *optional*): Tokens behind `counts` where their scope is wider.

    Returns:
        `torch.Tensor`: Shape `(...)`, one value per layer (and group); 0 where there is no token.
    """
    num_experts = counts.shape[-1]
    count_tokens = num_tokens if count_tokens is None else count_tokens
    product = (counts.detach() * probability_sum).sum(-1)
    return num_experts / k * product / (count_tokens * num_tokens).clamp(min=1.0)


def router_z_loss(logits: torch.Tensor, token_mask: torch.Tensor | None = None) -> torch.Tensor:
    """Mean over tokens of the squared log-sum-exp of the router logits.

    Args:
        logits (`torch.Tensor`): Shape `(T, E)`.
        token_mask (`torch.Tensor`, *optional*): Shape `(T,)`; tokens at 0 or False do not count.

    Returns:
        `torch.Tensor`: A scalar; 0 where there is no token.
    """
    squared = torch.logsumexp(logits.float(), dim=-1).square()
    if token_mask is None:
        return squared.mean()
    mask = token_mask.to(squared.dtype)
    return (squared * mask).sum() / mask.sum().clamp(min=1.0)


def updated_router_bias(bias: torch.Tensor, counts: torch.Tensor, rate: float) -> torch.Tensor:
    """Loss-free balancing: an overloaded expert's bias goes down by `rate`, an underloaded one's up.

    Args:
        bias (`torch.Tensor`): Shape `(..., E)`.
        counts (`torch.Tensor`): Assignments over the whole global batch, shape `(..., E)`.
        rate (`float`): Step u.

    Returns:
        `torch.Tensor`: The new bias, same shape.
    """
    return bias + rate * torch.sign(counts.mean(dim=-1, keepdim=True) - counts).to(bias.dtype)


def expert_capacity(num_tokens, num_experts: int, k: int, factor: float):
    """`ceil(factor * k * T / E)`: assignments one expert takes.

    Args:
        num_tokens (`int` or `torch.Tensor`): Tokens T of the routing group; a tensor stays on its device.
        num_experts (`int`): Number of experts E.
        k (`int`): Experts per token.
        factor (`float`): Capacity factor.

    Returns:
        `int` or `torch.Tensor`: The capacity, at least 1 where there is a token.
    """
    exact = num_tokens * (factor * k / num_experts)
    if isinstance(exact, torch.Tensor):
        return torch.ceil(exact - 1e-6)  # 1.25 * 2 * T / E must not land above an integer by rounding
    return math.ceil(exact - 1e-9)


def _rank_within_expert(expert_ids: torch.Tensor, num_experts: int) -> torch.Tensor:
    """Place in the queue of its expert for every entry of a 1-D list of ids; id `num_experts` is nobody's queue."""
    sorted_ids, order = expert_ids.sort(stable=True)
    counts = torch.zeros(num_experts + 1, dtype=torch.long, device=expert_ids.device)
    counts.scatter_add_(0, expert_ids, torch.ones_like(expert_ids))
    starts = counts.cumsum(0) - counts
    ranks = torch.arange(expert_ids.numel(), device=expert_ids.device) - starts[sorted_ids]
    return torch.empty_like(ranks).scatter_(0, order, ranks)


def _queue(indices: torch.Tensor, gates: torch.Tensor, active: torch.Tensor, num_experts: int, priority: str):
    """Rank of every active assignment `(T, k)` in the queue of its expert, by position or by gate."""
    ids = indices.masked_fill(~active, num_experts).t().reshape(-1)  # all first choices before all second choices
    if priority == "position":
        ranks = _rank_within_expert(ids, num_experts)
    else:
        order = gates.detach().t().reshape(-1).argsort(descending=True, stable=True)
        ranks = torch.empty_like(ids).scatter_(0, order, _rank_within_expert(ids[order], num_experts))
    return ranks.view(indices.shape[1], indices.shape[0]).t()


def apply_capacity(
    indices: torch.Tensor,
    scores: torch.Tensor,
    capacity: "int | torch.Tensor",
    priority: str = "position",
    overflow: str = "drop",
    token_mask: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Limit every expert to `capacity` assignments.

    Args:
        indices (`torch.Tensor`): Chosen experts, shape `(T, k)`, best first.
        scores (`torch.Tensor`): Scores of all experts, shape `(T, E)`; their order decides where a re-routed
            assignment goes, their size who is served first under `"probability"`.
        capacity (`int` or `torch.Tensor`): Places per expert.
        priority (`str`, *optional*, defaults to `"position"`): `"position"` serves all first choices in batch order,
            then all second choices; `"probability"` serves the highest score first.
        overflow (`str`, *optional*, defaults to `"drop"`): `"drop"`, `"reroute"` or `"dropless"`.
        token_mask (`torch.Tensor`, *optional*): Shape `(T,)`; padding takes no place.

    Returns:
        `tuple`: Expert ids `(T, k)`, `kept` `(T, k)` bool (False = weight 0), and the number of assignments that found
        their first choice full.
    """
    num_tokens, k = indices.shape
    num_experts = scores.shape[-1]
    active = torch.ones_like(indices, dtype=torch.bool)
    if token_mask is not None:
        active &= token_mask.bool().unsqueeze(-1)
    ranks = _queue(indices, scores.gather(1, indices), active, num_experts, priority)
    kept = ~active | (ranks < capacity)
    num_overflow = (~kept).sum().float()
    if overflow == "dropless":
        return indices, torch.ones_like(kept), num_overflow
    if overflow == "drop" or k == num_experts:
        return indices, kept, num_overflow

    used = count_assignments(indices.reshape(-1, 1), num_experts, (kept & active).reshape(-1))[0]
    taken = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, indices, True)
    scores = scores.detach()
    for _ in range(num_experts - 1):  # every round fills an expert or seats everyone, so this is enough
        waiting = active & ~kept
        if not waiting.any():
            break
        closed = taken | (used >= capacity)
        best = torch.topk(scores.masked_fill(closed, -torch.inf), k, dim=-1)
        nth = (waiting.cumsum(1) - 1).clamp(min=0)  # a token's second waiting choice asks its second best expert
        candidate = best.indices.gather(1, nth)
        asks = waiting & best.values.gather(1, nth).isfinite()
        ranks = _queue(candidate, scores.gather(1, candidate), asks, num_experts, priority)
        seated = asks & (ranks + used[candidate] < capacity)
        indices = torch.where(seated, candidate, indices)
        kept = kept | seated
        used = used + count_assignments(candidate.reshape(-1, 1), num_experts, seated.reshape(-1))[0]
        taken = taken.scatter(1, candidate, taken.gather(1, candidate) | seated)
    return indices, kept, num_overflow


def gumbel_noise(like: torch.Tensor) -> torch.Tensor:
    """Standard Gumbel noise; `topk(logits + noise)` samples k experts without replacement (Plackett-Luce).

    Args:
        like (`torch.Tensor`): Gives shape, dtype and device.

    Returns:
        `torch.Tensor`: Noise of the same shape.
    """
    return -torch.empty_like(like).exponential_().log()


def selection_probability(clean: torch.Tensor, noisy: torch.Tensor, scale: torch.Tensor, k: int) -> torch.Tensor:
    """Probability that expert i is among the top k if its own gaussian noise were drawn again (arXiv 1701.06538).

    Args:
        clean (`torch.Tensor`): Logits without noise, shape `(T, E)`.
        noisy (`torch.Tensor`): Logits with the noise drawn, shape `(T, E)`.
        scale (`torch.Tensor`): Standard deviation of the noise, shape `(T, E)`.
        k (`int`): Experts per token, below E.

    Returns:
        `torch.Tensor`: Shape `(T, E)`, differentiable in `clean` and `scale`.
    """
    top = torch.topk(noisy, k + 1, dim=-1).values
    inside = noisy >= top[..., k - 1 : k]
    threshold = torch.where(inside, top[..., k : k + 1], top[..., k - 1 : k])
    return torch.special.ndtr((clean - threshold) / scale.clamp(min=1e-10))


def closed_experts(num_experts: int, k: int, probability: float, device=None) -> torch.Tensor:
    """Draw the experts that are closed for one micro-batch.

    Args:
        num_experts (`int`): Number of experts E.
        k (`int`): Experts per token; at least k stay open.
        probability (`float`): Probability that an expert is closed.
        device (`torch.device`, *optional*): Where to draw.

    Returns:
        `torch.Tensor`: Bool, shape `(E,)`, True = closed.
    """
    draw = torch.rand(num_experts, device=device)
    return (draw < probability).scatter(0, draw.topk(k).indices, False)


def max_violation(counts: torch.Tensor) -> torch.Tensor:
    """`max(c) / mean(c) - 1`: 0 when balanced (arXiv 2408.15664).

    Args:
        counts (`torch.Tensor`): Shape `(..., E)`.

    Returns:
        `torch.Tensor`: Shape `(...)`.
    """
    counts = counts.float()
    return counts.amax(-1) / counts.mean(-1).clamp(min=1e-12) - 1.0


def load_entropy(counts: torch.Tensor) -> torch.Tensor:
    """Entropy in nats of the shares of the load; `log(E)` when balanced.

    Args:
        counts (`torch.Tensor`): Shape `(..., E)`.

    Returns:
        `torch.Tensor`: Shape `(...)`.
    """
    share = counts.float() / counts.float().sum(-1, keepdim=True).clamp(min=1e-12)
    return -torch.special.xlogy(share, share).sum(-1)


def load_variation(counts: torch.Tensor) -> torch.Tensor:
    """Coefficient of variation of the load (population standard deviation over mean).

    Args:
        counts (`torch.Tensor`): Shape `(..., E)`.

    Returns:
        `torch.Tensor`: Shape `(...)`.
    """
    counts = counts.float()
    return counts.std(-1, correction=0) / counts.mean(-1).clamp(min=1e-12)


def dead_experts(counts: torch.Tensor) -> torch.Tensor:
    """Number of experts without a single token.

    Args:
        counts (`torch.Tensor`): Shape `(..., E)`.

    Returns:
        `torch.Tensor`: Integer, shape `(...)`.
    """
    return (counts == 0).sum(-1)


def unpack_statistics(statistics: torch.Tensor, num_experts: int) -> dict[str, torch.Tensor]:
    """Name the columns of packed router statistics.

    Args:
        statistics (`torch.Tensor`): Shape `(..., 2E + 6)`, sums over tokens.
        num_experts (`int`): Number of experts E.

    Returns:
        `dict[str, torch.Tensor]`: `probability_sum` and `load` of shape `(..., E)`, and the names in `STATISTICS` of
        shape `(...)`.
    """
    named = {"probability_sum": statistics[..., :num_experts], "load": statistics[..., num_experts : 2 * num_experts]}
    for column, name in enumerate(STATISTICS, start=2 * num_experts):
        named[name] = statistics[..., column]
    return named


class StrataRouter(nn.Module):
    """Chooses k experts for every token, in float32 even under autocast.

    Noise, capacity and expert dropout act only in training mode. The counts in the statistics are what the tokens
    asked for (before capacity), without padding.

    Args:
        config (`StrataConfig`): The model's configuration.
    """

    def __init__(self, config: StrataConfig):
        super().__init__()
        self.config = config
        self.num_experts = config.num_experts
        self.top_k = config.num_experts_per_tok
        self.hidden_dim = config.hidden_size
        self.balances = bool(config.router_aux_loss_coef or config.router_z_loss_coef or config.output_router_logits)
        self.noise_scale = config.router_noise_scale
        if self.noise_scale is None:
            self.noise_scale = 0.01 if config.router_noise == "jitter" else 1.0
        # float32 whatever the dtype of the model; loading keeps it so by `_keep_in_fp32_modules_strict`
        self.weight = nn.Parameter(torch.empty(self.num_experts, self.hidden_dim, dtype=torch.float32))
        if config.router_noise == "gaussian":
            self.noise_weight = nn.Parameter(torch.zeros(self.num_experts, self.hidden_dim, dtype=torch.float32))
        if config.router_bias_update_rate is not None:
            self.e_score_correction_bias = nn.Buffer(torch.zeros(self.num_experts, dtype=torch.float32))
        else:
            self.e_score_correction_bias = None

    def forward(
        self,
        hidden_states: torch.Tensor,
        collect: bool = False,
        token_mask: torch.Tensor | None = None,
        target_mask: torch.Tensor | None = None,
        num_groups: int = 1,
    ) -> Routing:
        """Route tokens.

        Args:
            hidden_states (`torch.Tensor`): Shape `(T, H)`.
            collect (`bool`, *optional*, defaults to `False`): Also return the statistics.
            token_mask (`torch.Tensor`, *optional*): Shape `(T,)`; False marks padding.
            target_mask (`torch.Tensor`, *optional*): Shape `(T,)`; the tokens whose z-loss counts (with a target).
            num_groups (`int`, *optional*, defaults to 1): Rows that are counted apart.

        Returns:
            `Routing`: Logits, weights in the dtype of the hidden states, expert ids, statistics or `None`.
        """
        with torch.autocast(device_type=hidden_states.device.type, enabled=False):
            inputs = hidden_states.reshape(-1, self.hidden_dim).float()
            config = self.config
            if self.training and config.router_noise == "jitter":
                spread = self.noise_scale
                inputs = inputs * torch.empty_like(inputs).uniform_(1.0 - spread, 1.0 + spread)
            logits = F.linear(inputs, self.weight.float())
            scores = router_scores(logits, config.scoring_func)
            gate_scores, wanted, selection_share = scores, scores, None
            if self.training and config.router_noise in ("gumbel", "gaussian"):
                gate_scores, wanted, selection_share = self._add_noise(inputs, logits, scores)
            with torch.no_grad():
                if self.e_score_correction_bias is not None:
                    wanted = wanted + self.e_score_correction_bias
                if self.training and config.expert_dropout > 0:
                    closed = closed_experts(self.num_experts, self.top_k, config.expert_dropout, logits.device)
                    wanted = wanted.masked_fill(closed, -torch.inf)
                indices = demanded = select_experts(wanted, self.top_k)
                kept = dropped = overflow = None
                if self.training and config.expert_capacity_factor is not None:
                    tokens = logits.shape[0] if token_mask is None else token_mask.sum()
                    capacity = expert_capacity(tokens, self.num_experts, self.top_k, config.expert_capacity_factor)
                    indices, kept, overflow = apply_capacity(
                        indices, wanted, capacity, config.capacity_priority, config.capacity_overflow, token_mask
                    )
                    dropped = (~kept).sum().float()
            weights = gate_scores.gather(1, indices)
            if config.norm_topk_prob:
                weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=1e-20)
            if kept is not None:
                weights = weights * kept
            statistics = None
            if collect:
                # Without a balance term the statistics are only counted: no graph, nothing kept for backward.
                with torch.set_grad_enabled(torch.is_grad_enabled() and self.balances):
                    statistics = self._statistics(
                        logits,
                        scores,
                        selection_share,
                        demanded,
                        dropped,
                        overflow,
                        token_mask,
                        target_mask,
                        num_groups,
                    )
        return Routing(logits, weights.to(hidden_states.dtype), indices, statistics)

    def _add_noise(self, inputs: torch.Tensor, logits: torch.Tensor, scores: torch.Tensor):
        """Gates, selection scores and (gaussian) the differentiable share of selections under noise."""
        config = self.config
        if config.router_noise == "gumbel":
            # The draw decides who is asked; the gate stays the clean probability, as at inference.
            return scores, router_scores(logits + self.noise_scale * gumbel_noise(logits), config.scoring_func), None
        scale = self.noise_scale * F.softplus(F.linear(inputs, self.noise_weight.float()))
        noisy = logits + torch.randn_like(logits) * scale
        noisy_scores = router_scores(noisy, config.scoring_func)
        share = None
        if self.top_k < self.num_experts:
            share = selection_probability(logits, noisy, scale, self.top_k) / self.top_k
        return noisy_scores, noisy_scores, share

    def _statistics(
        self, logits, scores, selection_share, demanded, dropped, overflow, token_mask, target_mask, num_groups
    ) -> torch.Tensor:
        """Sums over the tokens of each group, `(G, 2E + 6)`; gradients flow through two of the columns."""
        probabilities = scores
        if selection_share is not None:
            probabilities = selection_share
        elif self.config.scoring_func == "sigmoid":
            probabilities = scores / scores.sum(dim=-1, keepdim=True)
        lse = torch.logsumexp(logits, dim=-1)
        with torch.no_grad():
            shares = scores if self.config.scoring_func == "softmax" else logits.softmax(dim=-1)
            entropy = lse - (shares * logits).sum(-1)

        def total(values: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
            if mask is not None:
                values = values * mask.to(values.dtype).view(-1, *[1] * (values.dim() - 1))
            return values.view(num_groups, -1, *values.shape[1:]).sum(1)

        size = logits.shape[0] // num_groups
        full = torch.full((num_groups, 1), float(size), device=logits.device)
        tokens = full if token_mask is None else total(token_mask.float(), None).unsqueeze(-1)
        target_mask = token_mask if target_mask is None else target_mask
        lse_tokens = full if target_mask is None else total(target_mask.float(), None).unsqueeze(-1)
        zero = torch.zeros((), device=logits.device)
        lost = [zero if value is None else value / num_groups for value in (dropped, overflow)]
        return torch.cat(
            [
                total(probabilities, token_mask),
                count_assignments(demanded, self.num_experts, token_mask, num_groups),
                tokens,
                total(lse.square(), target_mask).unsqueeze(-1),
                lse_tokens,
                total(entropy, token_mask).unsqueeze(-1),
                *[value.expand(num_groups, 1) for value in lost],
            ],
            dim=-1,
        )


__all__ = [
    "STATISTICS",
    "Routing",
    "StrataRouter",
    "apply_capacity",
    "closed_experts",
    "count_assignments",
    "dead_experts",
    "expert_capacity",
    "gumbel_noise",
    "load_balance_loss",
    "load_entropy",
    "load_variation",
    "max_violation",
    "router_scores",
    "router_z_loss",
    "select_experts",
    "selection_probability",
    "unpack_statistics",
    "updated_router_bias",
]

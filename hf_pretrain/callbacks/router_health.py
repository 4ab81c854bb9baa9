"""`RouterHealthCallback`: what the routers of a mixture-of-experts model do, at every log line.

The model adds its counters up on the device, per sparse layer; they are read, summed over processes and reset at
logging steps only. With c the assignments per expert of a layer, P the mean router probability, E experts:

    load            c / sum(c)                        max_vio     max(c) / mean(c) - 1      (arXiv 2408.15664)
    entropy         H(load) / log E, 1 if balanced    load_balance  E sum(load * P), 1 if balanced
    dead_experts    experts without a token           drop_fraction  assignments dropped by capacity

Collapse: a layer with entropy below 0.5, max_vio above E / 2k, or more than a tenth of its experts dead, for
`patience` log lines in a row.
"""

import logging
from typing import Any

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState

from hf_pretrain.callbacks.log_lines import add_to_line, is_training_line, unwrap
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)


def router_metrics(load: torch.Tensor, probability_sum: torch.Tensor, tokens: torch.Tensor) -> dict[str, torch.Tensor]:
    """Health of each layer's router from its counters.

    Args:
        load (`torch.Tensor` of shape `(layers, experts)`): Assignments per expert.
        probability_sum (`torch.Tensor` of shape `(layers, experts)`): Router probabilities summed over tokens.
        tokens (`torch.Tensor` of shape `(layers,)`): Tokens routed.

    Returns:
        `dict[str, torch.Tensor]`: `share` of shape `(layers, experts)`; `max_vio`, `entropy`, `dead_experts`,
        `load_balance` of shape `(layers,)`.
    """
    load, experts = load.double(), load.shape[-1]
    share = load / load.sum(-1, keepdim=True).clamp(min=1.0)
    entropy = -torch.special.xlogy(share, share).sum(-1)
    mean_probability = probability_sum.double() / tokens.double().clamp(min=1.0).unsqueeze(-1)
    return {
        "share": share,
        "max_vio": share.amax(-1) * experts - 1.0,
        "entropy": entropy / max(torch.log(torch.tensor(float(experts))).item(), 1e-12),
        "dead_experts": (load == 0).sum(-1),
        "load_balance": experts * (share * mean_probability).sum(-1),
    }


def looks_collapsed(health: dict[str, torch.Tensor], experts: int, k: int) -> torch.Tensor:
    """Which layers look collapsed.

    Args:
        health (`dict[str, torch.Tensor]`): From `router_metrics`.
        experts (`int`): Experts per layer E.
        k (`int`): Experts per token.

    Returns:
        `torch.Tensor`: Bool of shape `(layers,)`: entropy below 0.5, max_vio above E / 2k, or more than a tenth dead.
    """
    return (
        (health["entropy"] < 0.5) | (health["max_vio"] > experts / (2 * k)) | (health["dead_experts"] > 0.1 * experts)
    )


class RouterHealthCallback(TrainerCallback, ExportableState):
    """Logs `router/max_vio`, `router/entropy`, `router/dead_experts`, `router/drop_fraction`, `router/load_balance`,
    `router/z`, `router/token_entropy` (means over layers; dead experts are added up), `router/load` (a list a layer)
    and, as lists over the sparse layers, what the alarm looks at: `router/layer_max_vio`, `router/layer_entropy`,
    `router/layer_dead_experts`.

    Args:
        patience (`int`, *optional*, defaults to 3): Log lines in a row that a layer may look collapsed before the
            alarm.

    Raises:
        UserError: If the patience is below 1.
    """

    def __init__(self, patience: int = 3) -> None:
        if isinstance(patience, bool) or not isinstance(patience, int) or patience < 1:
            raise UserError(f"patience = {patience!r}; a whole number of at least 1 is needed.")
        self.patience = patience
        self.collapsed_layers: list[int] = []
        self.lines_collapsed: dict[str, int] = {}
        self._model: Any = None

    def state(self) -> dict[str, Any]:
        """What a resumed Trainer needs to make this callback again.

        Returns:
            `dict`: Constructor arguments and how long each layer has looked collapsed.
        """
        return {"args": {"patience": self.patience}, "attributes": {"lines_collapsed": self.lines_collapsed}}

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Binds the model and starts its counters anew.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If the model keeps no router statistics.
        """
        model = unwrap(kwargs["model"])
        if not hasattr(model, "router_statistics") or not getattr(model.config, "num_experts", 0):
            raise UserError(
                f"RouterHealthCallback: {type(model).__name__} keeps no router statistics; it is for Strata with "
                "num_experts > 0; leave it out for other models."
            )
        self._model = model
        model.reset_router_statistics()

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Reads the counters since the last training line.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            logs (`dict`, *optional*): The line.
            **kwargs: What the Trainer hands to callbacks.
        """
        if self._model is None or not is_training_line(logs):
            return
        statistics = _over_ranks(self._model.router_statistics())
        self._model.reset_router_statistics()
        if not statistics:
            return
        k = self._model.config.num_experts_per_tok
        health = router_metrics(statistics["load"], statistics["probability_sum"], statistics["tokens"])
        tokens = statistics["tokens"].clamp(min=1.0)
        experts = health["share"].shape[-1]
        token_entropy = statistics["entropy_sum"] / tokens / max(torch.log(torch.tensor(float(experts))).item(), 1e-12)
        add_to_line(
            logs,
            state,
            {
                "router/max_vio": health["max_vio"].mean().item(),
                "router/entropy": health["entropy"].mean().item(),
                "router/token_entropy": token_entropy.mean().item(),
                "router/dead_experts": int(health["dead_experts"].sum()),
                "router/drop_fraction": (statistics["dropped"] / (tokens * k)).mean().item(),
                "router/load_balance": health["load_balance"].mean().item(),
                "router/z": (statistics["lse_sq_sum"] / statistics["lse_tokens"].clamp(min=1.0)).mean().item(),
                "router/load": [[round(one, 5) for one in row] for row in health["share"].tolist()],
                **{
                    f"router/layer_{name}": [round(float(one), 5) for one in health[name]]
                    for name in ("max_vio", "entropy", "dead_experts")
                },
            },
        )
        self._watch(state.global_step, health, experts, k)

    def _watch(self, step: int, health: dict[str, torch.Tensor], experts: int, k: int) -> None:
        """Raises the collapse alarm once for each layer and episode."""
        for layer, collapsed in enumerate(looks_collapsed(health, experts, k).tolist()):
            count = self.lines_collapsed.get(str(layer), 0) + 1 if collapsed else 0
            self.lines_collapsed[str(layer)] = count
            if count == self.patience:
                logger.warning(
                    "Router of sparse layer %d looks collapsed at step %d: load entropy %.2f of 1, max_vio %.2f, dead "
                    "experts %d of %d. A larger router_aux_loss_coef or router_bias_update_rate helps.",
                    layer,
                    step,
                    health["entropy"][layer].item(),
                    health["max_vio"][layer].item(),
                    int(health["dead_experts"][layer]),
                    experts,
                )
        self.collapsed_layers = [int(name) for name, count in self.lines_collapsed.items() if count >= self.patience]

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Lets the model go.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self._model = None


def _over_ranks(statistics: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Sums the counters over processes, in one collective, and brings them to the CPU."""
    if not statistics:
        return {}
    flat = torch.cat([one.reshape(-1).double() for one in statistics.values()])
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.all_reduce(flat)
    parts = flat.cpu().split([one.numel() for one in statistics.values()])
    return {name: part.view(one.shape) for part, (name, one) in zip(parts, statistics.items(), strict=True)}

"""The loss as an object that models call, and that remembers the parts of what it returned.

Installed by `model.loss_function = objective` (the setter of `transformers.PreTrainedModel`). Models that look at
`takes_hidden_states` (Strata) hand it hidden states and the head's weight and build no logits, and so do models whose
forward is Liger's (`liger_seam`); every other model calls it as transformers calls its own loss,
`loss_function(logits=..., labels=..., vocab_size=..., num_items_in_batch=...)`.
While training it adds up cross-entropy, z, tokens and logsumexp on the device, without a sync; `pop_metrics` reads
them. In evaluation (gradients off, or the attached model not training) the loss is the plain cross-entropy: no z, no
smoothing.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from hf_pretrain.losses.causal_lm import IGNORE_INDEX, LossOutput, check_options, normaliser
from hf_pretrain.losses.liger_seam import LigerSeam, has_liger_forward
from hf_pretrain.losses.selection import (
    IMPLEMENTATIONS,
    LossFunction,
    resolve_logits_implementation,
    resolve_loss_implementation,
)
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


class CausalLMObjective:
    """Next-token cross-entropy plus z-loss for any causal LM.

    Args:
        z_loss_coef (`float`, *optional*, defaults to 0.0): Coefficient of the mean squared logsumexp, in [0, 1].
        implementation (`str`, *optional*, defaults to `"auto"`): `"auto"`, `"reference"`, `"chunked"` or `"liger"`.
        label_smoothing (`float`, *optional*, defaults to 0.0): Weight of the uniform target, in [0, 1).
        fused_evaluation (`bool`, *optional*, defaults to `True`): Ask for hidden states in evaluation too. Then models
            return no logits there, which a Trainer with `compute_metrics` needs (bugs Z6).

    Raises:
        UserError: If an option is out of range or the implementation is unknown.

    Example:

        >>> objective = CausalLMObjective(z_loss_coef=1e-4)
        >>> objective.attach(model)  # doctest: +SKIP
        >>> model(input_ids=ids, labels=ids).loss.backward()  # doctest: +SKIP
        >>> objective.pop_metrics()  # doctest: +SKIP
        {'ce_loss': 4.17, 'z_loss': 0.0021, 'lse_mean': 4.5, 'lse_max': 6.2}
    """

    def __init__(
        self,
        z_loss_coef: float = 0.0,
        implementation: str = "auto",
        label_smoothing: float = 0.0,
        fused_evaluation: bool = True,
    ) -> None:
        check_options(z_loss_coef, label_smoothing, None)
        if implementation != "auto" and implementation not in IMPLEMENTATIONS:
            raise UserError(unknown_name_message("loss implementation", implementation, ["auto", *IMPLEMENTATIONS]))
        self.z_loss_coef = float(z_loss_coef)
        self.implementation = implementation
        self.label_smoothing = float(label_smoothing)
        self.fused_evaluation = fused_evaluation
        self.training_calls = 0
        self._model: Any = None
        self._seam: LigerSeam | None = None
        self._before: dict[str, Any] = {}
        self._functions: dict[str, LossFunction] = {}
        self.reset()

    def reset(self) -> None:
        """Forgets the sums added up since the last `pop_metrics`."""
        self._sums: torch.Tensor | None = None  # ce, z, denominator share, tokens, lse
        self._lse_max: torch.Tensor | None = None
        self._lse_max_known = True
        self._count: tuple[torch.Tensor, torch.cuda.Event | None] | None = None
        self._step_lse_max: torch.Tensor | None = None

    def attach(self, model: Any) -> None:
        """Installs the objective on a model, and makes `Trainer` count the targets this loss has.

        `Trainer` counts targets on shifted positions only for models whose `loss_type` it knows as a causal LM's (made
        from the class name, bugs L3). The type is set here and put back by `detach`; `Trainer` reads it when it is
        constructed, so attach before that if the class name does not hold `ForCausalLM`.

        Args:
            model (`transformers.PreTrainedModel`): Gets `loss_function = self`.

        Raises:
            UserError: If the model has no `loss_function`, or this objective is attached already.
        """
        if self._model is not None:
            raise UserError("this CausalLMObjective is attached to a model already; make one objective per model.")
        if not hasattr(type(model), "loss_function"):
            raise UserError(
                f"{type(model).__name__} has no loss_function; a transformers PreTrainedModel that computes its loss "
                "by self.loss_function is needed."
            )
        instance = vars(model)
        self._before = {name: instance[name] for name in ("_loss_function", "loss_type") if name in instance}
        self._seam = LigerSeam(model, self) if has_liger_forward(model) else None
        model.loss_function = self
        model.loss_type = "ForCausalLM"
        self._model = model

    def detach(self) -> None:
        """Puts the model's own loss back; does nothing if not attached. Objectives may be detached in any order."""
        model, self._model = self._model, None
        if model is None:
            return
        if self._seam is not None:
            self._seam.remove()
            self._seam = None
        current = vars(model).get("_loss_function")
        while isinstance(current, CausalLMObjective) and current is not self:
            if current._before.get("_loss_function") is self:
                current._before = self._before  # attached over this one: it shall put back what this one found
                return
            current = current._before.get("_loss_function")
        if current is not self:
            return  # someone else has replaced it since
        for name in ("_loss_function", "loss_type"):
            if name in self._before:
                setattr(model, name, self._before[name])
            elif name in vars(model):
                delattr(model, name)

    @property
    def takes_hidden_states(self) -> bool:
        """`bool`: Whether a model that can shall hand over hidden states now."""
        return self.fused_evaluation or self.is_training

    @property
    def is_training(self) -> bool:
        """`bool`: Whether a call now is a training call."""
        return torch.is_grad_enabled() and (self._model is None or self._model.training)

    def __call__(
        self,
        logits: torch.Tensor | None = None,
        labels: torch.Tensor | None = None,
        vocab_size: int | None = None,
        num_items_in_batch: torch.Tensor | int | None = None,
        ignore_index: int = IGNORE_INDEX,
        shift_labels: torch.Tensor | None = None,
        *,
        hidden_states: torch.Tensor | None = None,
        lm_head_weight: torch.Tensor | None = None,
        logit_softcap: float | None = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The loss, from logits or from hidden states and the head's weight.

        Args:
            logits (`torch.Tensor` of shape `(batch, sequence, vocab)`, *optional*): Of a model that builds them.
            labels (`torch.Tensor` of shape `(batch, sequence)`, *optional*): Unshifted labels; not written to.
            vocab_size (`int`, *optional*): Checked against the width of the logits or the head's rows.
            num_items_in_batch (`torch.Tensor` or `int`, *optional*): Valid targets of the window over all ranks.
            ignore_index (`int`, *optional*, defaults to -100): Label that does not count.
            shift_labels (`torch.Tensor`, *optional*): Already shifted labels, used instead of `labels`.
            hidden_states (`torch.Tensor` of shape `(batch, sequence, hidden)`, *optional*): Instead of logits.
            lm_head_weight (`torch.Tensor` of shape `(vocab, hidden)`, *optional*): With `hidden_states`.
            logit_softcap (`float`, *optional*): Applied here to logits made here; logits handed in are capped already.
            **kwargs: What else models pass on; not used.

        Returns:
            `torch.Tensor`: Scalar with a graph (zero, with a graph, if no target is valid).

        Raises:
            UserError: If shapes, labels or options do not fit.
        """
        training = self.is_training
        options = {
            "num_items_in_batch": num_items_in_batch,
            "z_loss_coef": self.z_loss_coef if training else 0.0,
            "label_smoothing": self.label_smoothing if training else 0.0,
            "ignore_index": ignore_index,
            "shift_labels": shift_labels,
        }
        if hidden_states is not None:
            if lm_head_weight is None:
                raise UserError("lm_head_weight = None; hidden_states need the head's weight with them.")
            self._check_vocab(vocab_size, lm_head_weight.shape[0])
            output = self._function_on(hidden_states.device)(
                hidden_states, lm_head_weight, labels, logit_softcap=logit_softcap, **options
            )
        elif logits is not None:
            self._check_vocab(vocab_size, logits.shape[-1])
            output = resolve_logits_implementation(self.implementation)(logits, labels, **options)
        else:
            raise UserError("logits = None; the loss needs logits, or hidden_states with lm_head_weight.")
        if training:
            self.record(output, normaliser(num_items_in_batch, output.num_tokens))
            self._note_count(output.num_tokens if num_items_in_batch is None else num_items_in_batch)
        return output.loss

    def _note_count(self, count: torch.Tensor | int) -> None:
        """Sends the window's count on its way to the host; it is there long before the backward pass is done."""
        count, event = torch.as_tensor(count).detach(), None
        if count.device.type == "cuda":
            host = torch.empty((), dtype=count.dtype, pin_memory=True)
            count, event = host.copy_(count, non_blocking=True), torch.cuda.Event()
            event.record()
        self._count = (count, event)

    def pop_window_is_empty(self) -> bool:
        """Tells whether the accumulation window of the last training call has no target at all (bugs L8).

        The answer is the same on all ranks, as `num_items_in_batch` is; it is given once a window.

        Returns:
            `bool`: `False` too where there was no training call since.
        """
        if self._count is None:
            return False
        (count, event), self._count = self._count, None
        if event is not None:
            event.synchronize()
        return int(count) == 0

    def _function_on(self, device: torch.device) -> LossFunction:
        """The implementation for a kind of device, looked up once."""
        if device.type not in self._functions:
            self._functions[device.type] = resolve_loss_implementation(self.implementation, device)
        return self._functions[device.type]

    @staticmethod
    def _check_vocab(vocab_size: int | None, rows: int) -> None:
        if vocab_size is not None and vocab_size != rows:
            raise UserError(
                f"vocab_size = {vocab_size}, but the head has {rows} rows; resize with model.resize_token_embeddings."
            )

    def record(self, output: LossOutput, denominator: torch.Tensor) -> None:
        """Adds one training call's parts up on the device, for `pop_metrics`.

        Args:
            output (`LossOutput`): The parts.
            denominator (`torch.Tensor`): What its sums were divided by.
        """
        self.training_calls += 1
        tokens = output.num_tokens
        wide = torch.float32 if tokens.device.type == "mps" else torch.float64
        parts = torch.stack(
            (
                output.ce.to(wide) * denominator,
                output.z.to(wide) * denominator,
                tokens.to(wide),
                output.lse_mean.to(wide) * tokens,
            )
        )
        self._sums = parts if self._sums is None else self._sums.add_(parts)
        if output.lse_max is None:
            self._lse_max_known = False
        else:
            top = output.lse_max.to(wide)
            self._lse_max = top if self._lse_max is None else torch.maximum(self._lse_max, top)
            self._step_lse_max = top if self._step_lse_max is None else torch.maximum(self._step_lse_max, top)

    def pop_step_lse_max(self) -> torch.Tensor | None:
        """Largest logsumexp of this process's training calls since this was last asked; no sync, no collective.

        Returns:
            `torch.Tensor`: A scalar on the device; `None` without a call, or where the kernel does not tell it.
        """
        top, self._step_lse_max = self._step_lse_max, None
        return top

    def pop_metrics(self) -> dict[str, float]:
        """Means over all training calls since the last pop, over all ranks; then starts anew. Costs one device sync.

        When `torch.distributed` is initialised this is a collective: call it on all ranks.

        Returns:
            `dict[str, float]`: `ce_loss` and `z_loss` in nats per valid token, `lse_mean`, `lse_max`; empty if there
            was no call, without the `lse` entries where the kernel does not tell them.
        """
        sums, top = self._sums, self._lse_max
        known = self._lse_max_known
        self.reset()
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            sums, top, known = self._over_ranks(sums, top, known)
        if sums is None:
            return {}
        ce, z, tokens, lse = sums.tolist()
        count = max(tokens, 1.0)
        metrics = {"ce_loss": ce / count, "z_loss": z / count, "lse_mean": lse / count}
        if known and top is not None:
            metrics["lse_max"] = float(top)
        if math.isnan(metrics["lse_mean"]) and not math.isnan(ce):
            del metrics["lse_mean"]
        if tokens == 0:
            metrics.pop("lse_mean", None)
            metrics.pop("lse_max", None)
        return metrics

    @staticmethod
    def _over_ranks(
        sums: torch.Tensor | None, top: torch.Tensor | None, known: bool
    ) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
        """One gather of [calls?, known?, max, sums]; ranks without a call count as zero."""
        if sums is None:
            device = torch.device("cuda") if torch.distributed.get_backend() == "nccl" else torch.device("cpu")
        else:
            device = sums.device
        own = torch.zeros(7, dtype=torch.float64, device=device)
        own[1] = float(known)
        own[2] = -torch.inf if top is None else top
        if sums is not None:
            own[0] = 1.0
            own[3:] = sums
        gathered = [torch.empty_like(own) for _ in range(torch.distributed.get_world_size())]
        torch.distributed.all_gather(gathered, own)
        table = torch.stack(gathered)
        if not bool(table[:, 0].any()):
            return None, None, True
        return table[:, 3:].sum(dim=0), table[:, 2].max(), bool(table[:, 1].all())

"""The seam through which z-loss acts in TRL's `SFTTrainer`, which computes its loss in a fused head of its own.

That head (`trl.trainer.utils.add_fused_lm_head`) returns log-probabilities `logp_t` of the labels, and the trainer's
loss is `-sum_t logp_t / n`. A label's logit `x_t = h_t . W[y_t]` is one row product, so the logsumexp comes without a
second pass over the vocabulary, with its gradient: `lse_t = x_t - logp_t`. While training, the seam hands the trainer
`logp_t - coef lse_t^2`, whose sum over `-n` is cross-entropy plus z, exact under accumulation and several processes.
"""

from __future__ import annotations

import functools
from types import MethodType
from typing import Any

import torch

from hf_pretrain.losses.causal_lm import LossOutput
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.utils.errors import UserError


# Factors on the logits that TRL's head reads from a configuration; the row product above does not know them.
_LOGIT_FACTORS = ("logit_scale", "output_multiplier", "lm_head_multiplier", "logits_scaling")


def has_fused_head(model: Any) -> bool:
    """Tells whether a model's forward is the one that TRL's `SFTTrainer` gives it.

    Args:
        model (`torch.nn.Module`): The model, without wrappers.

    Returns:
        `bool`: Whether `model(..., fused_lm_head=True)` is understood.
    """
    function = getattr(vars(model).get("forward"), "__func__", None)
    return function is not None and "fused_lm_head" in function.__code__.co_varnames


class TrlHeadSeam:
    """Adds z-loss to what TRL's fused head returns, until `remove` is called.

    Args:
        model (`PreTrainedModel`): With TRL's fused head.
        objective (`CausalLMObjective`): Gives the coefficient and gets the parts of the loss.

    Raises:
        UserError: If the model has no such head, or z-loss could not be right in it.
    """

    def __init__(self, model: Any, objective: CausalLMObjective) -> None:
        if not has_fused_head(model):
            raise UserError(
                "ZLossCallback: this SFTTrainer has not given the model the fused head of TRL 1.16, so z-loss would "
                "not act; install trl 1.16, use transformers' Trainer or PretrainTrainer, or leave the callback out."
            )
        config = model.config.get_text_config()
        for name in _LOGIT_FACTORS:
            if getattr(config, name, None) not in (None, 1, 1.0):
                raise UserError(
                    f"ZLossCallback: the model's {name} = {getattr(config, name)} scales its logits, which z-loss in "
                    "SFTTrainer does not know; use transformers' Trainer, or leave the callback out."
                )
        self._model = model
        self._objective = objective
        self._softcap = getattr(config, "final_logit_softcapping", None)
        self._hidden: torch.Tensor | None = None
        self._fused = model.forward
        self._hook = model.base_model.register_forward_hook(self._keep)
        inner = self._fused

        @functools.wraps(inner.__func__)
        def forward(_model: Any, *args: Any, fused_lm_head: bool = False, **kwargs: Any) -> Any:
            if not (fused_lm_head and _model.training and torch.is_grad_enabled()):
                return inner(*args, fused_lm_head=fused_lm_head, **kwargs)
            try:
                output = inner(*args, fused_lm_head=True, **kwargs)
                return self._with_z(output, kwargs.get("labels"), kwargs.get("shift_labels"))
            finally:
                self._hidden = None

        model.forward = MethodType(forward, model)
        self._wrapped = model.forward

    def remove(self) -> None:
        """Puts TRL's forward back, unless someone has replaced it since."""
        self._hook.remove()
        if vars(self._model).get("forward") is self._wrapped:
            self._model.forward = self._fused

    def _keep(self, module: Any, inputs: Any, output: Any) -> None:
        self._hidden = output.last_hidden_state

    def _with_z(self, output: Any, labels: torch.Tensor, shift_labels: torch.Tensor | None) -> Any:
        hidden, targets = self._hidden, shift_labels
        if targets is None:
            hidden, targets = hidden[:, :-1], labels[:, 1:]
        head = self._model.get_output_embeddings()
        weight, bias = head.weight, head.bias
        if hasattr(weight, "full_tensor"):  # sharded by FSDP2
            weight, bias = weight.full_tensor(), None if bias is None else bias.full_tensor()
        mask = output.label_mask
        kept, chosen = hidden[mask], targets[mask].to(weight.device)
        picked = (kept.float() * weight[chosen].float()).sum(dim=-1)
        if bias is not None:
            picked = picked + bias[chosen].float()
        if self._softcap is not None:
            picked = self._softcap * torch.tanh(picked / self._softcap)
        log_probs = output.log_probs[mask].float()
        lse = picked - log_probs
        z = self._objective.z_loss_coef * lse.square()
        self._record(log_probs.detach(), z.detach(), lse.detach())
        # empty masks keep their graph: masked_scatter of nothing
        output.log_probs = output.log_probs - torch.zeros_like(output.log_probs).masked_scatter(
            mask, z.to(output.log_probs.dtype)
        )
        return output

    def _record(self, log_probs: torch.Tensor, z: torch.Tensor, lse: torch.Tensor) -> None:
        count = torch.tensor(lse.numel(), device=lse.device)
        safe = count.clamp(min=1)
        self._objective.record(
            LossOutput(
                loss=(z.sum() - log_probs.sum()) / safe,
                ce=-log_probs.sum() / safe,
                z=z.sum() / safe,
                num_tokens=count,
                lse_mean=lse.sum() / safe,
                lse_max=lse.max() if lse.numel() else lse.new_tensor(-torch.inf),
            ),
            safe,
        )

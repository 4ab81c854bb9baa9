"""The loss by Liger's fused linear cross-entropy, called with the conventions of `causal_lm`.

Liger is asked for the sum over tokens and divided by the window's denominator here, for loss and z alike (its own
helper for causal LMs divides only the loss and drops the z part, bugs Z3). The head's gradient is accumulated in fp32
(bugs Z4). The kernel returns no logsumexp: its mean is won back from the cross-entropy and the target logits, its
maximum is not available. Liger's z part comes in the dtype of the hidden states, so in bf16 `z` is good to 0.4%.
"""

from __future__ import annotations

import os

import torch

from hf_pretrain.losses.causal_lm import (
    IGNORE_INDEX,
    LossOutput,
    check_head,
    check_options,
    check_shapes,
    normaliser,
    shifted_targets,
)
from hf_pretrain.utils.optional import is_available, require


_GATHER_ROWS = 4096


def why_liger_cannot_run(device: torch.device | str) -> str | None:
    """Tells why Liger's kernels cannot run on a device.

    Args:
        device (`torch.device` or `str`): Where the loss is to run.

    Returns:
        `str`, *optional*: The reason, with the pip line where one helps; `None` if the kernels run.
    """
    kind = torch.device(device).type
    if not is_available("liger_kernel"):
        return 'liger_kernel is not installed: run `pip install "hf-pretrain[liger]"`'
    if not is_available("triton"):
        return "triton is not installed, and Liger's kernels are written in it: run `pip install triton`"
    if kind in ("cuda", "xpu"):
        return None
    if kind == "cpu" and os.environ.get("TRITON_INTERPRET") == "1":
        return None
    return f"Triton has no driver for device {kind!r}"


def liger_causal_lm_loss(
    hidden_states: torch.Tensor,
    lm_head_weight: torch.Tensor,
    labels: torch.Tensor | None,
    *,
    num_items_in_batch: torch.Tensor | int | None = None,
    z_loss_coef: float = 0.0,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: torch.Tensor | None = None,
) -> LossOutput:
    """[`~losses.causal_lm.causal_lm_loss`] by Liger's kernel; `z_loss_coef` is compiled in: do not vary it.

    Args:
        hidden_states (`torch.Tensor` of shape `(..., sequence, hidden)`): Input of the head.
        lm_head_weight (`torch.Tensor` of shape `(vocab, hidden)`): Weight of the head (tied or not).
        labels (`torch.Tensor` of shape `(..., sequence)`, *optional*): Unshifted labels; not written to.
        num_items_in_batch (`torch.Tensor` or `int`, *optional*): Denominator; default: valid targets of this call.
        z_loss_coef (`float`, *optional*, defaults to 0.0): Coefficient of the mean squared logsumexp.
        label_smoothing (`float`, *optional*, defaults to 0.0): Weight of the uniform target.
        logit_softcap (`float`, *optional*): `cap * tanh(logits / cap)` before everything else.
        ignore_index (`int`, *optional*, defaults to -100): Label that does not count.
        shift_labels (`torch.Tensor`, *optional*): Already shifted labels, used instead of `labels`.

    Returns:
        [`~losses.causal_lm.LossOutput`]: `lse_max` is `None`; `lse_mean` is NaN with smoothing and softcap together.

    Raises:
        UserError: If options, shapes or labels are out of range.
        ImportError: If Liger is not installed.
    """
    functional = require("liger_kernel.transformers.functional", "liger", "the Liger loss")
    check_options(z_loss_coef, label_smoothing, logit_softcap)
    check_head(hidden_states, lm_head_weight)
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    targets = shifted_targets(labels, shift_labels, ignore_index).to(hidden.device)
    valid = check_shapes(hidden.shape[0], lm_head_weight.shape[0], targets, ignore_index)
    num_tokens = valid.sum()
    denominator = normaliser(num_items_in_batch, num_tokens)
    output = functional.liger_fused_linear_cross_entropy(
        hidden,
        lm_head_weight,
        targets,
        ignore_index=ignore_index,
        lse_square_scale=float(z_loss_coef),
        label_smoothing=float(label_smoothing),
        reduction="sum",
        softcap=None if logit_softcap is None else float(logit_softcap),
        return_z_loss=True,
        accum_dtype=torch.float32,
    )
    loss = output.loss / denominator
    z_sum = output.z_loss.detach().float()
    ce_sum = output.loss.detach() - z_sum
    count = num_tokens.clamp(min=1)
    lse_sum = ce_sum + _picked_sum(
        hidden.detach(), lm_head_weight.detach(), targets, valid, label_smoothing, logit_softcap
    )
    return LossOutput(
        loss=loss,
        ce=ce_sum / denominator,
        z=z_sum / denominator,
        num_tokens=num_tokens,
        lse_mean=lse_sum / count,
        lse_max=None,
    )


def _picked_sum(hidden, weight, targets, valid, label_smoothing, logit_softcap) -> torch.Tensor:
    """Sum over valid tokens of what cross-entropy subtracts from logsumexp; NaN where the kernel hides it."""
    if label_smoothing and logit_softcap is not None:
        return torch.full((), float("nan"), device=hidden.device)
    total = torch.zeros((), dtype=torch.float32, device=hidden.device)
    mean_row = weight.mean(dim=0, dtype=torch.float32) if label_smoothing else None
    safe = targets.masked_fill(~valid, 0)
    for start in range(0, hidden.shape[0], _GATHER_ROWS):
        part = slice(start, start + _GATHER_ROWS)
        chunk = hidden[part].float()
        # rounded as the kernel rounds its logits, or their difference would not be a logsumexp of anything
        picked = (chunk * weight[safe[part]].float()).sum(dim=-1).to(hidden.dtype).float()
        if logit_softcap is not None:
            picked = logit_softcap * torch.tanh(picked / logit_softcap)
        if mean_row is not None:
            picked = (1 - label_smoothing) * picked + label_smoothing * (chunk @ mean_row)
        total += torch.where(valid[part], picked, 0.0).sum()
    return total

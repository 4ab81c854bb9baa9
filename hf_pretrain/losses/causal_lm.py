"""Next-token cross-entropy with z-loss: the result type, the shared conventions, and the plain implementation.

With shifted targets `y_t`, `lse_t = logsumexp(logits_t)` and the valid tokens `t` (target not `ignore_index`):

    ce   = sum_t (lse_t - (1 - eps) * logits_t[y_t] - eps * mean_v logits_t[v]) / n
    z    = coef * sum_t lse_t ** 2 / n
    loss = ce + z

`n` is `num_items_in_batch`, the number of valid targets of the whole accumulation window over all ranks; without it,
the number of valid targets here. Label smoothing `eps` is torch's. The z term is PaLM's (arXiv 2204.02311, section 5);
both terms have one denominator. The plain implementation keeps all logits in fp32: the fast ones are held to it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from hf_pretrain.utils.errors import UserError


IGNORE_INDEX = -100


@dataclass(frozen=True)
class LossOutput:
    """What every implementation of the loss returns. All tensors are scalars on the device of the inputs.

    Args:
        loss (`torch.Tensor`): `ce + z`, in nats per token of the window; the only entry with a graph.
        ce (`torch.Tensor`): Cross-entropy part (smoothed if label smoothing is on), same denominator, detached.
        z (`torch.Tensor`): z-loss part with its coefficient, same denominator, detached.
        num_tokens (`torch.Tensor`): Valid targets in this call (not in the window), int64.
        lse_mean (`torch.Tensor`): Mean logsumexp over the valid targets of this call; 0 if there are none.
        lse_max (`torch.Tensor`, *optional*):
            Largest logsumexp over the valid targets; -inf if there are none, `None` if the kernel does not tell it.
    """

    loss: torch.Tensor
    ce: torch.Tensor
    z: torch.Tensor
    num_tokens: torch.Tensor
    lse_mean: torch.Tensor
    lse_max: torch.Tensor | None


def shifted_targets(
    labels: torch.Tensor | None, shift_labels: torch.Tensor | None = None, ignore_index: int = IGNORE_INDEX
) -> torch.Tensor:
    """Flat targets aligned with the positions that predict them. The caller's tensors are never written to.

    Args:
        labels (`torch.Tensor` of shape `(..., sequence)`, *optional*): Unshifted labels, as at the models' forward.
        shift_labels (`torch.Tensor` of shape `(..., sequence)`, *optional*): Already shifted labels; they win.
        ignore_index (`int`, *optional*, defaults to -100): Filled in at each row's last position.

    Returns:
        `torch.Tensor`: int64 of shape `(rows * sequence,)`.

    Raises:
        UserError: If neither is given.
    """
    if shift_labels is not None:
        return shift_labels.reshape(-1)
    if labels is None:
        raise UserError("labels = None; the loss needs labels or shift_labels; pass labels=input_ids to the model.")
    return F.pad(labels, (0, 1), value=ignore_index)[..., 1:].reshape(-1)


def normaliser(num_items_in_batch: torch.Tensor | int | None, num_tokens: torch.Tensor) -> torch.Tensor:
    """The denominator of both terms, never below one (a window with no target at all has loss 0, not 0/0).

    Args:
        num_items_in_batch (`torch.Tensor` or `int`, *optional*): Valid targets of the whole window over all ranks.
        num_tokens (`torch.Tensor`): Valid targets of this call, the fallback.

    Returns:
        `torch.Tensor`: Scalar on the device of `num_tokens`, made without a device sync.
    """
    if num_items_in_batch is None:
        return num_tokens.clamp(min=1)
    return torch.as_tensor(num_items_in_batch, device=num_tokens.device).clamp(min=1)


def check_options(z_loss_coef: float, label_smoothing: float, logit_softcap: float | None) -> None:
    """Refuses option values that have no meaning.

    Args:
        z_loss_coef (`float`): Coefficient of the mean squared logsumexp, in [0, 1].
        label_smoothing (`float`): Weight of the uniform target, in [0, 1).
        logit_softcap (`float`, *optional*): `cap * tanh(logits / cap)` is applied first; positive.

    Raises:
        UserError: Naming the field, its value and the allowed range.
    """
    for name, value in (("z_loss_coef", z_loss_coef), ("label_smoothing", label_smoothing)):
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise UserError(f"{name} = {value!r}; a number is needed; write for example {name}=1e-4.")
    if not 0.0 <= z_loss_coef <= 1.0:
        raise UserError(f"z_loss_coef = {z_loss_coef}; allowed are 0 to 1; PaLM used 1e-4.")
    if not 0.0 <= label_smoothing < 1.0:
        raise UserError(f"label_smoothing = {label_smoothing}; allowed are 0 to below 1; 0 turns it off.")
    if logit_softcap is not None and not logit_softcap > 0:
        raise UserError(f"logit_softcap = {logit_softcap}; it must be positive; None turns it off.")


def check_shapes(rows: int, vocab_size: int, targets: torch.Tensor, ignore_index: int) -> torch.Tensor:
    """Checks that targets fit the logits, and returns the mask of valid ones.

    On CPU a label outside the vocabulary raises here; on an accelerator an asynchronous assert guards it, so that no
    step waits for the device.

    Args:
        rows (`int`): Number of positions that predict.
        vocab_size (`int`): Number of classes.
        targets (`torch.Tensor` of shape `(rows,)`): Shifted labels.
        ignore_index (`int`): The label that does not count.

    Returns:
        `torch.Tensor`: bool of shape `(rows,)`.

    Raises:
        UserError: If lengths differ or a label is outside `[0, vocab_size)`.
    """
    if targets.numel() != rows:
        raise UserError(f"labels hold {targets.numel()} positions; the model gave {rows}; both need one per token.")
    valid = targets != ignore_index
    outside = valid & ((targets < 0) | (targets >= vocab_size))
    if targets.device.type != "cpu":
        torch._assert_async(~outside.any(), "a label is outside the vocabulary")
    elif outside.any():
        value = int(targets[outside][0])
        raise UserError(
            f"labels hold {value}; allowed are 0 to {vocab_size - 1} and {ignore_index} (ignored); "
            "check that tokenizer and model have one vocabulary."
        )
    return valid


def causal_lm_loss_from_logits(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    *,
    num_items_in_batch: torch.Tensor | int | None = None,
    z_loss_coef: float = 0.0,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: torch.Tensor | None = None,
) -> LossOutput:
    """The plain loss on logits: autograd does the backward, everything is upcast to fp32 (fp64 stays fp64).

    Args:
        logits (`torch.Tensor` of shape `(..., sequence, vocab)`): Any floating dtype.
        labels (`torch.Tensor` of shape `(..., sequence)`, *optional*): Unshifted labels; not written to.
        num_items_in_batch (`torch.Tensor` or `int`, *optional*): Denominator; default: valid targets of this call.
        z_loss_coef (`float`, *optional*, defaults to 0.0): Coefficient of the mean squared logsumexp.
        label_smoothing (`float`, *optional*, defaults to 0.0): Weight of the uniform target.
        logit_softcap (`float`, *optional*): `cap * tanh(logits / cap)`; logsumexp is that of the capped logits.
        ignore_index (`int`, *optional*, defaults to -100): Label that does not count.
        shift_labels (`torch.Tensor`, *optional*): Already shifted labels, used instead of `labels`.

    Returns:
        [`LossOutput`]

    Raises:
        UserError: If options or labels are out of range.
    """
    check_options(z_loss_coef, label_smoothing, logit_softcap)
    logits = logits.reshape(-1, logits.shape[-1])
    if logits.dtype != torch.float64:
        logits = logits.float()
    targets = shifted_targets(labels, shift_labels, ignore_index).to(logits.device)
    valid = check_shapes(logits.shape[0], logits.shape[1], targets, ignore_index)
    if logit_softcap is not None:
        logits = logit_softcap * torch.tanh(logits / logit_softcap)
    num_tokens = valid.sum()
    denominator = normaliser(num_items_in_batch, num_tokens)
    ce = (
        F.cross_entropy(logits, targets, ignore_index=ignore_index, reduction="sum", label_smoothing=label_smoothing)
        / denominator
    )
    lse = torch.logsumexp(logits if z_loss_coef else logits.detach(), dim=-1)
    kept = torch.where(valid, lse, torch.zeros_like(lse))
    z = z_loss_coef * kept.square().sum() / denominator
    return LossOutput(
        loss=ce + z if z_loss_coef else ce,
        ce=ce.detach(),
        z=z.detach(),
        num_tokens=num_tokens,
        lse_mean=kept.detach().sum() / num_tokens.clamp(min=1),
        lse_max=torch.where(valid, lse.detach(), float("-inf")).amax() if lse.numel() else lse.new_tensor(-torch.inf),
    )


def causal_lm_loss(
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
    """The plain loss on hidden states and the head's weight: the head's product in fp32, all logits at once.

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
        [`LossOutput`]

    Raises:
        UserError: If options, shapes or labels are out of range.
    """
    check_head(hidden_states, lm_head_weight)
    wide = torch.float64 if hidden_states.dtype == torch.float64 else torch.float32
    with torch.autocast(device_type=hidden_states.device.type, enabled=False):
        logits = F.linear(hidden_states.to(wide), lm_head_weight.to(wide))
    return causal_lm_loss_from_logits(
        logits,
        labels,
        num_items_in_batch=num_items_in_batch,
        z_loss_coef=z_loss_coef,
        label_smoothing=label_smoothing,
        logit_softcap=logit_softcap,
        ignore_index=ignore_index,
        shift_labels=shift_labels,
    )


def check_head(hidden_states: torch.Tensor, lm_head_weight: torch.Tensor) -> None:
    """Checks that the head's weight fits the hidden states.

    Args:
        hidden_states (`torch.Tensor` of shape `(..., hidden)`): Input of the head.
        lm_head_weight (`torch.Tensor` of shape `(vocab, hidden)`): Weight of the head.

    Raises:
        UserError: If the weight is not a matrix or its width differs.
    """
    if lm_head_weight.dim() != 2 or lm_head_weight.shape[1] != hidden_states.shape[-1]:
        raise UserError(
            f"lm_head_weight has shape {tuple(lm_head_weight.shape)}; (vocab, {hidden_states.shape[-1]}) is needed "
            "for these hidden states."
        )

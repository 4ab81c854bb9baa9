"""The loss of `causal_lm` without all logits in memory: one chunk of rows at a time, gradients made in the forward.

For a chunk the logits `x = h W^T` live in one reused buffer, become probabilities `p` in place, and give both
gradients at once. With `f = 1 + 2 coef lse` (the z-loss's share), smoothing `eps` and one-hot targets `y`, the
gradient of a row is

    dx = f (p - y) + (f - 1 + eps) y - eps / V

so z-loss and smoothing cost only row scalings and rank-one terms: no further pass over the `rows x vocab` buffer.
Ignored rows are dropped before the product on CPU, masked on an accelerator (dropping them would wait for the device).
The gradients of 16-bit weights are accumulated in fp32 (bugs Z4). Forward-only calls keep nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

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


# Bytes of the logits buffer. On CPU large enough for the weight gradient's product to run at full speed, on an
# accelerator to fill it; both far below the logits of a usual micro-batch at a large vocabulary.
CPU_MEMORY_BUDGET = 64 * 2**20
ACCELERATOR_MEMORY_BUDGET = 512 * 2**20


def chunk_rows(rows: int, vocab_size: int, memory_budget: int, itemsize: int = 4) -> int:
    """Rows a chunk may have so that its logits fit the budget.

    Args:
        rows (`int`): Rows in all.
        vocab_size (`int`): Columns.
        memory_budget (`int`): Bytes for one buffer of logits.
        itemsize (`int`, *optional*, defaults to 4): Bytes of a logit.

    Returns:
        `int`: At least 16 (a smaller product wastes the machine) and at most `rows`, evened out over the chunks.
    """
    limit = max(16, memory_budget // (vocab_size * itemsize))
    if rows <= limit:
        return max(rows, 1)
    chunks = -(-rows // limit)
    return -(-rows // chunks)


@dataclass(frozen=True)
class _Options:
    """The constants of one call, kept out of the autograd function's long argument list."""

    z_loss_coef: float
    label_smoothing: float
    logit_softcap: float | None
    compute_dtype: torch.dtype
    memory_budget: int
    with_gradients: bool


def _softmax_(logits: torch.Tensor) -> torch.Tensor:
    """Turns `logits` into probabilities in place and returns the logsumexp of each row."""
    if logits.device.type != "cpu":
        top = logits.amax(dim=-1, keepdim=True)
        total = logits.sub_(top).exp_().sum(dim=-1, keepdim=True)
        logits.div_(total)
        return (top + total.log()).squeeze(1)
    top, where = logits.max(dim=-1, keepdim=True)
    torch.softmax(logits, dim=-1, out=logits)
    # the largest probability is exp(top - lse), at least 1/V: its log is exact where that of the target may underflow
    return (top - logits.gather(1, where).log()).squeeze(1)


def _add_product(
    total: torch.Tensor, gradient: torch.Tensor, rounded: torch.Tensor, chunk: torch.Tensor, first: bool
) -> None:
    """Adds `gradient^T chunk` to the head's gradient, which is not initialised before the first chunk.

    16-bit factors are summed in fp32 all the way: rounding each chunk's product would add to the error (bugs Z4).
    Where no kernel does that, the gradient as it was before it was rounded is taken: exacter, and no copy.
    """
    if rounded.dtype != total.dtype:
        if total.device.type == "cuda" and torch.cuda.get_device_capability(total.device)[0] >= 8:
            if first:
                total.zero_()
            torch.addmm(total, rounded.t(), chunk, out_dtype=total.dtype, out=total)
            return
        chunk = chunk.to(total.dtype)
    if first:
        torch.mm(gradient.t(), chunk, out=total)
    else:
        total.addmm_(gradient.t(), chunk)


class _ChunkedLinearCrossEntropy(torch.autograd.Function):
    """Returns the loss and, without gradient, [ce, z, lse sum, lse max]; the module docstring has the formulas."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, row_weight, denominator, options):
        rows, width = hidden.shape
        vocab = weight.shape[0]
        compute = options.compute_dtype
        wide = torch.float64 if compute == torch.float64 else torch.float32
        narrow = compute != wide
        want_hidden = options.with_gradients and ctx.needs_input_grad[0]
        want_weight = options.with_gradients and ctx.needs_input_grad[1]
        head = weight.detach().to(compute)
        inputs = hidden.detach().to(compute)
        scale = denominator.to(wide).reciprocal()
        # 16-bit products carry the scale's mantissa only: one rounding, and no underflow in fp16; the power of two
        # follows in fp32, where it is exact
        unit = torch.frexp(scale).mantissa if narrow else scale
        eps, coef, cap = options.label_smoothing, options.z_loss_coef, options.logit_softcap
        # with a cap (its slope is no rank-one term) or a cast (a pass anyway) whole gradient rows are written out
        whole_rows = cap is not None or narrow

        size = chunk_rows(rows, vocab, options.memory_budget, 8 if wide == torch.float64 else 4)
        buffer = torch.empty((size, vocab), dtype=wide, device=hidden.device)
        # what 16-bit products write to and read from; reused for logits and gradient
        narrow_buffer = torch.empty((size, vocab), dtype=compute, device=hidden.device) if narrow else None
        grad_hidden = torch.empty((rows, width), dtype=wide, device=hidden.device) if want_hidden else None
        grad_weight = torch.empty((vocab, width), dtype=wide, device=hidden.device) if want_weight else None
        rank_one = bool(eps) and not whole_rows
        head_sum = head.sum(dim=0, dtype=wide) if eps and cap is None else None
        input_sum = torch.zeros(width, dtype=wide, device=hidden.device) if rank_one else None
        sums = torch.zeros(3, dtype=wide, device=hidden.device)
        lse_max = torch.full((), -torch.inf, dtype=wide, device=hidden.device)
        if rows == 0 and want_weight:
            grad_weight.zero_()

        for start in range(0, rows, size):
            chunk = inputs[start : start + size]
            target = targets[start : start + size].unsqueeze(1)
            keep = None if row_weight is None else row_weight[start : start + size]
            logits = buffer[: chunk.shape[0]]
            product = narrow_buffer[: chunk.shape[0]] if narrow else logits
            torch.mm(chunk, head.t(), out=product)
            if narrow:
                logits.copy_(product)
            slope = None
            if cap is not None:
                logits.div_(cap).tanh_()
                slope = 1 - logits.square() if want_hidden or want_weight else None
                logits.mul_(cap)
            picked = logits.gather(1, target).squeeze(1)
            if eps:
                mean = (chunk.to(wide) @ head_sum) / vocab if cap is None else logits.mean(dim=-1)
                picked = (1 - eps) * picked + eps * mean
            lse = _softmax_(logits)
            nll, kept_lse, seen = lse - picked, lse, lse
            if keep is not None:
                nll, kept_lse, seen = nll * keep, lse * keep, lse.masked_fill(keep == 0, -torch.inf)
            sums += torch.stack((nll.sum(), kept_lse.square().sum(), kept_lse.sum()))
            lse_max = torch.maximum(lse_max, seen.max())
            if not (want_hidden or want_weight):
                continue

            gradient = logits  # the probabilities, from here on minus the one-hot targets
            gradient.scatter_add_(1, target, gradient.new_full((1, 1), -1.0).expand_as(target))
            factor = 1 + 2 * coef * lse
            plain = unit.expand(chunk.shape[0]) if keep is None else unit * keep
            if whole_rows:
                gradient.mul_((factor * plain).unsqueeze(1))
                gradient.scatter_add_(1, target, ((factor - 1 + eps) * plain).unsqueeze(1))
                if eps:
                    gradient.sub_((plain * (eps / vocab)).unsqueeze(1))
                if slope is not None:
                    gradient.mul_(slope)
                rounded = product.copy_(gradient) if narrow else gradient
                if want_hidden:
                    grad_hidden[start : start + size] = rounded @ head
                if want_weight:
                    _add_product(grad_weight, gradient, rounded, chunk, first=start == 0)
                continue
            row = (factor * plain).unsqueeze(1)
            one_hot = ((factor - 1 + eps) * plain).unsqueeze(1) if eps or coef else None
            if want_hidden:
                local = grad_hidden[start : start + size]
                torch.mm(gradient, head, out=local)
                local.mul_(row)
                if one_hot is not None:
                    local.addcmul_(head[target.squeeze(1)], one_hot)
                if eps:
                    local.sub_((plain * (eps / vocab)).unsqueeze(1) * head_sum)
            if want_weight:
                _add_product(grad_weight, gradient, gradient, chunk * row, first=start == 0)
                if one_hot is not None:
                    grad_weight.index_add_(0, target.squeeze(1), chunk * one_hot)
                if eps:
                    input_sum.addmv_(chunk.t(), plain, alpha=eps / vocab)

        if want_weight and rank_one:
            grad_weight.sub_(input_sum)
        sums[1] *= coef
        parts = sums * scale
        stats = torch.stack((parts[0], parts[1], sums[2], lse_max))
        ctx.saved = (grad_hidden, grad_weight)
        ctx.dtypes = (hidden.dtype, weight.dtype)
        ctx.rest = scale / unit if narrow else None
        ctx.mark_non_differentiable(stats)
        return parts[0] + parts[1], stats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _grad_stats):
        if ctx.saved is None:
            raise RuntimeError("the chunked loss keeps its gradients for one backward only; call the loss again")
        gradients = ctx.saved
        ctx.saved = None
        factor = grad_loss if ctx.rest is None else grad_loss * ctx.rest
        # on CPU reading the factor is free; a factor of one (the usual case) then costs no pass over the weight
        if factor.device.type != "cpu" or factor.item() != 1.0:
            for gradient in gradients:
                if gradient is not None:
                    gradient.mul_(factor)
        given = [None if g is None else g.to(dtype) for g, dtype in zip(gradients, ctx.dtypes, strict=True)]
        return *given, None, None, None, None


def _compute_dtype(hidden_states: torch.Tensor, weight: torch.Tensor) -> torch.dtype:
    """The dtype in which a plain `F.linear` would run here (autocast counts)."""
    kind = hidden_states.device.type
    if torch.is_autocast_enabled(kind) and torch.float64 not in (hidden_states.dtype, weight.dtype):
        return torch.get_autocast_dtype(kind)
    return torch.promote_types(hidden_states.dtype, weight.dtype)


def _default_budget(device: torch.device) -> int:
    return CPU_MEMORY_BUDGET if device.type == "cpu" else ACCELERATOR_MEMORY_BUDGET


def chunked_causal_lm_loss(
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
    memory_budget: int | None = None,
) -> LossOutput:
    """[`~losses.causal_lm.causal_lm_loss`] with at most `memory_budget` bytes of logits alive.

    The gradients are kept for one backward: a second one through the same loss raises, double backward does not exist.

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
        memory_budget (`int`, *optional*): Bytes for the logits buffer; default 64 MiB on CPU, 512 MiB elsewhere.

    Returns:
        [`~losses.causal_lm.LossOutput`]

    Raises:
        UserError: If options, shapes or labels are out of range.
    """
    check_options(z_loss_coef, label_smoothing, logit_softcap)
    check_head(hidden_states, lm_head_weight)
    hidden = hidden_states.reshape(-1, hidden_states.shape[-1])
    targets = shifted_targets(labels, shift_labels, ignore_index).to(hidden.device)
    valid = check_shapes(hidden.shape[0], lm_head_weight.shape[0], targets, ignore_index)
    num_tokens = valid.sum()
    denominator = normaliser(num_items_in_batch, num_tokens)
    row_weight = None
    if hidden.device.type == "cpu":
        if int(num_tokens) < hidden.shape[0]:
            kept = valid.nonzero().squeeze(1)
            hidden, targets = hidden.index_select(0, kept), targets.index_select(0, kept)
    else:
        row_weight = valid.to(torch.float32)
        targets = targets.masked_fill(~valid, 0)
    options = _Options(
        z_loss_coef=float(z_loss_coef),
        label_smoothing=float(label_smoothing),
        logit_softcap=None if logit_softcap is None else float(logit_softcap),
        compute_dtype=_compute_dtype(hidden, lm_head_weight),
        memory_budget=memory_budget or _default_budget(hidden.device),
        with_gradients=torch.is_grad_enabled(),
    )
    with torch.autocast(device_type=hidden.device.type, enabled=False):
        loss, stats = _ChunkedLinearCrossEntropy.apply(
            hidden, lm_head_weight, targets, row_weight, denominator, options
        )
    return _output(loss, stats, num_tokens)


def _output(loss: torch.Tensor, stats: torch.Tensor, num_tokens: torch.Tensor) -> LossOutput:
    return LossOutput(
        loss=loss,
        ce=stats[0],
        z=stats[1],
        num_tokens=num_tokens,
        lse_mean=stats[2] / num_tokens.clamp(min=1),
        lse_max=stats[3],
    )


class _ChunkedCrossEntropy(torch.autograd.Function):
    """The same two results from logits; beside them only the logsumexp is kept for the backward."""

    @staticmethod
    def forward(ctx, logits, targets, row_weight, denominator, options):
        wide = torch.float64 if logits.dtype == torch.float64 else torch.float32
        rows, vocab = logits.shape
        size = chunk_rows(rows, vocab, options.memory_budget)
        eps, coef, cap = options.label_smoothing, options.z_loss_coef, options.logit_softcap
        lse = torch.empty(rows, dtype=wide, device=logits.device)
        nll = torch.empty(rows, dtype=wide, device=logits.device)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            chunk = logits[part].to(wide)
            if cap is not None:
                chunk = torch.tanh(chunk / cap).mul_(cap)
            picked = chunk.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            if eps:
                picked = (1 - eps) * picked + eps * chunk.mean(dim=-1)
            lse[part] = torch.logsumexp(chunk, dim=-1)
            nll[part] = lse[part] - picked
        valid = row_weight > 0
        kept = torch.where(valid, lse, 0.0)
        scale = denominator.to(wide).reciprocal()
        ce = torch.where(valid, nll, 0.0).sum() * scale
        z = kept.square().sum() * (coef * scale)
        lse_max = torch.where(valid, lse, -torch.inf).max() if rows else lse.new_tensor(-torch.inf)
        stats = torch.stack((ce, z, kept.sum(), lse_max))
        ctx.save_for_backward(logits, targets, row_weight, scale, lse)
        ctx.options = options
        ctx.mark_non_differentiable(stats)
        return ce + z, stats

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad_loss, _grad_stats):
        logits, targets, row_weight, scale, lse = ctx.saved_tensors
        options = ctx.options
        rows, vocab = logits.shape
        size = chunk_rows(rows, vocab, options.memory_budget)
        eps, coef, cap = options.label_smoothing, options.z_loss_coef, options.logit_softcap
        row = row_weight.to(lse.dtype) * (scale * grad_loss)
        gradient = torch.empty_like(logits)
        for start in range(0, rows, size):
            part = slice(start, start + size)
            weight = row[part].unsqueeze(1)
            target = targets[part].unsqueeze(1)
            chunk = logits[part].to(lse.dtype)
            slope = None
            if cap is not None:
                chunk = torch.tanh(chunk / cap)
                slope = 1 - chunk.square()
                chunk = chunk.mul_(cap)
            out = torch.sub(chunk, lse[part].unsqueeze(1)).exp_()
            out.mul_(weight * (1 + 2 * coef * lse[part].unsqueeze(1)))
            out.scatter_add_(1, target, (eps - 1) * weight)
            if eps:
                out.sub_(weight * (eps / vocab))
            if slope is not None:
                out.mul_(slope)
            gradient[part] = out
        return gradient, None, None, None, None


def chunked_causal_lm_loss_from_logits(
    logits: torch.Tensor,
    labels: torch.Tensor | None,
    *,
    num_items_in_batch: torch.Tensor | int | None = None,
    z_loss_coef: float = 0.0,
    label_smoothing: float = 0.0,
    logit_softcap: float | None = None,
    ignore_index: int = IGNORE_INDEX,
    shift_labels: torch.Tensor | None = None,
    memory_budget: int | None = None,
) -> LossOutput:
    """The same for a model that has built its logits: no fp32 copy of them, nothing kept but them and the logsumexp.

    Args:
        logits (`torch.Tensor` of shape `(..., sequence, vocab)`): Any floating dtype; not written to.
        labels (`torch.Tensor` of shape `(..., sequence)`, *optional*): Unshifted labels; not written to.
        num_items_in_batch (`torch.Tensor` or `int`, *optional*): Denominator; default: valid targets of this call.
        z_loss_coef (`float`, *optional*, defaults to 0.0): Coefficient of the mean squared logsumexp.
        label_smoothing (`float`, *optional*, defaults to 0.0): Weight of the uniform target.
        logit_softcap (`float`, *optional*): `cap * tanh(logits / cap)` before everything else.
        ignore_index (`int`, *optional*, defaults to -100): Label that does not count.
        shift_labels (`torch.Tensor`, *optional*): Already shifted labels, used instead of `labels`.
        memory_budget (`int`, *optional*): Bytes for a chunk in fp32; default 64 MiB on CPU, 512 MiB elsewhere.

    Returns:
        [`~losses.causal_lm.LossOutput`]

    Raises:
        UserError: If options or labels are out of range.
    """
    check_options(z_loss_coef, label_smoothing, logit_softcap)
    flat = logits.reshape(-1, logits.shape[-1])
    targets = shifted_targets(labels, shift_labels, ignore_index).to(flat.device)
    valid = check_shapes(flat.shape[0], flat.shape[1], targets, ignore_index)
    num_tokens = valid.sum()
    options = _Options(
        z_loss_coef=float(z_loss_coef),
        label_smoothing=float(label_smoothing),
        logit_softcap=None if logit_softcap is None else float(logit_softcap),
        compute_dtype=flat.dtype,
        memory_budget=memory_budget or _default_budget(flat.device),
        with_gradients=torch.is_grad_enabled(),
    )
    loss, stats = _ChunkedCrossEntropy.apply(
        flat,
        targets.masked_fill(~valid, 0),
        valid.to(torch.float32),
        normaliser(num_items_in_batch, num_tokens),
        options,
    )
    return _output(loss, stats, num_tokens)

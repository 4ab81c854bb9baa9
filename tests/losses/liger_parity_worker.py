"""Run by test_losses_liger.py in a process of its own: Liger's real kernels against the plain loss.

Arguments: kernel (`fused`, `ce` or `rope`), device (`cpu` needs TRITON_INTERPRET=1), dtype, and for `fused` whether
the head is `tied`. Prints one line a case; a failed case raises.

The contract, per value and gradient: the error against fp32 (of the same inputs) is no larger than that of the naive
path in the inputs' dtype, plus 1e-6 of the value's size. Liger misses it in bf16, by what is allowed here and no more:

- gradients are finished in 16 bit and then multiplied by the upstream factor, one rounding more than naive: 1.5 times;
- z comes in 16 bit, so the cross-entropy won back from it is off by 2^-8 of z, and the mean logsumexp, won back from
  that, by 2^-8 more;
- the plain cross-entropy kernel has the loss of each row in 16 bit: 2^-8 of the loss.
"""

import itertools
import sys

import torch
import torch.nn.functional as F

from hf_pretrain.losses.causal_lm import causal_lm_loss, causal_lm_loss_from_logits
from hf_pretrain.losses.liger import liger_causal_lm_loss


OPTIONS = {
    "z_loss_coef": 1e-2,
    "label_smoothing": 0.1,
    "logit_softcap": 5.0,
    "num_items_in_batch": 23,
    "ignore_index": 3,
}
PAIRS = [{}, *(dict([item]) for item in OPTIONS.items())]
PAIRS += [dict(pair) for pair in itertools.combinations(OPTIONS.items(), 2)] + [dict(OPTIONS)]
VOCAB, WIDTH = 16, 8


def mend_the_interpreter() -> None:
    """Three gaps of Triton's interpreter, mended for this process.

    Float arguments arrive bare, without `.to`; device libraries are missing; bf16 is cut where hardware rounds to the
    nearest, which doubles its error.
    """
    import liger_kernel.ops.cross_entropy as kernels
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    original = interpreter._implicit_cvt

    def convert(value):
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return original(value)

    interpreter._implicit_cvt = convert
    kernels.tanh = lambda x: 2 * tl.sigmoid(2 * x) - 1
    cut = interpreter._convert_float

    def rounded(values, source, target, mode):
        if source != tl.float32 or target != tl.bfloat16:
            return cut(values, source, target, mode)
        bits = np.ascontiguousarray(values).view(np.uint32)
        return ((bits + ((bits >> 16) & 1) + 0x7FFF) >> 16).astype(np.uint16)

    interpreter._convert_float = rounded


def naive(hidden, weight, labels, **options):
    """Logits by `F.linear` in the inputs' dtype, what stock models do, then the plain loss."""
    return causal_lm_loss_from_logits(F.linear(hidden, weight), labels, **options)


def problem(dtype, device):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, WIDTH, generator=generator).to(device, dtype)
    weight = torch.randn(VOCAB, WIDTH, generator=generator).to(device, dtype)
    labels = torch.randint(0, VOCAB, (2, 5), generator=generator).to(device)
    return hidden, weight, labels


def check(name, found, plain, truth, factor=1.0, slack=0.0):
    """The contract."""
    found, plain, truth = (one.detach().double() for one in (found, plain, truth))
    size = max(1.0, truth.norm().item())
    error, allowed = (found - truth).norm().item(), factor * (plain - truth).norm().item() + 1e-6 * size + slack
    assert error <= allowed, (name, error, allowed)


def fused(device, dtype, tied):
    """Loss, its parts and gradients; a tied head gets the gradient of the lookup too."""
    hidden, weight, labels = problem(dtype, device)
    narrow = dtype != torch.float32
    for options in PAIRS:
        target = labels.clone()
        if "ignore_index" not in options:
            target[0, 1:3] = -100
        results = []
        for function, kind in ((liger_causal_lm_loss, dtype), (naive, dtype), (causal_lm_loss, torch.float32)):
            head = weight.to(kind).clone().requires_grad_()
            if tied:
                leaves = [head]
                inputs = F.embedding(labels, head) + hidden.to(kind)
            else:
                inputs = hidden.to(kind).clone().requires_grad_()
                leaves = [inputs, head]
            out = function(inputs, head, target, **options)
            (out.loss * 0.5).backward()
            parts = {"loss": out.loss, "ce": out.ce, "lse_mean": out.lse_mean}
            parts |= {f"gradient {number}": leaf.grad for number, leaf in enumerate(leaves)}
            results.append((out, parts))
        (out, found), (plain_out, plain), (exact, truth) = results
        scale = options.get("num_items_in_batch", exact.num_tokens.item()) / exact.num_tokens.item()
        for name in found:
            # what the kernel hides: see liger_causal_lm_loss
            if name == "lse_mean" and "label_smoothing" in options and "logit_softcap" in options:
                assert torch.isnan(out.lse_mean)
                continue
            factor = 1.5 if narrow and name.startswith("gradient") else 1.0
            slack = 2**-8 * exact.z.item() * (scale if name == "lse_mean" else 1) if narrow else 0.0
            slack += 2**-8 if narrow and name == "lse_mean" else 0.0
            check((name, *options), found[name], plain[name], truth[name], factor, slack)
        check(("z", *options), out.z, plain_out.z, exact.z, slack=2**-8 * exact.z.item() if narrow else 0.0)
        assert out.num_tokens == exact.num_tokens and out.lse_max is None
        print("ok", *options)
    empty = liger_causal_lm_loss(hidden.clone().requires_grad_(), weight, torch.full_like(labels, -100))
    empty.loss.backward()
    assert empty.loss == 0


def ce(device, dtype):
    """Liger's plain cross-entropy on logits, which `liger_kernel_config={"cross_entropy": True}` puts into models."""
    from liger_kernel.transformers.functional import liger_cross_entropy

    hidden, weight, labels = problem(dtype, device)
    flat = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
    names = {"z_loss_coef": "lse_square_scale", "label_smoothing": "label_smoothing", "logit_softcap": "softcap"}
    pairs = [{name: value for name, value in one.items() if name in (*names, "ignore_index")} for one in PAIRS]
    for reduction, options in itertools.product(
        ("sum", "mean"), [dict(one) for one in {tuple(p.items()) for p in pairs}]
    ):
        ignored = options.get("ignore_index", -100)
        target = flat.masked_fill(flat == -100, ignored)
        leaves = [F.linear(hidden, weight).reshape(-1, VOCAB).clone().requires_grad_() for _ in range(3)]
        leaves[2] = leaves[2].detach().float().requires_grad_()
        given = {names[name]: value for name, value in options.items() if name in names}
        found = liger_cross_entropy(leaves[0].clone(), target, ignore_index=ignored, reduction=reduction, **given)
        losses = [found[0] if isinstance(found, tuple) else found]
        count = 1 if reduction == "sum" else None
        losses += [
            causal_lm_loss_from_logits(one, None, shift_labels=target, num_items_in_batch=count, **options).loss
            for one in leaves[1:]
        ]
        for loss in losses:
            loss.backward()
        slack = 0.0 if dtype == torch.float32 else 2**-8 * losses[2].item()
        check(("loss", reduction, *options), losses[0], losses[1], losses[2], slack=slack)
        check(("gradient", reduction, *options), leaves[0].grad, leaves[1].grad, leaves[2].grad)
        print("ok", reduction, *options)


def rope(device, dtype):
    """Queries, keys and their gradients, for (2, 1) heads (bugs Z5), equal heads and many."""
    from liger_kernel.transformers.rope import liger_rotary_pos_emb
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    generator = torch.Generator().manual_seed(0)
    for heads, key_heads, size in ((2, 1, 128), (2, 2, 16), (4, 2, 64)):
        angles = torch.rand(1, 5, size // 2, generator=generator).to(device) * 6.28
        cos, sin = (torch.cat((one, one), dim=-1) for one in (angles.cos(), angles.sin()))
        given = [
            torch.randn(2, number, 5, size, generator=generator).to(device, dtype) for number in (heads, key_heads)
        ]
        results = []
        for function, kind in (
            (liger_rotary_pos_emb, dtype),
            (apply_rotary_pos_emb, dtype),
            (apply_rotary_pos_emb, torch.float32),
        ):
            leaves = [one.to(kind).clone().requires_grad_() for one in given]
            # the interpreter has no arithmetic in bf16: there the angles stay in fp32, and so does the result
            angle = torch.float32 if device == "cpu" else kind
            turned = function(*(one.clone() for one in leaves), cos.to(angle), sin.to(angle))
            turned = [one.to(kind) for one in turned]
            weights = torch.linspace(-1, 1, size, device=device, dtype=kind)
            sum((one * weights).sum() for one in turned).backward()
            results.append([*turned, *(one.grad for one in leaves)])
        assert not torch.equal(results[0][1], given[1]), "the keys are unrotated"
        for name, *row in zip(("query", "key", "query gradient", "key gradient"), *results, strict=True):
            check((name, heads, key_heads), *row)
        print("ok", heads, key_heads, size)


def main(kernel: str, device: str, dtype_name: str, head: str = "untied") -> None:
    if device == "cpu":
        mend_the_interpreter()
    dtype = getattr(torch, dtype_name)
    if kernel == "fused":
        fused(device, dtype, head == "tied")
    else:
        {"ce": ce, "rope": rope}[kernel](device, dtype)


if __name__ == "__main__":
    main(*sys.argv[1:])

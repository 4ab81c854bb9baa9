"""Run by test_losses_liger.py in a process of its own: Liger's real kernels against the plain loss.

Arguments: device (`cpu` needs TRITON_INTERPRET=1) and dtype. Prints one line a case; a failed case raises.
"""

import itertools
import sys

import torch

from hf_pretrain.losses.causal_lm import causal_lm_loss
from hf_pretrain.losses.liger import liger_causal_lm_loss


OPTIONS = {
    "z_loss_coef": 1e-2,
    "label_smoothing": 0.1,
    "logit_softcap": 5.0,
    "num_items_in_batch": 23,
    "ignore_index": 3,
}


def mend_the_interpreter() -> None:
    """Two gaps of Triton's interpreter: float arguments arrive bare, without `.to`; device libraries are missing."""
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


def main(device: str, dtype_name: str) -> None:
    if device == "cpu":
        mend_the_interpreter()
    dtype = getattr(torch, dtype_name)
    tolerance = 2e-5 if dtype == torch.float32 else 2e-2
    pairs = [{}, *(dict([item]) for item in OPTIONS.items())]
    pairs += [dict(pair) for pair in itertools.combinations(OPTIONS.items(), 2)] + [dict(OPTIONS)]
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(2, 5, 8, generator=generator).to(dtype).to(device)
    weight = torch.randn(16, 8, generator=generator).to(dtype).to(device)
    labels = torch.randint(0, 16, (2, 5), generator=generator).to(device)
    for options in pairs:
        target = labels.clone()
        if "ignore_index" not in options:
            target[0, 1:3] = -100
        outputs = []
        for function in (causal_lm_loss, liger_causal_lm_loss):
            inputs = [hidden.clone().requires_grad_(), weight.clone().requires_grad_()]
            out = function(*inputs, target, **options)
            (out.loss * 0.5).backward()
            outputs.append((out, [one.grad for one in inputs]))
        (plain, plain_grads), (fused, fused_grads) = outputs
        names = ["loss", "ce", "z"]
        if not ("label_smoothing" in options and "logit_softcap" in options):
            names.append("lse_mean")
        for name in names:
            torch.testing.assert_close(
                getattr(fused, name).float(), getattr(plain, name).float(), rtol=tolerance, atol=tolerance
            )
        assert fused.num_tokens == plain.num_tokens and fused.lse_max is None
        for one, other in zip(fused_grads, plain_grads, strict=True):
            assert one.dtype == other.dtype
            torch.testing.assert_close(one, other, rtol=tolerance, atol=tolerance)
        print("ok", *options)
    empty = liger_causal_lm_loss(hidden.clone().requires_grad_(), weight, torch.full_like(labels, -100))
    empty.loss.backward()
    assert empty.loss == 0


if __name__ == "__main__":
    main(*sys.argv[1:])

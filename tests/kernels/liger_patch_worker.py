"""Run by test_kernels_liger_patch.py under TRITON_INTERPRET=1: patches real models and compares logits and gradients.

With the argument `mended` a gap of Triton's interpreter (float arguments arrive bare) is closed first, so that SwiGLU
runs in it too; without it, and for RMSNorm always, the kernel fails there and must be left out with a reason.
"""

import sys

import numpy as np
import torch
import triton.language as tl
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from triton.runtime import interpreter

from hf_pretrain.kernels.liger_patch import check_rope, patch_with_liger
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


def mend() -> None:
    original = interpreter._implicit_cvt

    def convert(value):
        if isinstance(value, float):
            return tl.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float32), tl.float32), tl.float32)
        return original(value)

    interpreter._implicit_cvt = convert


def outcome(model, ids):
    model.zero_grad()
    output = model(input_ids=ids, labels=ids, use_cache=False)
    output.loss.backward()
    return output.logits.detach(), [one.grad.clone() for one in model.parameters() if one.grad is not None]


def main(mended: bool) -> None:
    if mended:
        mend()
    torch.manual_seed(0)
    models = [
        LlamaForCausalLM(LlamaConfig(**SIZES)),
        Qwen3ForCausalLM(Qwen3Config(head_dim=8, **SIZES)),
        StrataForCausalLM(StrataConfig(**SIZES)),
        StrataForCausalLM(StrataConfig(**SIZES, num_experts=4, shared_expert_intermediate_size=8)),
    ]
    ids = torch.randint(0, 32, (2, 6))
    for model in models:
        plain = outcome(model, ids)
        code = sys.modules[type(model.model.layers[0].self_attn).__module__]
        rope = code.apply_rotary_pos_emb
        report = patch_with_liger(model)
        print(type(model).__name__, report)
        assert "rope" in report.patched and code.apply_rotary_pos_emb is not rope
        assert "kernel failed in the self-check" in report.skipped["rms_norm"]
        has_swiglu = mended and any(type(one).__name__.endswith("MLP") for one in model.modules())
        assert ("swiglu" in report.patched) == has_swiglu
        fused = outcome(model, ids)
        torch.testing.assert_close(fused, plain, rtol=1e-4, atol=1e-5)
        report.undo()
        report.undo()
        assert code.apply_rotary_pos_emb is rope
        assert not any("forward" in vars(one) for one in model.modules())
        again = outcome(model, ids)
        assert torch.equal(again[0], plain[0])

    from liger_kernel.transformers.rope import liger_rotary_pos_emb

    def keys_forgotten(q, k, cos, sin):
        return liger_rotary_pos_emb(q, k.clone(), cos, sin)[0], k

    assert "other numbers" in check_rope(rope, keys_forgotten, "cpu")
    assert "leaves the keys unrotated" in check_rope(keys_forgotten, keys_forgotten, "cpu")


if __name__ == "__main__":
    main(sys.argv[1:] == ["mended"])

"""Which parameters decay, on dense, tied and MoE models."""

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from hf_pretrain.optim.param_groups import parameter_groups
from hf_pretrain.utils.errors import UserError


SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}


def names(groups):
    return {group["weight_decay"]: set(group["names"]) for group in groups}


@pytest.mark.parametrize("tied", [False, True])
def test_llama(tied):
    model = LlamaForCausalLM(LlamaConfig(tie_word_embeddings=tied, attention_bias=True, **SIZES))
    groups = names(parameter_groups(model, 0.1))
    assert groups[0.1] | groups[0.0] == {name for name, _ in model.named_parameters()}
    assert "model.embed_tokens.weight" in groups[0.0]
    assert ("lm_head.weight" in groups[0.1]) is not tied
    assert all("norm" in n or n.endswith(".bias") or "embed" in n for n in groups[0.0])
    assert not any("norm" in n or "bias" in n for n in groups[0.1])


def test_router_gate_and_experts_decay():
    model = Qwen3MoeForCausalLM(
        Qwen3MoeConfig(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=8, head_dim=8, **SIZES)
    )
    groups = names(parameter_groups(model, 0.1))
    assert any("gate.weight" in name for name in groups[0.1])
    assert any("experts" in name for name in groups[0.1])
    assert {"q_norm.weight", "k_norm.weight"} <= {".".join(name.split(".")[-2:]) for name in groups[0.0]}


def test_biases_of_any_shape_and_frozen_parameters():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.down_proj_bias = nn.Parameter(torch.zeros(4, 8))
            self.weight = nn.Parameter(torch.zeros(4, 8))
            self.frozen = nn.Parameter(torch.zeros(4, 8), requires_grad=False)

    assert names(parameter_groups(Odd(), 0.1)) == {0.1: {"weight"}, 0.0: {"down_proj_bias"}}


def test_embeddings_on_demand_and_the_optimizer_takes_the_groups():
    model = LlamaForCausalLM(LlamaConfig(**SIZES))
    groups = parameter_groups(model, 0.1, decay_embeddings=True)
    assert "model.embed_tokens.weight" in groups[0]["names"]
    optimizer = torch.optim.AdamW(groups, lr=1e-3)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(list(model.parameters()))


def test_bad_input():
    with pytest.raises(UserError, match="weight_decay = -0.1"):
        parameter_groups(nn.Linear(2, 2), -0.1)
    with pytest.raises(UserError, match="no parameter that requires gradients"):
        parameter_groups(nn.Linear(2, 2).requires_grad_(False), 0.1)

"""The sorted experts, the float32 norm and the rotation, whose backward is written out, against plain autograd."""

import pytest
import torch
import torch.nn.functional as F

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.experts_strata import StrataExperts
from hf_pretrain.models.strata.layers_strata import StrataRMSNorm, apply_rotary_pos_emb, rotate_half


def experts(activation="silu", num_experts=5):
    config = StrataConfig(
        vocab_size=32, hidden_size=8, intermediate_size=12, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, num_experts=num_experts, moe_intermediate_size=6, hidden_act=activation,
        experts_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    module = StrataExperts(config)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    return module


def by_hand(module, hidden, indices, weights):
    """Every expert on every token, masked: slow and plain."""
    gate, up = torch.einsum("th,eih->tei", hidden, module.gate_up_proj).chunk(2, dim=-1)
    outputs = torch.einsum("tei,ehi->teh", module.act_fn(gate) * up, module.down_proj)
    local = F.one_hot(indices.clamp(max=module.num_experts), module.num_experts + 1)[..., : module.num_experts]
    return torch.einsum("teh,tke,tk->th", outputs, local.to(weights.dtype), weights)


def results(function, module, hidden, indices, weights, upstream):
    inputs = [hidden.clone().requires_grad_(), weights.clone().requires_grad_()]
    output = function(inputs[0], indices, inputs[1])
    wanted = [*inputs, *(one for one in module.parameters() if one.requires_grad)]
    return [output.detach(), *torch.autograd.grad(output, wanted, upstream)]


# Token 3 sends one assignment to an expert that is not here (5 and 9 of 5), expert 4 gets nobody.
INDICES = torch.tensor([[0, 1], [1, 2], [3, 0], [1, 5], [9, 2], [2, 1], [0, 3]])


@pytest.mark.parametrize("activation", ["silu", "gelu", "linear"])
@pytest.mark.parametrize("frozen", [(), ("gate_up_proj",), ("gate_up_proj", "down_proj")])
def test_output_and_gradients_are_those_of_autograd(activation, frozen):
    module = experts(activation)
    for name in frozen:
        getattr(module, name).requires_grad_(False)
    hidden, weights, upstream = torch.randn(7, 8), torch.rand(7, 2), torch.randn(7, 8)
    weights[5, 0] = 0.0  # a dropped assignment: weight 0 on a valid id
    found = results(module, module, hidden, INDICES, weights, upstream)
    expected = results(lambda *given: by_hand(module, *given), module, hidden, INDICES, weights, upstream)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
    assert found[2][3, 1] == 0.0 and found[2][4, 0] == 0.0  # nothing of an expert that is not here
    if not frozen:
        assert found[3][4].abs().sum() == 0 and found[3][:4].abs().sum() > 0


def test_no_token_for_any_expert_here_keeps_the_graph():
    module, hidden = experts(), torch.randn(3, 8, requires_grad=True)
    output = module(hidden, torch.full((3, 2), 7), torch.rand(3, 2))
    output.sum().backward()
    assert output.abs().sum() == 0 and hidden.grad.abs().sum() == 0 and module.down_proj.grad.abs().sum() == 0


def test_backward_keeps_the_inner_projection_and_no_copy_of_a_routed_token():
    module, kept = experts(), []

    def note(tensor):
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        module(torch.randn(7, 8, requires_grad=True), INDICES, torch.rand(7, 2, requires_grad=True))
    routed = [tuple(one.shape) for one in kept if one.is_floating_point() and one.shape[0] >= 12]
    assert routed == [(12, 12), (14, 1)]  # 12 assignments of experts here, 2I wide; and their gates


@pytest.mark.parametrize("shape", [(3, 5, 8), (2, 4, 3, 8), (0, 8)])
def test_norm_on_the_processor_equals_the_formula(shape):
    torch.manual_seed(0)
    norm, inputs, upstream = StrataRMSNorm(8, eps=1e-3), torch.randn(shape, requires_grad=True), torch.randn(shape)
    torch.nn.init.normal_(norm.weight)
    wanted = [inputs, norm.weight]
    double = [one.detach().double().requires_grad_() for one in wanted]
    expected = double[1] * double[0] * (double[0].square().mean(-1, keepdim=True) + 1e-3).rsqrt()
    found = norm(inputs)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    gradients = torch.autograd.grad(found, wanted, upstream)
    for one, other in zip(gradients, torch.autograd.grad(expected, double, upstream.double()), strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rotation_and_its_backward(dtype):
    torch.manual_seed(0)
    parts = [torch.randn(2, heads, 5, 8).to(dtype).requires_grad_() for heads in (4, 2)]
    cos, sin = torch.randn(2, 5, 8), torch.randn(2, 5, 8)  # the two halves of a real pair are alike; here they are not
    upstream = [torch.randn(2, heads, 5, 8) for heads in (4, 2)]
    turned = apply_rotary_pos_emb(*parts, cos, sin)
    gradients = torch.autograd.grad(turned, parts, upstream)
    plain = [one * cos.unsqueeze(1) + rotate_half(one) * sin.unsqueeze(1) for one in parts]
    for found, expected in zip(
        [*turned, *gradients], [*plain, *torch.autograd.grad(plain, parts, upstream)], strict=True
    ):
        assert found.dtype == expected.dtype
        close = {"atol": 1e-6, "rtol": 1e-5} if found.dtype == torch.float32 else {"atol": 3e-2, "rtol": 2e-2}
        torch.testing.assert_close(found, expected, **close)

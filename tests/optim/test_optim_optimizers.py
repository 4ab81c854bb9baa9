"""StableAdamW against its vector and AdamW, Muon against torch's on matrices and expert by expert on banks."""

import copy

import pytest
import torch
from tiny_training import tiny_strata
from torch import nn

from hf_pretrain.optim.muon import MuonWithAdamW, orthogonalise
from hf_pretrain.optim.param_groups import parameter_groups
from hf_pretrain.optim.stable_adamw import StableAdamW, update_rms
from hf_pretrain.utils.errors import UserError


def test_stable_adamw_vector():
    gradient, second = torch.tensor([0.1, 0.2, 1.0, 0.05]), torch.full((4,), 0.01)
    rms = update_rms(gradient, second, 1e-8).item()
    assert rms == pytest.approx(5.129571, abs=1e-5)
    assert 1 / max(1.0, rms) == pytest.approx(0.194948, abs=1e-6)


def test_stable_adamw_is_adamw_where_the_gradient_is_steady_and_smaller_at_a_jump():
    start = torch.linspace(-1, 1, 8)
    first, second = nn.Parameter(start.clone()), nn.Parameter(start.clone())
    ours = StableAdamW([first], lr=0.1, weight_decay=0.1)
    theirs = torch.optim.AdamW([second], lr=0.1, betas=(0.9, 0.95), weight_decay=0.1)
    for scale in (1.0, 1.0, 1.0):
        first.grad, second.grad = torch.ones(8) * scale, torch.ones(8) * scale
        ours.step()
        theirs.step()
    assert torch.allclose(first, second, atol=1e-6)
    before = first.detach().clone(), second.detach().clone()
    first.grad = second.grad = torch.full((8,), 50.0)
    ours.step()
    theirs.step()
    assert (first - before[0]).abs().max() < 0.6 * (second - before[1]).abs().max()


def test_stable_adamw_decays_by_the_shrunken_rate():
    weight = nn.Parameter(torch.ones(1))
    optimizer = StableAdamW([weight], lr=0.1, weight_decay=0.5, betas=(0.9, 0.95))
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert weight.item() == pytest.approx(1 - 0.1 * 0.5)


@pytest.mark.parametrize(
    ("options", "message"), [({"eps": 0.0}, "eps = 0.0"), ({"betas": (0.9, 1.0)}, "betas"), ({"lr": -1.0}, "lr = -1")]
)
def test_stable_adamw_refuses(options, message):
    with pytest.raises(UserError, match=message):
        StableAdamW([nn.Parameter(torch.ones(1))], **options)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(6, 4)
        self.linear = nn.Linear(4, 8)
        self.gate = nn.Linear(4, 3, bias=False)
        self.norm = nn.LayerNorm(4)
        self.gate_up_proj = nn.Parameter(torch.randn(3, 12, 4))
        self.down_proj = nn.Parameter(torch.randn(3, 4, 6))
        self.down_proj_bias = nn.Parameter(torch.randn(3, 4))


def fill(module: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        parameter.grad = torch.randn(parameter.shape, generator=generator)


@pytest.mark.parametrize("decay", [0.1, 0.0])
def test_muon_takes_matrices_and_leaves_the_rest_to_adamw(decay):
    groups = MuonWithAdamW(Block(), lr=1e-3, weight_decay=decay).param_groups
    kinds = {name: group["kind"] for group in groups for name in group["names"]}
    assert kinds == {
        "embed.weight": "adamw",
        "linear.weight": "muon",
        "linear.bias": "adamw",
        "gate.weight": "adamw",
        "norm.weight": "adamw",
        "norm.bias": "adamw",
        "gate_up_proj": "muon_bank",
        "down_proj": "muon_bank",
        "down_proj_bias": "adamw",
    }
    decays = {name: group["weight_decay"] for group in groups for name in group["names"]}
    assert {name for name, value in decays.items() if value == 0.0 and decay} == (
        {"embed.weight", "linear.bias", "norm.weight", "norm.bias", "down_proj_bias"} if decay else set()
    )


def test_muon_equals_torch_on_matrices_and_expert_by_expert_on_banks():
    block = Block()
    reference = copy.deepcopy(block)
    ours = MuonWithAdamW(block, lr=0.01, weight_decay=0.1)
    # Every expert's gate, up and down as matrices of their own, in torch's optimizer.
    matrices = {"linear": nn.Parameter(reference.linear.weight.detach().clone())}
    for expert in range(3):
        gate, up = reference.gate_up_proj[expert].detach().chunk(2)
        matrices[f"gate{expert}"] = nn.Parameter(gate.clone())
        matrices[f"up{expert}"] = nn.Parameter(up.clone())
        matrices[f"down{expert}"] = nn.Parameter(reference.down_proj[expert].detach().clone())
    options = {"lr": 0.01, "weight_decay": 0.1, "adjust_lr_fn": "match_rms_adamw"}
    theirs = torch.optim.Muon(matrices.values(), **options)
    plain = torch.optim.AdamW([reference.embed.weight], lr=0.01, betas=(0.9, 0.95), weight_decay=0.0)
    for seed in range(3):
        fill(block, seed)
        matrices["linear"].grad = block.linear.weight.grad.clone()
        reference.embed.weight.grad = block.embed.weight.grad.clone()
        for expert in range(3):
            gate, up = block.gate_up_proj.grad[expert].chunk(2)
            matrices[f"gate{expert}"].grad, matrices[f"up{expert}"].grad = gate.clone(), up.clone()
            matrices[f"down{expert}"].grad = block.down_proj.grad[expert].clone()
        for optimizer in (ours, theirs, plain):
            optimizer.step()
    assert torch.equal(block.linear.weight, matrices["linear"])
    assert torch.equal(block.embed.weight, reference.embed.weight)
    for expert in range(3):
        both = torch.cat([matrices[f"gate{expert}"], matrices[f"up{expert}"]])
        assert torch.allclose(block.gate_up_proj[expert], both, atol=5e-4)  # the iteration is in bf16
        assert torch.allclose(block.down_proj[expert], matrices[f"down{expert}"], atol=5e-4)


def test_orthogonalise_levels_the_singular_values_of_each_matrix():
    torch.manual_seed(0)
    bank = torch.randn(5, 24, 8) * torch.tensor([1e-3, 1.0, 10.0, 1e3, 0.1]).view(5, 1, 1)
    values = torch.linalg.svdvals(orthogonalise(bank).float())
    assert values.min() > 0.5 and values.max() < 1.3
    assert torch.equal(orthogonalise(torch.zeros(2, 3, 4)), torch.zeros(2, 3, 4, dtype=torch.bfloat16))


def test_muon_goes_on_bit_by_bit_from_its_state():
    first, second = Block(), Block()
    one, two = MuonWithAdamW(first, lr=0.01), MuonWithAdamW(second, lr=0.5)
    for seed in range(2):
        fill(first, seed)
        one.step()
    second.load_state_dict(first.state_dict())
    two.load_state_dict(copy.deepcopy(one.state_dict()))
    for module, optimizer in ((first, one), (second, two)):
        fill(module, 7)
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def test_groups_of_strata():
    model = tiny_strata(tie_word_embeddings=False, router_bias_update_rate=0.001)
    kinds = {n: g["kind"] for g in MuonWithAdamW(model, lr=1e-3).param_groups for n in g["names"]}
    assert set(kinds) == {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert kinds["lm_head.weight"] == "adamw"
    for name, kind in kinds.items():
        if "gate.weight" in name or "embed" in name or "norm" in name or name.startswith("lm_head"):
            assert kind == "adamw", name
        elif "experts." in name and "shared" not in name:
            assert kind == "muon_bank", name
        else:
            assert kind == "muon", name
    decayed = {n for g in parameter_groups(model, 0.1) if g["weight_decay"] for n in g["names"]}
    assert all(("norm" in n or "embed" in n or n.endswith("bias")) != (n in decayed) for n in kinds)


def test_muon_refuses_a_model_without_matrices_and_options_out_of_range():
    with pytest.raises(UserError, match="no matrix beside embeddings"):
        MuonWithAdamW(nn.Embedding(4, 4), lr=1e-3)
    with pytest.raises(UserError, match="momentum = 1.0"):
        MuonWithAdamW(Block(), lr=1e-3, momentum=1.0)
    with pytest.raises(UserError, match="ns_steps = 0"):
        MuonWithAdamW(Block(), lr=1e-3, ns_steps=0)

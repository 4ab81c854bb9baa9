"""Routing against closed forms: the worked numbers of the papers and of the package's design notes."""

import math

import pytest
import torch

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.routing_strata import (
    StrataRouter,
    apply_capacity,
    closed_experts,
    count_assignments,
    dead_experts,
    expert_capacity,
    gumbel_noise,
    load_balance_loss,
    load_entropy,
    load_variation,
    max_violation,
    router_scores,
    router_z_loss,
    select_experts,
    selection_probability,
    unpack_statistics,
    updated_router_bias,
)


LOGITS = torch.tensor([[2.0, 1, 0, -1], [2, 0, 1, -1], [1.5, 1, 0, 0], [0, 2, 1, 0]])


def balance(logits, k, token_mask=None, scoring_func="softmax"):
    scores = router_scores(logits, scoring_func)
    shares = scores / scores.sum(-1, keepdim=True)
    counts = count_assignments(select_experts(scores, k), logits.shape[-1], token_mask)[0]
    mask = torch.ones(logits.shape[0]) if token_mask is None else token_mask.float()
    return load_balance_loss(counts, (shares * mask.unsqueeze(-1)).sum(0), mask.sum(), k)


def router(**fields):
    config = StrataConfig(
        vocab_size=32, hidden_size=4, intermediate_size=8, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=2, **{"num_experts": 4, "num_experts_per_tok": 2, **fields},
    )  # fmt: skip
    module = StrataRouter(config)
    torch.nn.init.eye_(module.weight)  # logits = hidden states
    return module.train()


@pytest.mark.parametrize(
    ("k", "counts", "loss", "violation", "variation", "entropy", "dead"),
    [
        (1, [3, 1, 0, 0], 1.700621, 2.0, 1.224745, 0.562335, 2),
        (2, [3, 3, 2, 0], 1.322067, 0.5, 0.612372, 1.082196, 1),
    ],
)
def test_worked_example(k, counts, loss, violation, variation, entropy, dead):
    found = count_assignments(select_experts(router_scores(LOGITS), k), 4)[0]
    assert found.tolist() == counts
    assert balance(LOGITS, k).item() == pytest.approx(loss, abs=1e-6)
    assert max_violation(found).item() == pytest.approx(violation, abs=1e-6)
    assert load_variation(found).item() == pytest.approx(variation, abs=1e-6)
    assert load_entropy(found).item() == pytest.approx(entropy, abs=1e-6)
    assert dead_experts(found).item() == dead


def test_probabilities_entropy_and_z_of_the_worked_example():
    module = router()
    named = unpack_statistics(module(LOGITS, collect=True).statistics, 4)
    expected = torch.tensor([0.46439118, 0.30744729, 0.16430959, 0.06385194])
    torch.testing.assert_close(named["probability_sum"][0] / 4, expected, atol=1e-7, rtol=0)
    assert (named["entropy_sum"] / 4).item() == pytest.approx(1.034200, abs=1e-6)
    assert (named["lse_sq_sum"] / named["lse_tokens"]).item() == pytest.approx(5.763250, abs=1e-6)
    assert router_z_loss(LOGITS).item() == pytest.approx(5.763250, abs=1e-6)


@pytest.mark.parametrize("k", [1, 2, 3])
def test_balance_is_one_when_balanced_and_never_pools_layers(k):
    rotations = torch.stack([torch.tensor([3.0, 2, 1, 0]).roll(shift) for shift in range(4)])
    assert balance(rotations, k).item() == pytest.approx(1.0, abs=1e-6)
    collapsed = torch.tensor([[10.0, -10], [10, -10], [10, -10], [10, -10]])
    counts = torch.stack([torch.tensor([4.0, 0]), torch.tensor([0.0, 4])])
    sums = torch.stack([collapsed.softmax(-1).sum(0), collapsed.flip(-1).softmax(-1).sum(0)])
    per_layer = load_balance_loss(counts, sums, torch.tensor([4.0, 4.0]), 1)
    torch.testing.assert_close(per_layer, torch.tensor([2.0, 2.0]))


def test_padding_is_not_counted():
    choice = torch.tensor([0, 1, 0, 1, 0, 1, 1, 1])
    logits = torch.nn.functional.one_hot(choice, 2) * 20.0 - 10.0
    mask = torch.tensor([1, 1, 1, 1, 1, 0, 0, 0])
    assert balance(logits, 1, mask).item() == pytest.approx(1.0400, abs=1e-4)
    assert balance(logits, 1).item() == pytest.approx(1.0625, abs=1e-4)
    nobody = balance(logits.requires_grad_(), 1, torch.zeros(8))
    nobody.backward()
    assert nobody.item() == 0.0
    assert logits.grad.abs().sum().item() == 0.0


def test_sigmoid_gates_and_sequence_balance():
    scores = router_scores(LOGITS, "sigmoid")
    gates = scores.gather(1, select_experts(scores, 2))
    gates = gates / gates.sum(-1, keepdim=True)
    torch.testing.assert_close(gates[0], torch.tensor([0.546449, 0.453551]), atol=1e-6, rtol=0)
    assert balance(LOGITS, 2, scoring_func="sigmoid").item() == pytest.approx(1.145776, abs=1e-6)
    torch.testing.assert_close(router(scoring_func="sigmoid")(LOGITS).weights, gates)


def test_bias_of_an_overloaded_expert_goes_down():
    counts = count_assignments(select_experts(router_scores(LOGITS, "sigmoid"), 2), 4)
    new = updated_router_bias(torch.zeros(1, 4), counts, 1e-3)
    torch.testing.assert_close(new[0], torch.tensor([-1e-3, -1e-3, 0.0, 1e-3]))


def test_bias_chooses_but_never_gates():
    module = router(router_bias_update_rate=0.1)
    module.e_score_correction_bias.copy_(torch.tensor([-9.0, 0, 0, 9.0]))
    routing = module(LOGITS)
    assert routing.indices[0].tolist() == [3, 1]
    expected = LOGITS.softmax(-1).gather(1, routing.indices)
    torch.testing.assert_close(routing.weights, expected / expected.sum(-1, keepdim=True))


def test_bias_balances_a_skewed_router():
    torch.manual_seed(0)
    offsets, bias, k = torch.linspace(-1, 1, 8) * 0.5, torch.zeros(8), 2
    first = None
    for _ in range(500):
        scores = router_scores(torch.randn(512, 8) * 0.5 + offsets, "sigmoid")
        counts = count_assignments(select_experts(scores, k, bias), 8)[0]
        first = max_violation(counts).item() if first is None else first
        bias = updated_router_bias(bias, counts, 1e-3)
    assert first > 0.8
    assert max_violation(counts).item() < 0.3


@pytest.mark.parametrize(
    ("tokens", "k", "experts", "factor", "capacity"),
    [
        (1024, 1, 8, 1.25, 160),
        (1024, 2, 8, 1.25, 320),
        (4096, 8, 64, 1.25, 640),
        (4096, 8, 64, 1.0, 512),
        (6, 1, 2, 1, 3),
    ],
)
def test_capacity_counts(tokens, k, experts, factor, capacity):
    assert expert_capacity(tokens, experts, k, factor) == capacity
    assert expert_capacity(torch.tensor(tokens), experts, k, factor).item() == capacity


SIX = torch.tensor([0.9, 0.6, 0.8, 0.55, 0.3, 0.95])
SIX_SCORES = torch.stack([SIX, 1 - SIX], dim=-1)


@pytest.mark.parametrize(("priority", "dropped"), [("position", [3, 5]), ("probability", [1, 3])])
def test_priority_decides_who_is_dropped(priority, dropped):
    indices = select_experts(SIX_SCORES, 1)
    new, kept, overflow = apply_capacity(indices, SIX_SCORES, 3, priority, "drop")
    assert (~kept[:, 0]).nonzero().flatten().tolist() == dropped
    assert torch.equal(new, indices)  # valid ids stay
    assert overflow.item() == 2
    new, kept, _ = apply_capacity(indices, SIX_SCORES, 3, priority, "reroute")
    assert kept.all()
    assert new[dropped, 0].tolist() == [1, 1]
    new, kept, overflow = apply_capacity(indices, SIX_SCORES, 3, priority, "dropless")
    assert kept.all() and torch.equal(new, indices) and overflow.item() == 2


def test_first_choices_come_before_second_choices():
    indices = torch.tensor([[1, 0], [2, 0], [0, 1]])  # token 2's first choice beats the second choices before it
    scores = torch.full((3, 3), 1 / 3)
    _, kept, _ = apply_capacity(indices, scores, 1, "position", "drop")
    assert kept.tolist() == [[True, False], [True, False], [True, False]]


def test_padding_takes_no_place():
    mask = torch.tensor([0, 0, 1, 1, 1, 1])
    _, kept, _ = apply_capacity(select_experts(SIX_SCORES, 1), SIX_SCORES, 3, "position", "drop", mask)
    assert kept.all()


def test_reroute_fills_every_place_and_never_repeats_an_expert():
    torch.manual_seed(0)
    scores = (torch.randn(64, 8) + torch.linspace(2, -2, 8)).softmax(-1)
    indices = select_experts(scores, 2)
    capacity = expert_capacity(64, 8, 2, 1.0)
    new, kept, overflow = apply_capacity(indices, scores, capacity, "probability", "reroute")
    counts = torch.zeros(8).index_add(0, new.flatten(), kept.flatten().float())
    assert overflow > 0
    assert counts.max() <= capacity
    assert (new[:, 0] != new[:, 1])[kept.all(-1)].all()
    _, dropped_only, _ = apply_capacity(indices, scores, capacity, "probability", "drop")
    assert kept.sum() > dropped_only.sum()


@pytest.mark.parametrize(
    ("tokens", "experts", "factor", "rate"),
    [(1024, 8, 1.0, 0.0328), (1024, 8, 1.25, 0.00005), (4096, 64, 1.0, 0.0496), (4096, 64, 1.25, 0.00128)],
)
def test_drop_rate_of_uniform_routing(tokens, experts, factor, rate):
    torch.manual_seed(1)
    capacity = expert_capacity(tokens, experts, 1, factor)
    runs = []
    for _ in range(40):
        indices = torch.randint(0, experts, (tokens, 1))
        _, kept, _ = apply_capacity(indices, torch.ones(tokens, experts) / experts, capacity)
        surplus = (indices.flatten().bincount(minlength=experts) - capacity).clamp(min=0).sum()
        assert (~kept).sum() == surplus
        runs.append((~kept).float().mean().item())
    assert sum(runs) / len(runs) == pytest.approx(rate, rel=0.15, abs=4e-4)


def test_dropped_assignments_have_weight_zero_and_a_valid_id():
    module = router(expert_capacity_factor=0.5)
    routing = module(LOGITS, collect=True)
    named = unpack_statistics(routing.statistics, 4)
    assert (routing.weights == 0).sum().item() == named["dropped"].item() > 0
    assert routing.indices.max() < 4
    assert named["load"][0].tolist() == [3, 3, 2, 0]  # what was asked for
    module.eval()
    assert (module(LOGITS).weights > 0).all()


def test_rerouted_gate_is_the_probability_of_the_expert_used():
    module = router(expert_capacity_factor=1.0, capacity_overflow="reroute", norm_topk_prob=False)
    routing = module(LOGITS)
    # Both choices of token 2 find their expert full and only expert 3 has room, so one moves and one is dropped.
    assert routing.indices[2].tolist() == [3, 1]
    gates = LOGITS.softmax(-1).gather(1, routing.indices)
    gates[2, 1] = 0.0
    torch.testing.assert_close(routing.weights, gates)


def test_gumbel_top_k_is_plackett_luce():
    torch.manual_seed(0)
    p = torch.tensor([0.5, 0.3, 0.15, 0.05])
    logits = p.log().expand(40000, 4)
    pairs = (logits + gumbel_noise(logits)).topk(2).indices.sort(-1).values
    share = ((pairs[:, 0] == 0) & (pairs[:, 1] == 1)).float().mean().item()
    assert share == pytest.approx(0.514286, abs=0.01)


def test_selection_probability_of_the_learned_noise():
    clean = torch.tensor([[1.0, 0.5, 0.0, -0.5]])
    scale = torch.nn.functional.softplus(torch.zeros_like(clean))
    assert scale[0, 0].item() == pytest.approx(math.log(2), abs=1e-6)
    found = selection_probability(clean, clean, scale, 2)
    torch.testing.assert_close(found[0], torch.tensor([0.925447, 0.764652, 0.235348, 0.074553]), atol=1e-6, rtol=0)


@pytest.mark.parametrize("noise", ["gumbel", "gaussian", "jitter"])
def test_noise_acts_in_training_only(noise):
    torch.manual_seed(0)
    module = router(router_noise=noise, router_noise_scale=0.9)
    clean = router()(LOGITS)
    hidden = LOGITS.repeat(16, 1)
    noisy = module(hidden, collect=True)
    assert not torch.equal(noisy.indices, clean.indices.repeat(16, 1))
    module.eval()
    for left, right in zip(module(LOGITS)[:3], clean[:3], strict=True):
        torch.testing.assert_close(left, right)


def test_learned_noise_gets_a_gradient_from_gate_and_balance():
    torch.manual_seed(0)
    module = router(router_noise="gaussian")
    routing = module(LOGITS, collect=True)
    named = unpack_statistics(routing.statistics, 4)
    loss = load_balance_loss(named["load"], named["probability_sum"], named["tokens"], 2).sum()
    (gradient,) = torch.autograd.grad(loss, module.noise_weight, retain_graph=True)
    assert gradient.abs().sum() > 0
    (gradient,) = torch.autograd.grad(routing.weights[:, 0].sum(), module.noise_weight)
    assert gradient.abs().sum() > 0


def test_expert_dropout_leaves_k_open():
    torch.manual_seed(0)
    closed = torch.stack([closed_experts(8, 2, 0.9) for _ in range(200)])
    assert (closed.sum(-1) <= 6).all()
    assert closed.float().mean() > 0.6
    assert closed_experts(8, 2, 0.0).sum() == 0


def test_router_is_float32_under_autocast():
    module = router()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        routing = module(LOGITS.bfloat16(), collect=True)
    assert routing.logits.dtype == torch.float32
    assert routing.statistics.dtype == torch.float32
    assert routing.weights.dtype == torch.bfloat16


def test_groups_are_counted_apart():
    module = router()
    rows = torch.stack([LOGITS, LOGITS.flip(-1)])
    grouped = module(rows, collect=True, num_groups=2).statistics
    torch.testing.assert_close(grouped[0], module(rows[0], collect=True).statistics[0])
    torch.testing.assert_close(grouped[1], module(rows[1], collect=True).statistics[0])
    torch.testing.assert_close(grouped.sum(0), module(rows, collect=True).statistics[0])

"""Worked values of the loss: science section 3, bugs L1, L3, L8, L9, Z1, Z2, Z3, Z7."""

import pytest
import torch
import torch.nn.functional as F

from hf_pretrain.losses.causal_lm import causal_lm_loss, causal_lm_loss_from_logits
from hf_pretrain.losses.chunked import chunked_causal_lm_loss, chunked_causal_lm_loss_from_logits
from hf_pretrain.utils.errors import UserError


ON_LOGITS = [causal_lm_loss_from_logits, chunked_causal_lm_loss_from_logits]
ON_HIDDEN = [causal_lm_loss, chunked_causal_lm_loss]


@pytest.mark.parametrize("function", ON_LOGITS)
def test_zloss_vector_of_palm(function):
    logits = torch.tensor([[2.0, 1, 0], [0, 0, 0], [10, -10, 5]], dtype=torch.float64, requires_grad=True)
    out = function(logits, None, shift_labels=torch.tensor([0, 1, 2]), z_loss_coef=1e-4)
    out.loss.backward()
    assert out.ce.item() == pytest.approx(2.170977867882989, abs=1e-12)
    assert out.z.item() == pytest.approx(0.0035712622515834363, abs=1e-14)
    assert out.loss.item() == pytest.approx(2.1745491301345727, abs=1e-12)
    assert out.lse_mean.item() == pytest.approx((2.4076059644443806 + 1.0986122886681098 + 10.006715350536476) / 3)
    assert out.lse_max.item() == pytest.approx(10.006715350536476)
    plain = torch.tensor([[2.0, 1, 0], [0, 0, 0], [10, -10, 5]], dtype=torch.float64, requires_grad=True)
    function(plain, None, shift_labels=torch.tensor([0, 1, 2])).loss.backward()
    z_gradient = (logits.grad - plain.grad)[0]
    assert z_gradient.tolist() == pytest.approx([1.0677587286e-4, 3.9280648439e-5, 1.4450542996e-5], rel=1e-6)


@pytest.mark.parametrize("function", ON_LOGITS)
def test_z_has_the_tokens_and_denominator_of_cross_entropy(function):
    """Bugs Z1: the ignored row must not leak into z."""
    logits = torch.tensor([[0.0, 0], [2, 2], [1, 3]])
    targets = torch.tensor([0, -100, 1])
    out = function(logits, None, shift_labels=targets, z_loss_coef=1e-4)
    assert out.ce.item() == pytest.approx(0.410038, abs=1e-6)
    assert out.z.item() / 1e-4 == pytest.approx(5.129066, abs=1e-4)
    assert out.loss.item() == pytest.approx(0.410551, abs=1e-6)
    assert out.num_tokens.item() == 2
    assert out.lse_max.item() == pytest.approx(3.126928, abs=1e-6)


def problem(rows=3, length=7, width=8, vocab=16, seed=0, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(rows, length, width, generator=generator).to(dtype)
    weight = torch.randn(vocab, width, generator=generator).to(dtype)
    labels = torch.randint(0, vocab, (rows, length), generator=generator)
    labels[0, :3] = -100
    return hidden.requires_grad_(), weight.requires_grad_(), labels


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_count_halves_both_parts(function):
    """Bugs Z3: with count 8 instead of 4, loss and z both halve."""
    hidden, weight, labels = problem()
    labels[:] = -100
    labels[0, 1:5] = torch.tensor([1, 2, 3, 4])
    four = function(hidden, weight, labels, num_items_in_batch=4, z_loss_coef=1e-2)
    eight = function(hidden, weight, labels, num_items_in_batch=torch.tensor(8), z_loss_coef=1e-2)
    assert eight.loss.item() == pytest.approx(four.loss.item() / 2, rel=1e-6)
    assert eight.z.item() == pytest.approx(four.z.item() / 2, rel=1e-6)
    assert four.num_tokens.item() == eight.num_tokens.item() == 4


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_all_options_at_once_against_torch(function):
    """Bugs Z2: head 16 x 8, 6 tokens, 2 of them ignored; z is that of the capped logits, nothing is dropped."""
    generator = torch.Generator().manual_seed(4)
    weight = torch.randn(16, 8, generator=generator).requires_grad_()
    hidden = torch.randn(6, 8, generator=generator).requires_grad_()
    targets = torch.tensor([3, -100, 0, 15, -100, 7])
    logits = 5.0 * torch.tanh(hidden @ weight.t() / 5.0)
    ce = F.cross_entropy(logits, targets, label_smoothing=0.1)
    z = 1e-2 * logits.logsumexp(dim=-1)[targets != -100].square().mean()
    expected = torch.autograd.grad(ce + z, (weight, hidden))
    out = function(
        hidden, weight, None, shift_labels=targets, z_loss_coef=1e-2, label_smoothing=0.1, logit_softcap=5.0
    )
    out.loss.backward()
    assert out.loss.item() == pytest.approx((ce + z).item(), abs=1e-5)
    assert out.z.item() == pytest.approx(z.item(), abs=1e-5)
    torch.testing.assert_close((weight.grad, hidden.grad), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("z_loss_coef", [0.0, 1e-2])
@pytest.mark.parametrize("function", ON_HIDDEN + ON_LOGITS)
def test_upstream_gradients_of_single_tokens(function, z_loss_coef):
    """Bugs Z7: four tokens with upstream gradients 1, 0, 0, 2 give the head g0 + 2 g3.

    There is no unreduced loss: a token's weight is what its own loss is multiplied by.
    """
    generator = torch.Generator().manual_seed(5)
    hidden = torch.randn(4, 8, generator=generator, dtype=torch.float64)
    weight = torch.randn(16, 8, generator=generator, dtype=torch.float64).requires_grad_()
    targets, upstream = torch.tensor([1, 2, 3, 4]), torch.tensor([1.0, 0.0, 0.0, 2.0], dtype=torch.float64)

    def token_loss(i):
        given = (hidden[i : i + 1], weight) if function in ON_HIDDEN else (hidden[i : i + 1] @ weight.t(),)
        return function(
            *given, None, shift_labels=targets[i : i + 1], num_items_in_batch=1, z_loss_coef=z_loss_coef
        ).loss

    def gradient(i):  # of a token, by hand: (softmax (1 + 2 coef lse) - one-hot) x hidden
        logits = weight.detach() @ hidden[i]
        slope = logits.softmax(0) * (1 + 2 * z_loss_coef * logits.logsumexp(0))
        slope[targets[i]] -= 1
        return torch.outer(slope, hidden[i])

    (torch.stack([token_loss(i) for i in range(4)]) @ upstream).backward()
    torch.testing.assert_close(weight.grad, gradient(0) + 2 * gradient(3), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_no_target_gives_zero_with_a_graph(function):
    """Bugs L8: with and without a given count, even a count of zero."""
    for items in (None, 0, torch.tensor(0), 5):
        hidden, weight, labels = problem()
        labels[:] = -100
        out = function(hidden, weight, labels, num_items_in_batch=items, z_loss_coef=1e-2, label_smoothing=0.1)
        assert out.loss.item() == 0.0 and out.num_tokens.item() == 0
        assert out.lse_mean.item() == 0.0 and out.lse_max.item() == float("-inf")
        out.loss.backward()
        assert torch.count_nonzero(hidden.grad) == 0 and torch.count_nonzero(weight.grad) == 0


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_labels_are_not_written_to(function):
    """Bugs L9."""
    hidden, weight, labels = problem()
    before = labels.clone()
    first = function(hidden, weight, labels, z_loss_coef=1e-3).loss.item()
    assert function(hidden, weight, labels, z_loss_coef=1e-3).loss.item() == first
    assert torch.equal(labels, before)


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_micro_batches_add_up(function):
    """Bugs L1: any split of the window gives one loss and one gradient."""
    hidden, weight, labels = problem(rows=4)
    items = labels[..., 1:].ne(-100).sum()
    whole = function(hidden, weight, labels, num_items_in_batch=items, z_loss_coef=1e-2)
    whole.loss.backward()
    expected, hidden.grad, weight.grad = (hidden.grad, weight.grad), None, None
    total = 0.0
    for row in range(4):
        part = function(
            hidden[row : row + 1], weight, labels[row : row + 1], num_items_in_batch=items, z_loss_coef=1e-2
        )
        part.loss.backward()
        total += part.loss.item()
    assert total == pytest.approx(whole.loss.item(), rel=1e-6)
    torch.testing.assert_close((hidden.grad, weight.grad), expected, rtol=1e-5, atol=1e-6)


def tiny_llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
    )
    return LlamaForCausalLM(config)


def test_shifted_count_on_a_model():
    """Bugs L3: 9 targets, not 10; the value is that of transformers' own loss on this model."""
    model = tiny_llama()
    ids = torch.tensor([list(range(1, 9)), list(range(9, 17))])
    labels = ids.clone()
    labels[1, :-2] = -100
    hidden = model.model(ids).last_hidden_state
    for function in ON_HIDDEN:
        out = function(hidden, model.lm_head.weight, labels)
        assert out.num_tokens.item() == 9
        assert out.loss.item() == pytest.approx(3.47465, abs=5e-5)
        smooth = function(hidden, model.lm_head.weight, labels, label_smoothing=0.1)
        assert smooth.loss.item() == pytest.approx(3.47406, abs=5e-5)


@pytest.mark.parametrize("function", ON_HIDDEN)
def test_bad_input_is_named(function):
    hidden, weight, labels = problem()
    for option, value in (
        ("z_loss_coef", -1e-4),
        ("z_loss_coef", 1.5),
        ("label_smoothing", 1.0),
        ("logit_softcap", 0),
    ):
        with pytest.raises(UserError, match=option):
            function(hidden, weight, labels, **{option: value})
    with pytest.raises(UserError, match="z_loss_coef = True"):
        function(hidden, weight, labels, z_loss_coef=True)
    with pytest.raises(UserError, match=r"lm_head_weight has shape \(16, 7\)"):
        function(hidden, weight[:, :7], labels)
    with pytest.raises(UserError, match="labels hold 6 positions"):
        function(hidden, weight, labels[:1, :6])
    with pytest.raises(UserError, match="labels = None"):
        function(hidden, weight, None)
    outside = labels.clone()
    outside[1, 2] = 16
    with pytest.raises(UserError, match="labels hold 16; allowed are 0 to 15"):
        function(hidden, weight, outside)

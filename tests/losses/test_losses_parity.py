"""The chunked loss against the plain one: every pair of options, forward and backward, any chunk size and dtype."""

import itertools

import pytest
import torch
import torch.nn.functional as F

from hf_pretrain.losses.causal_lm import causal_lm_loss, causal_lm_loss_from_logits
from hf_pretrain.losses.chunked import chunk_rows, chunked_causal_lm_loss, chunked_causal_lm_loss_from_logits


OPTIONS = {
    "z_loss_coef": 1e-2,
    "label_smoothing": 0.1,
    "logit_softcap": 5.0,
    "num_items_in_batch": 23,
    "ignore_index": 3,
}
PAIRS = [{}] + [dict([pair]) for pair in OPTIONS.items()]
PAIRS += [dict(pair) for pair in itertools.combinations(OPTIONS.items(), 2)] + [OPTIONS]


def problem(dtype=torch.float64, rows=2, length=40, width=8, vocab=16, ignored=True):
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(rows, length, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    weight = torch.randn(vocab, width, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()
    labels = torch.randint(0, vocab, (rows, length), generator=generator)
    if ignored:
        labels[0, 2:5] = -100
    return hidden, weight, labels


def results(function, hidden, weight, labels, factor=1.0, **options):
    hidden.grad = weight.grad = None
    out = function(hidden, weight, labels, **options)
    (out.loss * factor).backward()
    return out, hidden.grad.clone(), weight.grad.clone()


def assert_same(one, other, tolerance):
    for name in ("loss", "ce", "z", "lse_mean", "lse_max"):
        torch.testing.assert_close(
            getattr(one[0], name).double(), getattr(other[0], name).double(), rtol=tolerance, atol=tolerance, msg=name
        )
    assert one[0].num_tokens.item() == other[0].num_tokens.item()
    torch.testing.assert_close(one[1:], other[1:], rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("options", PAIRS, ids=lambda o: "+".join(o) or "plain")
def test_every_pair_of_options(options):
    options = dict(options)
    ignored = "ignore_index" not in options
    hidden, weight, labels = problem(ignored=ignored)
    expected = results(causal_lm_loss, hidden, weight, labels, **options)
    for budget in (16 * 16 * 8, 10**9):  # five chunks, one chunk
        got = results(chunked_causal_lm_loss, hidden, weight, labels, memory_budget=budget, **options)
        assert_same(got, expected, 1e-10)


@pytest.mark.parametrize("options", PAIRS, ids=lambda o: "+".join(o) or "plain")
def test_every_pair_of_options_on_logits(options):
    options = dict(options)
    hidden, weight, labels = problem(ignored="ignore_index" not in options)
    given = F.linear(hidden, weight).detach()
    grads = []
    for function, extra in (
        (causal_lm_loss_from_logits, {}),
        (chunked_causal_lm_loss_from_logits, {"memory_budget": 16 * 16 * 8}),
    ):
        logits = given.clone().requires_grad_()
        out = function(logits, labels, **options, **extra)
        (out.loss * 3.0).backward()
        grads.append((out, logits.grad, torch.zeros(())))
    assert_same(grads[1], grads[0], 1e-10)


def test_upstream_factor_and_frozen_head():
    hidden, weight, labels = problem()
    expected = results(causal_lm_loss, hidden, weight, labels, factor=0.25, z_loss_coef=1e-2)
    assert_same(
        results(chunked_causal_lm_loss, hidden, weight, labels, factor=0.25, z_loss_coef=1e-2), expected, 1e-10
    )
    weight.requires_grad_(False)
    hidden.grad = None
    chunked_causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-2).loss.mul(0.25).backward()
    torch.testing.assert_close(hidden.grad, expected[1])


def test_tied_weight_gets_both_gradients():
    _, weight, labels = problem()
    ids = labels.clamp(min=0)
    grads = []
    for function in (causal_lm_loss, chunked_causal_lm_loss):
        weight.grad = None
        function(F.embedding(ids, weight), weight, labels).loss.backward()
        grads.append(weight.grad.clone())
    torch.testing.assert_close(grads[1], grads[0])


def test_second_backward_is_refused():
    hidden, weight, labels = problem()
    loss = chunked_causal_lm_loss(hidden, weight, labels).loss
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="one backward only"):
        loss.backward()


def test_no_gradient_no_graph():
    hidden, weight, labels = problem()
    with torch.no_grad():
        out = chunked_causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-2)
    assert not out.loss.requires_grad
    torch.testing.assert_close(out.loss, causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-2).loss.detach())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("autocast", [False, True])
def test_error_no_larger_than_the_naive_path(dtype, autocast):
    """Against fp64: no worse than logits by `F.linear` in that dtype and transformers' loss, plus 1e-6."""
    from transformers.loss.loss_utils import ForCausalLMLoss

    if autocast and dtype != torch.float32:
        pytest.skip("autocast is for fp32 weights")
    generator = torch.Generator().manual_seed(2)
    hidden = torch.randn(1, 300, 32, generator=generator)
    weight = torch.randn(128, 32, generator=generator) * 0.3
    labels = torch.randint(0, 128, (1, 300), generator=generator)
    truth_in = [hidden.to(dtype).double().requires_grad_(), weight.to(dtype).double().requires_grad_()]
    truth = causal_lm_loss(*truth_in, labels)
    truth.loss.backward()

    def errors(run):
        inputs = [hidden.to(dtype).clone().requires_grad_(), weight.to(dtype).clone().requires_grad_()]
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = run(*inputs)
        loss.backward()
        pairs = [(loss, truth.loss), *((one.grad, other.grad) for one, other in zip(inputs, truth_in, strict=True))]
        return [((a.double() - b).norm() / b.norm()).item() for a, b in pairs]

    naive = errors(lambda h, w: ForCausalLMLoss(F.linear(h, w), labels, 128))
    ours = errors(lambda h, w: chunked_causal_lm_loss(h, w, labels, memory_budget=64 * 128 * 4).loss)
    for name, mine, theirs in zip(("loss", "hidden", "weight"), ours, naive, strict=True):
        assert mine <= theirs * 1.1 + 1e-6, (name, mine, theirs)


@pytest.mark.parametrize("tokens", [1024, 8192])
def test_bf16_weight_gradient_does_not_drift(tokens):
    """Bugs Z4: relative error below 1e-2 and not growing with the number of chunks."""
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(1, tokens, 16, generator=generator).bfloat16().requires_grad_()
    weight = (torch.randn(512, 16, generator=generator) * 0.1).bfloat16().requires_grad_()
    labels = torch.randint(0, 512, (1, tokens), generator=generator)
    chunked_causal_lm_loss(hidden, weight, labels, memory_budget=64 * 512 * 4).loss.backward()
    exact = weight.detach().double().requires_grad_()
    causal_lm_loss(hidden.detach().double(), exact, labels).loss.backward()
    error = (weight.grad.double() - exact.grad).norm() / exact.grad.norm()
    assert error < 1e-2


def test_chunks_are_even_and_within_the_budget():
    assert chunk_rows(2048, 1000, 4 * 1000 * 600) == 512
    assert chunk_rows(10, 1000, 1) == 10
    assert chunk_rows(100, 10**6, 1) == 15  # never below about 16 rows
    assert chunk_rows(0, 1000, 10**9) == 1

"""The head's bytes: published sizes, Liger's own chunk rule, and what the implementations really allocate."""

import pytest

from hf_pretrain.planning.head_memory import CHUNK_BUDGETS, chunk_rows, head_memory, liger_chunk_rows
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize(("tokens", "logits_gb", "peak_gb"), [(8192, 2.10, 12.61), (32768, 8.41, 50.43)])
def test_llama_3_logits(tokens, logits_gb, peak_gb):
    found = head_memory(tokens, 128256, 4096)
    assert found.logits / 1e9 == pytest.approx(logits_gb, abs=0.005)
    assert head_memory(tokens, 128256, 4096, "float32").logits / 1e9 == pytest.approx(2 * logits_gb, abs=0.01)
    cast_weight = 128256 * 4096 * 2
    assert (found.naive - cast_weight) / 1e9 == pytest.approx(peak_gb, abs=0.01)


def test_gemma_2_needs_three_fp32_copies():
    found = head_memory(8192, 256000, 2304, "float32")
    assert found.naive / 2**30 == pytest.approx(23.44, abs=0.005)


@pytest.mark.parametrize(
    ("tokens", "vocab", "width", "rows"), [(16384, 32000, 4096, 2048), (8192, 128256, 4096, 256), (10, 32, 64, 10)]
)
def test_liger_chunk_rule(tokens, vocab, width, rows):
    assert liger_chunk_rows(tokens, vocab, width) == rows


def test_liger_chunk_of_llama_3():
    bare = head_memory(8192, 128256, 4096, weight_dtype="bfloat16").liger - 8192 * 4096 * 2 - 128256 * 4096 * 4
    assert bare / 1e6 == pytest.approx(65.7, abs=0.05)


def test_chunk_rule_is_that_of_the_losses():
    chunked = pytest.importorskip("hf_pretrain.losses.chunked")
    assert CHUNK_BUDGETS == {"cpu": chunked.CPU_MEMORY_BUDGET, "cuda": chunked.ACCELERATOR_MEMORY_BUDGET}
    for tokens in (1, 15, 500, 2048, 9999):
        for vocab in (50, 8192, 131072, 2_000_000):
            for device, budget in CHUNK_BUDGETS.items():
                assert chunk_rows(tokens, vocab, device) == chunked.chunk_rows(tokens, vocab, budget)


@pytest.mark.parametrize("shape", [(512, 8192, 64), (300, 2048, 128), (16, 4096, 256)], ids=str)
@pytest.mark.parametrize(
    ("dtype", "weight_dtype"), [("float32", "float32"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
)
def test_formulas_are_what_is_allocated(monkeypatch, shape, dtype, weight_dtype):
    """Naive and chunked, live bytes of real calls; with a budget small enough that there are several chunks."""
    torch = pytest.importorskip("torch")
    from allocations import AllocationCounter
    from transformers.loss.loss_utils import ForCausalLMLoss

    from hf_pretrain.losses import chunked

    budget = 2**21
    monkeypatch.setattr(chunked, "CPU_MEMORY_BUDGET", budget)
    monkeypatch.setitem(CHUNK_BUDGETS, "cpu", budget)
    tokens, vocab, width = shape
    labels = torch.randint(0, vocab, (1, tokens))
    expected = head_memory(*shape, dtype, weight_dtype, "cpu")

    def measure(function):
        hidden = torch.randn(1, tokens, width).to(getattr(torch, dtype)).requires_grad_()
        weight = torch.randn(vocab, width).to(getattr(torch, weight_dtype)).requires_grad_()
        counter = AllocationCounter()
        for tensor in (hidden, weight, labels):
            counter.watch(tensor)
        before = counter.live
        with counter, torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype != weight_dtype):
            loss = function(hidden, weight)
            loss.backward()
        return counter.peak - before

    naive = measure(lambda hidden, weight: ForCausalLMLoss(torch.nn.functional.linear(hidden, weight), labels, vocab))
    ours = measure(lambda hidden, weight: chunked.chunked_causal_lm_loss(hidden, weight, labels).loss)
    assert naive == pytest.approx(expected.naive, rel=0.02)
    assert ours == pytest.approx(expected.chunked, rel=0.02)


def test_longer_batches_cost_the_naive_path_most():
    short, long = (head_memory(tokens, 131072, 2048) for tokens in (4096, 32768))
    assert long.naive / short.naive > 4
    assert long.chunked < 1.5 * short.chunked and long.liger < long.naive / 8
    assert short.to_dict()["naive"] == short.naive


def test_bad_sizes_are_named():
    with pytest.raises(UserError, match="num_tokens = 0"):
        head_memory(0, 10, 10)
    with pytest.raises(UserError, match="vocab_size = 1.5"):
        head_memory(1, 1.5, 10)
    with pytest.raises(UserError, match="Unknown dtype 'bfloat'"):
        head_memory(1, 1, 1, "bfloat")

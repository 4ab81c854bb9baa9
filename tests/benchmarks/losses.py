"""The chunked loss against what users have: logits by `F.linear`, then transformers' `ForCausalLMLoss`; and against
torch's own chunked linear cross-entropy, where the installed version has it (it has no z-loss).

One thread, one process, forward and backward, T = 2048 tokens, width 256, fp32; the candidates take turns and the best
round counts. Memory is the peak of what torch allocates during one call beyond its inputs, gradients included.

    python tests/benchmarks/losses.py [--vocab 8192 32768 131072] [--rounds 3]
"""

import argparse
import os
import time


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from hf_pretrain.losses.chunked import chunked_causal_lm_loss, chunked_causal_lm_loss_from_logits  # noqa: E402


TOKENS, WIDTH = 2048, 256


def candidates(hidden, weight, labels, vocab):
    """Name to a function that makes the loss with a graph."""

    def stock():
        return ForCausalLMLoss(F.linear(hidden, weight), labels, vocab)

    def stock_with_z():
        logits = F.linear(hidden, weight)
        keep = F.pad(labels, (0, 1), value=-100)[..., 1:] != -100
        lse = torch.logsumexp(logits.float(), dim=-1)
        return ForCausalLMLoss(logits, labels, vocab) + 1e-4 * lse[keep].square().mean()

    def on_logits():
        return chunked_causal_lm_loss_from_logits(F.linear(hidden, weight), labels, z_loss_coef=1e-4).loss

    table = {
        "stock": stock,
        "stock + z by hand": stock_with_z,
        "ours on logits + z": on_logits,
        "chunked": lambda: chunked_causal_lm_loss(hidden, weight, labels).loss,
        "chunked + z": lambda: chunked_causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-4).loss,
        "chunked + z, smoothing": lambda: (
            chunked_causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-4, label_smoothing=0.1).loss
        ),
    }
    if hasattr(F, "linear_cross_entropy"):
        flat = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)
        options = torch.nn.LinearCrossEntropyOptions()
        table["torch chunked, no z"] = lambda: F.linear_cross_entropy(
            hidden.reshape(-1, WIDTH), weight, flat, options=options
        )
    return table


def peak_bytes(call, hidden, weight):
    """Peak of torch's allocations during a call, from the profiler's stream of allocations and frees."""
    hidden.grad = weight.grad = None  # else freeing them would hide as much
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        call()
    events = [one for one in record.profiler.kineto_results.events() if one.name() == "[memory]"]
    events.sort(key=lambda one: one.start_ns())
    total = peak = 0
    for event in events:
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def measure(vocab, rounds):
    """Prints one table."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=generator, requires_grad=True)
    weight = (torch.randn(vocab, WIDTH, generator=generator) * 0.02).requires_grad_()
    labels = torch.randint(0, vocab, (1, TOKENS), generator=generator)
    functions = candidates(hidden, weight, labels, vocab)

    def step(function):
        hidden.grad = weight.grad = None
        loss = function()
        loss.backward()
        return loss.item()

    best = dict.fromkeys(functions, float("inf"))
    losses = {name: step(function) for name, function in functions.items()}
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            step(function)
            best[name] = min(best[name], time.perf_counter() - start)
    memory = {
        name: peak_bytes(lambda function=function: step(function), hidden, weight)
        for name, function in functions.items()
    }
    print(f"\nvocabulary {vocab}, {TOKENS} tokens, width {WIDTH}, fp32, 1 thread, best of {rounds}")
    print(f"{'':28}{'seconds':>9}{'x stock':>9}{'peak MiB':>10}{'of stock':>10}{'loss':>10}")
    for name in functions:
        print(
            f"{name:28}{best[name]:9.3f}{best['stock'] / best[name]:9.2f}{memory[name] / 2**20:10.1f}"
            f"{memory[name] / memory['stock']:10.3f}{losses[name]:10.4f}"
        )


def main():
    """Reads the options and prints a table a vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 32768])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for vocab in options.vocab:
        measure(vocab, options.rounds)


if __name__ == "__main__":
    main()

"""The chunked loss against what users have: logits by `F.linear`, then transformers' `ForCausalLMLoss`; and against
the chunked losses of torch (where the installed version has one) and of TRL's `SFTTrainer`, neither with z-loss.

One thread, one process, forward and backward, T = 2048 tokens, width 256, fp32; the candidates take turns and the best
round counts. Memory is the peak of what torch allocates during one call beyond its inputs, gradients included; "extra"
is without the gradients that every candidate must return (of the hidden states and of the head's weight).

Goals: chunked at least 1.3 times as fast as stock at 131,072 rows and never below 0.95 times at 8,192; extra memory at
most 1/8 of stock's at 131,072; z-loss at most 5% on top.

    OMP_NUM_THREADS=1 python tests/benchmarks/losses.py [--vocab 8192 32768 131072] [--rounds 3] [--quick]
"""

import argparse
import functools
import os
import time
from collections.abc import Callable


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers.loss.loss_utils import ForCausalLMLoss  # noqa: E402

from hf_pretrain.losses.chunked import chunked_causal_lm_loss, chunked_causal_lm_loss_from_logits  # noqa: E402


TOKENS, WIDTH = 2048, 256
TRL_CHUNK = 32768  # columns, as in trl.trainer.utils


def candidates(hidden: torch.Tensor, weight: torch.Tensor, labels: torch.Tensor, vocab: int) -> dict[str, Callable]:
    """Name to a function that makes the loss with a graph."""
    targets = F.pad(labels, (0, 1), value=-100)[..., 1:].reshape(-1)

    def stock() -> torch.Tensor:
        return ForCausalLMLoss(F.linear(hidden, weight), labels, vocab)

    def stock_with_z() -> torch.Tensor:
        logits = F.linear(hidden, weight)
        lse = torch.logsumexp(logits.float(), dim=-1).reshape(-1)
        return ForCausalLMLoss(logits, labels, vocab) + 1e-4 * lse[targets != -100].square().mean()

    def on_logits() -> torch.Tensor:
        return chunked_causal_lm_loss_from_logits(F.linear(hidden, weight), labels, z_loss_coef=1e-4).loss

    table = {
        "stock": stock,
        "stock + z by hand": stock_with_z,
        "ours on logits + z": on_logits,
        "chunked": lambda: chunked_causal_lm_loss(hidden, weight, labels).loss,
        "chunked + z": lambda: chunked_causal_lm_loss(hidden, weight, labels, z_loss_coef=1e-4).loss,
    }
    if hasattr(F, "linear_cross_entropy"):
        options = torch.nn.LinearCrossEntropyOptions()
        table["torch `linear_cross_entropy`"] = lambda: F.linear_cross_entropy(
            hidden.reshape(-1, WIDTH), weight, targets, options=options
        )
    try:
        from trl.kernels import ChunkedLogProbFunction
    except ImportError:
        return table

    def trl() -> torch.Tensor:
        chosen = (hidden.reshape(-1, WIDTH), weight, None, targets.clamp(min=0))
        log_probs = ChunkedLogProbFunction.apply(*chosen, 1.0, TRL_CHUNK, None, 1.0, ("log_probs",))[0]
        mask = targets != -100
        return -log_probs.masked_fill(~mask, 0).sum() / mask.sum()

    return {**table, "TRL chunked": trl}


def peak_bytes(call: Callable, hidden: torch.Tensor, weight: torch.Tensor) -> int:
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


def measure(vocab: int, rounds: int) -> None:
    """Prints one table and holds it to the goals."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(1, TOKENS, WIDTH, generator=generator, requires_grad=True)
    weight = (torch.randn(vocab, WIDTH, generator=generator) * 0.02).requires_grad_()
    labels = torch.randint(0, vocab, (1, TOKENS), generator=generator)
    functions = candidates(hidden, weight, labels, vocab)

    def step(function: Callable) -> float:
        hidden.grad = weight.grad = None
        loss = function()
        loss.backward()
        return loss.item()

    best = dict.fromkeys(functions, float("inf"))
    memory, losses = {}, {}
    for name, function in functions.items():  # also the warm-up
        call = functools.partial(step, function)
        losses[name] = call()
        memory[name] = peak_bytes(call, hidden, weight)
    for _ in range(rounds):
        for name, function in functions.items():
            start = time.perf_counter()
            step(function)
            best[name] = min(best[name], time.perf_counter() - start)
    returned = 4 * (hidden.numel() + weight.numel())
    extra = {name: size - returned for name, size in memory.items()}
    print(f"\nVocabulary {vocab:,}, best of {rounds}:\n")
    print("| loss | seconds | times stock's speed | peak MiB | extra MiB | extra / stock's | value |")
    print("|---|---|---|---|---|---|---|")
    for name in functions:
        print(
            f"| {name} | {best[name]:.3f} | {best['stock'] / best[name]:.2f} | {memory[name] / 2**20:.1f} "
            f"| {extra[name] / 2**20:.1f} | {extra[name] / extra['stock']:.3f} | {losses[name]:.4f} |",
            flush=True,
        )
    speed, z = best["stock"] / best["chunked"], best["chunked + z"] / best["chunked"] - 1
    print(f"\nChunked: {speed:.2f} x stock, z-loss {z:+.1%}, memory 1/{extra['stock'] / extra['chunked']:.1f}.")


def main() -> None:
    """Reads the options and prints a table a vocabulary."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vocab", type=int, nargs="+", default=[8192, 32768, 131072])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="8,192 rows, one round")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{TOKENS} tokens, width {WIDTH}, fp32, one thread, forward and backward; torch {torch.__version__}.")
    for vocab in [8192] if options.quick else options.vocab:
        measure(vocab, 1 if options.quick else options.rounds)


if __name__ == "__main__":
    main()

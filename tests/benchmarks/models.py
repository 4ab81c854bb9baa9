"""Strata against the stock models of the same shape: tokens a second of forward and backward, and peak memory.

One thread, one process, fp32. Both models get the same batch; each repetition times both, one after the other and in
turning order, so that a busy machine slows both alike; time is the process's own on the processor. The figure is the
median of the ratios of the repetitions. The stock mixture of experts runs `grouped_mm`, without its balance loss
(output_router_logits off). Strata runs as it does by default on this machine.

* "plain": no balance term, no bias, no capacity, no noise (the counters run, as they always do in training).
* "routed": capacity 1.25 by position, loss-free bias with its update, load-balance and router z-loss.
* Memory: the largest sum of what torch allocated and had not freed, from the profiler's allocations, over one
  forward and backward from no gradients; parameters are there before and do not count.
* Statistics: what collecting the router statistics adds to a step, timed by turning it off for every other call.

    OMP_NUM_THREADS=1 python tests/benchmarks/models.py [--quick]
"""

import argparse
import os
import statistics
import time


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402
import transformers  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM  # noqa: E402

from hf_pretrain.models.strata.configuration_strata import StrataConfig  # noqa: E402
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM  # noqa: E402


SHAPE = {
    "vocab_size": 1024,  # the head is 8% of the products of a token, as at a billion active parameters
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
}
EXPERTS = {
    8: {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 384},
    64: {"num_experts": 64, "num_experts_per_tok": 8, "moe_intermediate_size": 96},
}
PLAIN = {"router_aux_loss_coef": 0.0, "router_z_loss_coef": 0.0}
ROUTED = {
    "router_aux_loss_coef": 0.01,
    "router_z_loss_coef": 0.001,
    "router_bias_update_rate": 0.001,
    "expert_capacity_factor": 1.25,
}


def make(kind: str, experts: int, features: dict) -> torch.nn.Module:
    """A model in training mode, from one seed."""
    torch.manual_seed(0)
    sparse = EXPERTS.get(experts, {})
    if kind == "strata":
        return StrataForCausalLM(StrataConfig(**SHAPE, **sparse, **features)).train()
    if not experts:
        return Qwen3ForCausalLM(Qwen3Config(**SHAPE, use_cache=False)).train()
    config = Qwen3MoeConfig(**SHAPE, **sparse, norm_topk_prob=True, use_cache=False)
    return Qwen3MoeForCausalLM._from_config(config, experts_implementation="grouped_mm").train()


def step(model: torch.nn.Module, ids: torch.Tensor) -> None:
    """One forward and backward, and what belongs to the optimizer step."""
    model.zero_grad(set_to_none=True)
    model(input_ids=ids, labels=ids, num_items_in_batch=ids[:, 1:].numel()).loss.backward()
    if getattr(model.config, "router_bias_update_rate", None) is not None:
        model.update_router_bias()


def seconds(call) -> float:
    """Processor time of a call; its wall time, when the machine does nothing else."""
    start = time.process_time()
    call()
    return time.process_time() - start


def peak_bytes(model: torch.nn.Module, ids: torch.Tensor) -> int:
    """Peak of torch's allocations during one step, from the profiler's allocations and frees."""
    model.zero_grad(set_to_none=True)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        step(model, ids)
    events = [one for one in record.profiler.kineto_results.events() if one.name() == "[memory]"]
    events.sort(key=lambda one: one.start_ns())
    total = peak = 0
    for event in events:
        total += event.nbytes()
        peak = max(peak, total)
    return peak


def compare(experts: int, features: dict, ids: torch.Tensor, rounds: int) -> dict[str, float]:
    """Rates, ratio and peaks of one pair of models."""
    models = {"strata": make("strata", experts, features), "stock": make("stock", experts, features)}
    times: dict[str, list[float]] = {name: [] for name in models}
    for model in models.values():
        step(model, ids)
    for number in range(rounds):
        for name in list(models) if number % 2 == 0 else reversed(models):
            times[name].append(seconds(lambda name=name: step(models[name], ids)))
    ratios = sorted(stock / ours for ours, stock in zip(times["strata"], times["stock"], strict=True))
    return {
        **{name: ids.numel() / statistics.median(values) for name, values in times.items()},
        "ratio": statistics.median(ratios),
        "low": ratios[len(ratios) // 4],
        "high": ratios[-1 - len(ratios) // 4],
        **{f"{name} peak": peak_bytes(model, ids) for name, model in models.items()},
    }


def statistics_share(experts: int, ids: torch.Tensor, rounds: int) -> float:
    """Share of a training step that the router statistics cost: with them against without, in turns."""
    model = make("strata", experts, PLAIN)
    blocks = [layer.mlp for layer in model.model.layers]
    collecting = [block.forward for block in blocks]

    def collect(on: bool) -> None:
        for block, forward in zip(blocks, collecting, strict=True):
            block.forward = forward if on else lambda hidden, *_, forward=forward: (forward(hidden)[0], zero)

    zero = torch.zeros(1, 2 * experts + 6)
    shares = []
    for number in range(2 * rounds + 1):
        taken = {}
        for on in (True, False) if number % 2 else (False, True):
            collect(on)
            taken[on] = seconds(lambda: step(model, ids))
        shares.append(taken[True] / taken[False] - 1)
    return statistics.median(shares[1:])


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--length", type=int, default=256)
    parser.add_argument("--quick", action="store_true", help="5 rounds")
    options = parser.parse_args()
    rounds = 5 if options.quick else options.rounds
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    shape = (options.batch, options.length)
    ids = torch.randint(0, SHAPE["vocab_size"], shape, generator=torch.Generator().manual_seed(0))

    print("| model | stock | Strata tokens/s | stock tokens/s | ratio (quartiles) | goal | peak MB: Strata | stock |")
    print("|---|---|---|---|---|---|---|---|")
    for label, experts, features, goal in (
        ("dense", 0, {}, 1.00),
        ("8 experts, plain", 8, PLAIN, 1.05),
        ("64 experts, plain", 64, PLAIN, 1.05),
        ("8 experts, routed", 8, ROUTED, 0.95),
        ("64 experts, routed", 64, ROUTED, 0.95),
    ):
        found = compare(experts, features, ids, rounds)
        print(
            f"| {label} | {'Qwen3-MoE' if experts else 'Qwen3'} | {found['strata']:.0f} | {found['stock']:.0f} "
            f"| {found['ratio']:.3f} ({found['low']:.3f}-{found['high']:.3f}) | {goal:.2f} "
            f"| {found['strata peak'] / 1e6:.1f} | {found['stock peak'] / 1e6:.1f} |",
            flush=True,
        )
    for experts in EXPERTS:
        print(f"\nRouter statistics, {experts} experts: {statistics_share(experts, ids, rounds):.2%} of a step.")


if __name__ == "__main__":
    main()

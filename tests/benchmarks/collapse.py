"""Collapse of the experts, shown and prevented: one tiny mixture of experts, trained in turn with each remedy.

Text: Python's own reference topics (`pydoc_data.topics`, English prose in the standard library), as bytes. The model,
its first weights, the order of the batches and the optimizer are the same in every run; only the named fields of
`StrataConfig` differ. Everything is fp32, on one thread, from fixed seeds.

The setup is chosen to make collapse likely, and so is harder than a usual one: one expert per token (top-1, as in
arXiv 2101.03961), its gate not renormalised, a high learning rate without warm-up, and a router that starts
`ROUTER_SCALE` times larger than the default. A milder setup collapses less or later.

MaxVio is max load / mean load - 1 (0 is balanced, 15 one expert for all of 16), entropy is that of the load over
log E (1 is balanced), dead experts had no token; all over the last `WINDOW` steps, means over layers except the dead,
which are added up. They tell what tokens asked for. "Served" is the MaxVio of what they got: capacity spreads the
work without changing what the router wants. Loss is the cross-entropy on held-out text, in evaluation (no noise, no
capacity). The alarm is the one of `RouterHealthCallback`.

    OMP_NUM_THREADS=1 python tests/benchmarks/collapse.py [--quick]
"""

import argparse
import functools
import os
import pydoc_data.topics
import time


os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"

import torch  # noqa: E402

from hf_pretrain.callbacks.router_health import looks_collapsed, router_metrics  # noqa: E402
from hf_pretrain.models.strata.configuration_strata import StrataConfig  # noqa: E402
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM  # noqa: E402
from hf_pretrain.models.strata.routing_strata import max_violation  # noqa: E402


EXPERTS, LENGTH, BATCH, WINDOW, ROUTER_SCALE, LEARNING_RATE = 16, 128, 16, 20, 10.0, 1e-2
OFF = {"router_aux_loss_coef": 0.0, "router_z_loss_coef": 0.0}
VARIANTS = {
    "nothing": OFF,
    "aux loss 0.01": {**OFF, "router_aux_loss_coef": 0.01},
    "bias 0.01": {**OFF, "router_bias_update_rate": 0.01},
    "capacity 1.25, reroute": {**OFF, "expert_capacity_factor": 1.25, "capacity_overflow": "reroute"},
    "Gumbel noise": {**OFF, "router_noise": "gumbel"},
    "aux loss + bias": {**OFF, "router_aux_loss_coef": 0.01, "router_bias_update_rate": 0.01},
}


def text_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """Bytes to train on and bytes held out."""
    topics = pydoc_data.topics.topics
    text = "\n\n".join(topics[name] for name in sorted(topics))
    data = torch.tensor(list(text.encode("utf-8")), dtype=torch.long)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def make_model(fields: dict) -> StrataForCausalLM:
    """The model of one run; the same first weights in all."""
    torch.manual_seed(0)
    config = StrataConfig(
        vocab_size=256,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=LENGTH,
        num_experts=EXPERTS,
        num_experts_per_tok=1,
        moe_intermediate_size=64,
        norm_topk_prob=False,
        **fields,
    )
    model = StrataForCausalLM(config)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.gate.weight.mul_(ROUTER_SCALE)
    return model


def rows_of(data: torch.Tensor, starts: torch.Tensor) -> torch.Tensor:
    """Windows of `LENGTH` bytes."""
    return data[starts.unsqueeze(1) + torch.arange(LENGTH)]


def count_served(row: torch.Tensor, experts: torch.nn.Module, given: tuple) -> None:
    """Adds the assignments with a weight to the count of a layer, before its experts run."""
    _, indices, weights = given
    if experts.training:
        row += indices[weights > 0].bincount(minlength=EXPERTS)


def train(fields: dict, steps: int, learn: torch.Tensor, held_out: torch.Tensor) -> dict[str, float]:
    """Trains one model and describes its routers at the end."""
    model = make_model(fields).train()
    served = torch.zeros(len(model.model.layers), EXPERTS)
    for row, layer in zip(served, model.model.layers, strict=True):
        layer.mlp.experts.register_forward_pre_hook(functools.partial(count_served, row))
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    order = torch.Generator().manual_seed(1)
    torch.manual_seed(2)  # the noise
    for step in range(steps):
        if step == steps - WINDOW:
            model.reset_router_statistics()
            served.zero_()
        ids = rows_of(learn, torch.randint(0, len(learn) - LENGTH, (BATCH,), generator=order))
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if model.config.router_bias_update_rate is not None:
            model.update_router_bias()
    found = model.router_statistics()
    health = router_metrics(found["load"], found["probability_sum"], found["tokens"])
    model.eval()
    ids = rows_of(held_out, torch.arange(0, len(held_out) - LENGTH, LENGTH)[:256])
    with torch.no_grad():
        losses = [model(input_ids=part, labels=part).loss.item() for part in ids.split(32)]
    return {
        "max_vio": health["max_vio"].mean().item(),
        "entropy": health["entropy"].mean().item(),
        "dead": int(health["dead_experts"].sum()),
        "served": max_violation(served).mean().item(),
        "alarms": int(looks_collapsed(health, EXPERTS, 1).sum()),
        "loss": sum(losses) / len(losses),
    }


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--quick", action="store_true", help="60 steps")
    options = parser.parse_args()
    torch.set_num_threads(1)
    learn, held_out = text_tokens()
    start = time.perf_counter()
    print(f"| balancing | MaxVio | served | load entropy | dead of {2 * EXPERTS} | layers in alarm of 2 | loss |")
    print("|---|---|---|---|---|---|---|")
    for name, fields in VARIANTS.items():
        found = train(fields, 60 if options.quick else options.steps, learn, held_out)
        print(
            f"| {name} | {found['max_vio']:.2f} | {found['served']:.2f} | {found['entropy']:.3f} | {found['dead']} "
            f"| {found['alarms']} | {found['loss']:.3f} |",
            flush=True,
        )
    print(f"\n{time.perf_counter() - start:.0f} seconds.")


if __name__ == "__main__":
    main()

"""One process of a two-process gloo run under tensor, expert or fully sharded parallelism; see the test beside it.

Usage: `python sharded_training_worker.py FOLDER RANK WORLD CASE...`. With WORLD 1 it writes what one process gives.
Each case saves loss, logits, full gradients, and full weights after the steps, to `FOLDER/<case>.<world>.<rank>.pt`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from transformers.distributed import DistributedConfig

from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.2,
    "bos_token_id": None,
}
EXPERTS = {
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "router_bias_update_rate": 0.05,
    "router_aux_loss_coef": 0.1,
    "router_z_loss_coef": 0.01,
    "shared_expert_intermediate_size": 16,
    "balance_scope": "global",
}
MODELS = {
    "dense-tied": SMALL,
    "dense-untied": {**SMALL, "tie_word_embeddings": False, "use_qk_norm": False, "attention_bias": True},
    "moe-tied": {**SMALL, **EXPERTS, "first_dense_layers": 1},
    "moe-untied": {**SMALL, **EXPERTS, "tie_word_embeddings": False},
    "moe-capacity": {**SMALL, **EXPERTS, "expert_capacity_factor": 1.0},
}
LAYOUTS = {
    "tp": {"tp_size": 2},
    "fsdp": {"fsdp_size": 2},
    "ep_tp": {"tp_size": 2, "ep_size": 2},
    "ep_fsdp": {"fsdp_size": 2, "ep_size": 2},
    "fsdp_tp": {"fsdp_size": 2, "tp_size": 2},
    "ep_reduce": {"tp_size": 2, "ep_size": 2, "ep_implementation": "all_reduce"},
}
STEPS, ACCUMULATION = 3, 2  # an odd number of steps: a balancing bias of plus and minus one step is not 0 again


def build(name, folder):
    """The seeded model of a case, in one process."""
    torch.manual_seed(0)
    return StrataForCausalLM(StrataConfig(**MODELS[name]))


def fully_sharded(model, head_apart):
    """FSDP2 as trainers apply it: every layer, then norm and head in one unit (with the embedding where tied)."""
    for layer in model.model.layers:
        fully_shard(layer)
    tied = model.config.tie_word_embeddings
    tail = [model.model.norm, *([model.model.embed_tokens] if tied else []), model.lm_head]
    if head_apart:
        fully_shard(model.lm_head)
        tail.pop()
    fully_shard(tail, reshard_after_forward=False)
    return fully_shard(model)


def load(name, folder, layout, experts):
    """The same model, sharded while it is read."""
    if layout in ("fully_shard", "fully_shard_apart"):
        return fully_sharded(build(name, folder), layout == "fully_shard_apart")
    return StrataForCausalLM.from_pretrained(
        folder / name,
        dtype=torch.float32,
        distributed_config=DistributedConfig(**LAYOUTS[layout]),
        experts_implementation=experts,
    )


def batches(step, uneven):
    """ACCUMULATION micro-batches of four rows; with `uneven`, another number of valid targets in every row."""
    generator = torch.Generator().manual_seed(step)
    result = []
    for _ in range(ACCUMULATION):
        rows = torch.randint(1, 96, (4, 9), generator=generator)
        labels = rows.clone()
        for row in range(4):
            labels[row, : 2 * row if uneven else 3] = -100
        result.append((rows, labels))
    return result


def full(tensor):
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def train(model, loss, rank, world, parts):
    """STEPS optimizer steps; `parts` processes hold different rows, the others the same."""
    objective = None
    if loss == "fused":
        objective = CausalLMObjective(z_loss_coef=0.01, implementation="chunked")
        objective.attach(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, eps=1e-3, weight_decay=0.1, foreach=False)
    result = {"losses": []}
    rank = rank * parts // world  # ranks of one tensor-parallel group hold the same rows
    mine = slice(4 // parts * rank, 4 // parts * (rank + 1))
    # The balance loss is a mean over the tokens of a process, so it needs as many targets on each to be one number.
    uneven = model.config.num_experts == 0
    model.eval()
    with torch.no_grad():
        rows, labels = batches(99, uneven)[0]
        result["logits"] = full(model(input_ids=rows[mine]).logits)
        if loss == "fused":  # an evaluation before training must leave nothing behind
            model(input_ids=rows[mine], labels=labels[mine])
    model.train()
    for step in range(STEPS):
        window = batches(step, uneven)
        items = sum((labels[:, 1:] != -100).sum() for _, labels in window)
        total = 0.0
        if step:  # an evaluation between two steps
            model.eval()
            with torch.no_grad():
                model(input_ids=window[0][0][mine], labels=window[0][1][mine])
            model.train()
        for rows, labels in window:
            value = model(input_ids=rows[mine], labels=labels[mine], num_items_in_batch=items).loss
            (value * parts).backward()
            total += float(full(value))
        result["losses"].append(total)
        if step == 0:
            result["gradients"] = {
                key: full(p.grad) for key, p in model.named_parameters(remove_duplicate=False) if p.grad is not None
            }
        optimizer.step()
        if model.config.num_experts:
            model.update_router_bias()
        optimizer.zero_grad()
    result["weights"] = {key: full(value) for key, value in model.state_dict().items()}
    if objective is not None:
        result["metrics"] = objective.pop_metrics()
    return result


def main():
    folder, rank, world, cases = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4:]
    torch.set_num_threads(1)
    if world > 1:
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world))
        dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous-{world}", rank=rank, world_size=world)
    for case in cases:
        layout, name, loss, experts = case.split(":")
        model = build(name, folder) if world == 1 else load(name, folder, layout, experts)
        parts = 1 if world == 1 else LAYOUTS.get(layout, {"fsdp_size": 2}).get("fsdp_size", 1)
        torch.save(train(model, loss, rank, world, parts), folder / f"{case.replace(':', '_')}.{world}.{rank}.pt")
    if world > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""Two processes train as one: CE, z, router z, balance, router gradient, load over ranks, the loss-free bias."""

import pytest
import torch
import torch.distributed
from torch.nn.parallel import DistributedDataParallel

from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


ROUTER = "model.layers.0.mlp.gate.weight"


def _model(scope):
    torch.manual_seed(0)
    config = StrataConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, num_experts=4, moe_intermediate_size=24, initializer_range=0.2, balance_scope=scope,
        router_aux_loss_coef=1.0, router_z_loss_coef=0.1, router_bias_update_rate=0.1,
    )  # fmt: skip
    model = StrataForCausalLM(config).train()
    model.loss_function = CausalLMObjective(z_loss_coef=1e-2)
    return model


def _rows(same):
    rows = torch.randint(1, 64, (4, 9), generator=torch.Generator().manual_seed(1))
    return rows[:1].expand(4, -1) if same else rows


def _step(model, core, rows, items, world_size):
    # As the Trainer does: every process divides by the global count and multiplies by the number of processes,
    # because DDP averages the gradients.
    loss = model(input_ids=rows, labels=rows, num_items_in_batch=items).loss
    share = (rows[:, 1:] != -100).sum() / items
    (loss * world_size).backward()
    core.update_router_bias()
    return {
        "loss": loss.detach(),
        "gradient": dict(core.named_parameters())[ROUTER].grad,
        "bias": core.model.layers[0].mlp.gate.e_score_correction_bias.clone(),
        "load_balance": core.router_losses["load_balance"],
        "router_z_part": core.router_losses["router_z"] * share,
        **{name: torch.tensor(value) for name, value in core.loss_function.pop_metrics().items()},
    }


CASES = [("micro", True), ("global", True), ("global", False), ("sequence", False), ("micro", False)]


def _worker(rank, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    results = []
    for scope, same in CASES:
        core, rows = _model(scope), _rows(same)
        items = (rows[:, 1:] != -100).sum()
        results.append(_step(DistributedDataParallel(core), core, rows[rank * 2 : rank * 2 + 2], items, 2))
    torch.save(results, f"{folder}/{rank}.pt")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
def test_two_processes_equal_one(tmp_path):
    torch.multiprocessing.spawn(_worker, (str(tmp_path),), nprocs=2)  # one start for all cases: imports are slow
    ranks = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2)]
    for (scope, same), *parts in zip(CASES, *ranks, strict=True):
        core, rows = _model(scope), _rows(same)
        whole = _step(core, core, rows, (rows[:, 1:] != -100).sum(), 1)
        router_z = parts[0]["router_z_part"] + parts[1]["router_z_part"]
        torch.testing.assert_close(router_z, whole["router_z_part"], atol=1e-5, rtol=0)
        mean = (parts[0]["load_balance"] + parts[1]["load_balance"]) / 2
        for part in parts:
            assert torch.equal(part["bias"], whole["bias"]), (scope, same)
            for name in ("ce_loss", "z_loss"):
                torch.testing.assert_close(part[name], whole[name], atol=1e-5, rtol=0)
        if (scope, same) == ("micro", False):
            # Each process balances its own rows: another estimate, but a mean of the two, never their sum.
            assert 0.8 < mean / whole["load_balance"] < 1.25
            terms = parts[0]["loss"] + parts[1]["loss"] - whole["loss"]
            torch.testing.assert_close(terms, mean - whole["load_balance"], atol=1e-5, rtol=0)
            continue
        # With counts over both ranks the balance loss is linear in the local probabilities: different rows agree too.
        torch.testing.assert_close(parts[0]["loss"] + parts[1]["loss"], whole["loss"], atol=1e-5, rtol=0)
        torch.testing.assert_close(mean, whole["load_balance"], atol=1e-5, rtol=0)
        for part in parts:
            torch.testing.assert_close(part["gradient"], whole["gradient"], atol=1e-5, rtol=1e-4)

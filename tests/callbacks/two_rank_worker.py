"""Run twice by test_callbacks_two_ranks.py (gloo): losses, metrics and decisions of two processes against one."""

import sys

import torch
import torch.distributed as dist

from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.callbacks.router_health import _over_ranks
from hf_pretrain.losses.objective import CausalLMObjective


def unequal_shares(rank: int) -> None:
    """Bugs L6: one target with NLL 4 on one rank, seven with NLL 1 on the other: 11 / 8."""
    objective = CausalLMObjective(z_loss_coef=1e-2)
    count, nll = ((1, 4.0), (7, 1.0))[rank]
    # two classes: the NLL of class 0 is log(1 + exp(x1 - x0))
    difference = torch.log(torch.expm1(torch.tensor(nll)))
    logits = torch.tensor([0.0, 0.0]).repeat(1, 8, 1)
    logits[..., 1] = difference
    logits.requires_grad_()
    labels = torch.full((1, 8), -100)
    labels[0, 1 : 1 + count] = 0
    loss = objective(logits=logits, labels=labels, vocab_size=2, num_items_in_batch=8).detach()
    metrics = objective.pop_metrics()
    dist.all_reduce(loss)
    expected = 11 / 8
    assert abs(metrics["ce_loss"] - expected) < 1e-5, metrics
    assert abs(loss.item() - metrics["ce_loss"] - metrics["z_loss"]) < 1e-5
    assert abs(metrics["lse_mean"] - 11 / 8) < 1e-5 and abs(metrics["lse_max"] - 4.0) < 1e-5
    # a rank without a single call must not hang the others
    if rank == 0:
        objective(logits=logits, labels=labels, vocab_size=2)
    assert abs(objective.pop_metrics()["ce_loss"] - 4.0) < 1e-5
    assert objective.pop_metrics() == {}


def one_decision(rank: int) -> None:
    """Bugs S3: local losses 2.0 and 40.0; both ranks decide on the mean, before the update."""

    class Arguments:
        average_tokens_across_devices = True
        deepspeed = None

    class State:
        global_step = 0

    class Control:
        should_training_stop = False

    class Optimizer:
        zeroed = 0

        def zero_grad(self):
            self.zeroed += 1

    for summed in (True, False):
        callback = LossSpikeCallback(action="skip_update", min_values=4)
        model, optimizer = torch.nn.Linear(2, 2), Optimizer()
        for one in model.parameters():
            one.grad = torch.ones_like(one)
        decisions = []
        for local in (2.0, 2.0, 2.01, 2.0, (2.0, 40.0)[rank], 2.0):
            callback.on_step_begin(Arguments, State, Control)
            callback._loss, callback._micro_batches, callback._sum_losses = torch.tensor(local), 1, summed
            callback.on_pre_optimizer_step(Arguments, State, Control, model=model, optimizer=optimizer)
            decisions.append(callback.skipped_last_step)
            State.global_step += 1
        assert decisions == [False, False, False, False, True, False], decisions
        assert optimizer.zeroed == 1
        assert abs(callback.events[0]["value"] - (42.0 if summed else 21.0)) < 1e-4


def summed_counters(rank: int) -> None:
    statistics = {"load": torch.full((2, 3), float(rank + 1)), "tokens": torch.tensor([4.0, 5.0])}
    total = _over_ranks(statistics)
    assert total["load"].shape == (2, 3) and bool((total["load"] == 3).all())
    assert total["tokens"].tolist() == [8.0, 10.0]


def main(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    unequal_shares(rank)
    one_decision(rank)
    summed_counters(rank)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

"""One process of a run by torchrun; see `test_invariants_optimizers.py`. Usage: `optimizer_worker.py FOLDER CASE`."""

import os
import sys
from pathlib import Path

import torch
from test_invariants_optimizers import BOTH, CASES
from tiny_training import tiny_strata, trainer, weights


def main():
    torch.set_num_threads(1)
    folder, name = Path(sys.argv[1]), sys.argv[2]
    world, rank = int(os.environ["WORLD_SIZE"]), os.environ["RANK"]
    model = tiny_strata(balance_scope="sequence", router_aux_loss_coef=0.0)
    options = {**BOTH, **CASES[name], "per_device_train_batch_size": 8 // world}
    run = trainer(folder / "run", model, steps=4, save_strategy="steps", save_steps=2, async_save=True, **options)
    run.train()
    norms = [entry["grad_norm"] for entry in run.state.log_history if "grad_norm" in entry]
    torch.save({"weights": weights(run), "norms": norms}, folder / f"{rank}.pt")
    again = trainer(folder / "run", tiny_strata(seed=3, balance_scope="sequence", router_aux_loss_coef=0.0), steps=4,
                    save_strategy="steps", save_steps=2, async_save=True, **options)  # fmt: skip
    again.train(folder / "run" / "checkpoint-2")
    torch.save(weights(again), folder / f"resumed{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written

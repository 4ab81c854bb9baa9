"""One process of a stock Trainer with z-loss; run by test_callbacks_z_loss_ddp.py. Usage: `... FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from stock_training import Rows, make_trainer, tiny_llama
from transformers import TrainerCallback

from hf_pretrain.callbacks.z_loss import ZLossCallback


STEPS, GLOBAL_BATCH = 5, 8
ONE_RANK_EMPTY, ALL_EMPTY = 1, 2  # steps, counted from 0


def rows() -> Rows:
    """Rows whose second half (what rank 1 of 2 gets) has few targets; none at all in two of the steps."""
    data = Rows(count=STEPS * GLOBAL_BATCH)
    share = GLOBAL_BATCH // 2
    for step in range(STEPS):
        start = step * GLOBAL_BATCH
        data.labels[start + share : start + GLOBAL_BATCH, : 5 + step % 3] = -100
        if step == ONE_RANK_EMPTY:
            data.labels[start + share : start + GLOBAL_BATCH] = -100
        if step == ALL_EMPTY:
            data.labels[start : start + GLOBAL_BATCH] = -100
    return data


class Watch(TrainerCallback):
    """Writes down, after every step, weights and moments."""

    def __init__(self):
        self.steps = []

    def on_step_end(self, args, state, control, model=None, optimizer=None, **kwargs):
        moments = [one["exp_avg"].clone() for one in optimizer.state.values()]
        self.steps.append(([one.detach().clone() for one in model.parameters()], moments))


def main() -> None:
    torch.set_num_threads(1)
    folder, world, rank = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    z_loss, watch = ZLossCallback(coef=1e-2), Watch()
    model, targets = tiny_llama(), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: targets.append(int((kwargs["labels"][:, 1:] != -100).sum())), with_kwargs=True
    )
    trainer = make_trainer(
        folder / "run",
        model,
        [z_loss, watch],
        steps=STEPS,
        batch=GLOBAL_BATCH // world,
        rows=rows(),
        weight_decay=0.1,
        adam_epsilon=1e-3,  # the default one makes rounding of tiny gradients visible
    )
    assert trainer.args.world_size == world
    trainer.train()
    (before, moments_before), (after, moments_after) = watch.steps[ALL_EMPTY - 1 : ALL_EMPTY + 1]
    same = all(torch.equal(a, b) for a, b in zip(before + moments_before, after + moments_after, strict=True))
    record = {
        "lines": [line for line in trainer.state.log_history if "loss" in line],
        "num_empty_steps": z_loss.num_empty_steps,
        "targets": targets,
        "nothing_moved": same and len(moments_before) == len(before),
        "steps_that_moved": sum(
            any(not torch.equal(a, b) for a, b in zip(one[0], other[0], strict=True))
            for one, other in zip(watch.steps, watch.steps[1:], strict=False)
        ),
    }
    (folder / f"{rank}.json").write_text(json.dumps(record))
    torch.save(model.state_dict(), folder / f"{rank}.pt")
    if torch.distributed.is_initialized():
        assert torch.distributed.get_backend() == "gloo"
        # Everything is written. DDP holds the last reference to the process group: freed with the interpreter lock
        # held, it joins gloo's threads, and now and then one of them waits for that lock.
        os._exit(0)


if __name__ == "__main__":
    main()

"""One process of a run that rewinds; see the test beside it. Usage: `rewind_worker.py FOLDER RESULT [KILL_AT]`."""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import torch


sys.path.insert(0, str(Path(__file__).parents[1]))

from faulty_data import rewinding, samples_of_steps
from tiny_training import BATCH, losses, tiny_llama, weights
from transformers import TrainerCallback

from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint


class Kill(TrainerCallback):
    """Ends the process without a word at a step, once the run has gone back."""

    def __init__(self, run, step):
        self.run, self.step = run, step

    def on_step_end(self, args, state, control, **kwargs):
        if self.run.recovery.rewinds and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGKILL)


def main(folder, result, kill_at=0):
    torch.set_num_threads(1)
    world = int(os.environ.get("WORLD_SIZE", "1"))
    run = rewinding(
        folder,
        samples_of_steps(20),
        model=tiny_llama(attention_dropout=float(os.environ["DROPOUT"])),
        per_device_train_batch_size=BATCH // world,
        rewind_lr_factor=0.5,
    )
    if kill_at:
        run.add_callback(Kill(run, kill_at))
    run.train(latest_complete_checkpoint(folder))
    rank = os.environ.get("RANK", "0")
    record = {
        "rewinds": [dataclasses.asdict(rewind) for rewind in run.recovery.rewinds],
        "skipped": run.train_dataset.skips.to_json(),
        "losses": losses(run),
    }
    Path(f"{result}.{rank}.json").write_text(json.dumps(record))
    torch.save(weights(run), f"{result}.{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:]))
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written

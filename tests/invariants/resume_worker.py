"""Trains a tiny run in its own process: resumed where it was killed, its samples a step and its weights on disk."""

import json
import os
import sys
from pathlib import Path

import torch


sys.path.insert(0, str(Path(__file__).parents[1]))

from test_invariants_data_order import Recorder
from tiny_training import tiny_llama, trainer, weights

from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint


def main(folder: str, result: str, steps: int, micro: int) -> None:
    run = trainer(
        folder,
        tiny_llama(attention_dropout=0.3),
        steps=16,
        anneal_weights={"b": 1.0},
        decay_fraction=0.5,
        per_device_train_batch_size=micro,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=3,
    )
    seen = Recorder(run)
    if steps:
        # Stop after so many steps, like a job whose time is over.
        from transformers import TrainerCallback

        class Stop(TrainerCallback):
            def on_step_end(self, args, state, control, **kwargs):
                control.should_training_stop = state.global_step >= steps

        run.add_callback(Stop())
    run.train(latest_complete_checkpoint(folder))
    rank = int(os.environ.get("RANK", "0"))
    Path(f"{result}.{rank}.json").write_text(json.dumps(seen.steps))
    if rank == 0:
        torch.save(weights(run), f"{result}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written

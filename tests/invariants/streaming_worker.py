"""One process of a run over streams; see the test beside it. Usage: `streaming_worker.py FOLDER DISPATCH WORKERS`."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from testing_utils import markov_documents
from tiny_training import LENGTH, VOCABULARY, arguments, tiny_llama

from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.streaming import StreamingMixture
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer


STEPS, SEQUENCES = 6, 4


def make(folder: Path, world: int, **options: Any) -> tuple[PretrainTrainer, list[list[int]]]:
    """A trainer, and the list of all rows that its model will have read."""
    streams = {name: markov_documents(30, VOCABULARY, seed) for seed, name in enumerate("ab")}
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, STEPS * SEQUENCES)
    dataset = StreamingMixture(streams, schedule, LENGTH, max_epochs=50, state_every=4)
    args = arguments(
        folder / "run",
        STEPS,
        train_tokens=STEPS * SEQUENCES * LENGTH,
        global_batch_size=SEQUENCES,
        per_device_train_batch_size=SEQUENCES // 2 // world,
        save_strategy="steps",
        save_steps=3,
        **options,
    )
    model, read = tiny_llama(), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: read.extend(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    return PretrainTrainer(model, args, train_dataset=dataset), read


def main() -> None:
    torch.set_num_threads(1)
    folder, dispatch, workers = Path(sys.argv[1]), sys.argv[2] == "True", int(sys.argv[3])
    options = {} if dispatch else {"accelerator_config": {"dispatch_batches": False}}
    run, read = make(folder, int(os.environ["WORLD_SIZE"]), dataloader_num_workers=workers, **options)
    run.train()
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(read))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written

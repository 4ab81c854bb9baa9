"""One process of a run by torchrun; see the test beside it. Usage: `data_parallel_worker.py FOLDER`."""

import json
import os
import sys
from pathlib import Path

import torch
from tiny_training import LENGTH, losses, tiny_mixture, tiny_strata, trainer, weights

from hf_pretrain.data.mixture import MixtureDataset


STEPS, SEQUENCES = 24, 6  # 6 = 6 x 1 = 3 x 2 = 2 x 3; the bias moves by the counts of all processes


class Recorded(torch.utils.data.Dataset):
    """Remembers what is asked for. Rows of odd number lose half of their targets, so the ranks hold unlike numbers."""

    def __init__(self, dataset: MixtureDataset):
        self.dataset, self.asked = dataset, []

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, index):
        self.asked.append(int(index))
        sample = dict(self.dataset[index])
        labels = torch.as_tensor(sample["labels"]).clone()
        # Easy to learn, so that half a batch of something else at step 21 is a spike.
        labels[labels != -100] = 2 if index // SEQUENCES == 20 and index % SEQUENCES < 3 else 1
        if index % 2:
            labels[: LENGTH // 2] = -100
        sample["labels"] = labels if torch.is_tensor(sample["labels"]) else labels.numpy()
        return sample


def main():
    torch.set_num_threads(1)
    folder, world, rank = Path(sys.argv[1]), int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    # No balance loss: with unlike numbers of targets it is a mean over the processes, not the one of all tokens.
    model = tiny_strata(
        balance_scope="sequence", router_aux_loss_coef=0.0, router_z_loss_coef=0.01, router_bias_update_rate=0.01
    )
    dataset = Recorded(tiny_mixture(STEPS))
    run = trainer(
        folder / "run",
        model,
        train_dataset=dataset,
        train_tokens=STEPS * SEQUENCES * LENGTH,
        global_batch_size=SEQUENCES,
        per_device_train_batch_size=SEQUENCES // world,
        optim="sgd",
        learning_rate=0.2,
        z_loss_coef=1e-3,
        spike_action="skip_update",
        spike_threshold=0.3,
        spike_window=16,
        ignore_data_skip=True,
        train_sampling_strategy="sequential",
    )
    run.train()
    keys = ("loss", "grad_norm", "ce_loss", "z_loss", "router/", "spike/")
    lines = [{k: v for k, v in entry.items() if k.startswith(keys)} for entry in run.state.log_history]
    record = {"lines": [line for line in lines if "loss" in line], "asked": dataset.asked, "losses": losses(run)}
    (folder / f"{rank}.json").write_text(json.dumps(record))
    torch.save(weights(run), folder / f"{rank}.pt")
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
    os._exit(0)  # gloo threads can abort a process that ends by itself after everything is written

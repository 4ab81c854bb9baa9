"""Tiny models, data and stock Trainers for the callbacks' tests."""

import torch
from torch.utils.data import Dataset
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments


SIZES = {
    "vocab_size": 32,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}


class Rows(Dataset):
    """Random rows with some labels ignored; row i is a function of i."""

    def __init__(self, count=64, length=10, ignored=True):
        generator = torch.Generator().manual_seed(0)
        self.ids = torch.randint(0, 32, (count, length), generator=generator)
        self.labels = self.ids.clone()
        if ignored:
            for row in range(count):
                self.labels[row, : row % 5] = -100

    def __len__(self):
        return len(self.ids)

    def __getitem__(self, index):
        return {"input_ids": self.ids[index], "labels": self.labels[index]}


def tiny_llama(seed=0, kind=LlamaForCausalLM):
    torch.manual_seed(seed)
    return kind(LlamaConfig(**SIZES))


def tiny_strata(**more):
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    torch.manual_seed(0)
    return StrataForCausalLM(StrataConfig(**{**SIZES, "max_position_embeddings": 64, **more}))


def make_trainer(
    folder, model, callbacks, steps=10, batch=8, accumulation=1, rows=None, eval_rows=None, kind=Trainer, **more
):
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=batch,
        gradient_accumulation_steps=accumulation,
        **{
            "learning_rate": 1e-2,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
            "train_sampling_strategy": "sequential",
            "seed": 1,
            **more,
        },
    )
    return kind(model, arguments, train_dataset=rows or Rows(), eval_dataset=eval_rows, callbacks=callbacks)


def lines(trainer):
    return [line for line in trainer.state.log_history if "loss" in line]

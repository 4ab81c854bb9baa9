"""A run that trains in a second: tiny models, a mixture in memory, a trainer on one CPU thread."""

from pathlib import Path
from typing import Any

import torch
from testing_utils import markov_documents
from transformers import LlamaConfig, LlamaForCausalLM

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer


LENGTH, BATCH, VOCABULARY = 32, 8, 64


def tiny_llama(seed: int = 0, **options: Any) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, **{**sizes, **options})
    return LlamaForCausalLM(config)


def tiny_strata(seed: int = 0, **options: Any) -> StrataForCausalLM:
    torch.manual_seed(seed)
    sizes = {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "max_position_embeddings": 128,
    }
    return StrataForCausalLM(StrataConfig(vocab_size=VOCABULARY, **{**sizes, **options}))


def memory_source(name: str, documents: int = 80, seed: int = 0) -> TokenSource:
    texts = markov_documents(documents, VOCABULARY, seed)
    ends, tokens = [], []
    for text in texts:
        tokens += text
        ends.append(len(tokens))
    return TokenSource.from_arrays(name, tokens, ends, VOCABULARY, 0)


def tiny_mixture(steps: int, weights: dict[str, float] | None = None, seed: int = 1) -> MixtureDataset:
    sources = [memory_source(name, seed=number) for number, name in enumerate("ab")]
    schedule = MixtureSchedule.from_weights(weights or {"a": 0.7, "b": 0.3}, steps * BATCH)
    return MixtureDataset(sources, schedule, LENGTH, seed, max_epochs=100)


def arguments(folder: Path | str, steps: int = 6, **options: Any) -> PretrainConfig:
    defaults = {
        "train_tokens": steps * BATCH * LENGTH,
        "seq_length": LENGTH,
        "global_batch_size": BATCH,
        "per_device_train_batch_size": BATCH,
        "logging_steps": 1,
        "save_strategy": "no",
        "use_cpu": True,
    }
    return PretrainConfig(output_dir=str(folder), **{**defaults, **options})


def trainer(folder: Path | str, model: Any = None, steps: int = 6, **options: Any) -> PretrainTrainer:
    own = ("train_dataset", "eval_dataset", "anneal_weights", "async_save", "callbacks", "compute_metrics")
    parts = {name: options.pop(name) for name in own if name in options}
    parts.setdefault("train_dataset", tiny_mixture(steps))
    return PretrainTrainer(model or tiny_llama(), arguments(folder, steps, **options), **parts)


def losses(run: PretrainTrainer) -> list[float]:
    return [entry["loss"] for entry in run.state.log_history if "loss" in entry]


def weights(run: PretrainTrainer) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in run.model.state_dict().items()}


def equal_weights(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)

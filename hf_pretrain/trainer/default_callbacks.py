"""The callbacks that a `PretrainConfig` asks for, in the order in which they act."""

from collections.abc import Mapping
from typing import Any

from transformers import TrainerCallback

from hf_pretrain.callbacks.annealing_mix import AnnealingMixCallback
from hf_pretrain.callbacks.data_ledger import DataLedgerCallback
from hf_pretrain.callbacks.preemption import PreemptionCallback
from hf_pretrain.callbacks.progress import TrainingProgressCallback
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.trainer.pretrain_config import PretrainConfig


def default_callbacks(
    args: PretrainConfig, model: Any, train_dataset: Any, anneal_weights: Mapping[str, float] | None = None
) -> list[TrainerCallback]:
    """Makes the callbacks.

    Args:
        args (`PretrainConfig`): The configuration.
        model (`PreTrainedModel`): The model, to know whether it has routers.
        train_dataset (`Dataset`): The training data, to know whether it is a mixture.
        anneal_weights (`Mapping[str, float]`, *optional*): Mixture of the last part of the run.

    Returns:
        `list[TrainerCallback]`: New callbacks.
    """
    callbacks: list[TrainerCallback] = []
    if isinstance(train_dataset, MixtureDataset):
        if anneal_weights:
            start = "decay" if args.anneal_fraction is None else 1.0 - args.anneal_fraction
            callbacks.append(AnnealingMixCallback(anneal_weights, start, args.anneal_ramp_fraction))
        else:
            callbacks.append(DataLedgerCallback())
    if args.obey_signals:
        callbacks.append(PreemptionCallback())
    callbacks.append(TrainingProgressCallback())
    return callbacks

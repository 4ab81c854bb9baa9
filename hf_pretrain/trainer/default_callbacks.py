"""The callbacks that a `PretrainConfig` asks for, in the order in which they act."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from hf_pretrain.callbacks.annealing_mix import AnnealingMixCallback
from hf_pretrain.callbacks.data_ledger import DataLedgerCallback
from hf_pretrain.callbacks.effect_checks import EffectChecksCallback
from hf_pretrain.callbacks.fused_kernels import FusedKernelsCallback
from hf_pretrain.callbacks.loss_spike import LossSpikeCallback
from hf_pretrain.callbacks.preemption import PreemptionCallback
from hf_pretrain.callbacks.progress import TrainingProgressCallback
from hf_pretrain.callbacks.router_health import RouterHealthCallback
from hf_pretrain.callbacks.throughput import ThroughputCallback
from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.trainer.autopsy_callback import AutopsyCallback
from hf_pretrain.trainer.precision import PrecisionCallback
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.trainer.recovery import RewindCallback


def default_callbacks(
    args: PretrainConfig,
    model: Any,
    train_dataset: Any,
    anneal_weights: Mapping[str, float] | None = None,
    pure_bf16: bool = False,
) -> list[TrainerCallback]:
    """Makes the callbacks.

    Args:
        args (`PretrainConfig`): The configuration.
        model (`PreTrainedModel`): The model, to know whether it has routers.
        train_dataset (`Dataset`): The training data, to know whether it is a mixture.
        anneal_weights (`Mapping[str, float]`, *optional*): Mixture of the last part of the run.
        pure_bf16 (`bool`, *optional*, defaults to `False`): Whether bf16 weights were asked for.

    Returns:
        `list[TrainerCallback]`: New callbacks.
    """
    callbacks: list[TrainerCallback] = [ZLossCallback(args.z_loss_coef, args.loss_implementation)]
    if args.fused_kernels:
        callbacks.append(FusedKernelsCallback(fused_ce="off"))
    if args.spike_action != "off":
        kind = RewindCallback if args.spike_action == "rewind" else LossSpikeCallback
        callbacks.append(kind(args.spike_action, args.spike_window, args.spike_threshold))
        callbacks.append(AutopsyCallback())
    if args.router_health and hasattr(model, "router_statistics") and getattr(model.config, "num_experts", 0):
        callbacks.append(RouterHealthCallback())
    if args.throughput:
        callbacks.append(ThroughputCallback())
    if isinstance(train_dataset, MixtureDataset):
        if anneal_weights:
            start = "decay" if args.anneal_fraction is None else 1.0 - args.anneal_fraction
            callbacks.append(AnnealingMixCallback(anneal_weights, start, args.anneal_ramp_fraction))
        else:
            callbacks.append(DataLedgerCallback())
    callbacks += [PrecisionCallback(pure_bf16), EffectChecksCallback(pure_bf16=pure_bf16)]
    if args.obey_signals or args.max_runtime is not None:
        callbacks.append(PreemptionCallback(None if args.obey_signals else [], args.max_runtime))
    callbacks.append(TrainingProgressCallback(Path(args.record_dir or args.output_dir).name))
    return callbacks

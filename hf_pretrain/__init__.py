"""hf_pretrain: raw web pages in, a model on the Hub with an honest card out, on the Hugging Face stack.

Names are loaded when they are first used: `import hf_pretrain` imports neither torch nor transformers. Where to read
first: `models/strata/modeling_strata.py`, `losses/causal_lm.py`, `data/mixture.py`, `trainer/pretrain_trainer.py`,
`callbacks/loss_spike.py`, `corpus/pipeline.py`.
"""

import importlib
from typing import TYPE_CHECKING, Any


__version__ = "0.1.0"

_EXPORTS = {
    "AnnealingMixCallback": "callbacks.annealing_mix",
    "FusedKernelsCallback": "callbacks.fused_kernels",
    "LossSpikeCallback": "callbacks.loss_spike",
    "MixtureDataset": "data.mixture",
    "MixtureSchedule": "data.schedule",
    "PretrainConfig": "trainer.pretrain_config",
    "PretrainDataCollator": "data.collator",
    "PretrainTrainer": "trainer.pretrain_trainer",
    "RouterHealthCallback": "callbacks.router_health",
    "StrataConfig": "models.strata.configuration_strata",
    "StrataForCausalLM": "models.strata.modeling_strata",
    "StrataModel": "models.strata.modeling_strata",
    "ThroughputCallback": "callbacks.throughput",
    "TokenSource": "data.token_source",
    "ZLossCallback": "callbacks.z_loss",
}

__all__ = [*_EXPORTS, "__version__"]  # noqa: PLE0604

if TYPE_CHECKING:
    from hf_pretrain.callbacks.annealing_mix import AnnealingMixCallback as AnnealingMixCallback
    from hf_pretrain.callbacks.fused_kernels import FusedKernelsCallback as FusedKernelsCallback
    from hf_pretrain.callbacks.loss_spike import LossSpikeCallback as LossSpikeCallback
    from hf_pretrain.callbacks.router_health import RouterHealthCallback as RouterHealthCallback
    from hf_pretrain.callbacks.throughput import ThroughputCallback as ThroughputCallback
    from hf_pretrain.callbacks.z_loss import ZLossCallback as ZLossCallback
    from hf_pretrain.data.collator import PretrainDataCollator as PretrainDataCollator
    from hf_pretrain.data.mixture import MixtureDataset as MixtureDataset
    from hf_pretrain.data.schedule import MixtureSchedule as MixtureSchedule
    from hf_pretrain.data.token_source import TokenSource as TokenSource
    from hf_pretrain.models.strata.configuration_strata import StrataConfig as StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM as StrataForCausalLM
    from hf_pretrain.models.strata.modeling_strata import StrataModel as StrataModel
    from hf_pretrain.trainer.pretrain_config import PretrainConfig as PretrainConfig
    from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer as PretrainTrainer


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'hf_pretrain' has no attribute '{name}'")
    if name.startswith("Strata"):
        # The Auto classes must know the family as soon as anybody holds one of its classes.
        importlib.import_module("hf_pretrain.models")
    value = getattr(importlib.import_module(f"hf_pretrain.{_EXPORTS[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)

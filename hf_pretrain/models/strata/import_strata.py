"""Llama, Qwen3, Mixtral and Qwen3-MoE checkpoints as Strata, with equal logits, for continual pretraining.

The weights come in as float32, whatever the checkpoint holds: they are the master weights of the training to come.
"""

import copy
import logging
import os
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_utils import PreTrainedModel

from .configuration_strata import StrataConfig
from .export_strata import COMMON_FIELDS, TARGETS, assemble
from .modeling_strata import StrataForCausalLM


logger = logging.getLogger(__name__)


def _check_architecture(name: str | None, where: str) -> None:
    if name == "strata":
        raise ValueError(f"{where}; it is a Strata already: load it with StrataForCausalLM.from_pretrained.")
    if name not in TARGETS:
        raise ValueError(
            f"{where}; its architecture is {name!r}; known architectures: {', '.join(TARGETS)}; convert one of those."
        )


def import_config(config: PreTrainedConfig) -> StrataConfig:
    """The Strata configuration that computes what a stock one does.

    Args:
        config (`PreTrainedConfig`): Configuration of a Llama, Qwen3, Mixtral or Qwen3-MoE.

    Returns:
        `StrataConfig`: The configuration.

    Raises:
        ValueError: If the architecture is not known or a feature has no counterpart in Strata.
    """
    architecture = config.model_type
    _check_architecture(architecture, f"config = {type(config).__name__}")
    target = TARGETS[architecture]
    if getattr(config, "mlp_bias", False):
        raise ValueError(
            "mlp_bias = True; Strata's feed-forward layers have no biases; this checkpoint cannot come in."
        )
    fields: dict[str, Any] = {name: getattr(config, name) for name in COMMON_FIELDS}
    rope = dict(config.rope_parameters)
    if rope["rope_type"] == "yarn":
        # transformers reads the factor alone; published configs often leave max_position_embeddings at another length.
        original = rope["original_max_position_embeddings"]
        rope["factor"] = rope.get("factor") or config.max_position_embeddings / original
        fields["max_position_embeddings"] = round(rope["factor"] * original)
    fields.update(
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads,
        rope_parameters=rope,
        use_qk_norm=target.qk_norm,
        attention_bias=getattr(config, "attention_bias", False),
    )
    if target.sliding != "none":
        fields["sliding_window"] = config.sliding_window
    if target.sliding == "by layer":
        fields["layer_types"] = list(config.layer_types)
    if target.sparse:
        fields.update(_expert_fields(config))
    return StrataConfig(**fields)


def _expert_fields(config: PreTrainedConfig) -> dict[str, Any]:
    plain = config.model_type == "mixtral"
    fields = {
        "num_experts": config.num_local_experts if plain else config.num_experts,
        "num_experts_per_tok": config.num_experts_per_tok,
        "moe_intermediate_size": config.intermediate_size if plain else config.moe_intermediate_size,
        "norm_topk_prob": True if plain else config.norm_topk_prob,
        # Theirs is k when balanced, ours 1.
        "router_aux_loss_coef": config.router_aux_loss_coef * config.num_experts_per_tok,
    }
    if plain:
        return fields
    layers, step, dense = config.num_hidden_layers, config.decoder_sparse_step, set(config.mlp_only_layers)
    wanted = [layer not in dense and (layer + 1) % step == 0 for layer in range(layers)]
    if not any(wanted) or fields["num_experts"] == 0:
        return {}
    for first in range(layers):
        for frequency in range(1, layers + 1):
            if wanted == [layer >= first and (layer + 1) % frequency == 0 for layer in range(layers)]:
                return {**fields, "first_dense_layers": first, "moe_layer_freq": frequency}
    raise ValueError(
        f"mlp_only_layers = {sorted(dense)}, decoder_sparse_step = {step}; Strata has dense layers first, then every "
        "n-th layer sparse; this pattern cannot come in."
    )


def from_hf(path_or_model: str | os.PathLike | PreTrainedModel, **kwargs: Any) -> StrataForCausalLM:
    """Take a Llama, Qwen3, Mixtral or Qwen3-MoE in as a Strata with equal logits.

    Args:
        path_or_model (`str`, `os.PathLike` or `PreTrainedModel`): A checkpoint folder, a name on the Hub, or a loaded
            causal language model (left as it is).
        kwargs (`Any`): Other arguments of `from_pretrained` (`revision`, `cache_dir`, ...), for a path.

    Returns:
        `StrataForCausalLM`: The model, float32, in evaluation mode.

    Raises:
        ValueError: If the architecture is not known, a feature has no counterpart, or tensors are missing.

    Example:

    ```python
    >>> from transformers import Qwen3Config, Qwen3ForCausalLM
    >>> from hf_pretrain.models.strata.import_strata import from_hf

    >>> shape = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    >>> stock = Qwen3ForCausalLM(Qwen3Config(vocab_size=64, num_key_value_heads=1, head_dim=16, **shape))
    >>> type(from_hf(stock)).__name__
    'StrataForCausalLM'

    ```
    """
    model = path_or_model
    if not isinstance(path_or_model, PreTrainedModel):
        # Read as plain JSON first: an architecture that transformers has never heard of is named too.
        stored, _ = PreTrainedConfig.get_config_dict(path_or_model, **kwargs)
        _check_architecture(stored.get("model_type"), f"path = {path_or_model}")
        stored_dtype = stored.get("dtype", stored.get("torch_dtype"))
        if stored_dtype not in (None, "float32"):
            logger.info("%s holds %s weights; they come in as float32", path_or_model, stored_dtype)
        model, report = AutoModelForCausalLM.from_pretrained(
            path_or_model, dtype=torch.float32, output_loading_info=True, **kwargs
        )
        missing = sorted(report["missing_keys"])
        if missing:
            raise ValueError(
                f"path = {path_or_model}; its weights lack {len(missing)} of the model's tensors, e.g. {missing[0]}; "
                "give the folder of a complete causal language model."
            )
    config = import_config(model.config)
    if model.get_output_embeddings() is None:
        raise ValueError(
            f"model = {type(model).__name__}; it has no language-model head; give the ...ForCausalLM one."
        )
    imported = assemble(lambda: StrataForCausalLM(config), model.state_dict(), model.device)
    if model.generation_config is not None:
        imported.generation_config = copy.deepcopy(model.generation_config)
    return imported


__all__ = ["from_hf", "import_config"]

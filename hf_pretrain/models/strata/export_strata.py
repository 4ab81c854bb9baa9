"""A trained Strata as a model that transformers has of its own: Llama, Qwen3, Mixtral or Qwen3-MoE, with equal logits.

Strata's blocks compute what those models compute and its tensors carry the same names, so an export is a question of
the config: which of its fields have a counterpart. What acts in training alone (noise, capacity, expert dropout, the
z-loss) is left behind; what changes the logits and has no counterpart is refused, with the target that would fit.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.initialization import no_init_weights
from transformers.modeling_utils import PreTrainedModel

from .configuration_strata import StrataConfig


@dataclass(frozen=True)
class _Target:
    """What an architecture can express."""

    sparse: bool
    qk_norm: bool
    attention_bias: bool = True
    sliding: Literal["none", "all layers", "by layer"] = "none"
    dense_layers: bool = True  # dense layers among sparse ones
    plain_gates: bool = True  # gates that are not made to sum to one
    even_heads: bool = False  # wants num_attention_heads to divide hidden_size


TARGETS = {
    "llama": _Target(sparse=False, qk_norm=False, even_heads=True),
    "qwen3": _Target(sparse=False, qk_norm=True, sliding="by layer"),
    "mixtral": _Target(
        sparse=True, qk_norm=False, attention_bias=False, sliding="all layers", dense_layers=False, plain_gates=False
    ),
    "qwen3_moe": _Target(sparse=True, qk_norm=True, sliding="all layers"),
}

# Fields that mean the same, under the same name, in all of them.
COMMON_FIELDS = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_act",
    "max_position_embeddings",
    "initializer_range",
    "rms_norm_eps",
    "tie_word_embeddings",
    "attention_dropout",
    "pad_token_id",
    "bos_token_id",
    "eos_token_id",
)


def obstacles(config: StrataConfig, architecture: str) -> list[str]:
    """Features of a Strata that change its logits and that an architecture lacks.

    Args:
        config (`StrataConfig`): The model's configuration.
        architecture (`str`): One of `"llama"`, `"qwen3"`, `"mixtral"`, `"qwen3_moe"`.

    Returns:
        `list[str]`: One phrase each, naming the field; empty when the architecture fits.

    Raises:
        ValueError: If the architecture is not known.
    """
    if architecture not in TARGETS:
        raise ValueError(f"architecture = {architecture!r}; known architectures: {', '.join(TARGETS)}; choose one.")
    target = TARGETS[architecture]
    found = []
    if config.num_experts and not target.sparse:
        found.append(f"it has no experts (num_experts = {config.num_experts})")
    if target.sparse and not config.num_experts:
        found.append("it has experts and this model is dense (num_experts = 0)")
    if config.use_qk_norm and not target.qk_norm:
        found.append("it has no QK-norm (use_qk_norm = True)")
    if target.qk_norm and not config.use_qk_norm:
        found.append("it always has QK-norm (use_qk_norm = False)")
    if config.attention_bias and not target.attention_bias:
        found.append("its attention has no biases (attention_bias = True)")
    if config.final_logit_softcapping is not None:
        found.append(f"it does not cap logits (final_logit_softcapping = {config.final_logit_softcapping})")
    if target.even_heads and config.hidden_size % config.num_attention_heads:
        found.append(
            f"it wants num_attention_heads = {config.num_attention_heads} to divide hidden_size = {config.hidden_size}"
        )
    kinds = set(config.layer_types)
    if "sliding_attention" in kinds and (
        target.sliding == "none" or (target.sliding == "all layers" and len(kinds) > 1)
    ):
        lack = "has no sliding window" if target.sliding == "none" else "slides in all layers or in none"
        found.append(f"it {lack} (sliding_window = {config.sliding_window}, layer_types)")
    if config.num_experts:
        found += _expert_obstacles(config, target)
    return found


def _expert_obstacles(config: StrataConfig, target: _Target) -> list[str]:
    found = []
    if config.shared_expert_intermediate_size:
        found.append(
            f"it has no shared expert (shared_expert_intermediate_size = {config.shared_expert_intermediate_size})"
        )
    if config.router_bias_update_rate is not None:
        found.append(f"its router selects without a bias (router_bias_update_rate = {config.router_bias_update_rate})")
    if config.scoring_func != "softmax":
        found.append(f"its router scores by softmax (scoring_func = '{config.scoring_func}')")
    if target.sparse and not target.plain_gates and not config.norm_topk_prob:
        found.append("its gates always sum to one (norm_topk_prob = False)")
    dense = [layer for layer in range(config.num_hidden_layers) if not config.is_sparse_layer(layer)]
    if target.sparse and not target.dense_layers and dense:
        found.append(f"all its layers are sparse (layers {dense} of this model are dense)")
    return found


def fitting_architectures(config: StrataConfig) -> list[str]:
    """The architectures a Strata can be written as without changing a logit.

    Args:
        config (`StrataConfig`): The model's configuration.

    Returns:
        `list[str]`: Their names; empty when Strata alone computes this model.
    """
    return [name for name in TARGETS if not obstacles(config, name)]


def export_config(config: StrataConfig, architecture: str) -> Any:
    """The configuration of the stock model that computes the same.

    Args:
        config (`StrataConfig`): The model's configuration.
        architecture (`str`): One of `"llama"`, `"qwen3"`, `"mixtral"`, `"qwen3_moe"`.

    Returns:
        `PreTrainedConfig`: An instance of the stock class.

    Raises:
        ValueError: If the architecture is not known, or lacks a feature of this model.
    """
    found = obstacles(config, architecture)
    if found:
        fits = " or ".join(f"'{name}'" for name in fitting_architectures(config))
        way_out = (
            f"{fits} would fit."
            if fits
            else "no architecture fits; publish the Strata itself, its code travels with it."
        )
        raise ValueError(f"architecture = '{architecture}'; {'; '.join(found)}; {way_out}")
    target = TARGETS[architecture]
    fields = {name: getattr(config, name) for name in COMMON_FIELDS}
    # A trained config often says use_cache = False, for the training loop's sake; what is exported is for inference.
    fields.update(head_dim=config.head_dim, rope_parameters=dict(config.rope_parameters), use_cache=True)
    if target.attention_bias:
        fields["attention_bias"] = config.attention_bias
    if target.sliding != "none":
        slides = "sliding_attention" in config.layer_types
        fields["sliding_window"] = config.sliding_window if slides else None
        if architecture != "mixtral":
            fields["use_sliding_window"] = slides
    if architecture == "qwen3":
        fields["layer_types"] = list(config.layer_types)
    if target.sparse:
        fields.update(num_experts=config.num_experts, num_experts_per_tok=config.num_experts_per_tok)
        # Theirs is k when balanced, ours 1.
        fields["router_aux_loss_coef"] = config.router_aux_loss_coef / config.num_experts_per_tok
    if architecture == "mixtral":
        fields["num_local_experts"] = fields.pop("num_experts")
        fields["intermediate_size"] = config.moe_intermediate_size
    elif architecture == "qwen3_moe":
        fields.update(
            moe_intermediate_size=config.moe_intermediate_size,
            norm_topk_prob=config.norm_topk_prob,
            decoder_sparse_step=config.moe_layer_freq,
            mlp_only_layers=list(range(config.first_dense_layers)),
        )
    return AutoConfig.for_model(architecture, **fields)


def assemble(
    build: Callable[[], PreTrainedModel],
    state: dict[str, torch.Tensor],
    device: torch.device,
    may_lack: tuple[str, ...] = (),
) -> PreTrainedModel:
    """Build a model and fill it with copies of the given tensors; nothing is drawn at random.

    Args:
        build (`Callable`): Makes the model.
        state (`dict[str, torch.Tensor]`): Tensors by the model's own names.
        device (`torch.device`): Where the model goes.
        may_lack (`tuple[str, ...]`, *optional*): Ends of names that keep the value the constructor gives them.

    Returns:
        `PreTrainedModel`: The model, in evaluation mode.

    Raises:
        ValueError: If tensors are missing, left over or of another shape.
    """
    with no_init_weights():
        model = build()
    wanted = model.state_dict()
    missing = sorted(name for name in wanted if name not in state and not name.endswith(may_lack))
    extra = sorted(set(state) - set(wanted))
    if missing or extra:
        raise ValueError(
            f"{type(model).__name__}: tensors missing: {missing[:3]} ({len(missing)}), left over: {extra[:3]} "
            f"({len(extra)}); the weights belong to another model."
        )
    shapes = [name for name in state if state[name].shape != wanted[name].shape]
    if shapes:
        name = shapes[0]
        raise ValueError(
            f"{type(model).__name__}: {name} has shape {tuple(state[name].shape)}, {tuple(wanted[name].shape)} is "
            "expected; config and weights disagree."
        )
    model.load_state_dict(state, strict=False)
    model.tie_weights()
    return model.to(device).eval()


def export_model(model: PreTrainedModel, architecture: str, dtype: torch.dtype | None = None) -> PreTrainedModel:
    """Write a Strata as a stock model with the same logits (in float32 to 1e-5).

    Args:
        model (`StrataForCausalLM`): The trained model; left as it is.
        architecture (`str`): One of `"llama"`, `"qwen3"`, `"mixtral"`, `"qwen3_moe"`.
        dtype (`torch.dtype`, *optional*): Type of the new weights; by default that of the model.

    Returns:
        `PreTrainedModel`: An instance of transformers' own class, in evaluation mode; save it with `save_pretrained`.

    Raises:
        ValueError: If it is no Strata for causal language modelling, the architecture is not known, or it lacks a
            feature of this model; the message names the architecture that would fit.

    Example:

    ```python
    >>> from hf_pretrain.models.strata.configuration_strata import StrataConfig
    >>> from hf_pretrain.models.strata.export_strata import export_model
    >>> from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    >>> model = StrataForCausalLM(StrataConfig.preset("tiny-moe", vocab_size=512))
    >>> type(export_model(model, "qwen3_moe")).__name__
    'Qwen3MoeForCausalLM'

    ```
    """
    if getattr(model.config, "model_type", None) != "strata" or not hasattr(model, "lm_head"):
        raise ValueError(
            f"model = {type(model).__name__}; a StrataForCausalLM is exported, other models need no export."
        )
    config = export_config(model.config, architecture)
    # The scale of learned noise acts in training alone.
    state = {name: value for name, value in model.state_dict().items() if not name.endswith(".noise_weight")}
    exported = assemble(
        lambda: AutoModelForCausalLM.from_config(config, dtype=dtype or model.dtype), state, model.device
    )
    if model.generation_config is not None:
        exported.generation_config = copy.deepcopy(model.generation_config)
    return exported


__all__ = [
    "COMMON_FIELDS",
    "TARGETS",
    "assemble",
    "export_config",
    "export_model",
    "fitting_architectures",
    "obstacles",
]

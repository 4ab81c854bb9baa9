"""Longer context for a trained model: YaRN (arXiv 2309.00071), linear interpolation (2306.15595), NTK, a larger base.

A changed RoPE config does nothing by itself: the frequencies were computed when the model was built. `extend_context`
changes the config and computes them again, and always writes `original_max_position_embeddings` where the type reads
it, because transformers would silently take the extended length for it.
"""

from typing import Any

from torch import nn

from .configuration_strata import StrataConfig


def extend_context(
    model_or_config: nn.Module | StrataConfig,
    factor: float | None = None,
    rope_type: str = "yarn",
    max_position_embeddings: int | None = None,
    **rope_options: Any,
) -> nn.Module | StrataConfig:
    """Extend the context of a model (or a config) in place.

    Lengths multiply, factors do not pile up: a model of original length 128 extended by 4 and then by 2 has length
    1024 and RoPE factor 8.

    Args:
        model_or_config (`nn.Module` or `StrataConfig`): What to extend.
        factor (`float`, *optional*): New length over the current `max_position_embeddings`, at least 1. Give this or
            `max_position_embeddings`.
        rope_type (`str`, *optional*, defaults to `"yarn"`): `"yarn"`, `"linear"`, `"llama3"`, `"longrope"`, `"ntk"`
            (plain RoPE with `rope_theta * s ** (d / (d - 2))`) or `"default"` (plain RoPE; give `rope_theta`).
        max_position_embeddings (`int`, *optional*): New length in tokens.
        rope_options (`Any`): Other entries of `rope_parameters` (`rope_theta`, `attention_factor`, `beta_fast`...).

    Returns:
        `nn.Module` or `StrataConfig`: The same object.

    Raises:
        ValueError: If lengths and factor do not make sense, the type is unknown or an option it needs is missing.
    """
    config = getattr(model_or_config, "config", model_or_config)
    if (factor is None) == (max_position_embeddings is None):
        raise ValueError(
            f"factor = {factor}, max_position_embeddings = {max_position_embeddings}; give exactly one of the two."
        )
    current, old = config.max_position_embeddings, config.rope_parameters
    length = round(current * factor) if max_position_embeddings is None else max_position_embeddings
    if length < current:
        raise ValueError(
            f"factor = {factor}, max_position_embeddings = {max_position_embeddings}; the new length {length} must "
            f"not be below the current {current}."
        )
    original = old.get("original_max_position_embeddings")
    if original is None:
        # A linear model stores its factor but no original length.
        original = round(current / old["factor"]) if old["rope_type"] == "linear" else current
    scale = length / original

    parameters = {"rope_type": rope_type, "rope_theta": old["rope_theta"]}
    if rope_type in ("yarn", "llama3", "longrope"):
        parameters.update(factor=scale, original_max_position_embeddings=original)
        if rope_type == "llama3":
            parameters.update(low_freq_factor=1.0, high_freq_factor=4.0)
    elif rope_type == "linear":
        parameters.update(factor=scale)
    elif rope_type == "ntk":
        head_dim = config.head_dim
        parameters.update(
            rope_type="default", rope_theta=old["rope_theta"] * (length / current) ** (head_dim / (head_dim - 2))
        )
    elif rope_type == "default":
        if "rope_theta" not in rope_options:
            raise ValueError("rope_type = 'default'; a longer context needs a larger base: give rope_theta.")
    else:
        # 'dynamic' reads max_position_embeddings as the *old* length, so it cannot carry the new one.
        raise ValueError(
            f"rope_type = {rope_type!r}; allowed: 'yarn', 'linear', 'llama3', 'longrope', 'ntk', 'default'."
        )
    parameters.update(rope_options)

    extended = {**config.to_dict(), "max_position_embeddings": length, "rope_parameters": dict(parameters)}
    type(config).from_dict(extended)  # raises before anything is changed
    config.max_position_embeddings = length
    config.rope_parameters = parameters
    if isinstance(model_or_config, nn.Module):
        for module in model_or_config.modules():
            if hasattr(module, "original_inv_freq"):
                module.config = config
                module.rebuild()
    return model_or_config


__all__ = ["extend_context"]

"""Configurations for planning: a `config.json`, a preset or a recipe folder, read without torch or transformers."""

import ast
import json
from pathlib import Path
from typing import Any

import hf_pretrain
from hf_pretrain.scripts.recipe import StageSpec, load_recipe
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


def strata_presets() -> dict[str, dict[str, Any]]:
    """The presets of `StrataConfig`, with the fields of its class that a preset leaves open.

    The class itself needs transformers and torch, seconds of import for a table: its source is read instead.

    Returns:
        `dict[str, dict]`: Configurations by name, each with its `model_type`.
    """
    source = Path(hf_pretrain.__file__).parent / "models" / "strata" / "configuration_strata.py"
    tree = ast.parse(source.read_text(encoding="utf-8"))
    presets: dict[str, dict[str, Any]] = {}
    defaults: dict[str, Any] = {"model_type": "strata"}
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and getattr(node.target, "id", "") == "PRESETS" and node.value is not None:
            presets = ast.literal_eval(node.value)
        if isinstance(node, ast.ClassDef) and node.name == "StrataConfig":
            for field in node.body:
                if isinstance(field, ast.AnnAssign) and isinstance(field.value, ast.Constant):
                    defaults[field.target.id] = field.value.value  # type: ignore[union-attr]
    return {name: _completed(defaults | values) for name, values in presets.items()}


def strata_config(model: dict[str, Any], where: str) -> dict[str, Any]:
    """A recipe's `model:` mapping as a configuration.

    Args:
        model (`dict[str, Any]`): Fields of `StrataConfig`, and `preset`.
        where (`str`): For messages.

    Returns:
        `dict`: The configuration.

    Raises:
        UserError: If nobody knows the preset.
    """
    presets = strata_presets()
    values = dict(model)
    preset = values.pop("preset", None)
    if preset is not None and preset not in presets:
        raise UserError(f"{where}: {unknown_name_message('preset', str(preset), presets)}")
    base = dict(presets[preset]) if preset is not None else {"model_type": "strata", "use_qk_norm": True}
    if "head_dim" not in values and {"hidden_size", "num_attention_heads"} & set(values):
        base.pop("head_dim", None)
    if "moe_intermediate_size" not in values and {"intermediate_size", "num_experts_per_tok"} & set(values):
        base.pop("moe_intermediate_size", None)
    return _completed(base | values)


def read_model_config(text: str) -> dict[str, Any]:
    """Reads a model's configuration.

    Args:
        text (`str`): A preset of `StrataConfig`, a `config.json`, or the folder that holds one.

    Returns:
        `dict`: The configuration.

    Raises:
        UserError: If there is no such preset or file, or it holds no mapping.
    """
    presets = strata_presets()
    if text in presets:
        return presets[text]
    path = Path(text)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise UserError(f"config = {text}; there is no such file. {unknown_name_message('preset', text, presets)}")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"config = {path}; it is no JSON: {error}.") from error
    if not isinstance(config, dict):
        raise UserError(f"config = {path}; a JSON object is needed.")
    return _completed(config) if config.get("model_type") == "strata" else config


def read_recipe(folder: str) -> tuple[dict[str, Any], float, dict[str, Any]]:
    """Reads what a recipe trains.

    Args:
        folder (`str`): The recipe folder.

    Returns:
        `tuple`: The model's configuration, the tokens of all pretrain stages, and the first one's keys.

    Raises:
        UserError: If no stage trains a new model, or says how long.
    """
    stages = [spec for spec in load_recipe(folder) if spec.kind == "pretrain"]
    first = next((spec for spec in stages if isinstance(spec.config.get("model"), dict)), None)
    if first is None:
        raise UserError(f"recipe = {folder}; no pretrain stage gives a new `model`, so there is nothing to plan.")
    config = strata_config(first.config["model"], str(first.path))
    return config, sum(_tokens(spec) for spec in stages), first.config


def _tokens(spec: StageSpec) -> float:
    tokens = spec.config.get("train_tokens")
    if isinstance(tokens, bool) or not isinstance(tokens, int | float) or tokens <= 0:
        raise UserError(f"{spec.path}: train_tokens = {tokens!r}; a plan needs the number of tokens.")
    return float(tokens)


def _completed(config: dict[str, Any]) -> dict[str, Any]:
    """Fields that the class derives from others."""
    config = dict(config)
    if config.get("moe_intermediate_size") is None and config.get("num_experts"):
        config["moe_intermediate_size"] = config["intermediate_size"] // (config.get("num_experts_per_tok") or 2)
    return config

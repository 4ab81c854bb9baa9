"""Starting a training stage from an earlier one: weights in fp32, Adam moments where asked for, a longer context.

A checkpoint trained in bf16 mixed precision holds fp32 master weights; loading it as "auto" would keep whatever type
the file has, and bf16 weights with bf16 moments lose small updates. So weights are always loaded as fp32 here.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import safe_open

from hf_pretrain.models.loading import load_causal_lm
from hf_pretrain.trainer.checkpoint import latest_complete_checkpoint
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

OPTIMIZER_FILE = "optimizer.pt"


def load_start_model(path: str | Path, extend_context: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """Loads the model a stage starts from, as fp32.

    Args:
        path (`str` or `Path`): A model folder or a name on the Hub.
        extend_context (`Mapping[str, Any]`, *optional*): Options of Strata's `extend_context`, e.g.
            `{"rope_type": "yarn", "factor": 4}`.
        **kwargs: Other arguments of `from_pretrained`.

    Returns:
        `PreTrainedModel`: The model.

    Raises:
        UserError: If there is no model, or its context cannot be extended so.
    """
    model = load_causal_lm(path, f"init_from = {path}", **kwargs)
    if extend_context:
        if model.config.model_type != "strata":
            raise UserError(
                f"extend_context = {dict(extend_context)}; it works on Strata models, and {path} "
                f"is a {model.config.model_type}"
            )
        from hf_pretrain.models.strata.context_strata import extend_context as extend

        try:
            extend(model, **extend_context)
        except (TypeError, ValueError, StrictDataclassError) as error:
            raise UserError(f"extend_context = {dict(extend_context)}; {error.__cause__ or error}") from error
    return model


def optimizer_checkpoint(stage_dir: str | Path) -> Path:
    """Finds the checkpoint whose Adam moments a following stage takes over.

    Args:
        stage_dir (`str` or `Path`): Folder of the earlier stage.

    Returns:
        `Path`: Its newest complete checkpoint.

    Raises:
        UserError: If there is none with an optimizer.
    """
    found = latest_complete_checkpoint(Path(stage_dir) / "checkpoints")
    if found is None or not (found / OPTIMIZER_FILE).is_file():
        raise UserError(
            f"continue_optimizer = true; {stage_dir} holds no complete checkpoint with "
            f"{OPTIMIZER_FILE}: run that stage again, or "
            "set continue_optimizer: false"
        )
    return found


def load_moments(optimizer: torch.optim.Optimizer, checkpoint: str | Path) -> None:
    """Takes over Adam moments and step counts; learning rate, decay and betas stay those of the new stage.

    Args:
        optimizer (`Optimizer`): The new optimizer, over the same parameters in the same order.
        checkpoint (`str` or `Path`): The checkpoint of the earlier stage.

    Raises:
        UserError: If the optimizers do not fit.
    """
    saved = torch.load(Path(checkpoint) / OPTIMIZER_FILE, map_location="cpu", weights_only=True)
    own = optimizer.state_dict()
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    sizes = [len(group["params"]) for group in own["param_groups"]]
    saved_sizes = [len(group["params"]) for group in saved["param_groups"]]
    if sizes != saved_sizes:
        raise UserError(
            f"continue_optimizer = true; {checkpoint} has parameter groups of {saved_sizes} "
            f"tensors, this model of {sizes}: the "
            "stages must train the same model"
        )
    for index, state in saved["state"].items():
        moment = state.get("exp_avg")
        if moment is not None and moment.shape != parameters[index].shape:
            raise UserError(
                f"continue_optimizer = true; in {checkpoint} the moments of parameter {index} have the shape "
                f"{tuple(moment.shape)}, the model's have {tuple(parameters[index].shape)}: the "
                "stages must train the same model"
            )
    optimizer.load_state_dict({"state": saved["state"], "param_groups": own["param_groups"]})


def load_strictly(model: Any, checkpoint: str | Path) -> bool:
    """Restores a model from a checkpoint whose file has other tensor names than the model.

    transformers saves the fused experts of some families one by one, and the Trainer's resume, which looks for the
    fused names, leaves them at their random start with a warning. Such a checkpoint is loaded the way
    `from_pretrained` does.

    Args:
        model (`PreTrainedModel`): The model to restore in place.
        checkpoint (`str` or `Path`): The checkpoint.

    Returns:
        `bool`: Whether the model was restored here; `False` if names match and the usual way is right.

    Raises:
        UserError: If tensors are missing even then.
    """
    names = _saved_names(Path(checkpoint))
    if names is None or not hasattr(type(model), "from_pretrained"):
        return False
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    missing = set(model.state_dict()) - names - tied
    if not missing:
        return False
    dtype = next(model.parameters()).dtype
    fresh, report = type(model).from_pretrained(checkpoint, dtype=dtype, output_loading_info=True)
    if report["missing_keys"]:
        raise UserError(
            f"{checkpoint} lacks {len(report['missing_keys'])} tensors, e.g. {min(report['missing_keys'])}"
        )
    model.load_state_dict(fresh.state_dict())
    logger.info("Restored %d tensors under converted names from %s", len(missing), checkpoint)
    return True


def _saved_names(checkpoint: Path) -> set[str] | None:
    index = checkpoint / "model.safetensors.index.json"
    single = checkpoint / "model.safetensors"
    if index.is_file():
        return set(json.loads(index.read_text(encoding="utf-8"))["weight_map"])
    if single.is_file():
        with safe_open(single, framework="pt") as tensors:
            return set(tensors.keys())
    return None

"""Loading a model or a tokenizer that somebody names: what is wrong with it is one line, not a traceback.

`from_pretrained` reports a damaged file in half a dozen ways, and gives tensors that a file lacks random values with
a warning. Here both are a `UserError`. Strata is known here, for importing this file imports its room.
"""

import logging
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.configuration_utils import PreTrainedConfig

from hf_pretrain.utils.errors import UserError, one_line


logger = logging.getLogger(__name__)

# What transformers, safetensors and the Hub raise at a missing, damaged or foreign file.
_FAULTS = (
    OSError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RuntimeError,
    StrictDataclassError,
    SafetensorError,
)


def load_causal_lm(path: str | Path, what: str, dtype: torch.dtype = torch.float32, **kwargs: Any) -> Any:
    """Loads a causal language model, all of it.

    Args:
        path (`str` or `Path`): A model folder or a name on the Hub.
        what (`str`): The field that names it and its value, for messages, e.g. `"init_from = 2_pretrain"`.
        dtype (`torch.dtype`, *optional*, defaults to `torch.float32`): Type of the weights.
        **kwargs (`Any`): Other arguments of `from_pretrained`.

    Returns:
        `PreTrainedModel`: The model.

    Raises:
        UserError: If there is no model, a file is damaged, or tensors are missing, left over or of another shape.
    """
    if isinstance(path, Path) and not (path / "config.json").is_file():
        raise UserError(f"{what}; no model can be loaded from {path}, it holds no config.json: name a model's folder.")
    try:
        model, report = AutoModelForCausalLM.from_pretrained(path, dtype=dtype, output_loading_info=True, **kwargs)
    except torch.OutOfMemoryError:
        raise
    except _FAULTS as error:
        raise UserError(f"{what}; no model can be loaded from {path} ({one_line(error, 240)})") from error
    missing = sorted(report["missing_keys"])
    if missing:
        raise UserError(
            f"{what}; the weights in {path} lack {len(missing)} of the model's tensors, e.g. {missing[0]}: save the "
            "model again, or name the folder of another."
        )
    left_over = sorted(report["unexpected_keys"])
    if left_over:
        raise UserError(
            f"{what}; the weights in {path} hold {len(left_over)} tensors that {type(model).__name__} does not have, "
            f"e.g. {left_over[0]}: its config.json describes another model; name a folder where the two agree."
        )
    stored, _ = PreTrainedConfig.get_config_dict(path)
    stored_dtype, held = stored.get("dtype", stored.get("torch_dtype")), str(dtype).removeprefix("torch.")
    if stored_dtype not in (None, held):
        logger.info("%s: the weights are stored as %s and held as %s", what, stored_dtype, held)
    return model


def new_causal_lm(path: str | Path, what: str, seed: int) -> Any:
    """Makes a model of a saved configuration with weights it was never trained from.

    Args:
        path (`str` or `Path`): A model folder or a name on the Hub.
        what (`str`): The field that names it and its value, for messages.
        seed (`int`): Chooses the weights.

    Returns:
        `PreTrainedModel`: The model, in fp32.

    Raises:
        UserError: If there is no configuration, or it is damaged.
    """
    try:
        config = AutoConfig.from_pretrained(path)
    except _FAULTS as error:
        raise UserError(f"{what}; no configuration can be loaded from {path} ({one_line(error, 240)})") from error
    torch.manual_seed(seed)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def check_vocabulary(model: Any, tokenizer: Any, what: str) -> None:
    """Makes sure that a model has a row for every id its tokenizer can give.

    Args:
        model (`PreTrainedModel`): The model.
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        what (`str`): The field that names the model and its value, for messages.

    Raises:
        UserError: If the vocabulary is smaller than the tokenizer's largest id needs.
    """
    rows = model.get_input_embeddings().weight.shape[0]
    token, largest = max(tokenizer.get_vocab().items(), key=lambda item: item[1])
    if largest >= rows:
        raise UserError(
            f"{what}; the model's vocabulary has {rows} ids, the tokenizer gives ids up to {largest} ({token!r}): use "
            f"the tokenizer the model was made with, or model.resize_token_embeddings({largest + 1})."
        )


def load_saved_tokenizer(folder: str | Path, what: str) -> Any:
    """Loads the tokenizer of a folder.

    Args:
        folder (`str` or `Path`): Where `tokenizer.json` lies.
        what (`str`): The field that names it and its value, for messages, e.g. `"corpus = 1_corpus"`.

    Returns:
        `PreTrainedTokenizerBase`: The tokenizer.

    Raises:
        UserError: If there is none or a file of it is damaged.
    """
    folder = Path(folder)
    if not (folder / "tokenizer.json").is_file():
        raise UserError(f"{what}; {folder / 'tokenizer.json'} is missing: run the stage that makes it first.")
    try:
        return AutoTokenizer.from_pretrained(folder)
    except Exception as error:  # tokenizers raises bare Exception for a file it cannot read
        raise UserError(
            f"{what}; the tokenizer in {folder} cannot be read ({one_line(error, 240)}): make it again."
        ) from error

"""The mean of several checkpoints of one model: a model soup (https://huggingface.co/papers/2203.05482).

Annealing a few times from one checkpoint, with other data orders or mixes, and averaging the results is worth about
as much as the best of them (OLMo 2, https://huggingface.co/papers/2501.00656). Tensors are read one at a time and
summed in float64, so that the mean of equal checkpoints is the checkpoint. Of the router's bias the mean is taken like
of any weight: it is added to scores that are means too. Whole numbers must agree.
"""

import json
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from huggingface_hub import save_torch_state_dict
from safetensors import SafetensorError, safe_open

from hf_pretrain.utils.errors import UserError


# What a configuration says about its file and not about the model.
_NOT_THE_MODEL = {"_name_or_path", "transformers_version", "dtype", "torch_dtype"}
SHARD_BYTES = 5 * 10**9


def tensor_files(folder: Path) -> dict[str, Path]:
    """Finds the file of each tensor.

    Args:
        folder (`Path`): A model folder with safetensors, in one file or in shards.

    Returns:
        `dict[str, Path]`: By name of the tensor.

    Raises:
        UserError: If there are none, or a file is damaged.
    """
    index, single = folder / "model.safetensors.index.json", folder / "model.safetensors"
    try:
        if index.is_file():
            entries = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
            return {name: folder / file for name, file in entries.items() if Path(file).name == file}
        if single.is_file():
            with safe_open(single, framework="pt") as tensors:
                return dict.fromkeys(tensors.keys(), single)
    except (SafetensorError, ValueError, KeyError) as error:
        raise UserError(f"CKPT = {folder}; its weights cannot be read ({error}): save the model again") from error
    raise UserError(f"CKPT = {folder}; it holds no model.safetensors: give the folder of a model or a checkpoint")


def check_same_model(folders: Sequence[Path]) -> dict[str, Any]:
    """Makes sure that checkpoints are of one model.

    Args:
        folders (`Sequence[Path]`): Model folders.

    Returns:
        `dict[str, Any]`: The configuration of the first.

    Raises:
        UserError: If fewer than two are given, one is given twice, or configurations differ.
    """
    if len(folders) < 2:
        raise UserError(f"CKPT: {len(folders)} given; an average needs at least two checkpoints")
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise UserError("CKPT: a checkpoint is given twice; give each once")
    configs = []
    for folder in folders:
        try:
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UserError(f"CKPT = {folder}; it holds no config.json that can be read ({error})") from error
        configs.append({key: value for key, value in config.items() if key not in _NOT_THE_MODEL})
    for folder, config in zip(folders[1:], configs[1:], strict=True):
        for key in sorted({*configs[0], *config}):
            first, other = configs[0].get(key), config.get(key)
            if first != other:
                raise UserError(
                    f"CKPT = {folder}; its {key} is {other!r}, that of {folders[0]} is {first!r}: only checkpoints of "
                    "one model can be averaged"
                )
    return configs[0]


def average_weights(folders: Sequence[Path]) -> dict[str, torch.Tensor]:
    """Computes the mean of every tensor, one tensor at a time.

    Args:
        folders (`Sequence[Path]`): Model folders, already found to be of one model.

    Returns:
        `dict[str, torch.Tensor]`: fp32 means; tensors of whole numbers as they are. A tied head has no entry, as in
        the files.

    Raises:
        UserError: If names or shapes differ, whole numbers differ, or a value is not finite.
    """
    files = [tensor_files(folder) for folder in folders]
    for folder, found in zip(folders[1:], files[1:], strict=True):
        strange = sorted(set(found) ^ set(files[0]))
        if strange:
            raise UserError(
                f"CKPT = {folder}; tensors differ from those of {folders[0]}, e.g. {strange[0]}: were embedding and "
                "head untied, or experts saved in another layout?"
            )
    means: dict[str, torch.Tensor] = {}
    with ExitStack() as stack:
        opened: dict[Path, Any] = {}

        def read(path: Path, name: str) -> torch.Tensor:
            try:
                if path not in opened:
                    opened[path] = stack.enter_context(safe_open(path, framework="pt"))
                return opened[path].get_tensor(name)
            except (OSError, SafetensorError) as error:
                raise UserError(f"{path} cannot be read ({error}): save the model again") from error

        for name in sorted(files[0]):
            tensors = [read(found[name], name) for found in files]
            for folder, tensor in zip(folders, tensors, strict=True):
                if tensor.shape != tensors[0].shape:
                    raise UserError(
                        f"CKPT = {folder}; {name} has the shape {tuple(tensor.shape)}, in {folders[0]} "
                        f"{tuple(tensors[0].shape)}: only checkpoints of one model can be averaged"
                    )
                if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                    raise UserError(f"CKPT = {folder}; {name} holds NaN or infinity: leave this checkpoint out")
            if not tensors[0].is_floating_point():
                if any(not torch.equal(tensor, tensors[0]) for tensor in tensors):
                    raise UserError(f"CKPT: {name} holds whole numbers that differ; they have no mean")
                means[name] = tensors[0]
                continue
            total = tensors[0].double()
            for tensor in tensors[1:]:
                total += tensor.double()
            means[name] = (total / len(tensors)).float()
    return means


def save_average(folders: Sequence[Path], target: Path, shard_bytes: int = SHARD_BYTES) -> int:
    """Writes the mean as a model folder without configuration or tokenizer.

    Args:
        folders (`Sequence[Path]`): Model folders.
        target (`Path`): An existing folder.
        shard_bytes (`int`, *optional*): Largest size of a file.

    Returns:
        `int`: Number of values that were averaged.

    Raises:
        UserError: If the checkpoints are not of one model.
    """
    check_same_model(folders)
    means = average_weights(folders)
    save_torch_state_dict(means, target, max_shard_size=shard_bytes, metadata={"format": "pt"})
    return sum(mean.numel() for mean in means.values())

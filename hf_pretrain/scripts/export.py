"""`hf-pretrain export`: a trained Strata as a plain Llama, Qwen3, Mixtral or Qwen3-MoE checkpoint.

The folder appears only after it was loaded again by transformers' own classes and gave the logits of the original.
"""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from hf_pretrain.scripts.execution import guarded, prepare_process
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Largest difference of a logit, relative to the largest logit where that is above 1.
TOLERANCE = 1e-5


def find_checkpoint(path: Path) -> Path:
    """Finds the model that is meant.

    Args:
        path (`Path`): A stage's folder in a run, its `model/`, or any folder with a Strata.

    Returns:
        `Path`: The folder that holds `config.json`.

    Raises:
        UserError: If there is none, or it is not a Strata.
    """
    from hf_pretrain.utils.atomic import read_json

    folder = path / "model" if (path / "model").is_dir() else path
    if not (folder / "config.json").is_file():
        raise UserError(
            f"CKPT = {path}; {folder} holds no config.json: give the folder of a stage that trained, or of a Strata."
        )
    try:
        stored = read_json(folder / "config.json")
    except ValueError as error:
        raise UserError(f"CKPT = {path}; {folder / 'config.json'} is not JSON: save the model again.") from error
    architecture = stored.get("model_type") if isinstance(stored, dict) else None
    if architecture != "strata":
        raise UserError(f"CKPT = {path}; its model_type is {architecture!r}: only a Strata needs to be exported.")
    return folder


def export_checkpoint(source: Path, architecture: str, out: Path) -> tuple[str, float]:
    """Writes the plain checkpoint, whole and verified, or nothing.

    Args:
        source (`Path`): Folder of a Strata.
        architecture (`str`): `"llama"`, `"qwen3"`, `"mixtral"` or `"qwen3_moe"`.
        out (`Path`): Folder to make.

    Returns:
        `tuple[str, float]`: Name of the class that loads it, and the largest difference of a logit.

    Raises:
        UserError: If the folder is taken, the architecture lacks a feature of the model, or the logits differ.
    """
    from hf_pretrain.models.loading import load_causal_lm, load_saved_tokenizer
    from hf_pretrain.models.strata.export_strata import export_model
    from hf_pretrain.utils.atomic import atomic_directory

    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"OUT = {out}; it exists already: give another folder, or remove it.")
    model = load_causal_lm(source, f"CKPT = {source}").eval()
    try:
        exported = export_model(model, architecture)
    except ValueError as error:
        raise UserError(str(error)) from error
    tokenizer = None
    if (source / "tokenizer.json").is_file():
        tokenizer = load_saved_tokenizer(source, f"CKPT = {source}")
    with atomic_directory(out) as staging:
        exported.save_pretrained(staging)
        if tokenizer is not None:
            tokenizer.save_pretrained(staging)
        del exported
        return verify(staging, model)


def verify(folder: Path, model: "PreTrainedModel") -> tuple[str, float]:
    """Loads a folder by transformers' own classes and compares its logits with those of the original.

    Args:
        folder (`Path`): The plain checkpoint.
        model (`PreTrainedModel`): The original, float32.

    Returns:
        `tuple[str, float]`: Name of the class that was loaded, and the largest difference of a logit.

    Raises:
        UserError: If code of ours took part, tensors are missing, or the logits differ.
    """
    import torch

    from hf_pretrain.models.loading import load_causal_lm

    plain = load_causal_lm(folder, "reload of the export", trust_remote_code=False).eval()
    if not type(plain).__module__.startswith("transformers.models.") or list(folder.glob("*.py")):
        raise UserError(f"reload of the export gave {type(plain).__module__}; a class of transformers is expected.")
    length = min(model.config.max_position_embeddings, 256)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, model.config.vocab_size, (2, length), generator=generator)
    with torch.inference_mode():
        expected, found = model(ids, use_cache=False).logits, plain(ids, use_cache=False).logits
    difference = float((expected - found).abs().max())
    allowed = TOLERANCE * max(1.0, float(expected.abs().max()))
    if not difference <= allowed:
        raise UserError(f"the exported model's logits differ by {difference:.3g}, more than {allowed:.3g} allows.")
    return type(plain).__name__, difference


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain export`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(
        prog="hf-pretrain export",
        description="Write a Strata as a checkpoint that transformers and inference engines load without our code.",
    )
    parser.add_argument("checkpoint", type=Path, metavar="CKPT", help="a stage's folder, its model/, or any Strata")
    parser.add_argument(
        "--to", required=True, metavar="ARCHITECTURE", help="llama or qwen3 (dense), mixtral or qwen3_moe (experts)"
    )
    parser.add_argument("out", type=Path, metavar="OUT", help="folder to make")
    arguments = parser.parse_args(argv)
    prepare_process(quiet=True)

    def work() -> None:
        from transformers.utils import logging as transformers_logging

        transformers_logging.disable_progress_bar()
        source = find_checkpoint(arguments.checkpoint)
        name, difference = export_checkpoint(source, arguments.to, arguments.out)
        print(f"{arguments.out}: {name}, largest difference of a logit {difference:.2g} (float32)")

    return guarded(work)


if __name__ == "__main__":
    raise SystemExit(main())

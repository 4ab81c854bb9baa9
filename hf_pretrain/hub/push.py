"""Save a model so that strangers can load it, prove it, and upload it.

The folder holds safetensors, the tokenizer, and for a family that transformers does not have, the code: `auto_map`
points to files beside the weights and nowhere else. The proof is a fresh, isolated Python that cannot import this
package; it loads the folder, generates, and its logits are compared with those of the model in memory.
"""

import ast
import json
import logging
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.utils.atomic import atomic_directory, read_json
from hf_pretrain.utils.errors import UserError, one_line


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

logger = logging.getLogger(__name__)

PACKAGE = "hf_pretrain"

_RELOAD_PROCESS = Path(__file__).with_name("reload_process.py")


@dataclass(frozen=True)
class ReloadReport:
    """What the fresh process saw.

    Args:
        prompt (`str`): The text it was given.
        text (`str`): What it generated, greedily.
        new_tokens (`int`): Tokens generated.
        max_new_tokens (`int`): Most it was allowed to generate.
        max_logit_difference (`float`): Largest absolute difference of a logit to the model in memory.
        model_class (`str`): Class that was loaded.
        load_seconds (`float`): Time to load tokenizer and model.
    """

    prompt: str
    text: str
    new_tokens: int
    max_new_tokens: int
    max_logit_difference: float
    model_class: str
    load_seconds: float

    def as_facts(self) -> dict[str, Any]:
        """The report as plain JSON data."""
        return asdict(self)


def save_for_hub(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    folder: str | os.PathLike,
    extra_files: dict[str, str] | None = None,
) -> dict[str, int]:
    """Writes a folder that is a complete repository, or nothing.

    Args:
        model (`PreTrainedModel`): The model. A class that transformers does not have ships its code.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        folder (`str` or `os.PathLike`): Where to; an older folder there is replaced when the new one is complete.
        extra_files (`dict[str, str]`, *optional*): Further text files by name.

    Returns:
        `dict[str, int]`: Size in bytes by file name.

    Raises:
        UserError: If the code or `auto_map` would not work elsewhere.
    """
    # Registration is remembered on the classes and makes every later save ship the code; only custom code needs it.
    if not type(model).__module__.startswith("transformers."):
        type(model.config).register_for_auto_class()
        type(model).register_for_auto_class("AutoModelForCausalLM")
    with atomic_directory(folder) as staging:
        model.save_pretrained(staging, safe_serialization=True)
        tokenizer.save_pretrained(staging)
        for name, text in (extra_files or {}).items():
            (staging / name).write_text(text, encoding="utf-8")
        check_repository(staging)
        sizes = {path.name: path.stat().st_size for path in sorted(staging.iterdir()) if path.is_file()}
    return sizes


def check_repository(folder: str | os.PathLike) -> None:
    """Makes sure that a saved folder needs nothing outside of it.

    Args:
        folder (`str` or `os.PathLike`): The folder.

    Raises:
        UserError: If weights are missing or not safetensors, `auto_map` points to another repository or to a file that
            is not there, or a code file imports this package, a parent folder, or a sibling that was not copied.
    """
    folder = Path(folder)
    if not list(folder.glob("*.safetensors")):
        raise UserError(f"{folder} holds no .safetensors weights; save the model with save_pretrained.")
    if list(folder.glob("*.bin")) or list(folder.glob("*.pt")):
        raise UserError(f"{folder} holds pickled weights; only safetensors are shipped: remove them.")
    for name in ("config.json", "tokenizer_config.json"):
        path = folder / name
        for key, target in (read_json(path).get("auto_map") or {}).items() if path.exists() else ():
            for reference in target if isinstance(target, list) else [target]:
                if reference is None:
                    continue
                if "--" in reference:
                    raise UserError(
                        f"{name}: auto_map.{key} = {reference}; it points to another repository: save again."
                    )
                module, _, attribute = reference.rpartition(".")
                if not module or "." in module or not (folder / f"{module}.py").is_file():
                    raise UserError(
                        f"{name}: auto_map.{key} = {reference}; {module}.py with {attribute} is not there."
                    )
    for path in sorted(folder.glob("*.py")):
        for module, level in _imports(path):
            if module.partition(".")[0] == PACKAGE or level > 1:
                raise UserError(f"{path.name} imports {'.' * level}{module}, which does not travel with the model.")
            if level == 1 and not (folder / f"{module.partition('.')[0]}.py").is_file():
                raise UserError(f"{path.name} imports .{module}, but {module}.py was not copied.")


def _imports(path: Path) -> list[tuple[str, int]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.extend((alias.name, 0) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.level and not node.module:
                found.extend((alias.name, node.level) for alias in node.names)
            else:
                found.append((node.module or "", node.level))
    return found


def render_prompt(tokenizer: "PreTrainedTokenizerBase", prompt: str) -> str:
    """Puts a prompt as the model was taught to be asked.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): The tokenizer.
        prompt (`str`): What to ask.

    Returns:
        `str`: Through the chat template where there is one, else the prompt itself.
    """
    if not tokenizer.chat_template:
        return prompt
    turns = [{"role": "user", "content": prompt}]
    return tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)


def reload_check(
    folder: str | os.PathLike,
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    prompt: str,
    max_new_tokens: int = 24,
    tolerance: float = 1e-4,
    timeout: float = 300.0,
) -> ReloadReport:
    """Loads a folder where this package does not exist and compares.

    Args:
        folder (`str` or `os.PathLike`): The saved folder.
        model (`PreTrainedModel`): The model that was saved.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        prompt (`str`): What to generate from.
        max_new_tokens (`int`, *optional*, defaults to 24): Most tokens to generate.
        tolerance (`float`, *optional*, defaults to 1e-4): Largest difference of a logit that is let pass.
        timeout (`float`, *optional*, defaults to 300.0): Seconds the process may take.

    Returns:
        `ReloadReport`: What it generated and how far its logits were.

    Raises:
        UserError: If the folder does not load, the tokenizer gives other ids, or the logits differ.
    """
    import torch
    from safetensors.torch import load_file

    text = render_prompt(tokenizer, prompt)
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with tempfile.TemporaryDirectory() as scratch:
        request = {
            "folder": str(Path(folder).resolve()),
            "input_ids": ids,
            "prompt_text": text,
            "max_new_tokens": max_new_tokens,
            "logits": str(Path(scratch) / "logits.safetensors"),
            "answer": str(Path(scratch) / "answer.json"),
        }
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
        # Code from the folder, not from an earlier load of a namesake; and never from the network.
        environment |= {"HF_MODULES_CACHE": str(Path(scratch) / "modules"), "HF_HUB_OFFLINE": "1"}
        environment |= {"TRANSFORMERS_VERBOSITY": "error", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
        begin = time.monotonic()
        try:
            result = subprocess.run(
                [sys.executable, "-I", str(_RELOAD_PROCESS)],
                input=json.dumps(request),
                capture_output=True,
                text=True,
                cwd=scratch,
                env=environment,
                timeout=timeout,
            )
        except subprocess.TimeoutExpired as error:
            raise UserError(f"reload of {folder}: not loaded within {timeout:.0f} seconds.") from error
        if result.returncode:
            last = result.stderr.strip().splitlines()[-1:] or ["no message"]
            raise UserError(f"reload of {folder} in a fresh process failed: {one_line(ValueError(last[0]))}")
        answer = read_json(request["answer"])
        logits = load_file(request["logits"])["logits"]
    logger.info("reloaded %s in a fresh process in %.1f s", folder, time.monotonic() - begin)
    if answer["package_loaded"]:
        raise UserError(f"reload of {folder}: the process could import {PACKAGE}, so the check proves nothing.")
    if answer["prompt_ids"] != ids:
        raise UserError(f"reload of {folder}: its tokenizer gives other ids for the prompt than the one in memory.")
    was_training = model.training
    with torch.inference_mode():
        expected = model.eval()(input_ids=torch.tensor([ids], device=model.device)).logits[0].float().cpu()
    model.train(was_training)
    difference = float((expected - logits).abs().max())
    if not difference <= tolerance:
        raise UserError(f"reload of {folder}: logits differ by {difference:.3g}, more than {tolerance:.3g} allows.")
    return ReloadReport(
        prompt=prompt,
        text=answer["text"],
        new_tokens=answer["new_tokens"],
        max_new_tokens=max_new_tokens,
        max_logit_difference=difference,
        model_class=answer["model_class"],
        load_seconds=round(answer["load_seconds"], 3),
    )


def push_weights(folder: str | os.PathLike, repo_id: str, token: str | None, private: bool = False) -> str:
    """Uploads everything but the card.

    Args:
        folder (`str` or `os.PathLike`): The saved folder.
        repo_id (`str`): `user/name` on the Hub.
        token (`str`, *optional*): Access token; that of the login by default.
        private (`bool`, *optional*, defaults to `False`): Whether a new repository is private.

    Returns:
        `str`: The commit's id.
    """
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    api.create_repo(repo_id, exist_ok=True, private=private)
    commit = api.upload_folder(
        repo_id=repo_id, folder_path=str(folder), commit_message="Upload model", ignore_patterns=["README.md"]
    )
    return commit.oid


def push_card(folder: str | os.PathLike, repo_id: str, token: str | None) -> str:
    """Uploads the card, `README.md` of the folder.

    Args:
        folder (`str` or `os.PathLike`): The saved folder.
        repo_id (`str`): `user/name` on the Hub.
        token (`str`, *optional*): Access token; that of the login by default.

    Returns:
        `str`: The commit's id.
    """
    from huggingface_hub import HfApi

    commit = HfApi(token=token).upload_file(
        path_or_fileobj=str(Path(folder) / "README.md"),
        path_in_repo="README.md",
        repo_id=repo_id,
        commit_message="Upload model card",
    )
    return commit.oid

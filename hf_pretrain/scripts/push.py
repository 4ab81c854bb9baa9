"""`hf-pretrain push`: save a model as a repository, prove that it loads elsewhere, write its card, upload it if asked.

The order protects the weights: folder, proof, facts, card, upload of the weights, upload of the card.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from hf_pretrain.scripts.execution import stage_main
from hf_pretrain.scripts.recipe import StageSpec
from hf_pretrain.utils.errors import UserError, one_line


@dataclass(frozen=True)
class PushOptions:
    """Keys of a push stage's file.

    Args:
        model (`str`): The stage or model folder to publish.
        dtype (`str`, *optional*, defaults to `"float32"`): Type the weights are saved in: `float32` or `bfloat16`.
        prompt (`str`, *optional*): What the reloaded model is asked.
        max_new_tokens (`int`, *optional*, defaults to 32): Most tokens it may answer.
        license (`str`, *optional*): Licence id of the Hub for the card; by default it follows from the sources.
        hub_model_id (`str`, *optional*): `user/name` to upload to. The token is that of the login or `HF_TOKEN`; it
            never stands in a recipe.
        private (`bool`, *optional*, defaults to `False`): Whether a new repository is private.
    """

    model: str
    dtype: Literal["float32", "bfloat16"] = "float32"
    prompt: str = "How do I boil an egg?"
    max_new_tokens: int = 32
    license: str | None = None
    hub_model_id: str | None = None
    private: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 1:
            raise UserError(f"max_new_tokens = {self.max_new_tokens}; at least 1 is expected.")
        if not self.prompt.strip():
            raise UserError("prompt is empty; give the model something to answer.")
        if self.hub_model_id is not None and self.hub_model_id.count("/") != 1:
            raise UserError(f"hub_model_id = {self.hub_model_id}; user/name is expected.")


def check(spec: StageSpec) -> PushOptions:
    """Validates the stage's file without doing any work.

    Args:
        spec (`StageSpec`): The stage.

    Returns:
        `PushOptions`: The options.

    Raises:
        UserError: If a key is unknown or a value does not fit.
    """
    from hf_pretrain.hub.model_card import HUB_LICENSES
    from hf_pretrain.utils.naming import unknown_name_message
    from hf_pretrain.utils.strict import build

    options = build(PushOptions, spec.config, str(spec.path))
    if options.hub_model_id is not None:
        from huggingface_hub.errors import HFValidationError
        from huggingface_hub.utils import validate_repo_id

        try:
            validate_repo_id(options.hub_model_id)
        except HFValidationError as error:
            raise UserError(f"{spec.path}: hub_model_id = {options.hub_model_id}; {error}") from error
    if options.license is not None and options.license not in HUB_LICENSES.values():
        raise UserError(f"{spec.path}: {unknown_name_message('license', options.license, HUB_LICENSES.values())}")
    return options


def run(spec: StageSpec) -> None:
    """Saves, proves, describes and uploads.

    Args:
        spec (`StageSpec`): The stage.

    Raises:
        UserError: If there is no model, it does not load elsewhere, or the Hub refuses it.
    """
    import torch
    from transformers.utils import logging as transformers_logging

    from hf_pretrain.hub.model_card import license_file, render_card
    from hf_pretrain.hub.push import reload_check, save_for_hub
    from hf_pretrain.models.loading import load_causal_lm, load_saved_tokenizer
    from hf_pretrain.utils.atomic import write_text
    from hf_pretrain.utils.facts import Facts

    # The progress lines say what is going on; bars of the libraries would break them.
    transformers_logging.disable_progress_bar()
    options = check(spec)
    facts = Facts(spec.run_dir)
    source = _model_folder(spec, options.model)
    model = load_causal_lm(source, f"model = {options.model}", getattr(torch, options.dtype)).eval()
    tokenizer = load_saved_tokenizer(source, f"model = {options.model}")
    folder = spec.stage_dir / "model"
    sizes = save_for_hub(model, tokenizer, folder, {"LICENSE.md": license_file(facts.load())})
    report = reload_check(folder, model, tokenizer, options.prompt, options.max_new_tokens)
    payload: dict[str, Any] = {
        "model": options.model,
        "dtype": options.dtype,
        "license": options.license,
        "files": sizes,
        "reload": report.as_facts(),
        "hub": None,
    }
    facts.record_stage(spec.name, spec.kind, payload)
    write_text(folder / "README.md", render_card(facts.load(), options.hub_model_id))
    if options.hub_model_id is not None:
        payload["hub"] = _upload(folder, options)
        facts.record_stage(spec.name, spec.kind, payload)


def _model_folder(spec: StageSpec, reference: str) -> Path:
    folder = Path(spec.resolve(reference))
    path = folder / "model" if (folder / "model").is_dir() else folder
    if not (path / "config.json").exists():
        raise UserError(f"model = {reference}; {path} holds no model: run that stage first or name a model folder.")
    if not (path / "tokenizer.json").exists():
        raise UserError(f"model = {reference}; {path} holds no tokenizer: save the tokenizer beside the model.")
    return path


def _upload(folder: Path, options: PushOptions) -> dict[str, Any]:
    from huggingface_hub import get_token
    from huggingface_hub.errors import HfHubHTTPError

    from hf_pretrain.hub.push import push_card, push_weights

    token = os.environ.get("HF_TOKEN") or get_token()
    if not token:
        raise UserError(
            f"hub_model_id = {options.hub_model_id}; there is no token: run `hf auth login` or set HF_TOKEN. The "
            f"model lies in {folder}."
        )
    # What the client raises without an answer has the same base as the Hub's refusals, whichever httpx it uses.
    unreachable = next(base for base in HfHubHTTPError.__mro__ if base.__name__ == "HTTPError")
    try:
        commit = push_weights(folder, options.hub_model_id, token, options.private)
        card = push_card(folder, options.hub_model_id, token)
    except HfHubHTTPError as error:
        raise UserError(
            f"hub_model_id = {options.hub_model_id}; the Hub refused: {' '.join(str(error).split())} The model lies "
            f"in {folder}."
        ) from error
    except (unreachable, ConnectionError, TimeoutError) as error:
        raise UserError(
            f"hub_model_id = {options.hub_model_id}; the Hub cannot be reached ({one_line(error, 200)}): run the same "
            f"command again later. The model lies in {folder}."
        ) from error
    return {"id": options.hub_model_id, "weights_commit": commit, "card_commit": card, "private": options.private}


def main(argv: list[str] | None = None) -> int:
    """The command line of `hf-pretrain push`.

    Args:
        argv (`list[str]`, *optional*): Arguments; those of the process by default.

    Returns:
        `int`: The exit code.
    """
    return stage_main("push", run, argv)


if __name__ == "__main__":
    raise SystemExit(main())

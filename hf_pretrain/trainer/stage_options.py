"""The keys of a pretrain stage's file: where model and data come from, and all of `PretrainConfig`, flat.

corpus: 1_corpus                 # the corpus stage, or a folder with tokenizer/ and tokens/
datasets: [{path: 1_corpus, name: web, weight: 0.7}, ...]   # sources from elsewhere; see dataset_keys.py
model: {preset: tiny-moe}        # StrataConfig fields; or instead
init_from: 2_pretrain            # the stage, folder or Hub name whose model goes on
mixture: {web: 0.7, code: 0.3}   # token shares, or {phases: [...]}; by default what the sources hold
anneal_mixture: {code: 1.0}      # shares of the last part, from where the learning rate decays
train_tokens: 2_000_000          # and any other field of PretrainConfig
"""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_type_hints

from huggingface_hub.errors import StrictDataclassError

from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.models.strata.configuration_strata import PRESETS, StrataConfig
from hf_pretrain.trainer.dataset_keys import DATASET_KEYS, DatasetEntry, read_dataset_keys, stage_settings
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.strict import build, convert


# The stage decides these; a recipe that sets them would fight with it.
_OWN_FIELDS = ("output_dir", "record_dir", "resume_from_checkpoint", "do_train", "do_eval", "do_predict", "local_rank")


@dataclass
class StageOptions:
    """What a pretrain stage's file says beside the training arguments.

    Args:
        corpus (`str`): The corpus stage or a folder with `tokenizer/` and `tokens/`; with `datasets`, `tokenizer/`
            is enough.
        model (`dict[str, Any]`, *optional*): Fields of `StrataConfig`, with `preset` for a named size.
        init_from (`str`, *optional*): Stage, folder or Hub name of the model to go on from. Give this or `model`.
        mixture (`dict[str, Any]`, *optional*): Token shares of the sources, or `{phases: [...]}`; by default the
            shares the sources have.
        anneal_mixture (`dict[str, float]`, *optional*): Shares of the last part of the run.
        packing (`str`, *optional*, defaults to `"concat"`): How documents share rows: `"concat"` cuts the line of all
            tokens into windows, `"best_fit"` keeps documents whole where they fit.
        effect_checks (`bool`, *optional*, defaults to `True`): Whether every switch proves itself before the first
            update.
        pure_bf16 (`bool`, *optional*, defaults to `False`): Keep the weights themselves in bf16, without fp32 master
            weights; small updates are then lost.
        datasets (`list[DatasetEntry]`, *optional*): The sources of the training data; by default those of the corpus.
        async_save (`bool`, *optional*, defaults to `False`): Whether checkpoints are written beside the training,
            from a copy in host memory.
    """

    corpus: str
    model: dict[str, Any] | None = None
    init_from: str | None = None
    mixture: dict[str, Any] | None = None
    anneal_mixture: dict[str, float] | None = None
    packing: Literal["concat", "best_fit"] = "concat"
    effect_checks: bool = True
    pure_bf16: bool = False
    datasets: list[DatasetEntry] = field(default_factory=list)
    async_save: bool = False
    training: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.model is None) == (self.init_from is None):
            raise UserError("model and init_from: give one of the two, a new model or one to go on from.")


def read_options(config: Mapping[str, Any], where: str) -> StageOptions:
    """Sorts a stage file's keys.

    Args:
        config (`Mapping[str, Any]`): The keys.
        where (`str`): The file, for messages.

    Returns:
        `StageOptions`: The stage's own keys, and under `training` those of `PretrainConfig`.

    Raises:
        UserError: If a key is unknown or has the wrong type.
    """
    own = [item.name for item in dataclasses.fields(StageOptions) if item.name not in ("training", "datasets")]
    arguments = [
        item.name for item in dataclasses.fields(PretrainConfig) if item.init and item.name not in _OWN_FIELDS
    ]
    for key in config:
        if key not in own and key not in arguments and key not in DATASET_KEYS:
            raise UserError(f"{where}: {unknown_name_message('key', key, [*own, *arguments, *DATASET_KEYS])}")
    entries = read_dataset_keys(config, where)
    config = {key: value for key, value in config.items() if key not in DATASET_KEYS}
    config |= stage_settings(entries, config, where)
    hints = get_type_hints(PretrainConfig)
    training = {key: convert(hints[key], config[key], f"{where}: {key}") for key in config if key not in own}
    options = build(StageOptions, {key: config[key] for key in config if key in own}, where)
    return dataclasses.replace(options, training=training, datasets=entries)


def make_arguments(options: StageOptions, stage_dir: Path, where: str) -> PretrainConfig:
    """Makes the training arguments of a stage.

    Args:
        options (`StageOptions`): The stage's keys.
        stage_dir (`Path`): The stage's folder.
        where (`str`): The file, for messages.

    Returns:
        `PretrainConfig`: With checkpoints in `stage_dir/checkpoints` and records in `stage_dir`.

    Raises:
        UserError: If a value is out of range, or there is no budget.
    """
    try:
        args = PretrainConfig(output_dir=str(stage_dir / "checkpoints"), record_dir=str(stage_dir), **options.training)
    except (ValueError, ImportError) as error:  # an ImportError: an integration that is asked for and not installed
        raise UserError(f"{where}: {error}") from error
    if args.max_steps <= 0:
        raise UserError(f"{where}: the key 'train_tokens' is missing; say how many tokens to train on.")
    return args


def make_model_config(model: Mapping[str, Any], where: str, **defaults: Any) -> StrataConfig:
    """Makes a model configuration of a recipe's `model:` mapping.

    Args:
        model (`Mapping[str, Any]`): Fields of `StrataConfig`, and `preset`.
        where (`str`): The file, for messages.
        **defaults (`Any`): Values of fields that neither the mapping nor its preset give, and that win over the
            class's.

    Returns:
        `StrataConfig`: The configuration.

    Raises:
        UserError: If a field is unknown, of the wrong type, or fields contradict each other.
    """
    # What Strata adds itself; the fields of transformers' base class are not for recipes.
    hints = dict(vars(StrataConfig)["__annotations__"])
    known = list(hints)
    values = dict(model)
    preset = values.pop("preset", None)
    if preset is not None and preset not in PRESETS:
        raise UserError(f"{where}: model.preset: {unknown_name_message('preset', str(preset), PRESETS)}")
    for key, value in values.items():
        if key not in known:
            raise UserError(f"{where}: model: {unknown_name_message('key', key, [*known, 'preset'])}")
        values[key] = convert(hints[key], value, f"{where}: model.{key}")
    try:
        return StrataConfig(**{**PRESETS.get(preset, {}), **defaults, **values})
    except (TypeError, ValueError, StrictDataclassError) as error:
        raise UserError(f"{where}: model: {error.__cause__ or error}") from error


def check_options(options: StageOptions, args: PretrainConfig, where: str) -> None:
    """Checks what can be checked before any input exists.

    Args:
        options (`StageOptions`): The stage's keys.
        args (`PretrainConfig`): Its training arguments.
        where (`str`): The file, for messages.

    Raises:
        UserError: If model, mixture or anneal contradict themselves.
    """
    if options.model is not None:
        make_model_config(options.model, where, max_position_embeddings=args.seq_length)
        for name in ("continue_optimizer", "extend_context"):
            if getattr(args, name):
                raise UserError(f"{where}: {name} = {getattr(args, name)}; it needs init_from, a model to go on from.")
    factor = (args.extend_context or {}).get("factor")
    if factor is not None and (isinstance(factor, bool) or not isinstance(factor, (int, float)) or factor <= 1):
        raise UserError(f"{where}: extend_context.factor = {factor!r}; a number above 1 is expected, e.g. 4.")
    samples = args.max_steps * args.sequences_per_step
    try:
        if options.mixture is not None:
            MixtureSchedule.from_config(options.mixture, samples, args.seq_length)
        if options.anneal_mixture is not None:
            MixtureSchedule.from_weights(options.anneal_mixture, samples, "anneal_mixture")
    except UserError as error:
        raise UserError(f"{where}: {error}") from error

"""TRL's `SFTTrainer` on curated rows, with what goes wrong silently turned into errors or counts.

Rows are tokenized and masked here and not by TRL, so that a row is cut at a turn border (TRL cuts at a token) and
every token and row that is lost is counted. Packing is refused where documents would see each other: the collator
must emit no attention mask, and the model is asked before training whether a packed row gives the logits of its
parts. A mixture of experts is trained with TRL's load-balance term, or without it if the coefficient is 0; which one
is recorded.
"""

import dataclasses
import logging
import typing
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.sft.formats import Conversation
from hf_pretrain.sft.template import IGNORE_INDEX, EncodedConversation, TemplateReport, check_template, encode
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.strict import convert


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase
    from trl import SFTConfig, SFTTrainer

logger = logging.getLogger(__name__)

# What this room decides; a recipe that sets one of these is told so rather than overruled.
_DECIDED = {
    "output_dir": "the stage's folder is used",
    "assistant_only_loss": "the loss is always on assistant tokens",
    "completion_only_loss": "the loss is always on assistant tokens",
    "dataset_text_field": "rows are conversations",
    "dataset_kwargs": "rows are tokenized before TRL sees them",
    "truncation_mode": "rows are cut at turn borders",
    "chat_template_path": "the tokenizer's own chat template is used",
    "push_to_hub": "use a push stage",
    "use_liger_kernel": "TRL has a fused head of its own",
}
# What transformers takes and fails on later.
_LEAST = {
    "per_device_train_batch_size": 1,
    "per_device_eval_batch_size": 1,
    "gradient_accumulation_steps": 1,
    "dataloader_num_workers": 0,
    "seed": 0,
    "weight_decay": 0,
    "max_grad_norm": 0,
}
_DEFAULTS: dict[str, Any] = {
    # A few words a row: checkpointing would cost a second forward pass and save nothing.
    "activation_checkpointing": False,
    "bf16": False,
    "report_to": "none",
    "logging_steps": 1,
    "logging_first_step": True,
    "logging_nan_inf_filter": False,
    "save_total_limit": 2,
    "disable_tqdm": True,
    "dataloader_num_workers": 0,
}


# TRL writes these into the model's config while it trains; the saved model gets its own values back.
_ROUTER_FIELDS = ("output_router_logits", "router_aux_loss_coef")


@dataclass(frozen=True)
class LoraOptions:
    """Train a low-rank update instead of the weights (2106.09685); it is merged into the saved model.

    Args:
        r (`int`, *optional*, defaults to 8): Rank.
        alpha (`int`, *optional*, defaults to 16): The update is scaled by `alpha / r`.
        dropout (`float`, *optional*, defaults to 0.0): Dropout before the update.
        target_modules (`list[str]`, *optional*): Linear layers by the end of their name; by default all but head and
            router.
        train_experts (`bool`, *optional*, defaults to `True`): Adapt the fused weights of experts too.
        train_embeddings (`bool`, *optional*, defaults to `False`): Train the embeddings in full. Tied heads stay tied.
    """

    r: int = 8
    alpha: int = 16
    dropout: float = 0.0
    target_modules: list[str] | None = None
    train_experts: bool = True
    train_embeddings: bool = False

    def __post_init__(self) -> None:
        if self.r < 1 or self.alpha < 1:
            raise UserError(f"lora: r = {self.r}, alpha = {self.alpha}; both must be at least 1.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"lora: dropout = {self.dropout}; a number from 0 up to 1 is expected.")


@dataclass(frozen=True)
class SftOptions:
    """How to train.

    Args:
        arguments (`dict`, *optional*): Fields of TRL's `SFTConfig`.
        lora (`LoraOptions`, *optional*): Train a low-rank update; by default all weights are trained.
    """

    arguments: dict[str, Any] = field(default_factory=dict)
    lora: LoraOptions | None = None


@dataclass
class EncodedSet:
    """Rows as tokens, and what did not make it.

    Args:
        rows (`list[EncodedConversation]`): Rows in the order given.
        messages (`list[list[dict[str, str]]]`): Their turns.
        dropped (`dict[str, int]`): Rows left out, by reason.
        template (`TemplateReport`): What the chat template does.
    """

    rows: list[EncodedConversation]
    messages: list[list[dict[str, str]]]
    dropped: dict[str, int]
    template: TemplateReport

    def as_facts(self) -> dict[str, Any]:
        """Counts as plain JSON data."""
        return {
            "rows": len(self.rows),
            "dropped": self.dropped,
            "tokens": sum(len(row.input_ids) for row in self.rows),
            "assistant_tokens": sum(row.num_trained_tokens for row in self.rows),
            "assistant_turns": sum(row.num_turns for row in self.rows),
            "lost_tokens": sum(row.lost_tokens for row in self.rows),
            "lost_turns": sum(row.lost_turns for row in self.rows),
        }


def encode_conversations(
    conversations: Sequence[Conversation], tokenizer: "PreTrainedTokenizerBase", max_length: int
) -> EncodedSet:
    """Tokenizes and masks rows.

    Args:
        conversations (`Sequence[Conversation]`): The rows.
        tokenizer (`PreTrainedTokenizerBase`): A tokenizer with a chat template.
        max_length (`int`): Longest row, in tokens.

    Returns:
        `EncodedSet`: Rows and counts.

    Raises:
        UserError: If the chat template would not train what it should, or nothing is left.
    """
    template = check_template(tokenizer)
    control = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special]
    result = EncodedSet([], [], {"no_full_turn": 0, "control_token_in_text": 0}, template)
    for conversation in conversations:
        if any(token in turn["content"] for token in control for turn in conversation.messages):
            # Such a row could close its own turn and speak in another role.
            result.dropped["control_token_in_text"] += 1
            continue
        encoded = encode(tokenizer, conversation.messages, max_length)
        if encoded is None:
            result.dropped["no_full_turn"] += 1
            continue
        result.rows.append(encoded)
        result.messages.append([dict(turn) for turn in conversation.messages])
    if not result.rows:
        raise UserError(
            f"max_length = {max_length}; of {len(conversations)} rows none is left: raise it or loosen the curation."
        )
    return result


def check_arguments(arguments: dict[str, Any], where: str) -> dict[str, Any]:
    """Checks names and types of `SFTConfig` fields before anything is built.

    Args:
        arguments (`dict`): What the recipe says.
        where (`str`): Where it says so, for messages.

    Returns:
        `dict`: The same fields with converted values.

    Raises:
        UserError: If a name is unknown, is decided elsewhere, or a value has the wrong type.
    """
    from trl import SFTConfig

    fields = {item.name for item in dataclasses.fields(SFTConfig) if item.init}
    hints = typing.get_type_hints(SFTConfig)
    checked = {}
    for name, value in arguments.items():
        if name in _DECIDED:
            raise UserError(f"{where}: {name} = {value!r}; it cannot be set here, {_DECIDED[name]}: remove the key.")
        if name not in fields:
            raise UserError(f"{where}: {unknown_name_message('key', name, fields - set(_DECIDED))}")
        checked[name] = convert(hints[name], value, f"{where}: {name}")
    for name, least in _LEAST.items():
        if checked.get(name) is not None and checked[name] < least:
            raise UserError(f"{where}: {name} = {checked[name]}; at least {least} is expected.")
    if checked.get("num_train_epochs", 1) <= 0 and checked.get("max_steps", -1) <= 0:
        raise UserError(f"{where}: num_train_epochs = {checked['num_train_epochs']}; a number above 0 is expected.")
    if checked.get("packing") and checked.get("packing_strategy", "bfd") != "bfd":
        raise UserError(
            f"{where}: packing_strategy = {checked['packing_strategy']}; only 'bfd' keeps rows whole and "
            "apart: use it."
        )
    if checked.get("padding_free") and not checked.get("packing"):
        raise UserError(f"{where}: padding_free = true; it comes with packing: set packing = true instead.")
    if checked.get("max_length", 1) is None:
        raise UserError(f"{where}: max_length is empty; a number of tokens is expected.")
    return checked


def build_config(arguments: dict[str, Any], output_dir: str | Path) -> "SFTConfig":
    """Makes TRL's config with the defaults of this room.

    Args:
        arguments (`dict`): Checked `SFTConfig` fields.
        output_dir (`str` or `Path`): Where checkpoints go.

    Returns:
        `SFTConfig`: The config.

    Raises:
        UserError: If TRL refuses a combination.
    """
    import torch
    from trl import SFTConfig

    values = {**_DEFAULTS, **check_arguments(arguments, "sft"), "output_dir": str(output_dir)}
    if "gradient_checkpointing" in values:
        # transformers' old name of the same switch; the new one would overrule it.
        values["activation_checkpointing"] = values.pop("gradient_checkpointing")
    # Pinned memory serves copies to a device; without one torch only warns.
    values.setdefault("dataloader_pin_memory", torch.cuda.is_available())
    values.setdefault("use_cpu", not torch.accelerator.is_available())
    try:
        return SFTConfig(**values, assistant_only_loss=True)
    except (ValueError, TypeError, ImportError) as error:
        raise UserError(f"sft: {error}") from error


def build_trainer(
    model: "PreTrainedModel",
    tokenizer: "PreTrainedTokenizerBase",
    train: EncodedSet,
    output_dir: str | Path,
    options: SftOptions,
    callbacks: Sequence[Any] = (),
) -> "SFTTrainer":
    """Puts model, rows and config together.

    Args:
        model (`PreTrainedModel`): The model, in float32.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer.
        train (`EncodedSet`): The rows.
        output_dir (`str` or `Path`): Where checkpoints go.
        options (`SftOptions`): How to train.
        callbacks (`Sequence[TrainerCallback]`, *optional*): Further callbacks.

    Returns:
        `SFTTrainer`: Ready for `train()`.

    Raises:
        UserError: If packed rows would see each other, packing would lose tokens, or the model's vocabulary is smaller
            than the tokenizer's.
    """
    from datasets import Dataset
    from transformers import PrinterCallback

    from hf_pretrain.models.loading import check_vocabulary

    check_vocabulary(model, tokenizer, f"model = {getattr(model, 'name_or_path', '') or type(model).__name__}")
    arguments = dict(options.arguments)
    experts = getattr(model.config.get_text_config(), "num_experts", 0) or 0
    if not experts and hasattr(model.config, "output_router_logits"):
        # A dense model of a family that has experts too: TRL would look for router logits that do not exist.
        arguments.setdefault("router_aux_loss_coef", 0.0)
    config = build_config(arguments, output_dir)
    settings = {name: getattr(model.config, name) for name in _ROUTER_FIELDS if hasattr(model.config, name)}
    set_end_of_turn(model, train.template.end_of_turn_id)
    if config.packing:
        check_packing(model, train.rows)
    dataset = Dataset.from_dict(
        {
            "input_ids": [row.input_ids for row in train.rows],
            "labels": [row.labels for row in train.rows],
            # TRL looks for turns before it allows a loss on assistant tokens; the tokens above are what is trained.
            "messages": train.messages,
        }
    )
    trainer = _trainer_class()(
        model=model,
        args=config,
        train_dataset=dataset,
        processing_class=tokenizer,
        peft_config=lora_config(model, options.lora) if options.lora else None,
        callbacks=list(callbacks),
    )
    trainer.model_settings = settings
    # Our own callbacks show progress and keep the log; this one would print every entry.
    trainer.remove_callback(PrinterCallback)
    kept = sum(len(ids) for ids in trainer.train_dataset["input_ids"])
    expected = sum(len(row.input_ids) for row in train.rows)
    if kept != expected:
        raise UserError(f"packing lost {expected - kept} of {expected} tokens; set packing = false.")
    return trainer


def _trainer_class() -> type:
    from trl import SFTTrainer

    class AssistantTrainer(SFTTrainer):
        """`SFTTrainer` that leaves the card to the push stage."""

        def create_model_card(self, *args: Any, **kwargs: Any) -> None:
            """Does nothing: TRL's card knows neither the data nor the run."""

    return AssistantTrainer


def set_end_of_turn(model: "PreTrainedModel", end_of_turn_id: int) -> None:
    """Lets generation stop at the end of a turn as well as at the end of a document.

    Args:
        model (`PreTrainedModel`): Its generation config is changed.
        end_of_turn_id (`int`): Id of the token that ends an assistant turn.
    """
    known = model.generation_config.eos_token_id
    if known is None:
        known = model.config.eos_token_id
    ids = [known] if isinstance(known, int) else list(known or [])
    model.generation_config.eos_token_id = [*ids, *([] if end_of_turn_id in ids else [end_of_turn_id])]


def check_packing(model: "PreTrainedModel", rows: Sequence[EncodedConversation], tolerance: float = 1e-3) -> float:
    """Asks the model whether a packed row gives the logits of its parts.

    Args:
        model (`PreTrainedModel`): The model.
        rows (`Sequence[EncodedConversation]`): Rows; the two shortest are used.
        tolerance (`float`, *optional*, defaults to 1e-3): Largest difference of a logit that is let pass.

    Returns:
        `float`: The largest difference found.

    Raises:
        UserError: If the rows see each other.
    """
    import torch

    # Equal rows would agree even if the second saw the first, so it gets two rows or halves of one.
    parts = sorted((row.input_ids for row in rows), key=len)[:2]
    if len(parts) < 2:
        middle = len(parts[0]) // 2
        parts = [parts[0][:middle], parts[0][middle:]]
    device = next(model.parameters()).device
    packed = torch.tensor([sum(parts, [])], device=device)
    positions = torch.cat([torch.arange(len(part)) for part in parts]).unsqueeze(0).to(device)
    was_training = model.training
    with torch.inference_mode():
        together = model.eval()(input_ids=packed, position_ids=positions, use_cache=False).logits[0, len(parts[0]) :]
        alone = model(input_ids=torch.tensor([parts[1]], device=device), use_cache=False).logits[0]
    model.train(was_training)
    difference = float((together - alone).abs().max())
    if not difference <= tolerance:
        raise UserError(
            f"packing = true; with this model packed rows see each other (a logit differs by {difference:.3g}): set "
            "packing = false."
        )
    return difference


def lora_config(model: "PreTrainedModel", options: LoraOptions) -> Any:
    """Makes a `peft.LoraConfig` that fits a model.

    Args:
        model (`PreTrainedModel`): The model.
        options (`LoraOptions`): What to adapt.

    Returns:
        `peft.LoraConfig`: Head and router are never adapted: TRL's fused head reads the weight itself, and a router is
        no linear layer.

    Raises:
        UserError: If a target names nothing.
    """
    import torch
    from peft import LoraConfig

    head = model.get_output_embeddings()
    linear = {
        name.rpartition(".")[2]
        for name, module in model.named_modules()
        if isinstance(module, torch.nn.Linear) and module is not head
    } - {"gate", "router"}
    targets = sorted(linear) if options.target_modules is None else options.target_modules
    for target in targets:
        if target not in linear:
            raise UserError(f"lora.target_modules: {unknown_name_message('layer', target, linear)}")
    parameters = sorted(
        {
            ".".join(name.split(".")[-3:])
            for name, parameter in model.named_parameters()
            if parameter.dim() == 3 and ".experts." in name
        }
    )
    return LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        # peft adapts fused parameters without dropout only.
        lora_dropout=0.0 if parameters and options.train_experts else options.dropout,
        target_modules=targets,
        target_parameters=parameters if options.train_experts and parameters else None,
        modules_to_save=["embed_tokens"] if options.train_embeddings else None,
        # Without this peft copies a tied embedding and the head keeps the old one, with a warning only.
        ensure_weight_tying=options.train_embeddings and bool(model.config.tie_word_embeddings),
        task_type="CAUSAL_LM",
    )


def merged_model(trainer: "SFTTrainer") -> "PreTrainedModel":
    """The trained model with a low-rank update folded in.

    Args:
        trainer (`SFTTrainer`): After training.

    Returns:
        `PreTrainedModel`: A model like the one given, tied if that one was.

    Raises:
        UserError: If merging untied the head.
    """
    from peft import PeftModel

    model = trainer.accelerator.unwrap_model(trainer.model)
    if isinstance(model, PeftModel):
        model = model.merge_and_unload()
    # TRL binds its own forward to the instance; the class's forward is the model's.
    model.__dict__.pop("forward", None)
    for name, value in trainer.model_settings.items():
        setattr(model.config, name, value)
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if model.config.tie_word_embeddings and head.weight.data_ptr() != embeddings.weight.data_ptr():
        raise UserError("lora: merging untied head and embeddings; set lora.train_embeddings = false.")
    return model


def assistant_loss(model: "PreTrainedModel", rows: Sequence[EncodedConversation]) -> float:
    """Cross-entropy on assistant tokens, with nothing added.

    Args:
        model (`PreTrainedModel`): The model.
        rows (`Sequence[EncodedConversation]`): The rows.

    Returns:
        `float`: Nats a token, every assistant token weighing the same.
    """
    import numpy as np

    from hf_pretrain.evaluation.bits_per_byte import token_nats

    nats = token_nats(model, [np.asarray(row.input_ids) for row in rows])
    trained = [np.asarray(row.labels[1:]) != IGNORE_INDEX for row in rows]
    total = sum(float(values[mask].sum()) for values, mask in zip(nats, trained, strict=True))
    return total / max(sum(int(mask.sum()) for mask in trained), 1)

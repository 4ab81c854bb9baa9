"""Every switch proves itself before the first update: what was asked for and does nothing is an error.

A row of a few tokens, two documents in it, goes through the model as it stands: the balance terms must change the
gradient of the routers in proportion to their coefficients, the z-loss that of the head; a token changed in the first
document must not reach the second; RoPE's frequencies must be those of the configuration; tied weights must be one
tensor; weights must be fp32; and no key of the model's configuration that differs from its default may go unread.

Weights, buffers, `.grad`, random numbers, router counters and the sums of the loss are bit by bit the same afterwards,
so a run with the checks is the run without. All processes check the same row at the same weights and decide alike.
"""

import contextlib
import copy
import dataclasses
import logging
import math
import random
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from transformers import DataCollatorWithFlattening, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from hf_pretrain.callbacks.log_lines import unwrap
from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.losses.liger_seam import LigerSeam
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

# Tokens of each of the two documents, at least.
_HALF = 8
# A coefficient that acts doubles its part of the gradient when it doubles; rounding aside.
_LINEAR = 0.05
# What reaches the second document through attention is of the size of what the token does in its own.
_LEAK = 1e-3
# Keys that other parts than the model read: tokenizers, generation, exports to families that always have them.
_READ_ELSEWHERE = {
    "bos_token_id",
    "eos_token_id",
    "pad_token_id",
    "use_cache",
    "sliding_window",
    "intermediate_size",
    "moe_intermediate_size",
    "output_router_logits",
    "rope_theta",
    "max_position_embeddings",
}


def check_effects(
    model: torch.nn.Module, z_loss_coef: float | None = None, packed: bool = True, pure_bf16: bool = False
) -> dict[str, str]:
    """Checks that what was asked for acts.

    Args:
        model (`PreTrainedModel`): A causal language model, out of its wrappers, with its loss installed.
        z_loss_coef (`float`, *optional*): The z-loss asked for; by default that of the installed loss.
        packed (`bool`, *optional*, defaults to `True`): Whether rows hold several documents with restarting positions.
        pure_bf16 (`bool`, *optional*, defaults to `False`): Whether bf16 weights were asked for.

    Returns:
        `dict[str, str]`: What each check found: `"acts"`, or `"not asked for"` or why it could not be made.

    Raises:
        UserError: If something asked for does nothing; one line, the first thing found.
    """
    found = {
        "tied_weights": _check_tied(model),
        "master_weights": _check_master_weights(model, pure_bf16),
        "rope": _check_rope(model),
    }
    names = ("load_balance", "router_z", "z_loss", "document_mask")
    if any(hasattr(one, "full_tensor") or not one.numel() for one in model.parameters()):
        return found | dict.fromkeys((*names, "config_keys"), "not checked: the weights are spread over processes")
    with _nothing_changes(model):
        found["config_keys"] = _check_config_keys(model)
        found["load_balance"] = _check_router_term(model, "router_aux_loss_coef")
        found["router_z"] = _check_router_term(model, "router_z_loss_coef")
        found["z_loss"] = _check_z_loss(model, z_loss_coef)
        found["document_mask"] = _check_documents(model) if packed else "not asked for"
    return found


# ---- what needs no forward ----


def _check_tied(model: Any) -> str:
    config = model.config.get_text_config()
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    if embedding is None or head is None:
        return "not asked for"
    one = head.weight is embedding.weight or head.weight.data_ptr() == embedding.weight.data_ptr() != 0
    if config.tie_word_embeddings and not one:
        raise UserError(
            "tie_word_embeddings = True; embedding and head are two tensors and would drift apart: call "
            "model.tie_weights() after whatever replaced one of them"
        )
    if not config.tie_word_embeddings and one:
        raise UserError(
            "tie_word_embeddings = False; embedding and head are one tensor: set it to True, or give the head its own"
        )
    return "acts" if one else "not asked for"


def _check_master_weights(model: torch.nn.Module, pure_bf16: bool) -> str:
    half = sorted({str(one.dtype) for one in model.parameters() if one.requires_grad and one.element_size() < 4})
    if half and not pure_bf16:
        raise UserError(
            f"the weights are {', '.join(half).replace('torch.', '')}; small updates would be lost: load with "
            "dtype=torch.float32 and set bf16=True, or ask for it with pure_bf16"
        )
    return "not asked for" if half else "acts"


def _check_rope(model: torch.nn.Module) -> str:
    found = "not asked for"
    for module in model.modules():
        config = getattr(module, "config", None)
        parameters = getattr(config, "rope_parameters", None)
        if "RotaryEmbedding" not in type(module).__name__ or not isinstance(parameters, dict):
            continue
        kind, held = parameters.get("rope_type"), getattr(module, "original_inv_freq", None)
        if held is None or not hasattr(module, "compute_default_rope_parameters"):
            continue
        if held.element_size() < 4:
            raise UserError(
                f"the frequencies of RoPE are {str(held.dtype).removeprefix('torch.')}, which rounds far positions "
                "together: turn the parameters alone into it, as from_pretrained(dtype=...) does, not the buffers"
            )
        plain, _ = module.compute_default_rope_parameters(config, device=held.device)
        wanted, scaling = plain, 1.0
        if kind != "default":
            if kind not in ROPE_INIT_FUNCTIONS:
                continue
            wanted, scaling = ROPE_INIT_FUNCTIONS[kind](config, held.device)
        same = held.shape == wanted.shape and torch.allclose(held.float(), wanted.float(), rtol=1e-5)
        if not same or abs(module.attention_scaling - scaling) > 1e-6:
            raise UserError(
                f"rope_parameters = {parameters}; the model's frequencies are not those: they are computed when a "
                "model is made, so set them before, or use extend_context"
            )
        stretched = kind not in ("default", "dynamic") and parameters.get("factor", 1.0) != 1.0
        if stretched and torch.allclose(wanted.float(), plain.float(), rtol=1e-6) and abs(scaling - 1.0) < 1e-9:
            raise UserError(f"rope_parameters = {parameters}; they leave every frequency as it is: check the factor")
        found = "acts"
    return found


# ---- what needs a forward ----


def _row(model: Any, number: int = 0) -> dict[str, torch.Tensor]:
    """Two documents in one row, as the collator makes them; other tokens for another number."""
    device = next(model.parameters()).device
    vocabulary = model.config.get_text_config().vocab_size
    half = _HALF
    factor = getattr(model.config, "expert_capacity_factor", None)
    if factor:  # so many tokens that every expert has a place
        half = max(half, math.ceil(model.config.num_experts / (factor * model.config.num_experts_per_tok)))
    ids = (torch.arange(2 * half, device=device) * (7 + 4 * number) + 1 + number) % vocabulary
    positions = torch.arange(half, device=device).repeat(2)
    labels = ids.clone()
    labels[positions == 0] = -100
    return {"input_ids": ids[None], "labels": labels[None], "position_ids": positions[None]}


def _forward(model: torch.nn.Module, **inputs: torch.Tensor) -> Any:
    """The model's forward, the same noise and dropout in every call."""
    weight = next(model.parameters())
    # Flash attention has no fp32; everything else is checked in it, where rounding hides nothing.
    flash = "flash" in str(getattr(model.config, "_attn_implementation", ""))
    torch.manual_seed(0)
    with torch.autocast(weight.device.type, torch.bfloat16, enabled=flash and weight.dtype == torch.float32):
        return model(**inputs)


def _gradients(model: torch.nn.Module, weights: list[torch.Tensor], number: int = 0) -> torch.Tensor:
    loss = _forward(model.train(), **_row(model, number)).loss
    found = torch.autograd.grad(loss, weights, allow_unused=True)
    parts = [torch.zeros_like(one) if part is None else part for one, part in zip(weights, found, strict=True)]
    return torch.cat([part.detach().float().reshape(-1) for part in parts])


def _acts(
    model: torch.nn.Module, weights: list[torch.Tensor], owner: Any, name: str, probe: float = 1.0, number: int = 0
) -> tuple[bool, bool]:
    """Whether a coefficient changes a gradient, and in proportion."""
    value, gradients = getattr(owner, name), []
    try:
        for coef in (0.0, 0.5 * probe, probe):
            setattr(owner, name, coef)
            gradients.append(_gradients(model, weights, number))
    finally:
        setattr(owner, name, value)
    half, full = gradients[1] - gradients[0], gradients[2] - gradients[0]
    size = float(full.norm())
    # NaN weights are not this check's business; the spike detector sees them at the first step.
    changes = size > 1e-3 * float(gradients[0].norm()) + 1e-12 or size != size
    return changes, not float((2 * half - full).norm()) > _LINEAR * size


def _term_acts(model: torch.nn.Module, weights: list[torch.Tensor], owner: Any, name: str) -> tuple[bool, bool]:
    """The same for a term of the routers, whose gradient can be small, or zero at this row, and act all the same.

    Beside a large gradient of the loss only a large coefficient shows; a row whose tokens spread evenly over the
    experts has none, so others are tried; and in the end the routers' weights are taken to be 0, where nothing is
    saturated and equal scores send all tokens to the same experts.
    """
    kept = [one.detach().clone() for one in weights]
    try:
        for from_zero in (False, True):
            if from_zero:
                with torch.no_grad():
                    for one in weights:
                        one.zero_()
            for number, probe in ((0, 1.0), (1, 1.0), (1, 1e4), (2, 1e8)):
                changes, in_proportion = _acts(model, weights, owner, name, probe, number)
                if changes:
                    return changes, in_proportion
    finally:
        with torch.no_grad():
            for one, value in zip(weights, kept, strict=True):
                one.copy_(value)
    return False, True


def _check_router_term(model: Any, name: str) -> str:
    config = model.config.get_text_config()
    # Stock families copy the coefficient to the model.
    owner = model if isinstance(getattr(model, name, None), float) else config
    coef = getattr(owner, name, None)
    experts = getattr(config, "num_experts", 0) or getattr(config, "num_local_experts", 0)
    if not coef or not experts:
        return "not asked for"
    weights = [
        one for key, one in model.named_parameters() if "gate.weight" in key or "router" in key if one.requires_grad
    ]
    if not weights:
        return "not checked: no router weight is trained"
    if getattr(config, "num_experts_per_tok", 0) == experts and name == "router_aux_loss_coef":
        return "not checked: every token goes to every expert, there is nothing to balance"
    off = not getattr(config, "output_router_logits", True) and config.model_type != "strata"
    if off and coef == getattr(type(config), name, None):
        return "not asked for"  # the family's default, which its own switch leaves out
    changes, in_proportion = _term_acts(model, weights, owner, name)
    if not changes:
        hint = "set output_router_logits = True, or " if off else ""
        raise UserError(f"{name} = {coef}; it does not change the gradient of the routers: {hint}set it to 0")
    if not in_proportion:
        raise UserError(f"{name} = {coef}; its part of the routers' gradient does not grow with it: set it to 0")
    return "acts"


def _check_z_loss(model: Any, coef: float | None) -> str:
    objective = getattr(model, "loss_function", None)
    installed = isinstance(objective, CausalLMObjective)
    if coef is None:
        coef = objective.z_loss_coef if installed else 0.0
    if not coef:
        return "not asked for"
    head = model.get_output_embeddings()
    if not installed or head is None:
        raise UserError(f"z_loss_coef = {coef}; the model's loss is not the one that adds it: add ZLossCallback")
    if not head.weight.requires_grad:
        return "not checked: the head is not trained"
    changes, in_proportion = _acts(model, [head.weight], objective, "z_loss_coef")
    if not changes:
        raise UserError(
            f"z_loss_coef = {coef}; it does not change the gradient of the head: something computes the loss without "
            "the model's loss_function"
        )
    if not in_proportion:
        raise UserError(f"z_loss_coef = {coef}; its part of the gradient does not grow with it")
    return "acts"


@torch.no_grad()
def _check_documents(model: Any) -> str:
    row = _row(model)
    del row["labels"]
    changed = {**row, "input_ids": row["input_ids"].clone()}
    changed["input_ids"][0, 1] = (changed["input_ids"][0, 1] + 1) % model.config.get_text_config().vocab_size
    # As in training, where nobody says use_cache; a cache makes stock models mix the documents.
    first, second = (_forward(model.eval(), **one).logits[0].float() for one in (row, changed))
    moved = (second - first).abs().amax(-1)
    half = len(moved) // 2
    own, other = float(moved[1:half].max()), float(moved[half:].max())
    if other > _LEAK * own:
        raise UserError(
            f"packed rows: a token changed in one document moves the logits of the next by {other:.2g} (its own by "
            f"{own:.2g}); use attn_implementation sdpa, eager or flash attention with model.config.use_cache = False"
        )
    return "acts"


def _check_config_keys(model: Any) -> str:
    """Builds the model's class once more without memory, and reads a row, and sees which keys nobody asked."""
    config = model.config
    if config.model_type != "strata":
        return "not checked: a family of transformers has keys that only other tools read"
    given = {
        field.name
        for field in dataclasses.fields(config)
        if field.name in vars(type(config))["__annotations__"] and _default(field) != getattr(config, field.name)
    }
    with _reads(type(config)) as read:
        copied = copy.deepcopy(config)
        read.clear()
        with torch.device("meta"):
            type(model)(copied)
        small = type(model)._from_config(_shrunken(copied))  # initialisation reads what no forward does
        del small
        _gradients(model, [one for one in model.parameters() if one.requires_grad][:1])
    unread = sorted(given - read - _READ_ELSEWHERE)
    if unread:
        values = ", ".join(f"{name} = {getattr(config, name)!r}" for name in unread)
        raise UserError(f"model: {values}; nothing reads it in this configuration: leave it out, or turn on its part")
    return "acts"


def _default(field: dataclasses.Field) -> Any:
    if field.default is not dataclasses.MISSING:
        return field.default
    return field.default_factory() if field.default_factory is not dataclasses.MISSING else dataclasses.MISSING


def _shrunken(config: Any) -> Any:
    """The same configuration with a vocabulary and widths that cost nothing."""
    small = copy.deepcopy(config)
    small.vocab_size, small.hidden_size = 8, 2
    small.intermediate_size = small.moe_intermediate_size = 2
    small.pad_token_id = None
    return small


@contextlib.contextmanager
def _reads(kind: type) -> Iterator[set[str]]:
    """Collects the names that are read of any object of a class."""
    read: set[str] = set()
    own = vars(kind).get("__getattribute__")
    usual = kind.__getattribute__

    def traced(self: Any, name: str) -> Any:
        read.add(name)
        return usual(self, name)

    kind.__getattribute__ = traced
    try:
        yield read
    finally:
        if own is None:
            del kind.__getattribute__
        else:
            kind.__getattribute__ = own


@contextlib.contextmanager
def _bare(model: torch.nn.Module) -> Iterator[None]:
    """Calls inside go past what watches the model and past accelerate's autocast, but through the seam of its loss."""
    names = ("_forward_hooks", "_forward_pre_hooks")
    hooks = {name: vars(model)[name] for name in names}
    wrapped = vars(model).get("forward")
    try:
        for name, held in hooks.items():
            seam = {key: hook for key, hook in held.items() if isinstance(getattr(hook, "__self__", None), LigerSeam)}
            vars(model)[name] = OrderedDict(seam)
        if "_original_forward" in vars(model):
            model.forward = model._original_forward
        yield
    finally:
        vars(model).update(hooks)
        if "_original_forward" in vars(model):
            model.forward = wrapped


@contextlib.contextmanager
def _nothing_changes(model: torch.nn.Module) -> Iterator[None]:
    """Puts modes, random numbers, router counters and the loss's sums back as they were."""
    modes = {module: module.training for module in model.modules()}
    names = ("router_losses", "_router_totals", "_window_totals", "_steps_without_update")
    kept = [(module, name, vars(module)[name]) for module in modes for name in names if name in vars(module)]
    objective = getattr(model, "loss_function", None)
    sums = None
    if isinstance(objective, CausalLMObjective):
        sums = {
            name: value.clone() if isinstance(value, torch.Tensor) else copy.copy(value)
            for name, value in vars(objective).items()
            if name != "_model"
        }
    elsewhere = random.getstate(), np.random.get_state()
    devices = [torch.cuda.current_device()] if torch.cuda.is_available() and torch.cuda.is_initialized() else []
    try:
        with torch.random.fork_rng(devices), _bare(model):
            yield
    finally:
        random.setstate(elsewhere[0])
        np.random.set_state(elsewhere[1])
        for module, mode in modes.items():
            module.training = mode
        for module, name, value in kept:
            setattr(module, name, value)
        if sums is not None:
            vars(objective).update(sums)


class EffectChecksCallback(TrainerCallback):
    """Makes the checks of [`check_effects`] once, before the first update, in any Trainer.

    `found` holds what each check found. Documents are checked where the collator packs them (ours, or transformers'
    `DataCollatorWithFlattening`).

    Args:
        enabled (`bool`, *optional*, defaults to `True`): Whether to check at all.
        pure_bf16 (`bool`, *optional*, defaults to `False`): Whether bf16 weights were asked for.
    """

    def __init__(self, enabled: bool = True, pure_bf16: bool = False) -> None:
        self.enabled = enabled
        self.pure_bf16 = pure_bf16
        self.found: dict[str, str] = {}
        self._done = False

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Makes ready to check at the first step, when every other callback has done its part.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.
        """
        self.found, self._done = {}, False

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Checks, once.

        Args:
            args (`TrainingArguments`): The arguments.
            state (`TrainerState`): The state.
            control (`TrainerControl`): The control.
            **kwargs: What the Trainer hands to callbacks.

        Raises:
            UserError: If something asked for does nothing.
        """
        if self._done or not self.enabled:
            return
        self._done = True
        model = unwrap(kwargs["model"])
        packed = _is_packed(kwargs.get("train_dataloader"))
        self.found = check_effects(model, getattr(args, "z_loss_coef", None), packed, self.pure_bf16)
        acting = [name.replace("_", " ") for name, text in self.found.items() if text == "acts"]
        logger.info("Effect checks: %s act", ", ".join(acting))
        for name, text in self.found.items():
            if text.startswith("not checked"):
                logger.info("Effect checks: %s %s", name.replace("_", " "), text)


def _is_packed(loader: Any) -> bool:
    """Whether batches come with positions that restart at documents; no row is read to know it."""
    collator = getattr(loader, "collate_fn", None)
    collator = getattr(collator, "data_collator", collator)  # the Trainer wraps it to drop columns
    return isinstance(collator, PretrainDataCollator | DataCollatorWithFlattening)

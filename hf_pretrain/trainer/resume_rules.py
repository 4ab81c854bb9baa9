"""What a resumed run must share with the run it goes on from, and what happens where it does not.

The same settings go on bit by bit. A changed one is an error, unless `resume_changes` names it, and then it takes
effect: the stack would go on with the rate and decay that the checkpoint's optimizer holds. One change needs no
naming: another horizon for a warm-up-stable-decay run that has not begun its decay, because the rates so far are the
same (bugs R8, W4). Inside the decay the rate has already fallen, so a longer run has to warm up again, and has to ask
for it with `rewarm_steps`.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hf_pretrain.optim.schedules import lr_lambda
from hf_pretrain.trainer.pretrain_config import PretrainConfig
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


logger = logging.getLogger(__name__)

# What a resumed run must share with the run it goes on from; another value is an explicit choice (`resume_changes`).
SETTINGS = (
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "max_grad_norm",
    "optim",
    "optim_args",
    "clipping",
    "max_steps",
    "schedule",
    "warmup_steps",
    "warmup_fraction",
    "decay_fraction",
    "decay_shape",
    "min_lr_ratio",
    "lr_scheduler_kwargs",
    "z_loss_coef",
    "seq_length",
    "sequences_per_step",
    "seed",
)
# The change of the mixture's past or future weights is named like a setting, but compared sample by sample.
MIXTURE = "mixture"


@dataclass(frozen=True)
class Rewarm:
    """A second warm-up from where a decay was left.

    Args:
        step (`int`): Updates made before it.
        factor (`float`): Factor on the peak rate of the last of them.
        steps (`int`): Updates until the rate is on its schedule again.
    """

    step: int
    factor: float
    steps: int


@dataclass(frozen=True)
class ResumeChoice:
    """What a resumed run does differently from the run it goes on from.

    Args:
        changed (`tuple[str, ...]`, *optional*, defaults to `()`): Settings with another value.
        rewarm (`Rewarm`, *optional*): The second warm-up.
    """

    changed: tuple[str, ...] = ()
    rewarm: Rewarm | None = None


def settings_of(args: PretrainConfig) -> dict[str, Any]:
    """Collects the settings that a resumed run must share.

    Args:
        args (`PretrainConfig`): The arguments.

    Returns:
        `dict[str, Any]`: Plain JSON data.
    """
    return {name: getattr(args, name) for name in SETTINGS} | {
        "warmup_updates": args.warmup_updates(args.max_steps),
        "decay_updates": args.schedule_options(args.max_steps)["num_decay_steps"],
    }


def choose_resume(
    args: PretrainConfig, manifest: Mapping[str, Any], checkpoint: Path | None, step: int
) -> ResumeChoice:
    """Makes sure that a run goes on as it was begun, or as was explicitly chosen.

    Args:
        args (`PretrainConfig`): The arguments now.
        manifest (`Mapping[str, Any]`): The checkpoint's manifest; empty for a new run.
        checkpoint (`Path`, *optional*): The checkpoint, for messages.
        step (`int`): Updates that it made.

    Returns:
        `ResumeChoice`: What differs.

    Raises:
        UserError: If a setting differs that `resume_changes` does not name, or the rate would jump.
    """
    for name in args.resume_changes:
        if name not in (*SETTINGS, MIXTURE):
            raise UserError(f"resume_changes: {unknown_name_message('setting', name, (*SETTINGS, MIXTURE))}")
    saved = manifest.get("settings", {})
    current = settings_of(args)
    changed = tuple(name for name in SETTINGS if name in saved and saved[name] != current[name])
    earlier = manifest.get("rewarm")
    rewarm = Rewarm(**earlier) if earlier else None
    if "max_steps" in changed and args.max_steps < step:
        raise UserError(
            f"max_steps = {args.max_steps}; {checkpoint} has made {step} already: train longer, or start from an "
            "earlier checkpoint"
        )
    free: tuple[str, ...] = ()
    if "max_steps" in changed and args.schedule == saved.get("schedule") in ("wsd", "infinite"):
        rewarm = _extend(args, saved, current, checkpoint, step, rewarm)
        free = ("max_steps",)
    elif args.rewarm_steps is not None and rewarm is None:
        raise UserError(
            f"rewarm_steps = {args.rewarm_steps}; only a wsd run that is made longer from inside its decay (or an "
            "infinite one) warms up again: leave it out"
        )
    for name in changed:
        if name not in free and name not in args.resume_changes:
            raise UserError(
                f"{name} = {current[name]!r}; {checkpoint} was trained with {saved[name]!r}: restore it, or say that "
                f"the change is meant with resume_changes: [{name}]"
            )
    if changed:
        logger.info("Going on from %s with another %s", checkpoint, ", ".join(changed))
    return ResumeChoice(changed, rewarm)


def _extend(
    args: PretrainConfig,
    saved: Mapping[str, Any],
    current: Mapping[str, Any],
    checkpoint: Path | None,
    step: int,
    earlier: Rewarm | None,
) -> Rewarm | None:
    """Another horizon for a warm-up-stable-decay run: free before the decay, with a second warm-up inside it."""

    def decay_start(settings: Mapping[str, Any]) -> int:
        decay = settings.get("decay_updates")
        return settings["max_steps"] - (
            round(settings["decay_fraction"] * settings["max_steps"]) if decay is None else decay
        )

    warmups = {settings.get("warmup_updates") for settings in (saved, current)} - {None}
    if step < max(warmups) and len(warmups) > 1:
        raise UserError(
            f"max_steps = {args.max_steps}; {checkpoint} is at step {step} of a warm-up of "
            f"{saved['warmup_updates']} updates, which would now have {current['warmup_updates']}: set "
            f"warmup_steps: {saved['warmup_updates']}"
        )
    begun = decay_start(saved)
    if step <= begun:
        if step > decay_start(current):
            raise UserError(
                f"max_steps = {args.max_steps}; the decay would begin after step {decay_start(current)}, and "
                f"{checkpoint} is at step {step}: train longer, decay over fewer steps, or start from an earlier "
                "checkpoint"
            )
        if args.rewarm_steps is not None and earlier is None:
            raise UserError(
                f"rewarm_steps = {args.rewarm_steps}; {checkpoint} has not begun its decay (after step {begun}), so "
                "its rate is at the peak: leave it out"
            )
        return earlier
    options = {**args.schedule_options(saved["max_steps"]), "num_warmup_steps": saved["warmup_updates"]}
    options["num_decay_steps"] = saved["max_steps"] - begun
    factor = lr_with_rewarm(lr_lambda(**options), earlier)(step - 1)
    if args.rewarm_steps is None:
        raise UserError(
            f"max_steps = {args.max_steps}; {checkpoint} is at step {step}, inside its decay, which began after step "
            f"{begun} and brought the rate to {factor:.3g} of the peak: go on from a checkpoint at or before step "
            f"{begun}, or warm up again with rewarm_steps: {max(begun // 100, 1)}"
        )
    if step + args.rewarm_steps > decay_start(current):
        raise UserError(
            f"rewarm_steps = {args.rewarm_steps}; from step {step} on they reach beyond step {decay_start(current)}, "
            "where the decay begins: warm up faster or train longer"
        )
    return Rewarm(step, factor, args.rewarm_steps)


def lr_with_rewarm(factor: Callable[[int], float], rewarm: Rewarm | None) -> Callable[[int], float]:
    """Adds a second warm-up to a schedule.

    The rate goes in a straight line from where the decay was left to the schedule: after `k` of `n` updates it is
    `f + (m(t) - f) k / n`.

    Args:
        factor (`Callable[[int], float]`): Updates made to the factor of the next one.
        rewarm (`Rewarm`, *optional*): The second warm-up.

    Returns:
        `Callable[[int], float]`: Of the same kind, and can be pickled.
    """
    return factor if rewarm is None else partial(_rewarmed, factor=factor, rewarm=rewarm)


def _rewarmed(updates_done: int, factor: Callable[[int], float], rewarm: Rewarm) -> float:
    target = factor(updates_done)
    place = updates_done + 1 - rewarm.step
    if not 0 < place < rewarm.steps:
        return target
    return rewarm.factor + (target - rewarm.factor) * place / rewarm.steps


# Which entries of an optimizer's groups a setting stands in.
_GROUP_KEYS = {
    "learning_rate": ("initial_lr",),
    "weight_decay": ("weight_decay",),
    "adam_beta1": ("betas",),
    "adam_beta2": ("betas",),
    "adam_epsilon": ("eps",),
}


def group_settings(optimizer: Any) -> list[dict[str, Any]]:
    """Copies what an optimizer's groups say beside their parameters.

    Args:
        optimizer (`Optimizer`): A new optimizer, before a checkpoint is loaded into it.

    Returns:
        `list[dict[str, Any]]`: One entry a group.
    """
    return [{key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups]


def apply_choice(choice: ResumeChoice, optimizer: Any, scheduler: Any, fresh: list[dict[str, Any]]) -> None:
    """Lets changed settings take effect after a checkpoint was loaded.

    Args:
        choice (`ResumeChoice`): What differs.
        optimizer (`Optimizer`): The optimizer, with the checkpoint's groups.
        scheduler (`LambdaLR`): The schedule, with the checkpoint's base rates and step.
        fresh (`list[dict[str, Any]]`): The groups as the arguments make them, of `group_settings`.
    """
    if not choice.changed:
        return
    keys = {key for name in choice.changed for key in _GROUP_KEYS.get(name, ())}
    for group, made in zip(optimizer.param_groups, fresh, strict=True):
        group.update({key: made[key] for key in keys if key in made})
    refresh_rates(optimizer, scheduler)


def refresh_rates(optimizer: Any, scheduler: Any) -> None:
    """Computes the rates of the next update anew, where a checkpoint's optimizer holds those of another schedule.

    Args:
        optimizer (`Optimizer`): The optimizer.
        scheduler (`LambdaLR`): The schedule, at the checkpoint's step.
    """
    scheduler = getattr(scheduler, "scheduler", scheduler)
    scheduler.base_lrs = [group["initial_lr"] for group in optimizer.param_groups]
    rates = [
        base * factor(scheduler.last_epoch)
        for base, factor in zip(scheduler.base_lrs, scheduler.lr_lambdas, strict=True)
    ]
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["lr"] = rate
    scheduler._last_lr = rates

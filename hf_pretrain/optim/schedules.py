"""Learning-rate multipliers as pure functions of the update number.

`multiplier(t)` is the factor on the peak rate at update `t` of `T`, 1-based: the update that makes `global_step == t`.
With warm-up `w`, decay length `d` and floor `r` (a share of the peak), progress `p` in [0, 1] of the decay:

    warm-up    t / w                                   for t <= w
    cosine     r + (1 - r) (1 + cos(pi p)) / 2         p = (t - w) / (T - w)
    linear     r + (1 - r) (1 - p)                     p as above; `d2z` is linear with r = 0 (arXiv 2502.15938)
    wsd        1 until T - d, then a decay form of p = (t - T + d) / d (arXiv 2404.06395, 2405.18392):
               linear 1 - p; 1-sqrt 1 - sqrt(p); cosine (1 + cos(pi p)) / 2, each scaled to end at r; exp r ** p
    constant   1 after warm-up
    infinite   cosine from 1 to c over the cool-down k, then c until T - d, then a decay form of p from c to r
               (arXiv 2403.08763); T may be moved as long as T - d has not come, so that the run has no set length

So the first update has a rate above zero and the last one exactly the floor; transformers' own schedules start at zero
and stop one step short of the floor (bugs W1, W2).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


SCHEDULES = ("cosine", "linear", "wsd", "constant", "d2z", "infinite")
DECAY_TYPES = ("linear", "1-sqrt", "cosine", "exp")


def multiplier(
    t: int,
    *,
    name: str,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    num_decay_steps: int | None = None,
    min_lr_ratio: float = 0.0,
    decay_type: str = "1-sqrt",
    num_cooldown_steps: int | None = None,
    constant_ratio: float | None = None,
) -> float:
    """Factor on the peak learning rate at update `t`. Arguments are taken as valid: see [`check_schedule`].

    Args:
        t (`int`): Update number, 1 to `num_training_steps`; 0 gives the value before training, later ones the last.
        name (`str`): One of `SCHEDULES`.
        num_training_steps (`int`): Updates of the run, `T`.
        num_warmup_steps (`int`, *optional*, defaults to 0): Updates of linear warm-up, `w`.
        num_decay_steps (`int`, *optional*): Updates of the final decay, `d`; for `wsd` and `infinite`.
        min_lr_ratio (`float`, *optional*, defaults to 0.0): Floor as a share of the peak, `r`.
        decay_type (`str`, *optional*, defaults to `"1-sqrt"`): One of `DECAY_TYPES`; for `wsd` and `infinite`.
        num_cooldown_steps (`int`, *optional*): Updates from the peak to the constant rate, `k`; for `infinite`.
        constant_ratio (`float`, *optional*): Constant rate as a share of the peak, `c`; for `infinite`.

    Returns:
        `float`: In [0, 1].
    """
    t = min(t, num_training_steps)
    if t < num_warmup_steps:
        return t / num_warmup_steps
    if name == "constant":
        return 1.0
    top = 1.0
    if name in ("wsd", "infinite"):
        length = num_decay_steps or 0
        start = num_training_steps - length
        form = decay_type
        if name == "infinite":
            top, cooldown = constant_ratio or 0.0, num_cooldown_steps or 0
            if t < num_warmup_steps + cooldown:
                return top + (1.0 - top) * 0.5 * (1.0 + math.cos(math.pi * (t - num_warmup_steps) / cooldown))
    else:
        start = num_warmup_steps
        length = num_training_steps - num_warmup_steps
        form = "cosine" if name == "cosine" else "linear"
    if t <= start or length == 0:
        return top
    floor = 0.0 if name == "d2z" else min_lr_ratio
    progress = (t - start) / length
    if progress >= 1.0:
        return floor
    if form == "exp":
        return top * (floor / top) ** progress
    if form == "linear":
        shape = 1.0 - progress
    elif form == "1-sqrt":
        shape = 1.0 - math.sqrt(progress)
    else:
        shape = 0.5 * (1.0 + math.cos(math.pi * progress))
    return floor + (top - floor) * shape


def check_schedule(
    *,
    name: str,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    num_decay_steps: int | None = None,
    min_lr_ratio: float = 0.0,
    decay_type: str = "1-sqrt",
    num_cooldown_steps: int | None = None,
    constant_ratio: float | None = None,
) -> None:
    """Refuses a schedule that contradicts itself.

    Args:
        name (`str`): One of `SCHEDULES`.
        num_training_steps (`int`): Updates of the run, at least 1.
        num_warmup_steps (`int`, *optional*, defaults to 0): Updates of warm-up, 0 to `num_training_steps`.
        num_decay_steps (`int`, *optional*): Required by `wsd` and `infinite`, given to no other.
        min_lr_ratio (`float`, *optional*, defaults to 0.0): Floor, in [0, 1]; above 0 for `exp`, 0 for `d2z`.
        decay_type (`str`, *optional*, defaults to `"1-sqrt"`): One of `DECAY_TYPES`.
        num_cooldown_steps (`int`, *optional*): Required by `infinite`, given to no other.
        constant_ratio (`float`, *optional*): Required by `infinite`, from `min_lr_ratio` to 1 and above 0.

    Raises:
        UserError: With the field, its value, what is allowed and what to do.
    """
    if name not in SCHEDULES:
        raise UserError(unknown_name_message("schedule", name, SCHEDULES))
    for field, value, least in (
        ("num_training_steps", num_training_steps, 1),
        ("num_warmup_steps", num_warmup_steps, 0),
        ("num_decay_steps", 0 if num_decay_steps is None else num_decay_steps, 0),
        ("num_cooldown_steps", 0 if num_cooldown_steps is None else num_cooldown_steps, 0),
    ):
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            raise UserError(f"{field} = {value!r}; a whole number of at least {least} is needed.")
    if isinstance(min_lr_ratio, bool) or not isinstance(min_lr_ratio, int | float) or not 0.0 <= min_lr_ratio <= 1.0:
        raise UserError(f"min_lr_ratio = {min_lr_ratio!r}; allowed are 0 to 1, as a share of the peak learning rate.")
    if num_warmup_steps > num_training_steps:
        raise UserError(
            f"num_warmup_steps = {num_warmup_steps}; the run has {num_training_steps} updates; shorten the warm-up."
        )
    if name == "infinite":
        _check_infinite(num_cooldown_steps, constant_ratio, min_lr_ratio)
    elif num_cooldown_steps is not None or constant_ratio is not None:
        raise UserError(
            f"num_cooldown_steps = {num_cooldown_steps}, constant_ratio = {constant_ratio}; only infinite has a "
            "constant rate below its peak; leave them out."
        )
    if name in ("wsd", "infinite"):
        if num_decay_steps is None:
            raise UserError(
                f"num_decay_steps = None; {name} needs the length of its decay; 10 to 20 % of the run is usual."
            )
        if decay_type not in DECAY_TYPES:
            raise UserError(unknown_name_message("decay_type", decay_type, DECAY_TYPES))
        if num_warmup_steps + (num_cooldown_steps or 0) + num_decay_steps > num_training_steps:
            cooldown = f" + {num_cooldown_steps}" if num_cooldown_steps else ""
            raise UserError(
                f"num_warmup_steps{' + num_cooldown_steps' if cooldown else ''} + num_decay_steps = "
                f"{num_warmup_steps}{cooldown} + {num_decay_steps}; the run has {num_training_steps} updates; the "
                "phases must not overlap."
            )
        if decay_type == "exp" and min_lr_ratio == 0.0 and num_decay_steps > 0:
            raise UserError("min_lr_ratio = 0; exponential decay never gets there; take for example 0.1, or 1-sqrt.")
    elif num_decay_steps is not None:
        raise UserError(
            f"num_decay_steps = {num_decay_steps}; only wsd and infinite have a decay phase; leave it out."
        )
    if name == "d2z" and min_lr_ratio != 0.0:
        raise UserError(f"min_lr_ratio = {min_lr_ratio}; d2z decays to zero by definition; use linear for a floor.")


def _check_infinite(num_cooldown_steps: int | None, constant_ratio: float | None, min_lr_ratio: float) -> None:
    if num_cooldown_steps is None:
        raise UserError("num_cooldown_steps = None; infinite needs the length of its cool-down from the peak.")
    number = isinstance(constant_ratio, int | float) and not isinstance(constant_ratio, bool)
    if not number or not max(min_lr_ratio, 1e-9) <= constant_ratio <= 1.0:
        raise UserError(
            f"constant_ratio = {constant_ratio!r}; allowed is above 0 and from min_lr_ratio = {min_lr_ratio} up to 1; "
            "0.5 is usual."
        )


def lr_lambda(
    name: str,
    num_training_steps: int,
    num_warmup_steps: int = 0,
    num_decay_steps: int | None = None,
    min_lr_ratio: float = 0.0,
    decay_type: str = "1-sqrt",
    num_cooldown_steps: int | None = None,
    constant_ratio: float | None = None,
) -> Callable[[int], float]:
    """The checked schedule for `torch.optim.lr_scheduler.LambdaLR`, which counts updates from 0.

    The result can be pickled, and carries no state into a scheduler's `state_dict`: a resumed run takes its schedule
    from its configuration, so compare configurations before resuming (bugs R8, W4).

    Args:
        name (`str`): One of `SCHEDULES`.
        num_training_steps (`int`): Updates of the run.
        num_warmup_steps (`int`, *optional*, defaults to 0): Updates of linear warm-up.
        num_decay_steps (`int`, *optional*): Updates of the decay, for `wsd` and `infinite`.
        min_lr_ratio (`float`, *optional*, defaults to 0.0): Floor as a share of the peak.
        decay_type (`str`, *optional*, defaults to `"1-sqrt"`): Form of the decay, for `wsd` and `infinite`.
        num_cooldown_steps (`int`, *optional*): Updates from the peak to the constant rate, for `infinite`.
        constant_ratio (`float`, *optional*): Constant rate as a share of the peak, for `infinite`.

    Returns:
        `Callable[[int], float]`: Maps the number of updates done to the factor of the next one.

    Raises:
        UserError: If the schedule contradicts itself.

    Example:

        >>> factor = lr_lambda("wsd", 10, num_warmup_steps=2, num_decay_steps=4, decay_type="linear")
        >>> [factor(done) for done in range(10)]
        [0.5, 1.0, 1.0, 1.0, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]
    """
    arguments: dict[str, Any] = {
        "name": name,
        "num_training_steps": num_training_steps,
        "num_warmup_steps": num_warmup_steps,
        "num_decay_steps": num_decay_steps,
        "min_lr_ratio": min_lr_ratio,
        "decay_type": decay_type,
        "num_cooldown_steps": num_cooldown_steps,
        "constant_ratio": constant_ratio,
    }
    check_schedule(**arguments)
    return partial(_next_multiplier, arguments=arguments)


def _next_multiplier(updates_done: int, arguments: dict[str, Any]) -> float:
    return multiplier(updates_done + 1, **arguments)

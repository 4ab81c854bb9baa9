"""The closed loop: what a stage was planned to take, what it took, and the next plan with what was measured.

Everything here is plain dicts of facts in and out, so that report, card and command line say the same. What cannot be
known beforehand (the speed of a device without a known peak) is left out of a plan, never guessed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hf_pretrain.planning.chinchilla import ParametricLaw
from hf_pretrain.planning.compute import DEFAULT_CONVENTION, training_flops_per_token
from hf_pretrain.planning.cost import DEFAULT_GOODPUT, DEFAULT_MFU, PRICE_RANGES
from hf_pretrain.planning.counting import count_parameters
from hf_pretrain.planning.hardware import find_device
from hf_pretrain.planning.memory import estimate_memory
from hf_pretrain.planning.quantities import positive
from hf_pretrain.planning.scaling_laws import DEFAULT_LAW, get_law
from hf_pretrain.utils.errors import UserError


LOSS_SHARES = (0.1, 0.25, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class Efficiency:
    """What a finished run reached.

    Args:
        stage (`str`): Where it was measured.
        tokens_per_second (`float`): Of all devices together.
        flops_per_token (`float`): Under `flop_convention`.
        flop_convention (`str`): How they are counted: `"6n_active"`, in which budgets are planned.
        num_devices (`int`): Devices.
        goodput (`float`): Share of the stage's time that trained.
        mfu (`float`, *optional*): Where the peak is known; in `flop_convention`, whatever the run logged it in.
        device (`str`, *optional*): Name of the device, where it is known.
    """

    stage: str
    tokens_per_second: float
    flops_per_token: float
    flop_convention: str
    num_devices: int
    goodput: float
    mfu: float | None = None
    device: str | None = None

    @property
    def flops_per_device_second(self) -> float:
        """`float`: Model FLOPs that a device did in a second of training."""
        return self.tokens_per_second * self.flops_per_token / self.num_devices


def plan_stage(
    config: Mapping[str, Any],
    train_tokens: int,
    seq_length: int,
    tokens_per_step: int,
    micro_batch: int = 1,
    accumulation: int = 1,
    num_devices: int = 1,
    device_name: str = "cpu",
    mixed_precision: bool = False,
    checkpointing: bool = False,
    sharded: bool = False,
    mfu: float = DEFAULT_MFU,
    goodput: float = DEFAULT_GOODPUT,
    law: str = DEFAULT_LAW,
) -> dict[str, Any]:
    """Plans one training stage, before its first step.

    Args:
        config (`Mapping[str, Any]`): The model's configuration.
        train_tokens (`int`): D of the stage.
        seq_length (`int`): Tokens of a sequence.
        tokens_per_step (`int`): Tokens of an update over all devices.
        micro_batch (`int`, *optional*, defaults to 1): Sequences of a micro-batch.
        accumulation (`int`, *optional*, defaults to 1): Micro-batches of an update.
        num_devices (`int`, *optional*, defaults to 1): Devices.
        device_name (`str`, *optional*, defaults to `"cpu"`): As the driver calls them.
        mixed_precision (`bool`, *optional*, defaults to `False`): Whether the forward pass is autocast.
        checkpointing (`bool`, *optional*, defaults to `False`): Whether layers are computed again in the backward.
        sharded (`bool`, *optional*, defaults to `False`): Whether states are sharded; memory is left out then, a
            layout plan has it.
        mfu (`float`, *optional*, defaults to 0.4): Assumed share of the peak.
        goodput (`float`, *optional*, defaults to 0.9): Assumed share of the time that trains.
        law (`str`, *optional*, defaults to `"epoch"`): Law of the losses.

    Returns:
        `dict[str, Any]`: Plain JSON; without speed, time and cost where the device's peak is unknown, and without
        what the model's family does not allow to count.
    """
    plan: dict[str, Any] = {
        "train_tokens": train_tokens,
        "global_batch_tokens": tokens_per_step,
        "steps": math.ceil(train_tokens / tokens_per_step),
        "devices": num_devices,
        "device": device_name,
    }
    try:
        counts = count_parameters(config)
        per_token = training_flops_per_token(config, seq_length)
        memory = estimate_memory(
            config,
            seq_length,
            micro_batch,
            accumulation,
            recipe="autocast" if mixed_precision else "fp32",
            checkpointing="full" if checkpointing else "none",
            device_type="cpu" if device_name == "cpu" else "cuda",
        )
    except UserError as error:  # a family that planning does not know trains all the same
        return {**plan, "left_out": str(error)}
    chosen = get_law(law)
    plan |= {
        "flops": per_token * train_tokens,
        "flops_per_token": per_token,
        "flop_convention": DEFAULT_CONVENTION,
        **({} if sharded else {"memory_bytes": memory.total}),
        "law": chosen.name,
        "losses": _planned_losses(chosen, float(counts.active), train_tokens, int(config["vocab_size"])),
    }
    device = find_device(device_name)
    if device is None:
        return plan
    speed = device.peak_flops * mfu * num_devices / per_token
    plan |= {
        "mfu": mfu,
        "goodput": goodput,
        "tokens_per_second": speed,
        "step_seconds": tokens_per_step / speed,
        "seconds": train_tokens / speed / goodput,
        "device_hours": train_tokens / speed / goodput * num_devices / 3600,
    }
    prices = PRICE_RANGES.get(device.name)
    if prices is not None and prices[0] is not None:
        plan |= {"price_low": prices[0], "price_high": prices[1]}
    return plan


def _planned_losses(law: ParametricLaw, active: float, tokens: float, vocab_size: int) -> list[dict[str, float]]:
    """The law's losses along a budget; a sparse model is taken for a dense one of its active parameters.

    Where the law says worse than guessing all tokens alike, it is far outside of its range and says nothing.
    """
    rows = []
    for share in LOSS_SHARES:
        loss = law.loss(active, share * tokens)
        rows.append({"tokens": share * tokens, **({"loss": loss} if loss < math.log(vocab_size) else {})})
    return rows


def compare(plan: Mapping[str, Any], stage: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Sets a stage's plan beside what was measured.

    Args:
        plan (`Mapping[str, Any]`): From [`plan_stage`].
        stage (`Mapping[str, Any]`): The stage's facts.

    Returns:
        `list[dict[str, Any]]`: Rows with `name`, `unit`, `planned`, `measured` (either may be `None`) and `ratio`
        (measured over planned, where both are there).
    """
    data, speed = stage.get("data", {}), stage.get("throughput", {})
    devices = stage.get("processes") or 1
    rate, seconds = speed.get("tokens_per_second"), stage.get("seconds")
    batch = data.get("global_batch_tokens")
    hours = None if seconds is None else seconds * devices / 3600
    on_gpu = stage.get("peak_gpu_memory_bytes")
    low, high = plan.get("price_low"), plan.get("price_high")
    rows = [
        ("tokens", "tokens", plan.get("train_tokens"), data.get("train_tokens")),
        ("steps", "", plan.get("steps"), data.get("steps")),
        ("step time", "s", plan.get("step_seconds"), batch / rate if batch and rate else None),
        ("speed", "tokens/s", plan.get("tokens_per_second"), rate),
        ("MFU", "", plan.get("mfu"), speed.get("mfu")),
        ("goodput", "", plan.get("goodput"), _share(speed.get("seconds"), seconds)),
        ("time", "s", plan.get("seconds"), seconds),
        ("device hours", "h", plan.get("device_hours"), hours),
        ("peak memory", "bytes", plan.get("memory_bytes"), on_gpu),
        # Of the whole process, interpreter and libraries with it: nothing to hold tensors against.
        ("process memory", "bytes", None, None if on_gpu else stage.get("peak_memory_bytes")),
    ]
    if low is not None and high is not None:
        middle = (low + high) / 2
        planned = plan.get("device_hours")
        cost = None if planned is None else planned * middle
        rows.append(("cost", "USD", cost, None if hours is None else hours * middle))
    return [
        {
            "name": name,
            "unit": unit,
            "planned": planned,
            "measured": measured,
            "ratio": measured / planned if planned and measured is not None else None,
        }
        for name, unit, planned, measured in rows
        if planned is not None or measured is not None
    ]


def compare_losses(
    plan: Mapping[str, Any], tokens: Sequence[float], losses: Sequence[float]
) -> list[dict[str, float | None]]:
    """Sets the law's losses beside a training curve.

    The law is of other data and another tokenizer, so levels differ; how much is still to fall is what compares.

    Args:
        plan (`Mapping[str, Any]`): From [`plan_stage`].
        tokens (`Sequence[float]`): Tokens of the stage at the log lines, rising.
        losses (`Sequence[float]`): Losses there.

    Returns:
        `list[dict[str, float | None]]`: `tokens`, `planned`, `measured` (mean of the lines around) for each share.
    """
    rows = []
    for point in plan.get("losses", ()):
        # The lines of the last twentieth before the place: one line is a batch, and noisy.
        place = point["tokens"]
        near = [y for x, y in zip(tokens, losses, strict=True) if 0.95 * place <= x <= 1.001 * place]
        measured = sum(near) / len(near) if near else None
        rows.append({"tokens": place, "planned": point.get("loss"), "measured": measured})
    return rows


def measured_efficiency(facts: Mapping[str, Any], stage: str | None = None) -> Efficiency:
    """Reads what a run reached from its facts.

    Args:
        facts (`Mapping[str, Any]`): Content of `facts.json`.
        stage (`str`, *optional*): A pretraining stage; by default the one that trained longest.

    Returns:
        `Efficiency`: For the next plan.

    Raises:
        UserError: If no pretraining stage with a speed is there.
    """
    found = {
        name: value
        for name, value in facts.get("stages", {}).items()
        if value.get("kind") == "pretrain" and value.get("throughput", {}).get("tokens_per_second")
    }
    if stage is not None and stage not in found:
        raise UserError(f"stage = {stage}; the run has no measured speed for it: {', '.join(found) or 'none'}.")
    if not found:
        raise UserError("the run has no finished pretraining with a measured speed; run one first.")
    name = stage or max(found, key=lambda key: found[key]["throughput"].get("seconds", 0.0))
    value = found[name]
    speed, plan = value["throughput"], facts.get("plans", {}).get(name, {})
    config, length = value["model"]["config"], value["data"]["seq_length"]
    per_token = training_flops_per_token(config, length, "6n_active")
    mfu = speed.get("mfu")
    if mfu is not None:
        mfu *= per_token / training_flops_per_token(config, length, speed.get("flop_convention", DEFAULT_CONVENTION))
    return Efficiency(
        stage=name,
        tokens_per_second=float(speed["tokens_per_second"]),
        flops_per_token=per_token,
        flop_convention="6n_active",
        num_devices=int(value.get("processes") or 1),
        goodput=_share(speed.get("seconds"), value.get("seconds")) or 1.0,
        mfu=mfu,
        device=plan.get("device"),
    )


def replan(
    efficiency: Efficiency, flops: float, num_devices: int | None = None, price: float | None = None
) -> dict[str, Any]:
    """Time and cost of a budget on devices like those of a run, at what they did there.

    Args:
        efficiency (`Efficiency`): From [`measured_efficiency`].
        flops (`float`): C = 6 N D of the new run, with the parameters that a token uses.
        num_devices (`int`, *optional*): As many as the run had by default.
        price (`float`, *optional*): Of a device-hour.

    Returns:
        `dict[str, Any]`: `stage`, `flops_per_device_second`, `flop_convention`, `mfu`, `goodput`, `devices`,
        `device_hours`, `days` and `cost`.
    """
    devices = efficiency.num_devices if num_devices is None else num_devices
    hours = positive("flops", flops) / efficiency.flops_per_device_second / efficiency.goodput / 3600
    return {
        "stage": efficiency.stage,
        "flops_per_device_second": efficiency.flops_per_device_second,
        "flop_convention": efficiency.flop_convention,
        "mfu": efficiency.mfu,
        "goodput": efficiency.goodput,
        "devices": devices,
        "device_hours": hours,
        "days": hours / positive("num_devices", devices) / 24,
        "cost": None if price is None else hours * positive("price", price),
    }


def _share(part: float | None, whole: float | None) -> float | None:
    return min(part / whole, 1.0) if part and whole else None

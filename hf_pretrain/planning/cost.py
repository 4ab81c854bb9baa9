"""Device-hours, days and price of a run, with the spread that published runs show.

    hours = C / (peak * MFU * 3600 * goodput),   cost = hours * price * (1 + overhead)

Peak, MFU and goodput stay apart: 7.2e23 FLOPs on devices of 989e12 FLOP/s are 404 449 hours at 50 % and 1.5M hours
would be 13 %. Published totals imply 14 to 43 % of the peak for the whole effort, failures and restarts included.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from hf_pretrain.planning.hardware import DEVICES, Device, find_device
from hf_pretrain.planning.quantities import not_negative, positive
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


DEFAULT_MFU = 0.4
DEFAULT_GOODPUT = 0.9  # share of wall-clock time that trains; Llama 3 reports more than 0.9 (arXiv 2407.21783)
MFU_BAND = (0.15, 0.45)


@dataclass(frozen=True)
class PublishedRun:
    """A run whose device-hours are public.

    Args:
        name (`str`): The model.
        parameters (`float`): Active parameters.
        tokens (`float`): Training tokens.
        device (`str`): Name in the hardware table.
        hours (`float`): Device-hours.
    """

    name: str
    parameters: float
    tokens: float
    device: str
    hours: float

    @property
    def implied_mfu(self) -> float:
        """`float`: 6 N D over what the devices could have done in those hours."""
        device = find_device(self.device)
        assert device is not None
        return implied_mfu(6 * self.parameters * self.tokens, self.hours, device.peak_flops)


PUBLISHED_RUNS: tuple[PublishedRun, ...] = (
    PublishedRun("Llama-3-8B", 8_030_261_248, 15e12, "H100 SXM", 1.3e6),
    PublishedRun("Llama-3.1-8B", 8_030_261_248, 15e12, "H100 SXM", 1.46e6),
    PublishedRun("Llama-3-70B", 70_553_706_496, 15e12, "H100 SXM", 6.4e6),
    PublishedRun("Llama-3.1-70B", 70_553_706_496, 15e12, "H100 SXM", 7.0e6),
    PublishedRun("Llama-3.1-405B", 405e9, 15.6e12, "H100 SXM", 30.84e6),
    PublishedRun("SmolLM3-3B", 3_075_098_624, 11.2e12, "H100 SXM", 384 * 24 * 24),
    PublishedRun("SmolLM2-1.7B", 1_711_376_384, 11e12, "H100 SXM", 140e3),
    PublishedRun("DeepSeek-V3", 37e9, 14.8e12, "H800", 2.664e6),
    PublishedRun("Llama-2-7B", 6_738_415_616, 2e12, "A100 80GB", 184_320),
    PublishedRun("Llama-2-70B", 68_976_648_192, 2e12, "A100 80GB", 1_720_320),
)

# USD per device-hour, low and high, gathered from price trackers: illustrative, give your own.
PRICES_AS_OF = "2026-05"
PRICE_RANGES: dict[str, tuple[float, float]] = {
    "A100 80GB": (0.8, 3.0),
    "A100 40GB": (0.8, 3.0),
    "H100 SXM": (2.0, 5.0),
    "H200": (2.5, 7.0),
    "B200": (4.0, 10.0),
    "MI300X": (2.0, 4.0),
}


def gpu_hours(flops: float, peak_flops: float, mfu: float, goodput: float = 1.0) -> float:
    """Device-hours of a run.

    Args:
        flops (`float`): C.
        peak_flops (`float`): Dense peak of a device in FLOP/s.
        mfu (`float`): Share of it used while training, in (0, 1], under the convention of `flops`.
        goodput (`float`, *optional*, defaults to 1.0): Share of wall-clock time that trains.

    Returns:
        `float`: Hours times devices.

    Raises:
        UserError: If a share is not in (0, 1].
    """
    for name, share in (("mfu", mfu), ("goodput", goodput)):
        if positive(name, share) > 1:
            raise UserError(f"{name} = {share:g}; a share between 0 and 1 is needed (0.4 for 40 %).")
    return positive("flops", flops) / (positive("peak_flops", peak_flops) * mfu * 3600 * goodput)


def implied_mfu(flops: float, hours: float, peak_flops: float) -> float:
    """Share of the peak that published device-hours amount to.

    Args:
        flops (`float`): C.
        hours (`float`): Device-hours.
        peak_flops (`float`): Dense peak of a device in FLOP/s.

    Returns:
        `float`: Utilisation of everything those hours held.
    """
    return positive("flops", flops) / (positive("hours", hours) * 3600 * positive("peak_flops", peak_flops))


def cost_of(hours: float, price: float, overhead: float = 0.0) -> float:
    """Price of a run.

    Args:
        hours (`float`): Device-hours.
        price (`float`): Per device-hour.
        overhead (`float`, *optional*, defaults to 0.0): Storage, traffic and operation on top, 0.3 for 30 %.

    Returns:
        `float`: In the price's currency.
    """
    return positive("hours", hours) * not_negative("price", price) * (1 + not_negative("overhead", overhead))


def energy_kwh(hours: float, watts: float, overhead: float = 0.2) -> float:
    """Energy of a run; a figure nobody measured is left out rather than guessed, so the watts are asked for.

    Args:
        hours (`float`): Device-hours.
        watts (`float`): Draw of one device with its share of the machine, in watts.
        overhead (`float`, *optional*, defaults to 0.2): Cooling and conversion on top (a PUE of 1.2).

    Returns:
        `float`: Kilowatt-hours.
    """
    return positive("hours", hours) * positive("watts", watts) / 1e3 * (1 + not_negative("overhead", overhead))


@dataclass(frozen=True)
class Cluster:
    """So many devices of one kind.

    Args:
        num_devices (`int`): How many.
        device (`Device`): Which.
    """

    num_devices: int
    device: Device

    @classmethod
    def parse(cls, text: str, devices: Sequence[Device] = ()) -> "Cluster":
        """Reads `"64xH100"`.

        Args:
            text (`str`): A number, `x`, and a device of the hardware table; the number alone may be left out.
            devices (`Sequence[Device]`, *optional*): Another table, from `hardware.load_devices`.

        Returns:
            `Cluster`: The devices.

        Raises:
            UserError: If it cannot be read, or the device is not in the table.
        """
        match = re.fullmatch(r"\s*(?:(\d+)\s*[x*]\s*)?(\S.*?)\s*", text, re.IGNORECASE)
        if match is None:
            raise UserError(f"gpus = {text!r}; write it like 64xH100.")
        number, name = int(match[1] or 1), match[2]
        if number < 1:
            raise UserError(f"gpus = {text!r}; at least one device is needed.")
        device = find_device(name, devices)
        if device is None:
            known = [item.name for item in devices or DEVICES] + ["H100", "A100"]
            raise UserError(unknown_name_message("device", name, known))
        return cls(number, device)

    def flops_in(self, days: float, mfu: float = DEFAULT_MFU, goodput: float = DEFAULT_GOODPUT) -> float:
        """Compute that fits into some days.

        Args:
            days (`float`): Wall-clock days.
            mfu (`float`, *optional*, defaults to 0.4): Share of the peak used while training.
            goodput (`float`, *optional*, defaults to 0.9): Share of the time that trains.

        Returns:
            `float`: FLOPs.
        """
        one_hour = 1 / gpu_hours(1.0, self.device.peak_flops, mfu, goodput)
        return one_hour * 24 * positive("days", days) * self.num_devices


@dataclass(frozen=True)
class RunEstimate:
    """What a run takes.

    Args:
        hours (`float`): Device-hours at the assumed MFU.
        hours_low (`float`): At the upper end of `MFU_BAND`.
        hours_high (`float`): At its lower end.
        days (`float`): Wall-clock days on the cluster, at the assumed MFU.
        price_low (`float`, *optional*): Price per device-hour, or the low end of the table; `None` if unknown.
        price_high (`float`, *optional*): The same, or the high end.
        cost (`float`, *optional*): At the assumed MFU, when a price was given.
        cost_low (`float`, *optional*): `hours_low` at `price_low`.
        cost_high (`float`, *optional*): `hours_high` at `price_high`.
    """

    hours: float
    hours_low: float
    hours_high: float
    days: float
    price_low: float | None
    price_high: float | None
    cost: float | None
    cost_low: float | None
    cost_high: float | None


def estimate_run(
    flops: float,
    cluster: Cluster,
    mfu: float = DEFAULT_MFU,
    goodput: float = DEFAULT_GOODPUT,
    price: float | None = None,
    overhead: float = 0.0,
) -> RunEstimate:
    """Time and cost of a run on a cluster, with the band of published utilisations.

    Args:
        flops (`float`): C.
        cluster (`Cluster`): The devices.
        mfu (`float`, *optional*, defaults to 0.4): Share of the peak used while training.
        goodput (`float`, *optional*, defaults to 0.9): Share of the time that trains.
        price (`float`, *optional*): Per device-hour; the table's range by default, where it has one.
        overhead (`float`, *optional*, defaults to 0.0): Share on top of the devices' price.

    Returns:
        `RunEstimate`: The estimate. The band's ends already hold failures and restarts, so goodput is not applied.
    """
    peak = cluster.device.peak_flops
    hours = gpu_hours(flops, peak, mfu, goodput)
    low, high = sorted((gpu_hours(flops, peak, MFU_BAND[1]), gpu_hours(flops, peak, MFU_BAND[0])))
    low, high = min(low, hours), max(high, hours)
    own = (cluster.device.price_low, cluster.device.price_high or cluster.device.price_low)
    prices = own if own[0] is not None else PRICE_RANGES.get(cluster.device.name, (None, None))
    if price is not None:
        prices = (price, price)
    known = prices[0] is not None
    return RunEstimate(
        hours=hours,
        hours_low=low,
        hours_high=high,
        days=hours / cluster.num_devices / 24,
        price_low=prices[0],
        price_high=prices[1],
        cost=None if price is None else cost_of(hours, price, overhead),
        cost_low=cost_of(low, prices[0], overhead) if known else None,
        cost_high=cost_of(high, prices[1], overhead) if known else None,
    )

"""Time and cost: science section 2.4 and the calibration against published hours."""

import pytest

from hf_pretrain.planning.cost import (
    PUBLISHED_RUNS,
    Cluster,
    cost_of,
    energy_kwh,
    estimate_run,
    gpu_hours,
    implied_mfu,
)
from hf_pretrain.planning.hardware import Device
from hf_pretrain.utils.errors import UserError


FLOPS = 7.2e23
H100 = 989e12


def test_hours():
    assert gpu_hours(FLOPS, 1e15, 1.0) == pytest.approx(200_000)
    assert gpu_hours(FLOPS, H100, 1.0) == pytest.approx(202_225, abs=1)
    assert gpu_hours(FLOPS, H100, 0.5) == pytest.approx(404_449, abs=1)
    assert gpu_hours(FLOPS, H100, 0.4) == pytest.approx(505_561, abs=1)
    assert [gpu_hours(FLOPS, H100, mfu) for mfu in (0.38, 0.43)] == pytest.approx([532_170, 470_290], abs=1)
    assert gpu_hours(FLOPS, 312e12, 0.4) == pytest.approx(1_602_564, abs=1)
    assert gpu_hours(FLOPS, H100, 0.5, goodput=0.9) == pytest.approx(404_449 / 0.9, abs=2)


def test_one_and_a_half_million_hours_are_not_half_the_peak():
    assert implied_mfu(FLOPS, 1.5e6, 1e15) == pytest.approx(0.133, abs=5e-4)
    assert 1.5e6 / gpu_hours(FLOPS, 1e15, 0.5) == pytest.approx(3.75)


def test_published_runs():
    expected = {
        "Llama-3-8B": 15.6,
        "Llama-3.1-8B": 13.9,
        "Llama-3-70B": 27.9,
        "Llama-3.1-70B": 25.5,
        "Llama-3.1-405B": 34.5,
        "SmolLM3-3B": 26.2,
        "SmolLM2-1.7B": 22.7,
        "DeepSeek-V3": 34.6,
        "Llama-2-7B": 39.1,
        "Llama-2-70B": 42.8,
    }
    assert {run.name: round(100 * run.implied_mfu, 1) for run in PUBLISHED_RUNS} == expected


def test_estimate():
    cluster = Cluster.parse("64xH100")
    assert (cluster.num_devices, cluster.device.name) == (64, "H100 SXM")
    run = estimate_run(FLOPS, cluster, mfu=0.4, goodput=1.0, price=2.5)
    assert run.hours == pytest.approx(505_561, abs=1) and run.days == pytest.approx(505_561 / 64 / 24, abs=0.01)
    assert run.cost == pytest.approx(505_561 * 2.5, abs=3)
    assert (run.hours_low, run.hours_high) == pytest.approx((449_388, 1_348_163), abs=1)
    assert run.cost_low < run.cost < run.cost_high
    table = estimate_run(FLOPS, cluster)
    assert table.cost is None and (table.price_low, table.price_high) == (2.0, 5.0) and table.cost_low > 0
    unknown = estimate_run(FLOPS, Cluster.parse("8 x TPU v4"))
    assert (unknown.price_low, unknown.cost_low, unknown.cost_high) == (None, None, None)
    assert estimate_run(FLOPS, cluster, mfu=0.1, goodput=1.0).hours_high == pytest.approx(2_022_245, abs=5)
    assert cost_of(100, 2.0, overhead=0.3) == pytest.approx(260)
    assert cluster.flops_in(10, mfu=0.5, goodput=1.0) == pytest.approx(64 * 989e12 * 0.5 * 864_000)


def test_devices_are_read():
    assert Cluster.parse("H200").num_devices == 1
    assert Cluster.parse("8*a100-80gb").device.name == "A100 80GB"
    assert Cluster.parse("16xMI300X").device.name == "MI300X"
    with pytest.raises(UserError, match="Unknown device 'H10O'. Did you mean 'H100'"):
        Cluster.parse("64xH10O")
    with pytest.raises(UserError, match="at least one device"):
        Cluster.parse("0xH100")
    with pytest.raises(UserError, match="write it like 64xH100"):
        Cluster.parse("  ")


def test_bad_input():
    with pytest.raises(UserError, match="mfu = 40; a share"):
        gpu_hours(FLOPS, H100, 40)
    with pytest.raises(UserError, match="flops = 0"):
        gpu_hours(0, H100, 0.4)
    with pytest.raises(UserError, match="price = -1"):
        cost_of(1.0, -1.0)


def test_energy_and_prices_of_your_own():
    assert energy_kwh(1000, 700) == pytest.approx(840)
    assert energy_kwh(1000, 700, overhead=0.0) == 700
    with pytest.raises(UserError, match="watts = 0"):
        energy_kwh(1000, 0)
    mine = Device("X", "X", 989, 80, 3.35, price_low=1.5)
    run = estimate_run(FLOPS, Cluster(64, mine))
    assert (run.price_low, run.price_high) == (1.5, 1.5)
    assert Cluster.parse("8xX", [mine]).device is mine

"""Plan against measured, and the next plan with what was measured."""

import pytest

from hf_pretrain.planning.closed_loop import compare, compare_losses, measured_efficiency, plan_stage, replan
from hf_pretrain.planning.scaling_laws import get_law
from hf_pretrain.utils.errors import UserError


CONFIG = {
    "model_type": "strata",
    "vocab_size": 32000,
    "hidden_size": 1024,
    "intermediate_size": 2816,
    "num_hidden_layers": 12,
    "num_attention_heads": 16,
    "num_key_value_heads": 16,
    "tie_word_embeddings": True,
}
H100 = "NVIDIA H100 80GB HBM3"


def plan(**changes):
    return plan_stage(CONFIG, 10**9, 1024, 2**19, 8, 8, 8, **{"device_name": H100, **changes})


def facts(rate=4e6, seconds=300.0):
    stage = {
        "kind": "pretrain",
        "model": {"config": CONFIG},
        "data": {"train_tokens": 10**9, "seq_length": 1024, "global_batch_tokens": 2**19, "steps": 1908},
        "throughput": {"tokens_per_second": rate, "seconds": 250.0, "mfu": 0.5},
        "seconds": seconds,
        "processes": 8,
        "peak_gpu_memory_bytes": 20e9,
    }
    return {"stages": {"1_pretrain": stage}, "plans": {"1_pretrain": plan()}}


def test_a_plan_agrees_with_itself():
    made = plan()
    assert made["steps"] == 1908
    assert made["tokens_per_second"] * made["flops_per_token"] == pytest.approx(0.4 * 8 * 989e12, rel=1e-3)
    assert made["seconds"] * 0.9 * made["tokens_per_second"] == pytest.approx(1e9)
    assert made["device_hours"] == pytest.approx(made["seconds"] * 8 / 3600)
    assert made["step_seconds"] * made["tokens_per_second"] == pytest.approx(2**19)
    assert [point["tokens"] for point in made["losses"]] == [1e8, 2.5e8, 5e8, 7.5e8, 1e9]
    assert made["losses"][-1]["loss"] == pytest.approx(get_law("epoch").loss(187_000_000, 1e9), rel=1e-2)


def test_nothing_is_guessed():
    unknown = plan(device_name="cpu")
    assert "tokens_per_second" not in unknown and "seconds" not in unknown and unknown["memory_bytes"] > 0
    assert "memory_bytes" not in plan(sharded=True)
    strange = plan_stage({"model_type": "mamba"}, 1000, 10, 100)
    assert strange["steps"] == 10 and "Unknown model_type 'mamba'" in strange["left_out"]


def test_a_law_far_outside_of_its_range_says_nothing():
    tiny = plan_stage(CONFIG, 10_000, 100, 1000)
    assert all("loss" not in point for point in tiny["losses"])
    assert [row["planned"] for row in compare_losses(tiny, [10_000], [5.0])] == [None] * 5


def test_checkpointing_saves_memory():
    assert plan(checkpointing=True)["memory_bytes"] < 0.7 * plan()["memory_bytes"]


def test_rows_of_the_comparison():
    found = facts()
    rows = {row["name"]: row for row in compare(found["plans"]["1_pretrain"], found["stages"]["1_pretrain"])}
    assert rows["tokens"]["ratio"] == 1 and rows["steps"]["ratio"] == 1
    assert rows["step time"]["measured"] == pytest.approx(2**19 / 4e6)
    assert rows["step time"]["ratio"] * rows["speed"]["ratio"] == pytest.approx(1)
    assert rows["MFU"]["ratio"] == pytest.approx(1.25)
    assert rows["goodput"]["measured"] == pytest.approx(250 / 300)
    assert rows["device hours"]["measured"] == pytest.approx(300 * 8 / 3600)
    assert rows["cost"]["measured"] == pytest.approx(300 * 8 / 3600 * 3.5)
    assert rows["peak memory"]["measured"] == 20e9
    bare = {row["name"]: row for row in compare({"train_tokens": 10}, {"data": {"train_tokens": 10}})}
    assert list(bare) == ["tokens"]


def test_losses_along_the_budget():
    made = {
        "losses": [{"tokens": 100.0, "loss": 5.0}, {"tokens": 1000.0, "loss": 4.0}, {"tokens": 9000.0, "loss": 3.0}]
    }
    rows = compare_losses(made, [96, 100, 500, 960, 1000], [6.0, 5.8, 5.0, 4.6, 4.4])
    assert [row["measured"] for row in rows] == [pytest.approx(5.9), pytest.approx(4.5), None]


def test_replanning_with_what_was_measured():
    reached = measured_efficiency(facts())
    assert (reached.num_devices, reached.device, reached.flop_convention) == (8, H100, "6n_active")
    logged, ours = plan()["flops_per_token"], reached.flops_per_token
    assert reached.mfu == pytest.approx(0.5 * ours / logged) and ours < logged  # attention is not in 6 N
    assert reached.goodput == pytest.approx(250 / 300)
    again = replan(reached, 1e9 * reached.flops_per_token, price=2.0)
    assert again["device_hours"] == pytest.approx(8 * 300 / 3600)  # the same run takes what it took
    assert again["cost"] == pytest.approx(2 * again["device_hours"])
    assert replan(reached, 1e20, 64)["days"] == pytest.approx(replan(reached, 1e20, 8)["days"] / 8)


def test_runs_without_a_speed_are_refused():
    with pytest.raises(UserError, match="no finished pretraining with a measured speed"):
        measured_efficiency({"stages": {"1_corpus": {"kind": "corpus"}}})
    with pytest.raises(UserError, match="no measured speed for it: 1_pretrain"):
        measured_efficiency(facts(), "2_pretrain")
    with pytest.raises(UserError, match="flops = 0"):
        replan(measured_efficiency(facts()), 0)

"""Degrees, bubbles and traffic: science section 2.8."""

import pytest

from hf_pretrain.planning.counting import ModelShape
from hf_pretrain.planning.parallelism import (
    Parallelism,
    all_reduce_bytes,
    check_division,
    context_parallel_bytes,
    division_errors,
    expert_parallel_bytes,
    gather_bytes,
    overlap_tokens,
    pipeline_bubble,
    tensor_parallel_bytes,
)
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize(
    ("stages", "micro_batches", "interleaved", "of_ideal", "of_all"),
    [
        (8, 32, 1, 0.21875, 0.17949),
        (8, 32, 4, 0.05469, 0.05185),
        (4, 8, 1, 0.375, 0.27273),
        (16, 64, 1, 0.23438, 0.18987),
        (1, 8, 1, 0, 0),
    ],
)
def test_bubble(stages, micro_batches, interleaved, of_ideal, of_all):
    assert pipeline_bubble(stages, micro_batches, interleaved) == pytest.approx((of_ideal, of_all), abs=6e-6)
    assert pipeline_bubble(stages, 4 * stages)[1] <= 0.2


def test_collectives():
    gradients = 2 * 8030261248
    assert all_reduce_bytes(gradients, 64) / 1e9 == pytest.approx(31.62, abs=6e-3)
    assert 3 * gather_bytes(gradients, 64) / 1e9 == pytest.approx(47.43, abs=6e-3)
    assert 3 * gather_bytes(gradients, 64) == 1.5 * all_reduce_bytes(gradients, 64)
    assert all_reduce_bytes(gradients, 1) == 0


def test_when_fsdp_hides():
    assert overlap_tokens(989e12, 0.5, 50e9) == pytest.approx(9890, abs=1)
    assert overlap_tokens(989e12, 0.5, 450e9) == pytest.approx(1099, abs=1)


def test_tensor_expert_context_traffic():
    assert 2 * 8192 * 4096 == pytest.approx(67.1e6, rel=1e-3)
    sent = tensor_parallel_bytes(4096, 8192, 8)
    assert sent / 1e6 == pytest.approx(470, abs=0.5) and 32 * sent / 1e9 == pytest.approx(15.0, abs=0.05)
    assert expert_parallel_bytes(4096, 2, 8) == 65536 * 7 / 8
    assert context_parallel_bytes(8192, 1024, 1) == 0
    assert context_parallel_bytes(8192, 1024, 4) == 3 * 3 * 2 * 2 * 2048 * 1024


def test_degrees():
    plan = Parallelism(dp_replicate=2, dp_shard=4, tp=8, pp=2, cp=2, ep=8, strategy="fsdp2")
    assert (plan.world, plan.data_parallel, plan.shards, plan.strategy) == (256, 8, 8, "zero3")
    assert plan.describe() == "dp_replicate 2, dp_shard 4, tp 8, pp 2, cp 2, ep 8 (zero3)"
    assert Parallelism().describe() == "one device (zero3)"
    with pytest.raises(UserError, match="tp = 0; a whole number"):
        Parallelism(tp=0)
    with pytest.raises(UserError, match="ep = 3; it must divide dp_shard"):
        Parallelism(dp_shard=4, ep=3)
    with pytest.raises(UserError, match="Unknown strategy 'fsdp3'. Did you mean 'fsdp'"):
        Parallelism(strategy="fsdp3")


MODEL = {
    "model_type": "qwen3_moe",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "moe_intermediate_size": 24,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_experts": 12,
    "num_experts_per_tok": 2,
    "mlp_only_layers": [0],
}


@pytest.mark.parametrize(
    ("degrees", "message"),
    [
        ({"tp": 3}, "tp = 3; it must divide num_attention_heads = 8"),
        ({"tp": 16}, "tp = 16; it must divide num_attention_heads = 8"),
        ({"pp": 4}, "pp = 4; it must divide num_hidden_layers = 6"),
        ({"dp_shard": 8, "ep": 8}, "ep = 8; it must divide num_experts = 12"),
        ({"cp": 3}, "cp = 3; seq_length = 1024 must be a multiple of 2 cp"),
    ],
)
def test_what_does_not_divide(degrees, message):
    with pytest.raises(UserError, match=message):
        check_division(ModelShape.from_config(MODEL), Parallelism(**degrees), 1024)


def test_other_divisions():
    odd = ModelShape.from_config(MODEL | {"vocab_size": 1001, "moe_intermediate_size": 25, "intermediate_size": 97})
    faults = division_errors(odd, Parallelism(tp=2))
    assert [fault.split("divide ")[1].split(" =")[0] for fault in faults] == [
        "vocab_size",
        "intermediate_size",
        "moe_intermediate_size",
    ]
    heads = ModelShape.from_config(MODEL | {"num_attention_heads": 12, "num_key_value_heads": 6, "hidden_size": 96})
    assert "num_key_value_heads = 6" in division_errors(heads, Parallelism(tp=4))[0]
    assert division_errors(ModelShape.from_config(MODEL), Parallelism(tp=8, pp=3, dp_shard=4, ep=4, cp=4), 1024) == []


def test_bad_bubble():
    with pytest.raises(UserError, match="it must be a multiple of 8 stages"):
        pipeline_bubble(8, 12, 2)
    with pytest.raises(UserError, match="stages = 0"):
        pipeline_bubble(0, 12)

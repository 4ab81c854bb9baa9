"""The search over layouts: what fits, what is fast, what falls out and why."""

import json

import pytest

from hf_pretrain.planning.compute import training_flops_per_token
from hf_pretrain.planning.cost import Cluster
from hf_pretrain.planning.layout import Network, estimate_step, launch_problem, search_layouts
from hf_pretrain.planning.memory import estimate_memory
from hf_pretrain.planning.parallelism import Parallelism
from hf_pretrain.utils.errors import UserError


def llama(vocab, hidden, layers, ffn, heads, kv, **more):
    return {
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        **more,
    }


ONE_B = llama(49152, 2048, 24, 5632, 16, 8)
LLAMA_3_8B = llama(128256, 4096, 32, 14336, 32, 8)
LLAMA_3_70B = llama(128256, 8192, 80, 28672, 64, 8)
H100 = Cluster.parse("64xH100")


def test_everything_shown_fits_and_adds_up():
    found = search_layouts(LLAMA_3_8B, H100, 8192, 512)
    assert len(found.layouts) == 5 and len({layout.parallelism for layout in found.layouts}) == 5
    for layout in found.layouts:
        plan = layout.parallelism
        assert plan.world == 64 and layout.micro_batch * layout.accumulation * plan.data_parallel == 512
        assert layout.memory.total <= 0.9 * 80e9
        again = estimate_memory(LLAMA_3_8B, 8192, layout.micro_batch, layout.accumulation, plan)
        if layout.checkpointing == "none":
            assert layout.memory == again
        assert layout.mfu == pytest.approx(
            layout.tokens_per_second * training_flops_per_token(LLAMA_3_8B, 8192) / (64 * 989e12)
        )
        assert layout.tokens_per_second * layout.time.total == pytest.approx(512 * 8192)
        assert 0 < layout.mfu <= 0.5 and layout.reason()
    assert sum(found.rejected.values()) + 5 == found.considered
    assert found.rejected["it does not fit in memory"] > 0
    json.dumps(found.to_dict(), allow_nan=False)


def test_small_models_need_no_division():
    best = search_layouts(ONE_B, Cluster.parse("8xH100"), 4096, 512).layouts[0]
    plan = best.parallelism
    assert (plan.tp, plan.pp, plan.cp, best.checkpointing) == (1, 1, 1, "none")
    alone = search_layouts(ONE_B, Cluster.parse("H100"), 4096, 64).layouts[0]
    assert alone.parallelism == Parallelism(strategy="ddp")


def test_large_models_are_divided():
    found = search_layouts(LLAMA_3_70B, Cluster.parse("1024xH100"), 8192, 2048)
    assert found.layouts[0].parallelism.tp == 8 and found.layouts[0].parallelism.shards >= 64
    long = search_layouts(LLAMA_3_8B, H100, 131072, 64)
    assert long.layouts[0].parallelism.cp > 1
    assert all(layout.parallelism.cp == 1 for layout in found.layouts)


def test_recomputation_is_the_last_resort():
    tight = search_layouts(ONE_B, Cluster.parse("H100"), 16384, 8, usable_memory=0.5)
    assert {layout.checkpointing for layout in tight.layouts} == {"full"}
    assert "recomputation" in tight.layouts[0].reason()


def test_experts_can_be_spread():
    sparse = ONE_B | {"model_type": "mixtral", "num_local_experts": 16, "num_experts_per_tok": 2}
    found = search_layouts(sparse, H100, 4096, 512, best=500)
    degrees = {layout.parallelism.ep for layout in found.layouts}
    assert {1, 8, 16} <= degrees
    assert launch_problem(found.launchable.parallelism) is None and found.launchable.parallelism.ep == 1


def test_step_time():
    def step(**degrees):
        more = {"checkpointing": degrees.pop("checkpointing", "none")}
        batch = degrees.pop("micro_batch", 1)
        steps = degrees.pop("accumulation", 1)
        return estimate_step(LLAMA_3_8B, H100, Parallelism(**degrees), 8192, batch, steps, **more)

    one = step(strategy="ddp")
    flops = training_flops_per_token(LLAMA_3_8B, 8192) * 8192
    assert one.compute == pytest.approx(flops / (989e12 * 0.5)) and one.total == one.compute
    assert step(strategy="ddp", checkpointing="full").compute == pytest.approx(one.compute * 4 / 3)
    tensor = step(tp=8)
    assert tensor.compute == pytest.approx(one.compute / 8)
    assert tensor.tensor == pytest.approx(15.0e9 / 450e9, rel=5e-3)
    # 8,192 tokens a device are too few to hide FSDP over a slow network, and enough inside a node.
    assert step(dp_shard=64).sharding > 0 == step(dp_shard=8).sharding
    assert step(dp_shard=64, micro_batch=4).sharding == 0
    staged = step(pp=4, accumulation=8)
    assert staged.bubble == pytest.approx(0.375 * (staged.total - staged.bubble))
    assert staged.largest_wait()[0] == "bubble"
    assert step(dp_replicate=64, strategy="ddp").replication > 0


def test_a_slow_network_asks_for_hybrid_sharding():
    slow = Network(network_gbs=5)
    plan = search_layouts(ONE_B, H100, 4096, 512, slow, best=1).layouts[0].parallelism
    assert plan.dp_shard * plan.tp * plan.cp <= 8


def test_what_can_be_launched():
    assert launch_problem(Parallelism(dp_shard=8, tp=2)) is None
    assert "pipeline" in launch_problem(Parallelism(pp=2))
    assert "expert" in launch_problem(Parallelism(dp_shard=2, ep=2))
    assert "does not combine" in launch_problem(Parallelism(tp=2, cp=2))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"cluster": Cluster.parse("2xRTX 4090"), "model": LLAMA_3_70B}, "no layout works: .*does not fit in memory"),
        ({"cluster": Cluster.parse("12xH100")}, "they do not fill nodes of 8"),
        ({"global_batch": 7, "cluster": Cluster.parse("2xH100"), "model": llama(101, 66, 3, 33, 3, 3)}, "no layout"),
        ({"seq_length": 0}, "seq_length = 0"),
        ({"efficiency": 40}, "efficiency = 40; a share"),
        ({"recipe": "fp8"}, "Unknown state recipe 'fp8'"),
        ({"head": "fast"}, "Unknown head 'fast'"),
    ],
)
def test_bad_input(more, message):
    given = {"model": LLAMA_3_8B, "cluster": H100, "seq_length": 8192, "global_batch": 512} | more
    with pytest.raises(UserError, match=message):
        search_layouts(**given)


def test_bad_networks():
    for given, message in (
        ({"devices_per_node": 0}, "gpus_per_node = 0"),
        ({"devices_per_node": 2.5}, "gpus_per_node = 2.5"),
        ({"network_gbs": -1.0}, "network_gbs = -1"),
        ({"link_gbs": 0.0}, "link_gbs = 0"),
    ):
        with pytest.raises(UserError, match=message):
            Network(**given)

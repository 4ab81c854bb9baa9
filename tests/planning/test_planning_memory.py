"""Memory of a step: textbook figures of science sections 2.5 to 2.7, and measured allocations of Strata's steps."""

import contextlib

import pytest

from hf_pretrain.planning.activations import (
    COMPUTE_MODES,
    fused_layer_bytes,
    korthikanti_bytes,
    layer_bytes_per_token,
    stream_bytes_per_token,
)
from hf_pretrain.planning.counting import ModelShape, count_parameters
from hf_pretrain.planning.head_memory import head_memory, liger_chunk_rows
from hf_pretrain.planning.memory import STATE_RECIPES, estimate_memory, state_bytes
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


LLAMA_3_8B = llama(128256, 4096, 32, 14336, 32, 8)
TINY = llama(512, 64, 4, 128, 4, 2)
TINY_MOE = TINY | {"model_type": "mixtral", "num_local_experts": 8, "num_experts_per_tok": 2}


def test_bytes_a_parameter():
    totals = {name: state_bytes(1.0, name).total for name in STATE_RECIPES}
    assert totals == {
        "fp32": 16,
        "autocast": 16,
        "fsdp_bf16": 16,
        "bf16_master": 16,
        "bf16_master_fp32_gradients": 18,
        "bf16": 8,
        "bf16_8bit_adam": 10,
    }


def test_zero():
    """The ZeRO paper's 7.5B on 64 devices, and Llama-3-8B."""
    sizes = [state_bytes(7.5e9, "bf16_master", name, 64).total / 1e9 for name in ("ddp", "zero1", "zero2", "zero3")]
    assert sizes == pytest.approx([120, 31.40625, 16.640625, 1.875])
    exact = 8030261248
    assert state_bytes(exact).total / 1e9 == pytest.approx(128.48, abs=6e-3)
    for ranks, expected in ((8, (44.17, 30.11, 16.06)), (64, (33.63, 17.82, 2.01))):
        shared = [state_bytes(exact, "bf16_master", name, ranks).total / 1e9 for name in ("zero1", "zero2", "zero3")]
        assert shared == pytest.approx(expected, abs=6e-3)


def test_korthikanti():
    def layer(**more):
        return korthikanti_bytes(2048, 1, 12288, 96, **more)

    assert 5 * 96 * 2048 / 12288 == 80
    assert layer() == pytest.approx(2.868904e9, rel=1e-6)
    assert layer(tp=8) == 578_813_952 and layer(tp=8, sequence_parallel=True) == 358_612_992
    selective = layer(tp=8, sequence_parallel=True, recompute="selective")
    assert selective == 106_954_752 and layer(recompute="full") == 50_331_648
    assert 96 * layer() / 2**30 == pytest.approx(256.5, abs=0.05)
    assert 96 * layer(recompute="selective") / 2**30 == pytest.approx(76.5, abs=0.05)
    assert 1 - 34 / (34 + 80) == pytest.approx(0.702, abs=5e-4)
    with pytest.raises(UserError, match="Did you mean 'full'"):
        layer(recompute="ful")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (llama(32000, 4096, 32, 11008, 32, 32), 131_584),
        (LLAMA_3_8B, 139_264),
        (llama(128256, 8192, 80, 28672, 64, 8), 274_432),
        (llama(128256, 2048, 16, 8192, 32, 8, head_dim=64), 75_776),
    ],
)
def test_fused_layers(model, expected):
    shape = ModelShape.from_config(model)
    assert fused_layer_bytes(shape) == expected
    # Flash attention keeps one fp32 log-sum-exp a head and token on top.
    assert layer_bytes_per_token(shape, fused=True) == expected + 4 * shape.num_heads
    assert layer_bytes_per_token(shape) > expected


def test_llama_3_8b_at_8192_tokens():
    shape = ModelShape.from_config(LLAMA_3_8B)
    assert 32 * 8192 * fused_layer_bytes(shape) / 1e9 == pytest.approx(36.51, abs=6e-3)
    assert 32 * 8192 * stream_bytes_per_token(shape) / 1e9 == pytest.approx(2.147, abs=6e-4)
    plain = estimate_memory(LLAMA_3_8B, 8192, fused=True)
    again = estimate_memory(LLAMA_3_8B, 8192, fused=True, checkpointing="full")
    assert plain.activations / 1e9 == pytest.approx(36.6, abs=0.3)
    assert again.activations / 1e9 == pytest.approx(2.28, abs=0.01)  # and the last norm
    assert plain.weights + plain.gradients + plain.optimizer == 16 * 8030261248


def test_logits():
    for tokens, expected in ((8192, (2.10, 4.20, 10.51)), (32768, (8.41, 16.81, 42.0))):
        values = tokens * 128256
        assert (2 * values / 1e9, 4 * values / 1e9, 10 * values / 1e9) == pytest.approx(expected, abs=3e-2)
        assert head_memory(tokens, 128256, 4096).logits == 2 * values
    assert 3 * 4 * 8192 * 256000 / 2**30 == pytest.approx(23.44, abs=5e-3)
    assert (liger_chunk_rows(16384, 32000, 4096), liger_chunk_rows(8192, 128256, 4096)) == (2048, 256)
    assert 256 * 128256 * 2 / 1e6 == pytest.approx(65.7, abs=0.05)


def test_what_sharding_does():
    one = estimate_memory(LLAMA_3_8B, 4096)
    eight = estimate_memory(LLAMA_3_8B, 4096, parallelism=Parallelism(dp_shard=8))
    assert eight.weights == one.weights / 8 and eight.optimizer == one.optimizer / 8
    assert eight.activations == one.activations and eight.communication > 0 == one.communication
    layer = 218_112_000  # parameters of a layer, norms included
    assert eight.communication == pytest.approx(3 * 2 * layer, rel=1e-3)
    copies = estimate_memory(LLAMA_3_8B, 4096, parallelism=Parallelism(dp_replicate=8, strategy="ddp"))
    assert copies.weights == one.weights and copies.communication == one.gradients
    hybrid = estimate_memory(LLAMA_3_8B, 4096, parallelism=Parallelism(dp_replicate=2, dp_shard=4, strategy="hsdp"))
    assert hybrid.weights == one.weights / 4


def test_what_the_other_degrees_do():
    one = estimate_memory(LLAMA_3_8B, 8192)
    wide = estimate_memory(LLAMA_3_8B, 8192, parallelism=Parallelism(tp=8))
    assert wide.weights == pytest.approx(one.weights / 8, rel=1e-3)
    assert wide.activations == pytest.approx(one.activations / 8) and wide.head < one.head
    ring = estimate_memory(LLAMA_3_8B, 8192, parallelism=Parallelism(cp=8))
    assert ring.activations == pytest.approx(one.activations / 8) and ring.weights == pytest.approx(one.weights / 8)
    staged = estimate_memory(LLAMA_3_8B, 8192, accumulation=16, parallelism=Parallelism(pp=4))
    # The first stage has four micro-batches in flight, so its activations are those of all layers.
    assert staged.activations == pytest.approx(one.activations, rel=0.02)
    assert one.weights / 4 < staged.weights < one.weights / 3
    spread = estimate_memory(TINY_MOE, 256, parallelism=Parallelism(dp_shard=8, ep=8))
    held = estimate_memory(TINY_MOE, 256, parallelism=Parallelism(dp_shard=8))
    assert spread.weights == held.weights and spread.communication < held.communication
    ddp = estimate_memory(TINY_MOE, 256, parallelism=Parallelism(dp_shard=8, ep=8, strategy="ddp"))
    counts = count_parameters(TINY_MOE)
    experts = 4 * 8 * 3 * 64 * 128
    assert ddp.weights == 4 * (counts.total - experts + experts / 8)


def test_accumulation_holds_gradients():
    once, often = (estimate_memory(LLAMA_3_8B, 8192, accumulation=steps) for steps in (1, 8))
    assert (once.peak, often.peak) == ("backward", "loss") or often.total > once.total
    assert often.total - once.total <= once.gradients


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"recipe": "fp23"}, "Unknown state recipe 'fp23'. Did you mean 'fp32'"),
        ({"head": "ligre"}, "Did you mean 'liger'"),
        ({"checkpointing": "selectiv"}, "Unknown checkpointing"),
        ({"micro_batch": 0}, "micro_batch = 0"),
        ({"accumulation": 1.5}, "accumulation = 1.5"),
        ({"parallelism": Parallelism(tp=3)}, "tp = 3; it must divide num_attention_heads = 4"),
        ({"parallelism": Parallelism(pp=3)}, "pp = 3; it must divide num_hidden_layers = 4"),
        ({"parallelism": Parallelism(dp_shard=2, ep=2)}, "ep = 2; the model has no experts"),
    ],
)
def test_bad_input(more, message):
    with pytest.raises(UserError, match=message):
        estimate_memory(TINY, 256, **more)


def test_unknown_compute():
    with pytest.raises(UserError, match="Unknown compute 'bf61'. Did you mean 'bf16'"):
        layer_bytes_per_token(ModelShape.from_config(TINY), compute="bf61")


MODELS = [
    ("tiny", {"vocab_size": 4096}),
    ("tiny", {"vocab_size": 512}),
    ("tiny", {"vocab_size": 1024, "use_qk_norm": False, "tie_word_embeddings": False}),
    (
        "tiny",
        {"vocab_size": 1024, "hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 2, "head_dim": 64},
    ),
    ("tiny-moe", {"vocab_size": 512}),
    ("tiny-moe", {"vocab_size": 4096, "first_dense_layers": 1, "shared_expert_intermediate_size": 128}),
]


def step_of(preset, more, head, checkpointing, rows, length, device="cpu", dtype=None):
    import torch
    from allocations import measured_step

    from hf_pretrain.losses.objective import CausalLMObjective
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    torch.manual_seed(0)
    config = StrataConfig.preset(preset, **more)
    model = StrataForCausalLM(config).to(device=device, dtype=dtype).train()
    if checkpointing == "full":
        model.activation_checkpointing_enable()
    if head != "naive":
        CausalLMObjective(1e-4, head).attach(model)
    return config.to_dict(), measured_step(model, rows, length)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("head", ["naive", "chunked"])
@pytest.mark.parametrize(("preset", "more"), MODELS)
def test_against_measured_steps(preset, more, head, checkpointing):
    """Within 15 % of the peak of a real optimizer step, and of what comes on top of weights and moments."""
    config, measured = step_of(preset, more, head, checkpointing, rows=2, length=256)
    estimate = estimate_memory(
        config, 256, 2, recipe="fp32", checkpointing=checkpointing, head=head, device_type="cpu"
    )
    states = estimate.weights + estimate.optimizer
    assert states == pytest.approx(measured["states"], rel=5e-3)
    assert estimate.total == pytest.approx(measured["peak"], rel=0.15)
    assert estimate.total - states == pytest.approx(measured["peak"] - measured["states"], rel=0.15)


@pytest.mark.parametrize("compute", COMPUTE_MODES)
@pytest.mark.parametrize("preset", ["tiny", "tiny-moe"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_saved_activations_in_each_precision(preset, compute, attention):
    import torch
    from allocations import AllocationCounter

    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    config = StrataConfig.preset(preset, vocab_size=16)
    model = StrataForCausalLM._from_config(config, attn_implementation=attention).train()
    if compute == "bf16":
        model = model.bfloat16()
    precision = torch.autocast("cpu", torch.bfloat16) if compute == "autocast" else contextlib.nullcontext()
    counter = AllocationCounter()
    for tensor in [*model.parameters(), *model.buffers()]:
        counter.watch(tensor)
    before = counter.live
    ids = torch.randint(0, 16, (4, 256))
    with counter, precision:
        held = model.model(input_ids=ids)  # noqa: F841 (holds the graph)
        measured = counter.live - before
    shape = ModelShape.from_config(config.to_dict())
    recipe = {"fp32": "fp32", "bf16": "fsdp_bf16", "autocast": "autocast"}[compute]
    estimate = estimate_memory(config.to_dict(), 256, 4, recipe=recipe, attention=attention, device_type="cpu")
    # Autocast keeps a 16-bit copy of every weight it has used until it is left; they die with it.
    copies = 2 * (count_parameters(shape).matmul - shape.vocab_size * shape.hidden_size) * (compute == "autocast")
    assert estimate.activations == pytest.approx(measured - copies, rel=0.15)


@pytest.mark.gpu
@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("head", ["naive", "chunked", "liger"])
@pytest.mark.parametrize("preset", ["dense-125m", "moe-350m-a100m"])
def test_against_the_allocator_of_a_gpu(preset, head, checkpointing):
    import torch

    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    config, measured = step_of(preset, {}, head, checkpointing, 4, 2048, "cuda", torch.bfloat16)
    estimate = estimate_memory(config, 2048, 4, recipe="bf16", checkpointing=checkpointing, head=head)
    assert estimate.total == pytest.approx(torch.cuda.max_memory_allocated(), rel=0.15)
    assert measured["peak"] > 0

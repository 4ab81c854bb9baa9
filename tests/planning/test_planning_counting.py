"""Counts of published checkpoints (science section 2.2) and of models built here."""

import pytest

from hf_pretrain.planning.counting import ModelShape, count_parameters
from hf_pretrain.utils.errors import UserError


def config(vocab, hidden, layers, ffn, heads, kv, tied=False, model_type="llama", **more):
    return {
        "model_type": model_type,
        "vocab_size": vocab,
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": ffn,
        "num_attention_heads": heads,
        "num_key_value_heads": kv,
        "tie_word_embeddings": tied,
        **more,
    }


LLAMA_3_8B = config(128256, 4096, 32, 14336, 32, 8)
MIXTRAL = config(32000, 4096, 32, 14336, 32, 8, model_type="mixtral", num_local_experts=8, num_experts_per_tok=2)
OLMOE = config(50304, 2048, 16, 1024, 16, 16, model_type="olmoe", num_experts=64, num_experts_per_tok=8)
QWEN3_30B = config(
    151936,
    2048,
    48,
    6144,
    32,
    4,
    model_type="qwen3_moe",
    head_dim=128,
    num_experts=128,
    num_experts_per_tok=8,
    moe_intermediate_size=768,
)


@pytest.mark.parametrize(
    ("name", "model", "total", "embedding", "head"),
    [
        ("Llama-2-7B", config(32000, 4096, 32, 11008, 32, 32), 6738415616, 131072000, 131072000),
        ("Llama-3-8B", LLAMA_3_8B, 8030261248, 525336576, 525336576),
        ("Llama-3-70B", config(128256, 8192, 80, 28672, 64, 8), 70553706496, 1050673152, 1050673152),
        ("Llama-3.2-1B", config(128256, 2048, 16, 8192, 32, 8, True, head_dim=64), 1235814400, 262668288, 0),
        ("Llama-3.2-3B", config(128256, 3072, 28, 8192, 24, 8, True), 3212749824, 394002432, 0),
        ("SmolLM2-1.7B", config(49152, 2048, 24, 8192, 32, 32, True), 1711376384, 100663296, 0),
        ("Mixtral-8x7B", MIXTRAL, 46702792704, 131072000, 131072000),
        ("OLMoE-1B-7B", OLMOE, 6919161856, 103022592, 103022592),
        ("Qwen3-30B-A3B", QWEN3_30B, 30532122624, 311164928, 311164928),
    ],
)
def test_published_totals(name, model, total, embedding, head):
    counts = count_parameters(model)
    assert (counts.total, counts.embedding, counts.head) == (total, embedding, head), name


@pytest.mark.parametrize(("model", "active"), [(MIXTRAL, 12879925248), (OLMOE, 1282017280), (QWEN3_30B, 3353032704)])
def test_published_active(model, active):
    assert count_parameters(model).active == active


def test_embedding_shares():
    assert count_parameters(LLAMA_3_8B).embedding_share == pytest.approx(0.1308, abs=1e-4)
    assert count_parameters(config(128256, 8192, 80, 28672, 64, 8)).embedding_share == pytest.approx(0.0298, abs=1e-4)


SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("Llama", {}),
        ("Llama", {"attention_bias": True, "tie_word_embeddings": True}),
        ("Qwen2", {}),
        ("Qwen3", {"head_dim": 16}),
        ("Qwen3", {"head_dim": 16, "attention_bias": True}),
        ("Olmo2", {}),
        ("Olmo3", {}),
        ("Phi3", {"pad_token_id": 0}),
        ("Granite", {}),
        ("Gemma", {"head_dim": 16}),
        ("Gemma2", {"head_dim": 16}),
        ("Mixtral", {"num_local_experts": 4}),
        ("Olmoe", {"num_experts": 4, "num_experts_per_tok": 2}),
        (
            "Qwen3Moe",
            {"num_experts": 4, "moe_intermediate_size": 24, "mlp_only_layers": [0], "num_experts_per_tok": 2},
        ),
        ("Qwen3Moe", {"num_experts": 4, "moe_intermediate_size": 24, "decoder_sparse_step": 2}),
    ],
)
def test_equal_to_the_built_model(family, more):
    transformers = pytest.importorskip("transformers")
    built = getattr(transformers, f"{family}Config")(**{**SMALL, **more})
    model = getattr(transformers, f"{family}ForCausalLM")(built)
    assert count_parameters(built.to_dict()).total == sum(one.numel() for one in model.parameters())


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"num_experts": 4, "first_dense_layers": 1, "shared_expert_intermediate_size": 16},
        {"num_experts": 4, "moe_layer_freq": 2, "router_noise": "gaussian", "tie_word_embeddings": False},
        {"use_qk_norm": False, "attention_bias": True},
    ],
)
def test_equal_to_strata(more):
    from hf_pretrain.models.strata.configuration_strata import StrataConfig
    from hf_pretrain.models.strata.counting_strata import count_parameters as strata_counts
    from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM

    built = StrataConfig(**SMALL, **more)
    ours, theirs = count_parameters(built.to_dict()), strata_counts(built)
    assert ours.total == sum(one.numel() for one in StrataForCausalLM(built).parameters())
    assert (ours.total, ours.active, ours.matmul) == (theirs.total, theirs.active, theirs.matmul)
    assert (ours.non_embedding, ours.active_non_embedding) == (theirs.non_embedding, theirs.active_non_embedding)


def test_bad_configurations():
    with pytest.raises(UserError, match="Unknown model_type 'deepseek_v3'"):
        count_parameters({"model_type": "deepseek_v3"})
    with pytest.raises(UserError, match="hidden_size is missing"):
        ModelShape.from_config({})
    with pytest.raises(UserError, match="vocab_size = '32k'"):
        count_parameters({**SMALL, "vocab_size": "32k"})
    with pytest.raises(UserError, match="num_experts_per_tok is missing"):
        count_parameters({**SMALL, "num_experts": 4})

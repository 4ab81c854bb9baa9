"""Strata to and from the stock architectures, and from dense to sparse: the logits stay where they are."""

import json
import logging

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSequenceClassification
from transformers.dynamic_module_utils import get_relative_import_files
from transformers.models.llama.modeling_llama import LlamaForCausalLM

from hf_pretrain.models.strata import modeling_strata
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.context_strata import extend_context
from hf_pretrain.models.strata.export_strata import assemble, export_config, export_model, fitting_architectures
from hf_pretrain.models.strata.import_strata import from_hf, import_config
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM, StrataForSequenceClassification
from hf_pretrain.models.strata.upcycling_strata import upcycle


# Grouped queries, and heads that are wider than hidden_size / num_attention_heads.
SHAPE = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
IDS = torch.randint(0, 64, (2, 24), generator=torch.Generator().manual_seed(1))

ROUTES = {
    "llama": {"use_qk_norm": False},
    "qwen3": {},
    "mixtral": {"use_qk_norm": False, **EXPERTS},
    "qwen3_moe": EXPERTS,
}


def shaken(model, seed=0):
    """Weights that no initialisation gives, norms and biases included: a tensor at the wrong place shows."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def build(**fields):
    return shaken(StrataForCausalLM(StrataConfig(**{**SHAPE, **fields})))


def logits(model, ids=IDS):
    with torch.inference_mode():
        return model(ids).logits


def assert_same(one, other, ids=IDS, atol=1e-5):
    expected = logits(one, ids)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits(other, ids), expected, atol=atol * max(1.0, float(expected.abs().max())), rtol=0)


def through_disk(model, folder):
    model.save_pretrained(folder)
    return AutoModelForCausalLM.from_pretrained(folder).eval()


@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
@pytest.mark.parametrize("architecture", ROUTES)
def test_export_and_back(architecture, tied, tmp_path):
    model = build(**ROUTES[architecture], tie_word_embeddings=tied, eos_token_id=7, pad_token_id=3)
    assert fitting_architectures(model.config) == [architecture]
    plain = through_disk(export_model(model, architecture), tmp_path)
    assert type(plain).__module__ == f"transformers.models.{architecture}.modeling_{architecture}"
    assert not list(tmp_path.glob("*.py"))
    assert_same(model, plain)
    assert (plain.config.bos_token_id, plain.config.eos_token_id, plain.config.pad_token_id) == (None, 7, 3)
    assert plain.generation_config.eos_token_id == 7
    assert (plain.lm_head.weight is plain.model.embed_tokens.weight) == tied

    back = from_hf(tmp_path)
    assert_same(model, back)
    assert (back.lm_head.weight is back.model.embed_tokens.weight) == tied
    mine, theirs = model.config.to_dict(), back.config.to_dict()
    # What is about training alone is not in a stock config.
    changed = {name for name in mine if mine[name] != theirs.get(name)} - {"architectures", "dtype"}
    if architecture == "mixtral":
        changed -= {"intermediate_size"}  # it has no dense layers, so no width of them
    assert changed == set()


def test_the_export_is_a_copy_and_draws_nothing():
    model = build(**EXPERTS)
    state = torch.get_rng_state()
    plain = export_model(model, "qwen3_moe")
    assert torch.equal(torch.get_rng_state(), state)
    before = logits(model)
    with torch.no_grad():
        plain.model.embed_tokens.weight.zero_()
    assert torch.equal(logits(model), before)


@pytest.mark.parametrize("rope_type", ["yarn", "linear", "llama3", "ntk"])
@pytest.mark.parametrize("architecture", ["llama", "qwen3_moe"])
def test_a_longer_context_goes_along(architecture, rope_type, tmp_path):
    model = extend_context(build(**ROUTES[architecture]), 4.0, rope_type)
    ids = torch.randint(0, 64, (1, 128), generator=torch.Generator().manual_seed(2))
    plain = through_disk(export_model(model, architecture), tmp_path)
    assert plain.config.max_position_embeddings == 128
    assert_same(model, plain, ids)
    assert_same(model, from_hf(plain), ids)
    # The frequencies matter at this length, so equal logits say that they were carried.
    assert (logits(build(**ROUTES[architecture]), ids) - logits(model, ids)).abs().max() > 1e-2


def test_yarn_checkpoints_that_state_another_length_come_in():
    rope = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
    config = export_config(StrataConfig(**SHAPE), "qwen3").to_dict()
    stock = AutoConfig.for_model(**{**config, "rope_parameters": rope, "max_position_embeddings": 40})
    plain = shaken(AutoModelForCausalLM.from_config(stock))
    imported = from_hf(plain)
    assert imported.config.max_position_embeddings == 64
    assert_same(plain, imported)


def test_mixed_stacks():
    model = build(**{**SHAPE, **EXPERTS, "num_hidden_layers": 6}, first_dense_layers=3, moe_layer_freq=2)
    plain = export_model(model, "qwen3_moe")
    assert [hasattr(layer.mlp, "experts") for layer in plain.model.layers] == [False, False, False, True, False, True]
    assert_same(model, plain)
    back = from_hf(plain)
    assert_same(model, back)
    assert [back.config.is_sparse_layer(layer) for layer in range(6)] == [False] * 3 + [True, False, True]


@pytest.mark.parametrize(
    ("architecture", "fields"),
    [
        ("qwen3", {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}),
        ("mixtral", {"use_qk_norm": False, **EXPERTS}),
        ("qwen3_moe", EXPERTS),
    ],
)
def test_sliding_windows(architecture, fields, tmp_path):
    model = build(sliding_window=5, **fields)
    plain = through_disk(export_model(model, architecture), tmp_path)
    assert_same(model, plain)
    assert_same(model, from_hf(plain))
    assert (logits(build(**{**fields, "layer_types": None})) - logits(model)).abs().max() > 1e-3


@pytest.mark.parametrize("architecture", ["llama", "qwen3", "qwen3_moe"])
def test_attention_biases(architecture):
    model = build(**ROUTES[architecture], attention_bias=True)
    plain = export_model(model, architecture)
    assert_same(model, plain)
    assert_same(model, from_hf(plain))


def test_gates_that_do_not_sum_to_one():
    model = build(**EXPERTS, norm_topk_prob=False)
    assert_same(model, export_model(model, "qwen3_moe"))
    assert_same(model, from_hf(export_model(model, "qwen3_moe")))


def test_what_acts_in_training_alone_stays_behind():
    model = build(**EXPERTS, router_noise="gaussian", expert_capacity_factor=1.0, expert_dropout=0.2)
    assert_same(model, export_model(model, "qwen3_moe"))


def test_the_balance_coefficient_keeps_its_strength():
    # Balanced, transformers' load-balance loss is k and Strata's is 1.
    config = export_config(StrataConfig(**SHAPE, **EXPERTS, router_aux_loss_coef=0.01), "qwen3_moe")
    assert config.router_aux_loss_coef == pytest.approx(0.005)
    assert import_config(config).router_aux_loss_coef == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("architecture", "fields", "reason"),
    [
        ("llama", {}, r"no QK-norm \(use_qk_norm = True\); 'qwen3' would fit"),
        ("qwen3", {"use_qk_norm": False}, "always has QK-norm .*'llama' would fit"),
        ("mixtral", EXPERTS, "no QK-norm .*'qwen3_moe' would fit"),
        ("qwen3_moe", {**EXPERTS, "use_qk_norm": False}, "always has QK-norm .*'mixtral' would fit"),
        ("qwen3", EXPERTS, r"no experts \(num_experts = 4\); 'qwen3_moe' would fit"),
        ("qwen3_moe", {}, "this model is dense .*'qwen3' would fit"),
        ("qwen3_moe", {**EXPERTS, "shared_expert_intermediate_size": 8}, "no shared expert .*no architecture fits"),
        ("qwen3_moe", {**EXPERTS, "router_bias_update_rate": 0.001}, "selects without a bias .*no architecture fits"),
        ("qwen3_moe", {**EXPERTS, "scoring_func": "sigmoid"}, "scores by softmax .*no architecture fits"),
        ("qwen3", {"final_logit_softcapping": 30.0}, "does not cap logits .*no architecture fits"),
        ("mixtral", {**EXPERTS, "use_qk_norm": False, "first_dense_layers": 1}, r"layers \[0\] of this model"),
        ("mixtral", {**EXPERTS, "use_qk_norm": False, "norm_topk_prob": False}, "gates always sum to one"),
        ("mixtral", {**EXPERTS, "use_qk_norm": False, "attention_bias": True}, "attention has no biases"),
        ("llama", {"use_qk_norm": False, "sliding_window": 4}, "no sliding window"),
        ("llama", {"use_qk_norm": False, "hidden_size": 30}, "num_attention_heads = 4 to divide hidden_size = 30"),
        (
            "qwen3_moe",
            {**EXPERTS, "sliding_window": 4, "layer_types": ["full_attention"] * 2 + ["sliding_attention"]},
            "slides in all layers or in none",
        ),
        ("gpt2", {}, "architecture = 'gpt2'; known architectures: llama, qwen3, mixtral, qwen3_moe"),
    ],
)  # fmt: skip
def test_refusals_say_why_and_what_would_fit(architecture, fields, reason):
    with pytest.raises(ValueError, match=reason):
        export_config(StrataConfig(**{**SHAPE, **fields}), architecture)


def test_only_a_causal_strata_is_exported():
    with pytest.raises(ValueError, match="model = StrataForSequenceClassification; a StrataForCausalLM is exported"):
        export_model(StrataForSequenceClassification(StrataConfig(**SHAPE)), "qwen3")
    with pytest.raises(ValueError, match="model = Qwen3ForCausalLM; a StrataForCausalLM is exported"):
        export_model(export_model(build(), "qwen3"), "qwen3")


def test_foreign_architectures_are_refused_by_name(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "never_heard_of"}))
    with pytest.raises(ValueError, match="'never_heard_of'; known architectures: llama, qwen3, mixtral, qwen3_moe"):
        from_hf(tmp_path)
    with pytest.raises(ValueError, match="its architecture is 'gpt2'; known"):
        import_config(AutoConfig.for_model("gpt2"))
    build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a Strata already"):
        from_hf(tmp_path)


def test_imports_that_have_no_counterpart():
    plain = export_config(StrataConfig(**SHAPE, use_qk_norm=False), "llama")
    plain.mlp_bias = True
    with pytest.raises(ValueError, match="mlp_bias = True; Strata's feed-forward layers have no biases"):
        import_config(plain)
    plain = export_config(StrataConfig(**SHAPE, **EXPERTS), "qwen3_moe")
    plain.mlp_only_layers = [1]
    with pytest.raises(ValueError, match=r"mlp_only_layers = \[1\], decoder_sparse_step = 1"):
        import_config(plain)


def test_a_checkpoint_without_a_head_is_refused(tmp_path):
    config = export_config(StrataConfig(**SHAPE, tie_word_embeddings=False), "qwen3")
    classifier = AutoModelForSequenceClassification.from_config(config)
    with pytest.raises(ValueError, match="no language-model head"):
        from_hf(classifier)
    classifier.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="lack 1 of the model's tensors, e.g. lm_head.weight"):
        from_hf(tmp_path)


def test_bfloat16_checkpoints_come_in_as_float32(tmp_path, caplog):
    stock = export_model(build(), "qwen3", dtype=torch.bfloat16)
    assert stock.dtype == torch.bfloat16
    stock.save_pretrained(tmp_path)
    with caplog.at_level(logging.INFO, logger="hf_pretrain"):
        imported = from_hf(tmp_path)
    assert "holds bfloat16 weights; they come in as float32" in caplog.text
    assert {parameter.dtype for parameter in imported.parameters()} == {torch.float32}
    assert_same(stock.float(), imported)


def test_weights_of_another_model_are_not_taken():
    model, device = build(), torch.device("cpu")
    state = model.state_dict()
    config = export_config(StrataConfig(**SHAPE, use_qk_norm=False), "llama")
    with pytest.raises(ValueError, match=r"left over: \['model.layers.0.self_attn.k_norm.weight'"):
        assemble(lambda: LlamaForCausalLM(config), state, device)
    state["model.norm.weight"] = torch.ones(8)
    with pytest.raises(ValueError, match=r"model.norm.weight has shape \(8,\), \(32,\) is expected"):
        assemble(lambda: StrataForCausalLM(model.config), state, device)


@pytest.mark.parametrize(
    ("experts", "k", "granularity"), [(4, 1, 1), (4, 2, 1), (4, 4, 1), (8, 4, 2), (12, 3, 3), (8, 4, 4)]
)
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "untied"])
def test_upcycling_changes_nothing_at_first(experts, k, granularity, tied):
    dense = build(tie_word_embeddings=tied)
    sparse = upcycle(dense, experts, k, granularity=granularity)
    assert sparse.config.num_experts == experts and sparse.config.num_experts_per_tok == k
    assert sparse.config.moe_intermediate_size == 48 // granularity
    assert_same(dense, sparse)
    # Not because the experts were left out: without them the output is another.
    with torch.no_grad():
        sparse.model.layers[1].mlp.experts.down_proj.zero_()
    assert (logits(dense) - logits(sparse)).abs().max() > 1e-2


def test_upcycled_routers_differ_and_learn():
    sparse = upcycle(build(), 4, 2, router_aux_loss_coef=0.1)
    routers = [layer.mlp.gate.weight for layer in sparse.model.layers]
    assert not torch.equal(routers[0], routers[1])
    assert routers[0].std().item() == pytest.approx(0.02, rel=0.3)
    sparse.train()(input_ids=IDS, labels=IDS).loss.backward()
    experts = sparse.model.layers[0].mlp.experts.down_proj.grad
    assert all(router.grad.abs().sum() > 0 for router in routers)
    assert not torch.allclose(experts[0], experts[1])  # different tokens set the copies apart


def test_upcycling_noise_and_seed():
    dense = build()
    exact, one, again, other = (
        upcycle(dense, 4, 2, noise=noise, seed=seed) for noise, seed in ((0.0, 0), (0.05, 0), (0.05, 0), (0.05, 1))
    )
    banks = [model.model.layers[0].mlp.experts.gate_up_proj for model in (exact, one, again, other)]
    assert torch.equal(banks[1], banks[2]) and not torch.equal(banks[1], banks[3])
    share = ((banks[1] - banks[0]).std() / banks[0].std()).item()
    assert share == pytest.approx(0.05, rel=0.1)
    assert torch.equal(banks[0][0], banks[0][1]) and not torch.equal(banks[1][0], banks[1][1])
    assert 1e-4 < (logits(dense) - logits(one)).abs().max()


def test_upcycling_some_layers_with_bias_and_noisy_router():
    dense = build()
    sparse = upcycle(dense, 4, 2, first_dense_layers=1, router_bias_update_rate=0.01, router_noise="gaussian")
    assert sparse.model.sparse_layers == [1, 2]
    gate = sparse.model.layers[1].mlp.gate
    assert not gate.e_score_correction_bias.any() and not gate.noise_weight.any()
    assert_same(dense, sparse)


def test_a_llama_becomes_a_mixture_and_goes_out_as_mixtral():
    llama = export_model(build(use_qk_norm=False), "llama")
    mixtral = export_model(upcycle(from_hf(llama), 4, 2), "mixtral")
    assert_same(llama, mixtral)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_experts_per_tok": 5}, "num_experts_per_tok = 5; between 1 and num_experts = 4"),
        ({"granularity": 4}, "granularity = 4; .* divide num_experts_per_tok = 2"),
        ({"granularity": 0}, "granularity = 0; it must be at least 1"),
        ({"noise": -0.1}, "noise = -0.1; a finite number"),
        ({"noise": float("nan")}, "noise = nan; a finite number"),
        ({"norm_topk_prob": False}, "norm_topk_prob = False; options that may be set: balance_scope"),
    ],
)
def test_upcycling_refusals(arguments, reason):
    with pytest.raises(ValueError, match=reason):
        upcycle(build(), **{"num_experts": 4, "num_experts_per_tok": 2, **arguments})


def test_only_dense_models_are_upcycled():
    with pytest.raises(ValueError, match="dense = StrataForCausalLM with num_experts = 4; a dense Strata is upcycled"):
        upcycle(build(**EXPERTS), 8, 2)


def test_the_converters_do_not_travel_to_the_hub():
    shipped = " ".join(get_relative_import_files(modeling_strata.__file__))
    assert "routing_strata" in shipped
    assert not any(name in shipped for name in ("export_strata", "import_strata", "upcycling_strata"))

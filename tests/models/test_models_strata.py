"""The Strata models: shapes, cache, packing, tying, checkpointing, the loss seam and its invariances."""

import copy

import pytest
import torch
from torch.nn.attention import flex_attention
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

import hf_pretrain.models  # noqa: F401  registers Strata with the Auto classes
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.layers_strata import StrataRMSNorm
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM, StrataForSequenceClassification, StrataModel


def build(experts=4, seed=0, **fields):
    defaults = {
        "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "max_position_embeddings": 64, "num_experts": experts, "moe_intermediate_size": 24,
        "initializer_range": 0.2,
    }  # fmt: skip
    torch.manual_seed(seed)
    return StrataForCausalLM(StrataConfig(**{**defaults, **fields})).eval()


def tokens(rows=2, length=12, seed=1, vocab=64):
    return torch.randint(1, vocab, (rows, length), generator=torch.Generator().manual_seed(seed))


def gradients(model):
    return {name: parameter.grad.clone() for name, parameter in model.named_parameters()}


KINDS = pytest.mark.parametrize("experts", [0, 4], ids=["dense", "moe"])


@KINDS
def test_shapes_and_auto_classes(experts):
    config = build(experts).config
    ids = tokens()
    output = AutoModelForCausalLM.from_config(config)(input_ids=ids, labels=ids)
    assert output.logits.shape == (2, 12, 64) and output.loss.ndim == 0
    assert AutoModel.from_config(config)(ids).last_hidden_state.shape == (2, 12, 32)
    config.pad_token_id = 0
    classifier = AutoModelForSequenceClassification.from_config(config)
    assert isinstance(classifier, StrataForSequenceClassification)
    assert classifier(ids, labels=torch.tensor([0, 1])).logits.shape == (2, 2)
    with pytest.raises(ValueError, match="exactly one"):
        StrataModel(config)()


def test_initial_weights_and_loss():
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig.preset("tiny-moe", num_hidden_layers=8))
    layer = model.model.layers[0]
    assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    assert layer.mlp.gate.weight.std().item() == pytest.approx(0.02, rel=0.1)
    assert layer.self_attn.o_proj.weight.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    assert layer.mlp.experts.down_proj.std().item() == pytest.approx(0.02 / 4, rel=0.05)
    plain = StrataForCausalLM(StrataConfig.preset("tiny", residual_init="plain"))
    assert plain.model.layers[0].mlp.down_proj.weight.std().item() == pytest.approx(0.02, rel=0.05)
    ids = tokens(4, 64, vocab=8192)
    excess = model.eval()(input_ids=ids, labels=ids).loss.item() - torch.tensor(8192.0).log().item()
    assert -0.02 <= excess <= 0.5 * 0.02**2 * 128 + 0.1


def test_rms_norm_matches_the_formula_in_bf16():
    torch.manual_seed(0)
    norm, x = StrataRMSNorm(16), torch.randn(3, 16, dtype=torch.bfloat16)
    expected = (x.float() * torch.rsqrt(x.float().square().mean(-1, keepdim=True) + 1e-6)).bfloat16()
    torch.testing.assert_close(norm(x).to(torch.bfloat16), expected)


@KINDS
def test_same_weights_give_the_logits_of_qwen3(experts):
    from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

    model, ids = build(experts), tokens()
    shared = (
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim",
        "num_key_value_heads", "tie_word_embeddings", "moe_intermediate_size", "num_experts_per_tok", "norm_topk_prob",
    )  # fmt: skip
    fields = {name: getattr(model.config, name) for name in shared}
    if experts:
        twin = Qwen3MoeForCausalLM(Qwen3MoeConfig(**fields, num_experts=experts)).eval()
    else:
        twin = Qwen3ForCausalLM(Qwen3Config(**fields)).eval()
    twin.load_state_dict(model.state_dict())
    torch.testing.assert_close(twin(ids).logits, model(ids).logits, atol=1e-5, rtol=0)


@KINDS
def test_loading_builds_on_meta_and_leaves_nothing_there(experts, tmp_path, monkeypatch):
    model, devices = build(experts, router_bias_update_rate=0.1), []
    model.save_pretrained(tmp_path)
    plain = StrataModel.__init__

    def watched(self, config):
        plain(self, config)
        devices.append({tensor.device.type for tensor in [*self.parameters(), *self.buffers()]})

    monkeypatch.setattr(StrataModel, "__init__", watched)
    loaded = StrataForCausalLM.from_pretrained(tmp_path)
    assert devices == [{"meta"}]  # no second copy of the weights is ever in memory
    for name, tensor in {**dict(model.named_parameters()), **dict(model.named_buffers())}.items():
        found = loaded.get_parameter_or_buffer(name)
        assert found.device.type == "cpu" and torch.equal(found, tensor), name


@KINDS
def test_cached_generation_equals_uncached(experts):
    model, ids = build(experts), tokens(2, 6)
    cached = model.generate(ids, max_new_tokens=10, do_sample=False, use_cache=True)
    assert torch.equal(cached, model.generate(ids, max_new_tokens=10, do_sample=False, use_cache=False))
    full = model(input_ids=cached).logits
    start = model(input_ids=cached[:, :7], use_cache=True)
    rest = model(input_ids=cached[:, 7:], cache=start.cache, use_cache=True).logits
    torch.testing.assert_close(rest, full[:, 7:], atol=1e-5, rtol=0)


def test_left_padding_does_not_change_generation():
    model, ids = build(), tokens(1, 6)
    padded = torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], dim=1)
    mask = (torch.arange(9) >= 3).long().unsqueeze(0)
    alone = model.generate(ids, max_new_tokens=6, do_sample=False)
    together = model.generate(padded, attention_mask=mask, max_new_tokens=6, do_sample=False)
    assert torch.equal(alone[0, 6:], together[0, 9:])


@pytest.mark.parametrize("attention", ["eager", "sdpa", "flex_attention"])
@pytest.mark.parametrize("mask", ["none", "ones", "padded"])
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@KINDS
def test_packed_rows_equal_single_documents(experts, attention, mask, training, monkeypatch):
    # Flex attention by its reference path, which takes the same masks: compiled it needs minutes on a CPU, and it has
    # no backward there.
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    model = build(experts)
    model.set_attn_implementation(attention)
    model.train(training)
    row = torch.tensor([[5, 6, 7, 9, 10, 11, 12, 13]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3, 0]])
    attention_mask = {"none": None, "ones": torch.ones(1, 8), "padded": torch.ones(1, 10)}[mask]
    if mask == "padded":
        row, positions = torch.nn.functional.pad(row, (0, 2)), torch.nn.functional.pad(positions, (0, 2))
        attention_mask[:, 8:] = 0
    with torch.compiler.set_stance("force_eager"), torch.set_grad_enabled(attention != "flex_attention"):
        packed = model(input_ids=row, position_ids=positions, attention_mask=attention_mask)  # use_cache by default
    model.set_attn_implementation("eager")
    for start, stop in [(0, 3), (3, 7), (7, 8)]:
        alone = model(input_ids=row[:, start:stop]).logits
        torch.testing.assert_close(packed.logits[:, start:stop], alone, atol=1e-5, rtol=0)
    assert packed.cache is None


def test_packed_rows_refuse_a_cache():
    from transformers import DynamicCache

    model = build()
    with pytest.raises(ValueError, match="packed documents"):
        model(input_ids=tokens(1, 4), position_ids=torch.tensor([[0, 1, 0, 1]]), cache=DynamicCache())


def test_sliding_window_layers_forget():
    model = build(0, layer_types=["sliding_attention", "sliding_attention"], sliding_window=2)
    ids = tokens(1, 8)
    changed = ids.clone()
    changed[0, 0] = (changed[0, 0] + 1) % 64
    difference = (model(ids).logits - model(changed).logits).abs().amax(-1)[0]
    assert difference[2] > 1e-4  # two layers reach two tokens back
    assert difference[3:].max() == 0
    generated = model.generate(ids, max_new_tokens=6, do_sample=False)
    assert torch.equal(generated, model.generate(ids, max_new_tokens=6, do_sample=False, use_cache=False))


@KINDS
def test_tied_weights_stay_one_object(experts, tmp_path):
    model = build(experts)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    model.save_pretrained(tmp_path)
    from safetensors import safe_open

    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert "lm_head.weight" not in file.keys()  # noqa: SIM118
    loaded = StrataForCausalLM.from_pretrained(tmp_path)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    ids = tokens()
    torch.testing.assert_close(loaded.eval()(ids).logits, model(ids).logits)
    loaded.resize_token_embeddings(80)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight and loaded.lm_head.weight.shape[0] == 80
    with torch.device("meta"):
        empty = StrataForCausalLM(model.config)
    empty.to_empty(device="cpu")
    empty.load_state_dict(model.state_dict())
    empty.tie_weights()
    assert empty.lm_head.weight is empty.model.embed_tokens.weight


def test_untied_head_is_saved_and_survives_a_resize(tmp_path):
    model = build(tie_word_embeddings=False)
    assert model.lm_head.weight is not model.model.embed_tokens.weight
    head = model.lm_head.weight.detach().clone()
    model.resize_token_embeddings(80)
    model.post_init()
    assert torch.equal(model.lm_head.weight[:64], head)
    model.save_pretrained(tmp_path)
    loaded = StrataForCausalLM.from_pretrained(tmp_path).eval()
    assert torch.equal(loaded.lm_head.weight, model.lm_head.weight)


@pytest.mark.parametrize("rows", [63, 80, 128])
@pytest.mark.parametrize("training", [False, True])
def test_head_rows_that_differ_from_the_config_are_named(rows, training):
    model = build(tie_word_embeddings=False).train(training)
    model.lm_head = torch.nn.Linear(model.config.hidden_size, rows, bias=False)  # config.vocab_size stays 64
    ids = tokens()
    with pytest.raises(ValueError, match=f"vocab_size = 64, but the head has {rows} rows; resize with"):
        model(ids, labels=ids)
    assert model(ids).logits.shape[-1] == rows  # without a loss nothing is mistaken


def test_state_dict_round_trip_with_every_routing_feature(tmp_path):
    model = build(router_bias_update_rate=0.1, router_noise="gaussian", shared_expert_intermediate_size=16)
    bias = model.model.layers[1].mlp.gate.e_score_correction_bias
    bias.copy_(torch.tensor([0.1, -0.2, 0.3, 0.0]))
    other = build(seed=5, router_bias_update_rate=0.1, router_noise="gaussian", shared_expert_intermediate_size=16)
    other.load_state_dict(model.state_dict())
    ids = tokens()
    torch.testing.assert_close(other(ids).logits, model(ids).logits, atol=0, rtol=0)
    model.to(torch.bfloat16).save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    gate = loaded.model.layers[1].mlp.gate
    assert gate.e_score_correction_bias.dtype == gate.weight.dtype == torch.float32
    assert loaded.model.layers[1].mlp.experts.down_proj.dtype == torch.bfloat16
    assert loaded(ids).logits.dtype == torch.bfloat16


@pytest.mark.parametrize("drop", [None, 0.5], ids=["dropless", "dropping"])
def test_experts_implementations_agree(drop):
    ids, results = tokens(2, 16), {}
    for name in ("eager", "grouped_mm", "batched_mm"):
        model = build(experts=8, expert_capacity_factor=drop, experts_implementation=name).train()
        assert model.config._experts_implementation == name
        output = model(input_ids=ids, labels=ids)
        output.loss.backward()
        results[name] = (output.logits.detach(), gradients(model))
    for name in ("grouped_mm", "batched_mm"):
        torch.testing.assert_close(results[name][0], results["eager"][0], atol=1e-5, rtol=0)
        for key, gradient in results["eager"][1].items():
            torch.testing.assert_close(results[name][1][key], gradient, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["eager", "grouped_mm", "batched_mm"])
def test_experts_run_in_the_autocast_dtype_over_float32_weights(name):
    model, ids = build(experts_implementation=name).train(), tokens(2, 16)
    experts, seen = model.model.layers[0].mlp.experts, []
    experts.act_fn.register_forward_hook(lambda module, args, output: seen.append(output.dtype))
    full = model(input_ids=ids).logits
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = model(input_ids=ids).logits
    assert torch.float32 in seen and seen[-1] == torch.bfloat16
    assert 0 < (half - full).abs().max() < 0.1 * full.abs().max()
    half.float().sum().backward()
    assert experts.gate_up_proj.grad.dtype == torch.float32


GRAPHS = {
    "dense": {"experts": 0, "sliding_window": 4, "layer_types": ["sliding_attention", "full_attention"]},
    "moe": {
        "experts_implementation": "grouped_mm", "expert_capacity_factor": 1.25, "router_bias_update_rate": 0.1,
        "router_noise": "gumbel", "expert_dropout": 0.2, "balance_scope": "global",
    },
}  # fmt: skip


def breaks(model, **inputs):
    import torch._dynamo

    torch._dynamo.reset()
    explained = torch._dynamo.explain(model)(**inputs)
    torch._dynamo.reset()
    return explained.graph_break_count, explained.break_reasons


@pytest.mark.slow
@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize("name", GRAPHS)
def test_compiled_graphs_do_not_break(name, training):
    ids, positions = tokens(2, 16), torch.tensor([*range(10), *range(6)]).expand(2, -1)
    count, reasons = breaks(build(**GRAPHS[name]).train(training), input_ids=ids, labels=ids, position_ids=positions)
    assert count == 0, reasons


@pytest.mark.slow
@pytest.mark.parametrize(
    ("features", "most"),
    [
        ({"experts_implementation": "eager"}, 11),
        (
            {
                "experts_implementation": "grouped_mm", "capacity_overflow": "reroute", "expert_capacity_factor": 1.25
            }, 13,
        ),
    ],
    ids=["eager-experts", "reroute"],
)  # fmt: skip
def test_the_breaks_of_the_mixture_do_not_grow(features, most):
    # A loop over experts has to know how many tokens each one got, re-routing whether there is overflow: one cause a
    # layer, counted again in every frame that it goes through.
    ids = tokens(2, 16)
    count, reasons = breaks(build(num_hidden_layers=1, **features).train(), input_ids=ids, labels=ids)
    assert count <= most, reasons


def test_a_compiled_graph_keeps_packed_documents_apart():
    ids, positions = tokens(1, 10), torch.tensor([[*range(6), *range(4)]])
    model = build(0)
    compiled = torch.compile(model, backend="eager")
    for mask in (None, torch.ones(1, 10, dtype=torch.long)):
        output = compiled(input_ids=ids, position_ids=positions, attention_mask=mask)
        torch.testing.assert_close(output.logits[:, 6:], model(ids[:, 6:]).logits, atol=1e-5, rtol=0)
        assert output.cache is None
    torch._dynamo.reset()


def test_attention_implementations_agree_and_logits_are_capped():
    model, ids = build(final_logit_softcapping=2.0), tokens()
    model.set_attn_implementation("eager")
    eager = model(ids, output_attentions=True)
    model.set_attn_implementation("sdpa")
    torch.testing.assert_close(model(ids).logits, eager.logits, atol=1e-5, rtol=0)
    assert eager.logits.abs().max() < 2.0 and len(eager.attentions) == 2


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_changes_nothing_and_counts_once(reentrant):
    ids, results = tokens(2, 16), []
    for checkpointing in (False, True):
        model = build(router_aux_loss_coef=1.0, router_noise="gumbel", attention_dropout=0.1).train()
        if checkpointing:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        torch.manual_seed(7)
        loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        results.append((loss.detach(), model.router_statistics()["load"], gradients(model)))
    assert torch.equal(results[0][0], results[1][0])
    assert torch.equal(results[0][1], results[1][1])
    assert results[0][1].sum().item() == 2 * 2 * 16 * 2
    for name, gradient in results[0][2].items():
        torch.testing.assert_close(results[1][2][name], gradient, atol=1e-6, rtol=1e-5)


@KINDS
def test_a_classifier_starts_from_a_language_model_and_trains_under_checkpointing(experts, tmp_path):
    language_model = build(experts, pad_token_id=0)
    language_model.save_pretrained(tmp_path)
    model, report = StrataForSequenceClassification.from_pretrained(tmp_path, num_labels=3, output_loading_info=True)
    assert report["missing_keys"] == {"score.weight"} and not report["unexpected_keys"]
    assert torch.equal(model.model.embed_tokens.weight, language_model.model.embed_tokens.weight)
    ids, results = tokens(3, 9), []
    for reentrant in (None, False, True):
        model.train().zero_grad()
        if reentrant is not None:
            model.activation_checkpointing_enable({"use_reentrant": reentrant})
            model.enable_input_require_grads()
        model(ids, labels=torch.tensor([0, 1, 2])).loss.backward()
        results.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for other in results[1:]:
        torch.testing.assert_close(other, results[0], atol=1e-7, rtol=1e-6)


def accumulate(model, rows, micro_batch, labels=None):
    labels = rows if labels is None else labels
    items = (labels[:, 1:] != -100).sum()
    model.zero_grad()
    model.reset_router_statistics()
    total, parts = 0.0, []
    for start in range(0, len(rows), micro_batch):
        part = slice(start, start + micro_batch)
        loss = model(input_ids=rows[part], labels=labels[part], num_items_in_batch=items).loss
        loss.backward()
        total += loss.item()
        parts.append({name: value.item() for name, value in model.router_losses.items()})
    return total, gradients(model), parts


@pytest.mark.parametrize("scope", ["micro", "global", "sequence"])
def test_accumulation_does_not_change_loss_or_router_gradient(scope):
    model = build(router_aux_loss_coef=1.0, router_z_loss_coef=0.1, balance_scope=scope).train()
    rows = tokens(1, 9).expand(8, -1)
    whole, expected, _ = accumulate(model, rows, 8)
    for micro_batch in (4, 1):
        loss, found, _ = accumulate(model, rows, micro_batch)
        assert loss == pytest.approx(whole, abs=1e-5)
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, atol=1e-5, rtol=1e-4)


def test_router_z_is_exact_for_different_rows_and_the_balance_a_mean():
    labels = tokens(8, 9).clone()
    labels[2, 3:] = -100
    labels[5, :8] = -100
    model = build(router_aux_loss_coef=0.0, router_z_loss_coef=1.0).train()
    whole, expected, _ = accumulate(model, tokens(8, 9), 8, labels)
    for micro_batch in (4, 1):
        loss, found, _ = accumulate(model, tokens(8, 9), micro_batch, labels)
        assert loss == pytest.approx(whole, abs=1e-5)
        torch.testing.assert_close(
            found["model.layers.0.mlp.gate.weight"], expected["model.layers.0.mlp.gate.weight"], atol=1e-5, rtol=1e-4
        )
    without = build(router_aux_loss_coef=0.0, router_z_loss_coef=0.0).train()
    balanced = build(router_aux_loss_coef=1.0, router_z_loss_coef=0.0).train()
    base, _, _ = accumulate(without, tokens(8, 9), 2, labels)
    loss, _, parts = accumulate(balanced, tokens(8, 9), 2, labels)
    counts = (labels[:, 1:] != -100).view(4, -1).sum(1)
    mean = sum(count.item() * part["load_balance"] for count, part in zip(counts, parts, strict=True)) / counts.sum()
    assert loss - base == pytest.approx(mean.item(), abs=1e-5)


def test_global_scope_counts_the_whole_window():
    rows = tokens(4, 16)
    model = build(balance_scope="global").train()
    whole, _, whole_parts = accumulate(model, rows, 4)
    _, _, parts = accumulate(model, rows, 1)
    window = model.model._window_totals.clone()
    accumulate(model, rows, 4)
    torch.testing.assert_close(model.model._window_totals, window)  # same tokens; and a new step starts anew
    micro = build(balance_scope="micro").train()
    _, _, micro_parts = accumulate(micro, rows, 1)
    assert parts[0]["load_balance"] == pytest.approx(micro_parts[0]["load_balance"], abs=1e-6)
    assert parts[3]["load_balance"] != pytest.approx(micro_parts[3]["load_balance"], abs=1e-4)
    assert abs(parts[3]["load_balance"] - 1) < max(abs(part["load_balance"] - 1) for part in micro_parts)


@pytest.mark.parametrize("told", [False, True])
def test_global_scope_starts_anew_where_gradients_are_filled_with_zeros(told):
    rows = tokens(4, 16)
    model = build(balance_scope="global").train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(3):
        if told:
            model.start_optimizer_step()
        for row in rows:
            model(input_ids=row[None], labels=row[None], num_items_in_batch=60).loss.backward()
        # Probabilities of the 64 tokens in each layer; a window that goes on would hold those of the steps before.
        assert model.model._window_totals[:, :4].sum() == pytest.approx(64 * len(model.model.sparse_layers))
        if not told:  # what tells steps apart is the update; told, nothing has to
            optimizer.step()
        optimizer.zero_grad(set_to_none=False)


def test_evaluation_loss_is_the_cross_entropy_alone():
    ids = tokens()
    with_terms, without = build(router_aux_loss_coef=1.0), build(router_aux_loss_coef=0.0, router_z_loss_coef=0.0)
    assert with_terms(input_ids=ids, labels=ids).loss == without(input_ids=ids, labels=ids).loss
    asked = with_terms(input_ids=ids, labels=ids, output_router_logits=True)
    assert asked.loss == without(input_ids=ids, labels=ids).loss and asked.aux_loss > 0.9
    assert with_terms.router_statistics() == {}
    assert with_terms.train()(input_ids=ids, labels=ids).loss > without(input_ids=ids, labels=ids).loss + 0.9


def test_the_coefficient_alone_switches_balance_on_and_is_linear():
    ids, found = tokens(), {}
    for coefficient in (0.0, 0.5, 1.0):
        model = build(router_aux_loss_coef=coefficient, router_z_loss_coef=0.0).train()
        model.loss_function = lambda logits, labels, vocab_size, **kwargs: logits.sum() * 0.0
        model(input_ids=ids, labels=ids).loss.backward()
        found[coefficient] = model.model.layers[0].mlp.gate.weight.grad.clone()
    assert found[0.0].abs().sum() == 0 and found[1.0].abs().sum() > 0
    torch.testing.assert_close(found[0.5] * 2, found[1.0])


def test_padding_counts_neither_in_load_nor_in_loss():
    ids = tokens(1, 8)
    padded = torch.nn.functional.pad(ids, (0, 5))
    labels = torch.nn.functional.pad(ids, (0, 5), value=-100)
    mask = torch.nn.functional.pad(torch.ones_like(ids), (0, 5))
    for fields in ({}, {"expert_capacity_factor": 1.0}, {"balance_scope": "sequence"}):
        model = build(router_aux_loss_coef=1.0, **fields).train()
        alone = model(input_ids=ids, labels=ids).loss
        load = model.router_statistics()["load"]
        model.reset_router_statistics()
        together = model(input_ids=padded, labels=labels, attention_mask=mask).loss
        torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)
        assert torch.equal(model.router_statistics()["load"], load)
    everything = torch.zeros_like(mask)
    output = model.model(input_ids=padded, attention_mask=everything)
    assert output.load_balance.item() == 0.0 and output.router_z.item() == 0.0


def test_packed_rows_count_every_token_once_and_no_padding():
    first, second = tokens(1, 7), tokens(1, 5, seed=2)
    packed, positions = torch.cat([first, second], 1), torch.cat([torch.arange(7), torch.arange(5)]).unsqueeze(0)
    model, loads = build(router_aux_loss_coef=1.0).train(), []
    for arguments in (
        {"input_ids": packed, "position_ids": positions},
        {
            "input_ids": torch.nn.functional.pad(packed, (0, 4)),
            "position_ids": torch.nn.functional.pad(positions, (0, 4)),
            "attention_mask": torch.nn.functional.pad(torch.ones_like(packed), (0, 4)),
        },
    ):
        model.reset_router_statistics()
        model(**arguments)
        loads.append(model.router_statistics())
    model.reset_router_statistics()
    for document in (first, second):
        model(input_ids=document)
    for found in (*loads, model.router_statistics()):
        assert found["tokens"].tolist() == [12.0, 12.0] and found["load"].sum(-1).tolist() == [24.0, 24.0]
        torch.testing.assert_close(found["load"], loads[0]["load"])
        torch.testing.assert_close(found["probability_sum"], loads[0]["probability_sum"], atol=1e-5, rtol=0)


def test_layers_that_collapse_on_different_experts_are_seen():
    model = build(experts=2, num_experts_per_tok=1, norm_topk_prob=False).train()
    statistics = torch.zeros(2, 1, 2 * 2 + 6)
    statistics[0, 0, :5] = torch.tensor([4.0, 0, 4, 0, 4])
    statistics[1, 0, :5] = torch.tensor([0.0, 4, 0, 4, 4])
    statistics[:, 0, 6] = 4.0  # all four with a target
    load_balance, _ = model.model._balance_terms(statistics)
    assert load_balance.item() == pytest.approx(2.0)


def test_bias_moves_once_per_step_through_dense_layers_and_is_saved():
    model = build(experts=2, num_experts_per_tok=1, num_hidden_layers=3, first_dense_layers=0,
                  norm_topk_prob=False, router_bias_update_rate=0.1, moe_layer_freq=1)  # fmt: skip
    counts = torch.tensor([[6.0, 2.0]] * 3)
    model.update_router_bias(counts)
    for layer in model.model.layers:
        torch.testing.assert_close(layer.mlp.gate.e_score_correction_bias, torch.tensor([-0.1, 0.1]))
    mixed = build(experts=2, num_experts_per_tok=1, num_hidden_layers=4, moe_layer_freq=2, norm_topk_prob=False,
                  router_bias_update_rate=0.1).train()  # fmt: skip
    rows = tokens(8, 9)
    accumulate(mixed, rows, 2)
    load = mixed.router_statistics()["load"]
    mixed.eval()(input_ids=rows)  # evaluation does not count
    assert torch.equal(mixed.router_statistics()["load"], load)
    mixed.update_router_bias()
    expected = 0.1 * torch.sign(load.mean(-1, keepdim=True) - load)
    for row, index in enumerate([1, 3]):
        torch.testing.assert_close(mixed.model.layers[index].mlp.gate.e_score_correction_bias, expected[row])
    before = copy.deepcopy(mixed.state_dict())
    mixed.update_router_bias()  # nothing was counted since
    assert all(torch.equal(value, before[name]) for name, value in mixed.state_dict().items())
    assert sum("e_score_correction_bias" in name for name in before) == 2


def test_a_forgotten_bias_update_is_reported(caplog):
    model = build(router_bias_update_rate=0.1).train()
    for _ in range(101):
        model(input_ids=tokens(1, 2))
    assert "update_router_bias() was not called" in caplog.text


def test_statistics_describe_the_tokens():
    model, ids = build(experts=4, expert_capacity_factor=0.5).train(), tokens(2, 16)
    model(input_ids=ids, labels=ids)
    model(input_ids=ids, labels=ids)
    found = model.router_statistics()
    assert found["tokens"].tolist() == [64.0, 64.0]
    assert found["lse_tokens"].tolist() == [60.0, 60.0]  # the last token of a row has no target
    assert found["load"].sum(-1).tolist() == [128.0, 128.0]
    torch.testing.assert_close(found["probability_sum"].sum(-1), found["tokens"])
    assert (found["dropped"] >= 64).all()  # half of the places there are assignments
    assert (found["entropy_sum"] > 0).all() and (found["entropy_sum"] <= 64 * torch.tensor(4.0).log() + 1e-3).all()
    model.reset_router_statistics()
    assert model.router_statistics() == {}


def test_recorded_router_outputs():
    model, ids = build(), tokens()
    output = model(input_ids=ids, output_router_logits=True, output_router_indices=True, output_hidden_states=True)
    assert [logits.shape for logits in output.router_logits] == [(24, 4)] * 2
    assert [indices.shape for indices in output.router_indices] == [(24, 2)] * 2
    assert [hidden.shape for hidden in output.hidden_states] == [(2, 12, 32)] * 3
    assert output.aux_loss > 0
    model.train()
    output = model(input_ids=ids, labels=ids, output_router_logits=True, output_hidden_states=True)
    assert [hidden.shape for hidden in output.hidden_states] == [(2, 12, 32)] * 3


def test_loss_seam_hands_over_hidden_states():
    model, ids, seen = build(final_logit_softcapping=3.0).train(), tokens(), {}

    class Fused:
        takes_hidden_states = True

        def __call__(
            self, *, hidden_states, lm_head_weight, labels, vocab_size, num_items_in_batch, logit_softcap, **kw
        ):
            seen.update(shape=hidden_states.shape, tied=lm_head_weight is model.model.embed_tokens.weight, kw=kw)
            logits = hidden_states @ lm_head_weight.t()
            logits = logit_softcap * torch.tanh(logits / logit_softcap)
            losses = torch.nn.functional.cross_entropy(
                logits[:, :-1].reshape(-1, vocab_size), labels[:, 1:].reshape(-1), reduction="sum"
            )
            return losses / num_items_in_batch

    plain = model(input_ids=ids, labels=ids, num_items_in_batch=22).loss
    model.loss_function = Fused()
    output = model(input_ids=ids, labels=ids, num_items_in_batch=22, marker=3)
    torch.testing.assert_close(output.loss, plain)
    assert output.logits is None
    assert seen["shape"] == (2, 12, 32) and seen["tied"] and seen["kw"]["marker"] == 3
    assert model(input_ids=ids).logits is not None


def test_autocast_and_a_training_step_learn():
    model, ids = build(shared_expert_intermediate_size=16).train(), tokens(4, 16)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(30):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = model(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]

"""What was asked for and does nothing is one clear error, and looking changes nothing."""

import copy
import random

import numpy as np
import pytest
import torch
from stock_training import Rows, lines, make_trainer, tiny_llama, tiny_strata
from transformers import DataCollatorWithFlattening, MixtralConfig, MixtralForCausalLM

from hf_pretrain.callbacks.effect_checks import EffectChecksCallback, check_effects
from hf_pretrain.callbacks.z_loss import ZLossCallback
from hf_pretrain.losses.objective import CausalLMObjective
from hf_pretrain.models.strata.configuration_strata import PRESETS, StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.utils.errors import UserError


EXPERTS = {"num_experts": 4, "moe_intermediate_size": 16}


def with_z_loss(model, coef=1e-4):
    CausalLMObjective(coef).attach(model)
    return model


def tiny_mixtral(**more):
    torch.manual_seed(0)
    sizes = {"vocab_size": 32, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2}
    model = MixtralForCausalLM(MixtralConfig(**sizes, **heads, **more))
    model.config.use_cache = False
    return model


def test_all_switches_act_on_a_whole_model():
    found = check_effects(with_z_loss(tiny_strata(**EXPERTS, tie_word_embeddings=True)))
    assert set(found.values()) == {"acts"}
    assert set(found) == {
        *("tied_weights", "master_weights", "rope", "config_keys"),
        *("load_balance", "router_z", "z_loss", "document_mask"),
    }


def test_what_is_not_asked_for_is_not_checked():
    found = check_effects(tiny_strata(tie_word_embeddings=False), packed=False)
    assert [name for name, text in found.items() if text == "not asked for"] == [
        *("tied_weights", "load_balance", "router_z", "z_loss", "document_mask")
    ]


def test_every_kind_of_router_is_checked_in_training_mode():
    options = {"expert_capacity_factor": 1.25, "router_noise": "gaussian", "expert_dropout": 0.1}
    more = {"router_bias_update_rate": 0.01, "shared_expert_intermediate_size": 8, "balance_scope": "global"}
    found = check_effects(tiny_strata(**{**EXPERTS, "num_experts": 8}, **options, **more))
    assert found["load_balance"] == found["router_z"] == found["config_keys"] == "acts"


def test_an_aux_loss_that_does_not_reach_the_gate_is_an_error():
    # The routers look at the coefficients when they are made; turned on later, no gradient flows.
    model = tiny_strata(**EXPERTS, router_aux_loss_coef=0.0, router_z_loss_coef=0.0)
    assert check_effects(model)["load_balance"] == "not asked for"
    model.config.router_aux_loss_coef = 0.01
    with pytest.raises(UserError, match="router_aux_loss_coef = 0.01; it does not change the gradient of the routers"):
        check_effects(model)


@pytest.mark.parametrize("scale", [1e-3, 50.0, 1e4])
def test_routers_that_are_flat_or_saturated_are_no_fault(scale):
    model = tiny_strata(**EXPERTS)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(scale)
    before = copy.deepcopy(model.state_dict())
    found = check_effects(model)
    assert found["load_balance"] == found["router_z"] == "acts"
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


def test_nothing_is_to_balance_where_every_token_goes_to_every_expert():
    found = check_effects(tiny_strata(**{**EXPERTS, "num_experts": 2, "num_experts_per_tok": 2}))
    assert found["load_balance"].startswith("not checked: every token") and found["router_z"] == "acts"


def test_a_stock_mixture_without_router_logits_has_no_aux_loss():
    assert check_effects(tiny_mixtral(output_router_logits=True, router_aux_loss_coef=0.02))["load_balance"] == "acts"
    with pytest.raises(UserError, match="router_aux_loss_coef = 0.02.*set output_router_logits = True"):
        check_effects(tiny_mixtral(output_router_logits=False, router_aux_loss_coef=0.02))
    # The family's default coefficient with its switch off: nobody asked for anything.
    assert check_effects(tiny_mixtral())["load_balance"] == "not asked for"


def test_a_coefficient_used_as_a_switch_is_an_error():
    model = tiny_strata(**EXPERTS)
    terms = type(model)._router_terms

    def as_a_switch(outputs, mask, count):
        coef, model.config.router_aux_loss_coef = model.config.router_aux_loss_coef, 1.0
        try:
            return terms(model, outputs, mask, count) * float(coef > 0)
        finally:
            model.config.router_aux_loss_coef = coef

    model._router_terms = as_a_switch
    with pytest.raises(UserError, match="router_aux_loss_coef.*does not grow with it"):
        check_effects(model)


def test_z_loss_that_does_not_act_is_an_error():
    with pytest.raises(UserError, match="z_loss_coef = 0.0001; the model's loss is not the one that adds it"):
        check_effects(tiny_strata(), z_loss_coef=1e-4)
    model = with_z_loss(tiny_strata())
    forward = model.forward

    def elsewhere(**inputs):
        labels = inputs.pop("labels", None)
        output = forward(**inputs)
        if labels is not None:
            output.loss = torch.nn.functional.cross_entropy(output.logits[0, :-1], labels[0, 1:])
        return output

    model.forward = elsewhere
    with pytest.raises(UserError, match="z_loss_coef = 0.0001; it does not change the gradient of the head"):
        check_effects(model)


def test_documents_that_see_each_other_are_an_error():
    model = tiny_llama()
    assert model.config.use_cache  # the stock default: a cache, and the mask of packed rows is not made
    with pytest.raises(UserError, match="packed rows: a token changed in one document moves the logits of the next"):
        check_effects(model)
    assert check_effects(model, packed=False)["document_mask"] == "not asked for"
    model.config.use_cache = False
    assert check_effects(model)["document_mask"] == "acts"


def test_a_rope_that_was_changed_too_late_is_an_error():
    model = tiny_llama()
    model.config.use_cache = False
    scaled = {**model.config.rope_parameters, "rope_type": "linear", "factor": 4.0}
    model.config.rope_parameters = scaled
    with pytest.raises(UserError, match="rope_parameters = .*the model's frequencies are not those"):
        check_effects(model)
    rotary = type(model.model.rotary_emb)
    model.model.rotary_emb = rotary(model.config)
    assert check_effects(model)["rope"] == "acts"


def test_untied_weights_that_should_be_tied_are_an_error():
    model = tiny_strata(tie_word_embeddings=True)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    with pytest.raises(UserError, match="tie_word_embeddings = True; embedding and head are two tensors"):
        check_effects(model)
    model.tie_weights()
    assert check_effects(model)["tied_weights"] == "acts"
    model.config.tie_word_embeddings = False
    with pytest.raises(UserError, match="tie_word_embeddings = False; embedding and head are one tensor"):
        check_effects(model)


def test_half_precision_weights_have_to_be_asked_for():
    model = tiny_strata()
    for parameter in model.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    with pytest.raises(UserError, match="the weights are bfloat16; small updates would be lost"):
        check_effects(model)
    assert check_effects(model, pure_bf16=True)["master_weights"] == "not asked for"
    with pytest.raises(UserError, match="the frequencies of RoPE are bfloat16"):
        check_effects(model.to(torch.bfloat16), pure_bf16=True)


@pytest.mark.parametrize(
    ("key", "value"), [("scoring_func", "sigmoid"), ("router_noise", "gumbel"), ("norm_topk_prob", False)]
)
def test_a_key_that_nothing_reads_is_an_error(key, value):
    assert check_effects(tiny_strata(**EXPERTS, **{key: value}))["config_keys"] == "acts"
    with pytest.raises(UserError, match=f"model: {key} = {value!r}; nothing reads it"):
        check_effects(tiny_strata(**{key: value}))


def test_a_dense_model_reads_no_key_of_routers():
    with pytest.raises(UserError, match="expert_dropout = 0.1, router_noise = 'gumbel'; nothing reads it"):
        check_effects(tiny_strata(num_experts=0, router_noise="gumbel", expert_dropout=0.1))


def test_checks_leave_everything_bit_by_bit_as_it_was():
    model = with_z_loss(tiny_strata(**EXPERTS, router_bias_update_rate=0.01, router_noise="gumbel"))
    row = {"input_ids": torch.arange(10)[None], "labels": torch.arange(10)[None]}
    model.train()
    model(**row).loss.backward()
    objective = model.loss_function
    before = copy.deepcopy(
        {
            "weights": model.state_dict(),
            "gradients": [one.grad for one in model.parameters()],
            "counters": model.router_statistics(),
            "window": model.model._window_totals,
            "terms": dict(model.router_losses),
            "sums": {name: value for name, value in vars(objective).items() if name != "_model"},
            "modes": [module.training for module in model.modules()],
            "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
            "config": model.config.to_dict(),
        }
    )
    check_effects(model)
    after = {
        "weights": model.state_dict(),
        "gradients": [one.grad for one in model.parameters()],
        "counters": model.router_statistics(),
        "window": model.model._window_totals,
        "terms": dict(model.router_losses),
        "sums": {name: value for name, value in vars(objective).items() if name != "_model"},
        "modes": [module.training for module in model.modules()],
        "random": (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()),
        "config": model.config.to_dict(),
    }
    for key in before:
        torch.testing.assert_close(after[key], before[key], rtol=0, atol=0, msg=key) if key not in (
            "sums",
            "random",
            "config",
        ) else None
    assert after["config"] == before["config"]
    assert str(after["sums"]) == str(before["sums"])
    assert torch.equal(after["random"][0], before["random"][0]) and after["random"][1:] == before["random"][1:]
    assert "__getattribute__" not in vars(type(model.config))


def test_in_a_stock_trainer_nothing_is_different(tmp_path):
    def run(name, *more):
        trainer = make_trainer(tmp_path / name, tiny_strata(**EXPERTS), [ZLossCallback(1e-4), *more], steps=3)
        trainer.train()
        return [(line["loss"], line["grad_norm"], line["z_loss"]) for line in lines(trainer)]

    checks = EffectChecksCallback()
    assert run("with", checks) == run("without")
    assert checks.found["z_loss"] == "acts" and checks.found["document_mask"] == "not asked for"


def test_in_a_stock_trainer_the_fault_comes_before_the_first_update(tmp_path):
    model = tiny_strata()
    model.config.scoring_func = "sigmoid"
    before = copy.deepcopy(model.state_dict())
    trainer = make_trainer(tmp_path, model, [EffectChecksCallback()])
    with pytest.raises(UserError, match="scoring_func = 'sigmoid'; nothing reads it"):
        trainer.train()
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert trainer.state.global_step == 0
    off = make_trainer(tmp_path, model, [EffectChecksCallback(enabled=False)], steps=1)
    off.train()
    assert off.state.global_step == 1


def test_no_row_of_the_data_is_read_and_packing_is_seen_by_the_collator(tmp_path):
    class Counted(Rows):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            return super().__getitem__(index)

    rows, checks = Counted(), EffectChecksCallback()
    make_trainer(tmp_path, tiny_strata(), [checks], rows=rows, steps=1, batch=4).train()
    assert rows.asked <= 8 and checks.found["document_mask"] == "not asked for"
    model = tiny_llama()
    rows = [{"input_ids": list(range(1, 6)), "labels": list(range(1, 6))} for _ in range(16)]
    made = make_trainer(tmp_path, model, [checks], rows=rows, steps=1)
    made.data_collator = DataCollatorWithFlattening()
    made.train()
    assert checks.found["document_mask"] == "acts"


@pytest.mark.parametrize("preset", PRESETS)
def test_no_preset_asks_for_what_does_nothing(preset):
    small = {"vocab_size": 64, "hidden_size": 16, "head_dim": 8, "num_attention_heads": 2, "num_key_value_heads": 1}
    widths = {"intermediate_size": 16, "moe_intermediate_size": 8, "num_hidden_layers": 3}
    options = {key: value for key, value in {**small, **widths}.items() if key in PRESETS[preset] or key in small}
    torch.manual_seed(0)
    found = check_effects(StrataForCausalLM(StrataConfig(**{**PRESETS[preset], **options})))
    assert found["config_keys"] == found["rope"] == "acts"


@pytest.mark.parametrize("kind", ["yarn", "linear", "ntk", "llama3"])
def test_a_longer_context_acts(kind):
    model = tiny_strata()
    more = {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    model.extend_context(4.0, kind, **more)
    assert check_effects(model)["rope"] == "acts"

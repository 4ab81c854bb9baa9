"""StrataConfig: defaults, presets, errors in the user's words, parameter counts of known models."""

import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoConfig, LlamaConfig

import hf_pretrain.models  # noqa: F401  registers Strata with the Auto classes
from hf_pretrain.models.strata.configuration_strata import PRESETS, StrataConfig
from hf_pretrain.models.strata.counting_strata import count_parameters
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


def test_defaults_are_dense_and_aliases_work():
    config = StrataConfig()
    assert config.num_experts == config.num_local_experts == 0
    assert config.head_dim == 64
    assert config.rope_parameters == {"rope_type": "default", "rope_theta": 10000.0}
    assert not any(config.is_sparse_layer(layer) for layer in range(config.num_hidden_layers))


def test_mixed_stacks():
    config = StrataConfig(num_experts=4, num_hidden_layers=6, first_dense_layers=1, moe_layer_freq=2)
    assert [config.is_sparse_layer(layer) for layer in range(6)] == [False, True, False, True, False, True]
    assert config.decoder_sparse_step == 2


def test_default_expert_width_keeps_the_active_width():
    assert StrataConfig(num_experts=8, num_experts_per_tok=4, intermediate_size=1024).moe_intermediate_size == 256


def test_round_trip(tmp_path):
    config = StrataConfig.preset("tiny-moe", router_noise="gumbel", balance_scope="global")
    config.save_pretrained(tmp_path)
    loaded = AutoConfig.from_pretrained(tmp_path)
    assert isinstance(loaded, StrataConfig)
    ours, theirs = config.to_dict(), loaded.to_dict()
    assert {key: value for key, value in theirs.items() if key != "_name_or_path"} == {
        key: value for key, value in ours.items() if key != "_name_or_path"
    }


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"num_key_value_heads": 5}, "num_key_value_heads = 5; it must divide"),
        ({"head_dim": 3}, "head_dim = 3; .* even"),
        ({"head_dim": 15}, "even"),
        ({"hidden_size": 0}, "hidden_size = 0; at least 1"),
        ({"num_experts": 4, "num_experts_per_tok": 8}, "num_experts_per_tok = 8; between 1 and num_experts = 4"),
        ({"num_experts": -1}, "num_experts = -1"),
        ({"num_experts": 4, "first_dense_layers": 12}, "no layer is sparse"),
        ({"num_experts": 4, "expert_capacity_factor": 0.0}, "expert_capacity_factor = 0.0; above 0"),
        ({"router_aux_loss_coef": -1.0}, "router_aux_loss_coef = -1.0"),
        ({"router_z_loss_coef": float("nan")}, "router_z_loss_coef = nan"),
        ({"expert_dropout": 1.0}, "expert_dropout = 1.0; a probability"),
        ({"final_logit_softcapping": 0.0}, "final_logit_softcapping = 0.0"),
        ({"layer_types": ["sliding_attention"] * 12}, "set sliding_window"),
        ({"layer_types": ["full_attention"]}, "num_hidden_layers"),
        ({"router_noise": "uniform"}, "router_noise"),
        ({"hidden_act": 3}, "hidden_act"),
        ({"hidden_act": "sillu"}, "hidden_act = 'sillu'; known activations: .*silu"),
        ({"attention_dropout": True}, "attention_dropout"),
        ({"rope_parameters": {"rope_type": "yam", "factor": 2.0}}, "rope_type'] = 'yam'; known types"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 1024}},
            "factor'] = 2.0; .* is 4 times",
        ),
        ({"rope_parameters": {"rope_theta": -1.0}}, "rope_theta"),
    ],
)
def test_bad_fields_are_named(fields, message):
    with pytest.raises(StrictDataclassError, match=message):
        StrataConfig(**fields)


@pytest.mark.parametrize("rope_type", ["yarn", "llama3", "longrope"])
def test_the_original_length_must_be_said(rope_type):
    with pytest.raises(ValueError, match="original_max_position_embeddings"):
        StrataConfig(rope_parameters={"rope_type": rope_type, "factor": 4.0})


def test_every_field_is_documented():
    documented = set(re.findall(r"^        (\w+) \(`", StrataConfig.__doc__, re.MULTILINE))
    assert documented == set(StrataConfig.__annotations__)


def test_a_config_of_another_architecture_is_refused(tmp_path):
    LlamaConfig(vocab_size=32).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="model_type = 'llama'; .*from_hf"):
        StrataConfig.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="no Strata checkpoint"):
        StrataForCausalLM.from_pretrained(tmp_path)


def test_a_capacity_below_one_token_is_refused():
    config = StrataConfig.preset("tiny-moe", num_experts=32, num_experts_per_tok=1, expert_capacity_factor=0.5)
    config.check_capacity(64)
    with pytest.raises(ValueError, match=r"63 tokens leave each of 32 experts 0\.98 places.* at least 0\.508"):
        config.check_capacity(63)
    model, ids = StrataForCausalLM(config), torch.ones(1, 32, dtype=torch.long)
    with pytest.raises(ValueError, match="less than one"):
        model.train()(ids)
    model.eval()(ids)  # no capacity at inference


def test_unknown_preset():
    with pytest.raises(ValueError, match="tiny-moe"):
        StrataConfig.preset("huge")


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_presets_count_as_they_build(name):
    config = StrataConfig.preset(name)
    with torch.device("meta"):
        model = StrataForCausalLM(config)
    counts = count_parameters(config)
    assert counts.total == sum(parameter.numel() for parameter in model.parameters())
    assert counts.active <= counts.total
    assert model.parameter_counts() == counts


def test_preset_names_say_their_size():
    counts = count_parameters(StrataConfig.preset("moe-1b-a300m"))
    assert 0.9e9 < counts.total < 1.2e9 and 0.25e9 < counts.active < 0.35e9
    counts = count_parameters(StrataConfig.preset("moe-7b-a1b"))
    assert 6.5e9 < counts.total < 7.5e9 and 1.0e9 < counts.active < 1.5e9
    counts = count_parameters(StrataConfig.preset("moe-350m-a100m"))
    assert 0.3e9 < counts.total < 0.4e9 and 0.09e9 < counts.active < 0.13e9
    assert 1.1e8 < count_parameters(StrataConfig.preset("dense-125m")).total < 1.4e8
    assert 0.9e9 < count_parameters(StrataConfig.preset("dense-1b")).total < 1.4e9


def shape(**fields):
    return count_parameters(StrataConfig(**{"use_qk_norm": False, "tie_word_embeddings": False, **fields}))


def test_counts_of_published_models():
    llama = shape(
        vocab_size=128256, hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8,
    )  # fmt: skip
    assert (llama.total, llama.embedding, llama.matmul) == (8_030_261_248, 525_336_576, 7_504_658_432)
    tied = shape(
        vocab_size=128256, hidden_size=2048, num_hidden_layers=16, intermediate_size=8192, num_attention_heads=32,
        num_key_value_heads=8, head_dim=64, tie_word_embeddings=True,
    )  # fmt: skip
    assert (tied.total, tied.head) == (1_235_814_400, 0)
    mixtral = shape(
        vocab_size=32000, hidden_size=4096, num_hidden_layers=32, intermediate_size=14336, num_attention_heads=32,
        num_key_value_heads=8, num_experts=8, moe_intermediate_size=14336,
    )  # fmt: skip
    assert (mixtral.total, mixtral.active) == (46_702_792_704, 12_879_925_248)
    qwen = shape(
        vocab_size=151936, hidden_size=2048, num_hidden_layers=48, num_attention_heads=32, num_key_value_heads=4,
        head_dim=128, num_experts=128, num_experts_per_tok=8, moe_intermediate_size=768, use_qk_norm=True,
    )  # fmt: skip
    assert (qwen.total, qwen.active) == (30_532_122_624, 3_353_032_704)


def test_training_compute_per_token():
    small = {
        "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    assert 6 * shape(**small).matmul == 826_368
    assert 6 * shape(**small, tie_word_embeddings=True).matmul == 826_368
    assert 6 * shape(**small, num_experts=8, moe_intermediate_size=128).matmul == 1_127_424


def test_capacity_is_one_and_a_quarter_when_on_and_its_options_need_it():
    base = {"num_experts": 4, "num_experts_per_tok": 2}
    config = StrataConfig(**base, expert_capacity_factor=True, capacity_overflow="reroute")
    assert config.expert_capacity_factor == 1.25
    assert StrataConfig(**config.to_dict()).expert_capacity_factor == 1.25
    assert StrataConfig(**base, expert_capacity_factor=False).expert_capacity_factor is None
    for field in ({"capacity_overflow": "reroute"}, {"capacity_priority": "probability"}):
        with pytest.raises(StrictDataclassError, match="nothing overflows without a limit"):
            StrataConfig(**base, **field)

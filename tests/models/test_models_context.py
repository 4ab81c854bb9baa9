"""Context extension: frequencies change, lengths are said once, and everything survives a save."""

import pytest
import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM

import hf_pretrain.models  # noqa: F401  registers Strata with the Auto classes
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.context_strata import extend_context
from hf_pretrain.models.strata.layers_strata import StrataRotaryEmbedding
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM


YARN_4 = torch.tensor([1, 0.23717082, 0.05, 0.00790569, 0.0025, 0.00079057, 0.00025, 0.00007906])


def config(**fields):
    defaults = {
        "vocab_size": 32, "hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "max_position_embeddings": 128,
    }  # fmt: skip
    return StrataConfig(**{**defaults, **fields})


def build(**fields):
    torch.manual_seed(0)
    return StrataForCausalLM(config(**fields)).eval()


def test_yarn_numbers():
    rotary = StrataRotaryEmbedding(extend_context(config(), 4))
    torch.testing.assert_close(rotary.inv_freq, YARN_4, atol=1e-7, rtol=1e-5)
    assert rotary.attention_scaling == pytest.approx(1.1386294, abs=1e-6)
    plain = StrataRotaryEmbedding(extend_context(config(), 4, attention_factor=1.0))
    assert plain.attention_scaling == 1.0


@pytest.mark.parametrize(("factor", "scaling"), [(2, 1.069315), (8, 1.207944), (16, 1.277259), (32, 1.346574)])
def test_yarn_attention_factor(factor, scaling):
    assert StrataRotaryEmbedding(extend_context(config(), factor)).attention_scaling == pytest.approx(
        scaling, abs=1e-6
    )


def test_larger_base():
    assert StrataRotaryEmbedding(config(rope_parameters={"rope_theta": 5e5})).inv_freq[1].item() == pytest.approx(
        0.19392274, abs=1e-7
    )
    extended = extend_context(config(), 4, rope_type="default", rope_theta=5e5)
    assert extended.max_position_embeddings == 512
    assert extended.rope_parameters == {"rope_type": "default", "rope_theta": 5e5}


@pytest.mark.parametrize(("factor", "theta"), [(2, 20221.2617), (4, 40889.9424), (8, 82684.6226), (16, 167198.739)])
def test_ntk_base(factor, theta):
    shape = config(head_dim=128)
    extended = extend_context(shape, factor, rope_type="ntk")
    assert extended.rope_parameters["rope_theta"] == pytest.approx(theta, rel=1e-6)
    ratio = StrataRotaryEmbedding(config(head_dim=128)).inv_freq / StrataRotaryEmbedding(extended).inv_freq
    assert ratio[0].item() == pytest.approx(1.0) and ratio[-1].item() == pytest.approx(factor, rel=1e-5)


def test_lengths_multiply_and_factors_do_not_pile_up():
    shape = extend_context(config(), 4)
    assert (shape.max_position_embeddings, shape.rope_parameters["original_max_position_embeddings"]) == (512, 128)
    extend_context(shape, max_position_embeddings=1024)
    assert shape.max_position_embeddings == 1024
    assert (shape.rope_parameters["factor"], shape.rope_parameters["original_max_position_embeddings"]) == (8, 128)
    linear = extend_context(extend_context(config(), 2, rope_type="linear"), 2, rope_type="linear")
    assert (linear.max_position_embeddings, linear.rope_parameters["factor"]) == (512, 4)


@pytest.mark.parametrize("rope_type", ["yarn", "linear", "llama3", "ntk"])
def test_a_built_model_changes_and_the_change_is_saved(rope_type, tmp_path):
    model, ids = build(), torch.arange(1, 30).unsqueeze(0)
    before, frequencies = model(ids).logits, model.model.rotary_emb.inv_freq.clone()
    assert extend_context(model, 4, rope_type=rope_type) is model
    assert not torch.equal(model.model.rotary_emb.inv_freq, frequencies)
    if rope_type == "linear":
        torch.testing.assert_close(model.model.rotary_emb.inv_freq, frequencies / 4)
    after = model(ids).logits
    assert (after - before).abs().max() > 1e-6
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.max_position_embeddings == 512
    torch.testing.assert_close(loaded(ids).logits, after, atol=0, rtol=0)


def test_a_changed_config_alone_is_reported_once(caplog):
    model, ids = build(), torch.arange(1, 30).unsqueeze(0)
    before = model(ids).logits
    model.extend_context(4)
    extended = model(ids).logits
    assert not caplog.records and not torch.equal(before, extended)
    model.config.rope_parameters = {"rope_type": "default", "rope_theta": 10000.0}
    for _ in range(2):
        torch.testing.assert_close(model(ids).logits, extended, atol=0, rtol=0)
    assert len(caplog.messages) == 1 and "still computes with those; call model.extend_context" in caplog.messages[0]
    model.model.rotary_emb.rebuild()
    torch.testing.assert_close(model(ids).logits, before, atol=0, rtol=0)
    model.config.rope_parameters["rope_theta"] = 5e5  # in place
    model(ids)
    assert len(caplog.messages) == 2


def test_longrope_needs_its_factors_and_keeps_them():
    options = {"short_factor": [1.0] * 8, "long_factor": [2.0] * 8}
    model = extend_context(build(), 4, rope_type="longrope", **options)
    assert model.model.rotary_emb.attention_scaling == pytest.approx(
        (1 + torch.tensor(4.0).log().item() / 4.852030) ** 0.5
    )
    assert model(torch.arange(1, 30).unsqueeze(0)).logits.isfinite().all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "exactly one"),
        ({"factor": 2.0, "max_position_embeddings": 512}, "exactly one"),
        ({"factor": 0.5}, "must not be below the current 128"),
        ({"factor": 2.0, "rope_type": "dynamic"}, "rope_type = 'dynamic'; allowed"),
        ({"factor": 2.0, "rope_type": "default"}, "give rope_theta"),
    ],
)
def test_bad_requests(arguments, message):
    shape = config()
    with pytest.raises(ValueError, match=message):
        extend_context(shape, **arguments)
    assert shape.to_dict() == config().to_dict()


def test_a_factor_that_contradicts_the_lengths_is_refused_before_anything_changes():
    model = build()
    with pytest.raises(StrictDataclassError, match="make them agree"):
        extend_context(model, 4, original_max_position_embeddings=64)
    assert model.config.max_position_embeddings == 128
    assert model.config.rope_parameters["rope_type"] == "default"

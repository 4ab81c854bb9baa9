"""A model or tokenizer that somebody names and that is not whole is one line, and never half random."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_text_models import byte_level_tokenizer, tiny_llama

from hf_pretrain.models.loading import load_causal_lm, load_saved_tokenizer, new_causal_lm
from hf_pretrain.utils.errors import UserError


@pytest.fixture
def folder(tmp_path):
    tiny_llama(400).save_pretrained(tmp_path / "model")
    byte_level_tokenizer().save_pretrained(tmp_path / "model")
    return tmp_path / "model"


def test_a_whole_model_is_loaded_as_fp32(folder):
    model = load_causal_lm(folder, "init_from = x")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert torch.equal(model.model.embed_tokens.weight, tiny_llama(400).model.embed_tokens.weight)


@pytest.mark.parametrize("content", [b"", b"x" * 1000, None])
def test_damaged_weights_are_one_line(folder, content):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100] if content is None else content)
    with pytest.raises(UserError, match=r"^init_from = x; no model can be loaded from .*model \("):
        load_causal_lm(folder, "init_from = x")


def test_missing_tensors_are_not_made_up(folder):
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match="lack 1 of the model's tensors, e.g. model.layers.1.mlp.up_proj.weight"):
        load_causal_lm(folder, "init_from = x")


def test_tensors_of_another_model_are_not_dropped(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.self_attn.q_norm.weight"] = torch.ones(8)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"hold 1 tensors that LlamaForCausalLM does not have, e.g. .*q_norm\.weight"):
        load_causal_lm(folder, "init_from = x")


def test_bfloat16_weights_become_float32_and_it_is_said(folder, caplog):
    with caplog.at_level("INFO", logger="hf_pretrain"):
        load_causal_lm(folder, "init_from = x")
    assert not caplog.records
    tiny_llama(400).to(torch.bfloat16).save_pretrained(folder)
    with caplog.at_level("INFO", logger="hf_pretrain"):
        model = load_causal_lm(folder, "init_from = x")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert caplog.messages == ["init_from = x: the weights are stored as bfloat16 and held as float32"]


@pytest.mark.parametrize("change", [{"hidden_size": 16}, {"model_type": "stratum"}, None])
def test_a_configuration_that_does_not_fit_is_one_line(folder, change):
    config = folder / "config.json"
    config.write_text("{" if change is None else json.dumps({**json.loads(config.read_text()), **change}))
    with pytest.raises(UserError, match="^models: x; no model can be loaded"):
        load_causal_lm(folder, "models: x")
    config.unlink()
    with pytest.raises(UserError, match="it holds no config.json"):
        load_causal_lm(folder, "models: x")
    with pytest.raises(UserError, match="^models: x; no configuration can be loaded"):
        new_causal_lm(folder, "models: x", 0)


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
def test_a_damaged_tokenizer_is_one_line(folder, name):
    assert len(load_saved_tokenizer(folder, "corpus = x")) == len(byte_level_tokenizer())
    (folder / name).write_text('{"version": "1.0"')
    with pytest.raises(UserError, match="^corpus = x; the tokenizer in .* cannot be read"):
        load_saved_tokenizer(folder, "corpus = x")


def test_a_missing_tokenizer_is_one_line(tmp_path):
    with pytest.raises(UserError, match="tokenizer.json is missing"):
        load_saved_tokenizer(tmp_path, "corpus = x")

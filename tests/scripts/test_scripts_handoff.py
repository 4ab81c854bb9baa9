"""`hf-pretrain handoff`: weights, recipe and stages for TorchTitan and Megatron-Bridge; what cannot be is one line."""

import ast
import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from hf_pretrain.models.pipeline_stages import pipeline_stages
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.scripts import cli


SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32,
}  # fmt: skip
EXPERTS = {"num_experts": 4, "moe_intermediate_size": 24, "router_aux_loss_coef": 0.02}


def save(folder, **fields):
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig(**{**SHAPE, **fields})).eval()
    model.save_pretrained(folder)
    return model


@pytest.mark.slow
@pytest.mark.parametrize(
    ("framework", "fields", "options", "class_name", "script"),
    [
        ("megatron", EXPERTS, ["--pp", "2", "--tp", "2", "--ep", "4"], "Qwen3MoeForCausalLM", "to_megatron.py"),
        ("megatron", {"use_qk_norm": False}, ["--pp", "4"], "LlamaForCausalLM", "to_megatron.py"),
        ("torchtitan", {"tie_word_embeddings": False}, ["--pp", "2"], "Qwen3ForCausalLM", "torchtitan_config.py"),
    ],
)
def test_it_hands_over(framework, fields, options, class_name, script, tmp_path, capsys):
    model, out = save(tmp_path / "2_pretrain" / "model", **fields), tmp_path / "out"
    checkpoint = tmp_path / "2_pretrain" / "checkpoints" / "checkpoint-4"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text(json.dumps({"settings": {"learning_rate": 0.00123, "seq_length": 24}}))
    assert cli.main(["handoff", str(tmp_path / "2_pretrain"), "--to", framework, str(out), *options]) == 0
    assert class_name in capsys.readouterr().out
    plain = AutoModelForCausalLM.from_pretrained(out / "model").eval()
    ids = torch.arange(16).repeat(1, 2)
    torch.testing.assert_close(plain(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    record = json.loads((out / "handoff.json").read_text())
    assert len(record["stages"]) == record["layout"]["pp"] == int(options[1])
    # every parameter lies on exactly one stage
    assert sum(stage["parameters"] for stage in record["stages"]) == sum(p.numel() for p in model.parameters())
    assert record["stages"][0]["layers"][0] == 0 and record["stages"][-1]["layers"][1] == 4
    assert "model.embed_tokens.weight" in record["stages"][0]["tensors"]
    assert "model.norm.weight" in record["stages"][-1]["tensors"]
    assert any("was not run" in limit for limit in record["limits"])
    text = (out / script).read_text()
    ast.parse(text)
    assert str(out / "model") in text and "24" in text
    assert ("0.00123" in text) == (framework == "torchtitan")
    assert ("moe_aux_loss_coeff = 0.02" in text) == bool(fields.get("num_experts"))


@pytest.mark.parametrize(
    ("fields", "arguments", "message"),
    [
        ({}, ["--to", "megatorn"], "Did you mean 'megatron'"),
        ({}, ["--to", "megatron", "--pp", "3"], "must divide the 4 layers"),
        ({}, ["--to", "megatron", "--tp", "4"], "must divide the 2 key-value heads"),
        ({}, ["--to", "megatron", "--ep", "2"], "must divide the 0 experts"),
        ({}, ["--to", "megatron", "--pp", "0"], "allowed are whole numbers"),
        ({}, ["--to", "torchtitan", "--pp", "2"], "tied head would live on two stages"),
        (EXPERTS, ["--to", "torchtitan", "--pp", "2"], "pipelines no experts"),
        ({**EXPERTS, "use_qk_norm": False}, ["--to", "megatron"], "use_qk_norm = False"),
        ({**EXPERTS, "shared_expert_intermediate_size": 8}, ["--to", "megatron"], "shared_expert"),
    ],
)
def test_what_cannot_be_is_one_line(fields, arguments, message, tmp_path, capsys):
    save(tmp_path / "model", **fields)
    out = tmp_path / "out"
    capsys.readouterr()
    assert cli.main(["handoff", str(tmp_path / "model"), str(out), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error and "\n" not in error
    assert not out.exists()


def test_stages_are_whole_layers():
    shapes = {"model.embed_tokens.weight": [8, 2], "model.norm.weight": [2], "lm_head.weight": [8, 2]}
    shapes |= {f"model.layers.{layer}.w": [3] for layer in range(5)}
    stages = pipeline_stages(shapes, 5, 2)
    assert [stage["layers"] for stage in stages] == [[0, 3], [3, 5]]
    assert [stage["parameters"] for stage in stages] == [16 + 9, 6 + 2 + 16]
    with pytest.raises(ValueError, match="allowed are 1 to 5"):
        pipeline_stages(shapes, 5, 6)
    with pytest.raises(ValueError, match="another"):
        pipeline_stages(shapes, 4, 2)

"""`hf-pretrain export`: the folder loads where this package is not, and nothing half done is left behind."""

import json
import subprocess
import sys

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.models.strata.modeling_strata import StrataForCausalLM
from hf_pretrain.scripts import cli


SHAPE = {
    "vocab_size": 16, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 32, "num_experts": 4, "moe_intermediate_size": 24,
}  # fmt: skip

LOADER = """
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
logits = model(torch.arange(12).view(2, 6)).logits
assert not any(name.partition(".")[0] == "hf_pretrain" for name in sys.modules)
torch.save(logits.detach(), sys.argv[2])
"""


def save(folder, **fields):
    torch.manual_seed(0)
    model = StrataForCausalLM(StrataConfig(**{**SHAPE, **fields})).eval()
    model.save_pretrained(folder)
    words = Tokenizer(models.WordLevel({f"w{index}": index for index in range(16)}, unk_token="w0"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w0").save_pretrained(folder)
    return model


@pytest.mark.parametrize("named", ["stage", "model"])
def test_a_stage_is_written_as_a_plain_checkpoint(named, tmp_path, capsys):
    stage, out = tmp_path / "4_long_context", tmp_path / "deep" / "exported"
    model = save(stage / "model", max_position_embeddings=64, use_cache=False, rope_parameters={
        "rope_type": "yarn", "rope_theta": 10000.0, "factor": 2.0, "original_max_position_embeddings": 32,
    })  # fmt: skip
    source = stage if named == "stage" else stage / "model"
    assert cli.main(["export", str(source), "--to", "qwen3_moe", str(out)]) == 0
    assert "Qwen3MoeForCausalLM, largest difference of a logit" in capsys.readouterr().out
    assert json.loads((out / "config.json").read_text())["use_cache"] is True
    plain = AutoModelForCausalLM.from_pretrained(out).eval()
    ids = torch.arange(16).repeat(1, 4)
    torch.testing.assert_close(plain(ids).logits, model(ids).logits, atol=1e-5, rtol=0)
    assert AutoTokenizer.from_pretrained(out)("w3 w5")["input_ids"] == [3, 5]
    assert [path.name for path in out.parent.iterdir()] == ["exported"]


@pytest.mark.slow
def test_a_process_without_this_package_loads_it(tmp_path):
    model, out, found = save(tmp_path / "model", use_qk_norm=False), tmp_path / "out", tmp_path / "logits.pt"
    assert cli.main(["export", str(tmp_path / "model"), "--to", "mixtral", str(out)]) == 0
    command = [sys.executable, "-I", "-c", LOADER, str(out), str(found)]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    expected = model(torch.arange(12).view(2, 6)).logits
    torch.testing.assert_close(torch.load(found, weights_only=True), expected, atol=1e-5, rtol=0)


def refused(capsys, *arguments):
    capsys.readouterr()  # what making the checkpoint printed
    assert cli.main(["export", *map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_refusals_are_one_line_and_leave_nothing(tmp_path, capsys):
    save(tmp_path / "model")
    out = tmp_path / "out"
    assert "no QK-norm (use_qk_norm = True); 'qwen3_moe' would fit." in refused(
        capsys, tmp_path, "--to", "mixtral", out
    )
    assert "known architectures: llama, qwen3" in refused(capsys, tmp_path, "--to", "lama", out)
    assert "holds no config.json" in refused(capsys, tmp_path / "nowhere", "--to", "qwen3_moe", out)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_what_is_there_is_not_overwritten(tmp_path, capsys):
    save(tmp_path / "model")
    assert "exists already" in refused(capsys, tmp_path, "--to", "qwen3_moe", tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    assert "exists already" in refused(capsys, tmp_path, "--to", "qwen3_moe", tmp_path / "file")
    assert json.loads((tmp_path / "model" / "config.json").read_text())["model_type"] == "strata"


def test_other_and_damaged_checkpoints(tmp_path, capsys):
    for text, reason in (
        ('{"model_type": "gpt2"}', "its model_type is 'gpt2'"),
        ("[1]", "its model_type is None"),
        ("{", "config.json is not JSON"),
    ):
        (tmp_path / "config.json").write_text(text)
        assert reason in refused(capsys, tmp_path, "--to", "qwen3_moe", tmp_path / "out")
    save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"no weights")
    assert "no model can be loaded from" in refused(capsys, tmp_path, "--to", "qwen3_moe", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_an_export_with_other_logits_is_not_published(tmp_path, capsys, monkeypatch):
    from hf_pretrain.models.strata import export_strata

    save(tmp_path / "model")
    export_model = export_strata.export_model

    def wrong(model, architecture):
        exported = export_model(model, architecture)
        with torch.no_grad():
            exported.model.norm.weight.mul_(1.01)
        return exported

    monkeypatch.setattr(export_strata, "export_model", wrong)
    assert "logits differ by" in refused(capsys, tmp_path, "--to", "qwen3_moe", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]

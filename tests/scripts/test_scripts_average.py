import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_training import tiny_llama, tiny_strata
from transformers import AutoModelForCausalLM

from hf_pretrain.models.averaging import average_weights, save_average, tensor_files
from hf_pretrain.scripts import average
from hf_pretrain.utils.facts import Facts


def save(model, folder):
    model.save_pretrained(folder)
    return folder


def test_the_mean_of_three_is_the_mean_and_of_equal_ones_the_same(tmp_path, capsys):
    models = [tiny_strata(seed, tie_word_embeddings=True, router_bias_update_rate=0.01) for seed in range(3)]
    for number, model in enumerate(models):
        model.model.layers[0].mlp.gate.e_score_correction_bias.fill_(0.25 * number)
    folders = [save(model, tmp_path / f"{number}") for number, model in enumerate(models)]
    Facts(tmp_path).record("recipe", {"name": "x"})
    assert average.main([*map(str, folders), str(tmp_path / "mean")]) == 0
    assert "mean of 3 checkpoints" in capsys.readouterr().out
    mean = AutoModelForCausalLM.from_pretrained(tmp_path / "mean", dtype=torch.float32)
    assert mean.lm_head.weight is mean.model.embed_tokens.weight
    for name, value in mean.state_dict().items():
        parts = torch.stack([model.state_dict()[name].double() for model in models])
        assert torch.equal(value, parts.mean(0).float()), name
    assert mean.model.layers[0].mlp.gate.e_score_correction_bias.tolist() == [0.25] * 4
    record = Facts(tmp_path).load()["averages"]["mean"]
    assert [member["path"] for member in record["members"]] == [str(folder) for folder in folders]
    assert json.loads((tmp_path / "mean" / "average.json").read_text()) == record
    same = [save(tiny_llama(7), tmp_path / f"same{number}") for number in range(3)]
    for name, value in average_weights(same).items():
        assert torch.equal(value, load_file(same[0] / "model.safetensors")[name])


def test_shards(tmp_path):
    folders = [save(tiny_llama(seed), tmp_path / f"{seed}") for seed in range(2)]
    (tmp_path / "mean").mkdir()
    save_average(folders, tmp_path / "mean", shard_bytes=4000)
    files = set(tensor_files(tmp_path / "mean").values())
    assert len(files) > 1
    whole = {name: value for file in files for name, value in load_file(file).items()}
    assert {name: value.shape for name, value in whole.items()} == {
        name: value.shape for name, value in load_file(folders[0] / "model.safetensors").items()
    }
    assert all(torch.equal(value, whole[name]) for name, value in average_weights(folders).items())


def test_what_cannot_be_averaged_is_refused_and_leaves_nothing(tmp_path, capsys):
    first = save(tiny_llama(0), tmp_path / "a")
    wide = save(tiny_llama(1, intermediate_size=32), tmp_path / "wide")
    bad = save(tiny_llama(1), tmp_path / "bad")
    weights = load_file(bad / "model.safetensors")
    weights["model.norm.weight"][3] = float("nan")
    save_file(weights, bad / "model.safetensors", {"format": "pt"})
    cut = save(tiny_llama(1), tmp_path / "cut")
    kept = load_file(cut / "model.safetensors")
    kept.pop("model.norm.weight")
    save_file(kept, cut / "model.safetensors", {"format": "pt"})
    out = tmp_path / "out"
    for arguments, message in [
        ([first, wide], "its intermediate_size is 32"),
        ([first, bad], "model.norm.weight holds NaN or infinity"),
        ([first, cut], "tensors differ from those of"),
        ([first, first], "given twice"),
        ([first], "at least two"),
        ([first, tmp_path / "none"], "holds no config.json"),
    ]:
        assert average.main([*map(str, arguments), str(out)]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
    assert average.main([str(first), str(bad), str(wide)]) == 2
    assert "it exists already" in capsys.readouterr().err


@pytest.mark.parametrize("broken", ["model.safetensors", "config.json"])
def test_damaged_files_are_one_line(tmp_path, capsys, broken):
    folders = [save(tiny_llama(seed), tmp_path / f"{seed}") for seed in range(2)]
    (folders[1] / broken).write_bytes(b"\x00\x01")
    assert average.main([*map(str, folders), str(tmp_path / "out")]) == 2
    assert "read" in capsys.readouterr().err

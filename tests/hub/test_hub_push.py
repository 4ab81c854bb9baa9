"""A repository that stands on its own, proved in a process that cannot import this package."""

import json
import shutil

import pytest
import torch
from mini_hub_server import MiniHub
from tiny_text_models import byte_level_tokenizer, tiny_llama
from transformers import AutoModelForCausalLM

import hf_pretrain.models  # noqa: F401
from hf_pretrain.hub.push import check_repository, push_card, push_weights, reload_check, save_for_hub
from hf_pretrain.models.strata.configuration_strata import StrataConfig
from hf_pretrain.utils.errors import UserError


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


@pytest.fixture(scope="module")
def strata(tokenizer):
    torch.manual_seed(0)
    config = StrataConfig.preset(
        "tiny-moe",
        vocab_size=len(tokenizer),
        hidden_size=32,
        head_dim=8,
        num_hidden_layers=2,
        eos_token_id=0,
        pad_token_id=1,
    )
    return AutoModelForCausalLM.from_config(config).eval()


@pytest.fixture(scope="module")
def saved(strata, tokenizer, tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub") / "model"
    sizes = save_for_hub(strata, tokenizer, folder, {"LICENSE.md": "text"})
    assert sizes["model.safetensors"] > 0 and "LICENSE.md" in sizes
    return folder


def test_code_travels_and_auto_map_points_beside_the_weights(saved):
    config = json.loads((saved / "config.json").read_text())
    assert config["auto_map"]["AutoModelForCausalLM"] == "modeling_strata.StrataForCausalLM"
    assert config["auto_map"]["AutoConfig"] == "configuration_strata.StrataConfig"
    assert {"configuration_strata.py", "modeling_strata.py", "routing_strata.py"} <= {p.name for p in saved.iterdir()}
    assert not list(saved.glob("*.bin"))


@pytest.mark.slow
def test_a_fresh_process_without_the_package_gives_the_same_logits(saved, strata, tokenizer):
    report = reload_check(saved, strata, tokenizer, "How do I boil an egg?", max_new_tokens=5)
    assert report.model_class == "StrataForCausalLM"
    assert report.max_logit_difference < 1e-5
    assert 1 <= report.new_tokens <= 5
    prompt = tokenizer.apply_chat_template(
        [{"role": "user", "content": "How do I boil an egg?"}], add_generation_prompt=True, return_tensors="pt"
    )["input_ids"]
    expected = strata.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=5, do_sample=False)
    assert report.text == tokenizer.decode(expected[0, prompt.shape[1] :], skip_special_tokens=True)


@pytest.mark.slow
def test_other_weights_and_code_that_needs_the_package_are_found(saved, strata, tokenizer, tmp_path):
    torch.manual_seed(1)
    other = AutoModelForCausalLM.from_config(strata.config).eval()
    with pytest.raises(UserError, match="logits differ by"):
        reload_check(saved, other, tokenizer, "How?", max_new_tokens=1)
    broken = tmp_path / "broken"
    shutil.copytree(saved, broken)
    path = broken / "modeling_strata.py"
    path.write_text("import hf_pretrain\n" + path.read_text(), encoding="utf-8")
    with pytest.raises(UserError, match="in a fresh process failed"):
        reload_check(broken, strata, tokenizer, "How?", max_new_tokens=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda f: (f / "model.safetensors").unlink(), "holds no .safetensors"),
        (lambda f: (f / "pytorch_model.bin").write_bytes(b"x"), "pickled weights"),
        (lambda f: (f / "routing_strata.py").unlink(), "routing_strata.py was not copied"),
        (lambda f: (f / "modeling_strata.py").unlink(), "modeling_strata.py with StrataForCausalLM is not there"),
        (lambda f: (f / "extra.py").write_text("from ..common import x"), "does not travel"),
        (lambda f: (f / "extra.py").write_text("from hf_pretrain.losses import x"), "does not travel"),
        (lambda f: (f / "extra.py").write_text("def f():\n    import hf_pretrain"), "does not travel"),
    ],
)
def test_incomplete_repositories_are_refused(saved, tmp_path, change, message):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    check_repository(folder)
    change(folder)
    with pytest.raises(UserError, match=message):
        check_repository(folder)


def test_auto_map_to_another_repository_is_refused(saved, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(saved, folder)
    text = (folder / "config.json").read_text().replace('"modeling_strata.', '"user/other--modeling_strata.')
    (folder / "config.json").write_text(text)
    with pytest.raises(UserError, match="points to another repository"):
        check_repository(folder)


def test_a_stock_model_ships_no_code(tokenizer, tmp_path):
    save_for_hub(tiny_llama(len(tokenizer)), tokenizer, tmp_path / "llama")
    assert not list((tmp_path / "llama").glob("*.py"))
    assert "auto_map" not in json.loads((tmp_path / "llama" / "config.json").read_text())


def test_a_failed_save_leaves_the_old_folder(tokenizer, tmp_path):
    folder = tmp_path / "model"
    save_for_hub(tiny_llama(len(tokenizer)), tokenizer, folder)
    before = (folder / "model.safetensors").read_bytes()
    with pytest.raises(UserError, match="does not travel"):
        save_for_hub(tiny_llama(len(tokenizer), seed=1), tokenizer, folder, {"bad.py": "import hf_pretrain"})
    assert (folder / "model.safetensors").read_bytes() == before


@pytest.fixture
def online(monkeypatch):
    """Lets the Hub client of this process talk, to loopback alone."""
    from huggingface_hub import constants

    def connect(url):
        monkeypatch.setattr(constants, "ENDPOINT", url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)

    return connect


def test_weights_then_card_reach_a_hub(saved, tmp_path, online):
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n")
    with MiniHub(token="secret") as hub:
        online(hub.url)
        push_weights(folder, "tester/strata", "secret")
        assert "README.md" not in hub.files["tester/strata"]
        push_card(folder, "tester/strata", "secret")
    stored = hub.files["tester/strata"]
    assert {path.name for path in folder.iterdir() if path.is_file()} == set(stored)
    assert stored["model.safetensors"] == (folder / "model.safetensors").read_bytes()


def test_a_refused_card_does_not_cost_the_weights(saved, tmp_path, online):
    from huggingface_hub.errors import HfHubHTTPError

    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    (folder / "README.md").write_text("bad")
    with MiniHub(token="secret", refuse=["README.md"]) as hub:
        online(hub.url)
        push_weights(folder, "tester/strata", "secret")
        with pytest.raises(HfHubHTTPError):
            push_card(folder, "tester/strata", "secret")
    assert "model.safetensors" in hub.files["tester/strata"] and "README.md" not in hub.files["tester/strata"]


def test_a_wrong_token_is_refused(saved, online):
    from huggingface_hub.errors import HfHubHTTPError

    with MiniHub(token="secret") as hub:
        online(hub.url)
        with pytest.raises(HfHubHTTPError):
            push_weights(saved, "tester/strata", "wrong")
    assert hub.files == {}

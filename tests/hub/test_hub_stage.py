"""The push stage: folder, proof, facts, card; and what it refuses."""

import pytest
from tiny_run import make_run, stage_spec

from hf_pretrain.hub.model_card import numbers_not_in_facts
from hf_pretrain.hub.push import check_repository
from hf_pretrain.scripts import push
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


STAGE = "stage: push\nmodel: 2_pretrain\nprompt: How do I boil an egg?\nmax_new_tokens: 4\n"


@pytest.mark.slow
def test_a_run_ends_as_a_repository_with_an_honest_card(tmp_path):
    run_dir = make_run(tmp_path / "run")
    push.run(stage_spec(run_dir, "7_push", STAGE))
    folder = run_dir / "7_push" / "model"
    check_repository(folder)
    assert (folder / "LICENSE.md").exists()
    facts = Facts(run_dir).load()
    reload = facts["stages"]["7_push"]["reload"]
    assert reload["max_logit_difference"] < 1e-5 and reload["model_class"] == "StrataForCausalLM"
    card = (folder / "README.md").read_text()
    assert numbers_not_in_facts(card, facts) == []
    assert "How do I boil an egg?" in card


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("prompt: How do I boil an egg?", "promt: x", "Did you mean 'prompt'"),
        ("prompt: How do I boil an egg?", "prompt: ''", "prompt is empty"),
        ("max_new_tokens: 4", "max_new_tokens: 0", "max_new_tokens = 0"),
        ("max_new_tokens: 4", "dtype: float16", "dtype = 'float16'"),
        ("max_new_tokens: 4", "license: free", "Unknown license 'free'"),
        ("max_new_tokens: 4", "hub_model_id: alone", "user/name is expected"),
        ("max_new_tokens: 4", "hub_model_id: a b/c", "hub_model_id = a b/c; Repo id must"),
        ("max_new_tokens: 4", "token: hf_x", "Unknown key 'token'"),
    ],
)
def test_bad_files_are_refused_before_any_work(tmp_path, old, new, message):
    with pytest.raises(UserError, match=message):
        push.check(stage_spec(tmp_path / "run", "7_push", STAGE.replace(old, new)))


@pytest.mark.parametrize(
    ("token", "message"), [("", "there is no token: run `hf auth login`"), ("hf_x", "the Hub cannot be reached")]
)
def test_an_upload_that_cannot_be_says_where_the_model_lies(tmp_path, monkeypatch, token, message):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    # Nothing listens on this port.
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    with pytest.raises(UserError, match=f"hub_model_id = me/mine; {message}.*The model lies in {tmp_path}"):
        push._upload(tmp_path, push.PushOptions("2_pretrain", hub_model_id="me/mine"))


def test_a_missing_model_raises_one_line(tmp_path):
    with pytest.raises(UserError, match="holds no model"):
        push.run(stage_spec(tmp_path / "run", "7_push", STAGE.replace("2_pretrain", "nowhere")))

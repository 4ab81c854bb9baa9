"""`hf-pretrain plan --from-run`: the same run takes what it took, and a larger one in proportion."""

import json

import pytest

from hf_pretrain.scripts.plan import main
from hf_pretrain.scripts.pretrain import _record_plan
from hf_pretrain.utils.facts import Facts


CONFIG = {
    "model_type": "strata",
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 352,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "tie_word_embeddings": True,
}


@pytest.fixture
def run_folder(tmp_path):
    stage = {
        "kind": "pretrain",
        "model": {"config": CONFIG},
        "data": {"train_tokens": 2_000_000, "seq_length": 128},
        "throughput": {"tokens_per_second": 10_000.0, "seconds": 200.0},
        "seconds": 250.0,
        "processes": 1,
    }
    (tmp_path / "facts.json").write_text(json.dumps({"schema": 1, "stages": {"1_pretrain": stage}}), encoding="utf-8")
    return tmp_path


def measured(capsys, *options):
    assert main([*map(str, options), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_same_run_takes_what_it_took(run_folder, capsys):
    found = measured(capsys, "--from-run", run_folder, "--price", "2")
    assert found["measured"]["device_hours"] == pytest.approx(250 / 3600)
    assert found["measured"]["cost"] == pytest.approx(500 / 3600)
    assert found["measured"]["goodput"] == pytest.approx(0.8)
    twice = measured(capsys, "--from-run", run_folder, "--params", "10M", "--tokens", "4M")["measured"]
    assert twice["device_hours"] == pytest.approx(250 / 3600 * 10e6 * 4e6 / (1_063_040 * 2e6), rel=0.01)


def test_people_read_it_too(run_folder, capsys):
    assert main(["--from-run", str(run_folder)]) == 0
    assert "at the speed of 1_pretrain on 1 of its devices" in capsys.readouterr().out


def test_a_folder_without_a_run_is_refused(tmp_path, capsys):
    assert main(["--from-run", str(tmp_path)]) == 2
    assert "it holds no facts.json" in capsys.readouterr().err


def test_a_resumed_stage_keeps_the_plan_it_started_with(tmp_path):
    class Stage:
        def __init__(self, tokens):
            self.tokens = tokens

        def plan(self):
            return {"train_tokens": self.tokens}

    facts = Facts(tmp_path)
    _record_plan(facts, "2_pretrain", Stage(10), resumed=False)
    _record_plan(facts, "3_anneal", Stage(5), resumed=False)
    _record_plan(facts, "2_pretrain", Stage(99), resumed=True)
    assert facts.load()["plans"] == {"2_pretrain": {"train_tokens": 10}, "3_anneal": {"train_tokens": 5}}
    _record_plan(facts, "2_pretrain", Stage(99), resumed=False)  # begun anew
    assert facts.load()["plans"]["2_pretrain"] == {"train_tokens": 99}

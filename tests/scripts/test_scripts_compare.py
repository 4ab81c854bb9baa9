import json

import pytest
from test_scripts_pretrain import MIXTURE, MODEL, facts, log, write_recipe

from hf_pretrain.scripts import pretrain
from hf_pretrain.scripts.compare import micro_anneal_options
from hf_pretrain.trainer.stage_options import StageOptions
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


@pytest.mark.slow
def test_control_and_micro_anneal_beside_a_stage(tmp_path, capsys, caplog):
    run, (first, second) = write_recipe(
        tmp_path,
        s2_pretrain={
            "model": MODEL,
            "mixture": MIXTURE,
            "anneal_mixture": {"books": 1.0},
            "train_tokens": 8 * 256,
            "decay_fraction": 0.5,
        },
        s3_anneal={"init_from": "2_pretrain", "mixture": {"web": 1.0}, "train_tokens": 20 * 256},
    )
    assert pretrain.main(["--config", first, "--control", "uniform"]) == 2
    assert "2_pretrain is not done" in capsys.readouterr().err
    assert pretrain.main(["--config", first]) == 0
    assert "Aggressive order: from phase 'stable' to 'anneal' 80% of the tokens change their source" in caplog.text
    before = facts(run, "2_pretrain")
    capsys.readouterr()
    assert pretrain.main(["--config", first, "--control", "uniform"]) == 0
    assert "uniform" in capsys.readouterr().out
    control = json.loads((run / "2_pretrain" / "control.json").read_text())
    # The same tokens by source, in one phase.
    order = json.loads((run / "2_pretrain" / "control" / "data_order.json").read_text())
    assert len(order["schedule"]["phases"]) == 1
    for name, share in control["mixture"].items():
        assert share == pytest.approx(before["data"]["sources"][name]["share"])
    ordered = before["held_out"]["end"]["web"]["bits_per_byte"]
    assert control["scores"]["web"]["ordered"] == ordered != control["scores"]["web"]["uniform"]
    assert facts(run, "2_pretrain") == before
    assert Facts(run).load()["controls"]["2_pretrain"] == control

    assert pretrain.main(["--config", second, "--micro-anneal", "books"]) == 0
    table = capsys.readouterr().out
    assert "difference" in table and "web" in table
    score = json.loads((run / "3_anneal" / "micro_anneals" / "books" / "score.json").read_text())
    assert score["train_tokens"] == 2 * 256
    assert score["candidate_share"] == 0.5
    row = score["scores"]["books"]
    assert row["difference"] == pytest.approx(row["with"] - row["without"])
    assert Facts(run).load()["micro_anneals"]["3_anneal/books"] == score
    assert pretrain.main(["--config", second, "--micro-anneal", "boks"]) == 2
    assert "Unknown source 'boks'. Did you mean 'books'?" in capsys.readouterr().err
    assert pretrain.main(["--config", first, "--micro-anneal", "books"]) == 2
    assert "needs init_from" in capsys.readouterr().err
    assert pretrain.main(["--config", second, "--control", "uniform"]) == 2
    assert pretrain.main(["--config", second, "--micro-anneal-tokens", "5"]) == 2


def test_both_short_anneals_read_the_same_mix_but_for_the_candidate():
    options = StageOptions(
        "c", init_from="m", mixture={"web": 3, "books": 1, "code": 1}, training={"learning_rate": 1}
    )
    both = micro_anneal_options(options, "books", 1000)
    assert both["without"].mixture == {"web": 0.75, "code": 0.25}
    assert both["with"].mixture == {"books": 0.5, "web": 0.375, "code": 0.125}
    assert both["with"].training == both["without"].training
    assert both["with"].training["decay_fraction"] == 1.0
    with pytest.raises(UserError, match="reads nothing else"):
        micro_anneal_options(StageOptions("c", init_from="m", mixture={"books": 1}), "books", 1000)


@pytest.mark.slow
def test_a_stage_is_made_longer_from_its_checkpoint(tmp_path, capsys):
    run, (path,) = write_recipe(
        tmp_path, s2_pretrain={"model": MODEL, "mixture": MIXTURE, "train_tokens": 8 * 256, "decay_fraction": 0.0}
    )
    assert pretrain.main(["--config", path]) == 0
    first = [line["loss"] for line in log(run, "2_pretrain") if "loss" in line]
    longer = ["--config", path, "--set", f"train_tokens={12 * 256}"]
    assert pretrain.main([*longer, "--go-on"]) == 0
    found = facts(run, "2_pretrain")
    assert found["data"]["steps"] == 12
    assert [line["loss"] for line in log(run, "2_pretrain") if "loss" in line][:8] == first
    assert not (run / "2_pretrain.previous").exists()
    # Changed without asking for it, it is an error that leaves everything as it is.
    assert pretrain.main([*longer, "--set", "learning_rate=0.5", "--go-on"]) == 2
    assert "resume_changes: [learning_rate]" in capsys.readouterr().err

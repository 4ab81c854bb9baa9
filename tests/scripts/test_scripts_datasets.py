"""A stage whose data are named as in TRL: a source of the corpus beside a folder of `save_to_disk`."""

import json

import datasets
from test_scripts_pretrain import MODEL, facts, write_recipe
from testing_utils import markov_documents

from hf_pretrain.scripts import pretrain, trace


def test_a_stage_trains_on_saved_datasets_and_is_traced(tmp_path, capsys):
    rows = {
        "input_ids": [[*text[:-1], 0] for text in markov_documents(60, 32, 3)],
        "url": [f"u{i}" for i in range(60)],
    }
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "code"))
    config = {
        "model": MODEL,
        "datasets": [
            {"path": "1_corpus", "name": "web", "weight": 0.5},
            {"path": str(tmp_path / "code"), "weight": 0.5, "max_epochs": 50},
        ],
        "train_tokens": 4 * 256,
    }
    run, (path,) = write_recipe(tmp_path, s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 0
    found = facts(run, "2_pretrain")["data"]
    assert {name: entry["share"] for name, entry in found["sources"].items()} == {"web": 0.5, "code": 0.5}
    assert 0 < found["effective_share"] <= 1
    assert set(found["effective_tokens_by_source"]) == {"web", "code"}
    capsys.readouterr()
    assert trace.main([str(run), "--step", "2", "--json"]) == 0
    traced = json.loads(capsys.readouterr().out)["rows"]
    assert any(doc["url"].startswith("u") for row in traced if row["source"] == "code" for doc in row["documents"])


def test_unknown_keys_and_missing_folders_are_one_line(tmp_path, capsys):
    base = {"model": MODEL, "train_tokens": 256}
    run, paths = write_recipe(
        tmp_path,
        s2_pretrain={**base, "datasets": [{"path": "1_corpus", "nane": "web"}]},
        s3_pretrain={**base, "datasets": [{"path": str(tmp_path / "gone")}]},
    )
    for path, message in zip(paths, ("Unknown key 'nane'. Did you mean 'name'", "no such stage, folder"), strict=True):
        assert pretrain.main(["--config", path]) == 2
        error = capsys.readouterr().err
        assert message in error and "Traceback" not in error
    assert not list(run.glob("*/checkpoints"))

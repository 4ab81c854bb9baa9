"""`hf-pretrain autopsy` on the folder of a run, and the switches of `hf-pretrain pretrain` that go with it."""

import json
import shutil

import pytest
import yaml
from testing_utils import write_corpus_stage

from hf_pretrain.reporting.page import render_report
from hf_pretrain.reporting.run_data import load_run
from hf_pretrain.scripts import autopsy, pretrain
from hf_pretrain.utils.atomic import write_json
from hf_pretrain.utils.facts import Facts


MODEL = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
}
STAGE = {
    "stage": "pretrain",
    "corpus": "1_corpus",
    "model": MODEL,
    "mixture": {"web": 0.8, "books": 0.2},
    "seq_length": 32,
    "train_tokens": 10 * 256,
    "global_batch_size": 8,
    "per_device_train_batch_size": 8,
    "logging_steps": 1,
    "save_steps": 4,
    "save_total_limit": 5,
}


def write_run(folder, **stage):
    recipe, run = folder / "recipe", folder / "run"
    recipe.mkdir(parents=True)
    write_corpus_stage(run)
    write_json(run / "recipe.json", {"name": "recipe", "stages": []})
    (recipe / "1_corpus.yaml").write_text(f"stage: corpus\nrun_dir: {run}\n")
    path = recipe / "2_pretrain.yaml"
    path.write_text(yaml.safe_dump({**STAGE, "run_dir": str(run), **stage}, sort_keys=False))
    return run, str(path)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder, path = write_run(tmp_path_factory.mktemp("run"))
    assert pretrain.main(["--config", path, "--quiet"]) == 0
    return folder


def test_a_step_is_examined_and_written_down(run, tmp_path, capsys):
    copy = tmp_path / "elsewhere"
    shutil.copytree(run, copy)
    assert autopsy.main([str(copy), "--step", "5", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["step"] == 5 and report["weights"]["current"] == {"name": "checkpoint-4", "step": 4, "exact": True}
    assert report["documents"][0]["url"] and report["documents"][0]["text"]
    assert json.loads((copy / "2_pretrain" / "autopsies" / "step-5.json").read_text()) == report
    assert autopsy.main([str(copy / "2_pretrain"), "--step", "7"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("2_pretrain step 7: unknown") and "step-7.md" in text
    assert "the weights that step 7 was made with are not kept" in text


def test_facts_and_report_tell_of_it(run, tmp_path, capsys):
    copy = tmp_path / "elsewhere"
    shutil.copytree(run, copy)
    assert autopsy.main([str(copy), "--step", "5"]) == 0
    stage = Facts(copy).load()["stages"]["2_pretrain"]
    assert [(one["step"], one["verdict"]) for one in stage["autopsies"]] == [(5, "unknown")]
    assert stage["effect_checks"]["document_mask"] == stage["effect_checks"]["z_loss"] == "acts"
    assert stage["precision"]["weights"] == {"float32": stage["model"]["total_parameters"]}
    Facts(copy).annotate_stage(
        "2_pretrain",
        spikes=[{"step": 5, "kind": "loss", "value": 9.0}],
        autopsies=[{**stage["autopsies"][0], "document": "<script>alert(1)</script>"}],
    )
    page = render_report(load_run(copy))
    assert "Autopsies of spikes" in page and "2_pretrain/autopsies/step-5.md" in page
    assert "<script>alert" not in page and "seen to act before the first update" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no spike is recorded there; say which step is meant with --step N"),
        (["--step", "50"], "--step 50; this run made 10 steps"),
        (["--step", "0"], "step = 0; steps count from 1"),
        (["--step", "3", "--stage", "9_none"], "--stage 9_none"),
        (["--step", "3", "--device", "warp"], "--device warp; no device is called so"),
    ],
)
def test_what_cannot_be_examined_is_one_line(run, capsys, arguments, message):
    assert autopsy.main([str(run), *arguments]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_a_key_that_does_nothing_stops_before_the_first_step(tmp_path, capsys):
    run, path = write_run(tmp_path, model={**MODEL, "router_noise": "gumbel"})
    assert pretrain.main(["--config", path, "--quiet"]) == 2
    assert "router_noise = 'gumbel'; nothing reads it" in capsys.readouterr().err
    assert not list((run / "2_pretrain").glob("checkpoints/checkpoint-*"))
    assert pretrain.main(["--config", path, "--quiet", "--no-effect-checks"]) == 0
    assert Facts(run).load()["stages"]["2_pretrain"].get("effect_checks", {}) == {}


def test_weights_in_bf16_are_a_key_of_the_stage(tmp_path):
    run, path = write_run(tmp_path, pure_bf16=True, train_tokens=2 * 256)
    assert pretrain.main(["--config", path, "--quiet"]) == 0
    precision = Facts(run).load()["stages"]["2_pretrain"]["precision"]
    assert set(precision["weights"]) == {"bfloat16"} and precision["lost_updates"]["at_peak_rate"] >= 0

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import yaml
from testing_utils import write_corpus_stage
from transformers import AutoModelForCausalLM

from hf_pretrain.scripts import pretrain, trace
from hf_pretrain.utils.atomic import write_json


ROOT = Path(__file__).parents[2]
MODEL = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "num_experts": 4,
    "moe_intermediate_size": 32,
}
COMMON = {
    "stage": "pretrain",
    "corpus": "1_corpus",
    "seq_length": 32,
    "global_batch_size": 8,
    "per_device_train_batch_size": 4,
    "logging_steps": 1,
    "save_steps": 4,
}
MIXTURE = {"web": 0.8, "books": 0.2}


def write_recipe(folder, **stages):
    """Writes a recipe whose corpus stage is done, and gives the paths of its training stages."""
    recipe, run = folder / "recipe", folder / "run"
    recipe.mkdir(parents=True)
    write_corpus_stage(run)
    write_json(run / "recipe.json", {"name": "recipe", "stages": []})
    (recipe / "1_corpus.yaml").write_text(f"stage: corpus\nrun_dir: {run}\n")
    paths = []
    for name, config in stages.items():
        path = recipe / f"{name.removeprefix('s')}.yaml"
        path.write_text(yaml.safe_dump({**COMMON, "run_dir": str(run), **config}, sort_keys=False))
        paths.append(str(path))
    return run, paths


def facts(run, stage):
    return json.loads((run / "facts.json").read_text())["stages"][stage]


def log(run, stage):
    return [json.loads(line) for line in (run / stage / "log.jsonl").read_text().splitlines()]


def head_rows(facts):
    return facts["model"]["config"]["vocab_size"]


def test_three_stages_follow_on(tmp_path, capsys):
    run, paths = write_recipe(
        tmp_path,
        s2_pretrain={"model": MODEL, "mixture": MIXTURE, "train_tokens": 12 * 256, "decay_fraction": 0.0},
        s3_anneal={
            "init_from": "2_pretrain",
            "continue_optimizer": True,
            "mixture": MIXTURE,
            "anneal_mixture": {"books": 1.0},
            "train_tokens": 6 * 256,
            "warmup_fraction": 0.0,
            "decay_fraction": 1.0,
        },
        s4_long_context={
            "init_from": "3_anneal",
            "extend_context": {"rope_type": "yarn", "factor": 4},
            "mixture": {"web": 1.0},
            "seq_length": 128,
            "global_batch_size": 4,
            "train_tokens": 2 * 512,
        },
    )
    for path in paths:
        assert pretrain.main(["--config", path]) == 0
    first, second, third = (facts(run, name) for name in ("2_pretrain", "3_anneal", "4_long_context"))
    # Every source goes on where the stage before left it, and the parts add up.
    assert first["data"]["sources"]["web"]["tokens"] + first["data"]["sources"]["books"]["tokens"] == 12 * 256
    books = (first["data"]["sources"]["books"]["tokens"] + 6 * 256) / first["data"]["sources"]["books"][
        "unique_tokens"
    ]
    assert second["data"]["sources"]["books"]["epochs"] == pytest.approx(books)
    assert [phase["name"] for phase in second["data"]["phases"]] == ["anneal"]
    assert first["held_out"]["end"]["web"]["loss"] < first["held_out"]["begin"]["web"]["loss"]
    # Same weights, same text: the next stage begins where the one before ended.
    assert second["held_out"]["begin"] == first["held_out"]["end"]
    assert third["model"]["config"]["max_position_embeddings"] == 128
    assert (
        third["model"]["total_parameters"] == first["model"]["total_parameters"] > first["model"]["active_parameters"]
    )
    assert first["throughput"]["tokens_per_second"] > 0
    assert first["peak_memory_bytes"] > 10**8
    head = first["head_memory"]
    assert head["num_tokens"] % first["data"]["seq_length"] == 0 and head["vocab_size"] == head_rows(first)
    assert head["naive"] == 3 * head["num_tokens"] * head["vocab_size"] * 4 and head["liger"] < head["naive"]
    assert first["loss"]["first"] == log(run, "2_pretrain")[0]["loss"]
    assert len(first["router"]["load"]) == 2
    model = AutoModelForCausalLM.from_pretrained(run / "4_long_context" / "model")
    assert model.config.rope_parameters["rope_type"] == "yarn"
    assert (run / "4_long_context" / "model" / "tokenizer.json").exists()
    assert not list((run / "4_long_context" / "model").glob("*.bin"))

    capsys.readouterr()
    assert trace.main([str(run), "--step", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2_pretrain step 3: 8 rows"
    assert any("https://example.org/web/" in line and "tokens " in line for line in lines)
    assert trace.main([str(run), "--step", "2", "--stage", "3_anneal", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert [row["source"] for row in rows] == ["books"] * 8
    assert all(document["id"].startswith("books/") for row in rows for document in row["documents"])


def test_untrained_model_can_be_made_again_from_the_seed(tmp_path):
    config = {"model": MODEL, "mixture": MIXTURE, "train_tokens": 256, "seed": 7, "learning_rate": 1e-30}
    run, (path,) = write_recipe(tmp_path, s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 0
    saved = AutoModelForCausalLM.from_pretrained(run / "2_pretrain" / "model")
    torch.manual_seed(facts(run, "2_pretrain")["seed"])
    again = AutoModelForCausalLM.from_config(saved.config)
    for (name, value), other in zip(saved.named_parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(value, other, msg=name)


def test_excess_is_refused_in_one_line(tmp_path, capsys):
    config = {"model": MODEL, "mixture": {"books": 1.0}, "train_tokens": 500_000}
    _, (path,) = write_recipe(tmp_path, s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 2
    error = capsys.readouterr().err
    assert "error: source 'books' would be read" in error
    assert "on_excess: redistribute" in error


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"learning_rate": True}, "learning_rate = True"),
        ({"mixtur": {}}, "Unknown key 'mixtur'. Did you mean 'mixture'"),
        ({"mixture": {"wbe": 1.0}}, "Unknown source 'wbe'. Did you mean 'web'"),
        ({"model": {**MODEL, "vocab_size": 8}}, "model.vocab_size = 8"),
        ({"corpus": "nowhere"}, "corpus = nowhere"),
        ({"seq_length": 100_000}, "no full window of 100000"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_two(tmp_path, capsys, change, message):
    config = {"model": MODEL, "mixture": MIXTURE, "train_tokens": 256, **change}
    _, (path,) = write_recipe(tmp_path, s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert len(error.splitlines()) == 1


def test_trace_of_nothing(tmp_path, capsys):
    assert trace.main([str(tmp_path), "--step", "1"]) == 2
    assert "no stage in it has a data_order.json" in capsys.readouterr().err


def launch(command, run, wait_for=None, number=None):
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_PRETRAIN_QUIET": "1"}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if wait_for is not None:
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline and process.poll() is None and not wait_for():
            time.sleep(0.02)
        process.send_signal(number)
    output, _ = process.communicate(timeout=300)
    return process.returncode, output


def saved_weights(run, stage="2_pretrain"):
    return AutoModelForCausalLM.from_pretrained(run / stage / "model").state_dict()


@pytest.mark.slow
@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGKILL, -9)])
def test_an_interrupted_run_goes_on_to_the_same_weights(tmp_path, number, code):
    config = {
        "model": {**MODEL, "attention_dropout": 0.1},
        "mixture": MIXTURE,
        "train_tokens": 40 * 256,
        "max_epochs": 50,
    }
    straight, (path,) = write_recipe(tmp_path / "straight", s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 0
    run, (path,) = write_recipe(tmp_path / "stopped", s2_pretrain=config)
    checkpoints = run / "2_pretrain" / "checkpoints"

    def saved_once():
        return any(checkpoints.glob("checkpoint-*/checkpoint_manifest.json"))

    returned, output = launch(["-m", "hf_pretrain.scripts.pretrain", "--config", path], run, saved_once, number)
    assert returned == code, output
    assert not (run / "2_pretrain" / "model").exists()
    assert pretrain.main(["--config", path]) == 0
    first, second = saved_weights(straight), saved_weights(run)
    assert all(torch.equal(first[name], second[name]) for name in first)
    lines = [log(folder, "2_pretrain") for folder in (straight, run)]
    assert [line.get("loss") for line in lines[0]] == [line.get("loss") for line in lines[1]]


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path):
    config = {
        "model": {**MODEL, "balance_scope": "sequence", "router_bias_update_rate": 0.001},
        "mixture": MIXTURE,
        "anneal_mixture": {"books": 1.0},
        "train_tokens": 8 * 256,
        "decay_fraction": 0.5,
        "optim": "sgd",
        "per_device_train_batch_size": 2,
        "max_eval_windows": 5,
    }
    one, (path,) = write_recipe(tmp_path / "one", s2_pretrain=config)
    assert pretrain.main(["--config", path]) == 0
    two, (path,) = write_recipe(tmp_path / "two", s2_pretrain=config)
    command = ["-m", "torch.distributed.run", "--nproc_per_node", "2", "--master_port", "0", "--standalone"]
    returned, output = launch([*command, "-m", "hf_pretrain.scripts.pretrain", "--config", path], two)
    assert returned == 0, output
    keys = ("loss", "grad_norm", "learning_rate", "ce_loss", "data/phase", "data/books/tokens", "tokens_seen")
    for first, second in zip(log(one, "2_pretrain"), log(two, "2_pretrain"), strict=True):
        assert first["step"] == second["step"]
        for key in keys:
            if key in first:
                close = first[key] if isinstance(first[key], str) else pytest.approx(first[key], abs=2e-5)
                assert second[key] == close, key
    begin, end = (facts(folder, "2_pretrain")["held_out"]["end"]["web"] for folder in (one, two))
    assert begin["tokens"] == end["tokens"]
    assert end["loss"] == pytest.approx(begin["loss"], abs=2e-5)
    assert facts(two, "2_pretrain")["processes"] == 2
    order = [json.loads((folder / "2_pretrain" / "data_order.json").read_text()) for folder in (one, two)]
    assert order[0]["schedule"] == order[1]["schedule"]
    (first,), (second,) = (entry["batches"] for entry in order)
    assert {**first, "world_size": 2} == second


@pytest.mark.slow
def test_accelerate_launch_works_as_it_stands(tmp_path):
    run, (path,) = write_recipe(tmp_path, s2_pretrain={"model": MODEL, "mixture": MIXTURE, "train_tokens": 256})
    config = str(ROOT / "recipes" / "accelerate_configs" / "single.yaml")
    command = ["-m", "accelerate.commands.launch", "--config_file", config]
    returned, output = launch([*command, "-m", "hf_pretrain.scripts.pretrain", "--config", path], run)
    assert returned == 0, output
    assert facts(run, "2_pretrain")["data"]["steps"] == 1


def test_a_job_with_a_time_limit_goes_on_in_the_next_one(tmp_path, capsys):
    keys = {"optim": "muon", "optim_args": "momentum=0.9", "clipping": "zclip", "async_save": True}
    stage = {"model": MODEL, "mixture": MIXTURE, "train_tokens": 4 * 256, **keys}
    run, (path,) = write_recipe(tmp_path, s2_pretrain=stage)
    assert pretrain.main(["--config", path, "--max-runtime", "0.001s"]) == 143
    assert "a checkpoint is saved" in capsys.readouterr().err
    assert [item.name for item in (run / "2_pretrain" / "checkpoints").glob("checkpoint-*")] == ["checkpoint-1"]
    assert pretrain.main(["--config", path, "--max-runtime", "1h"]) == 0
    found = facts(run, "2_pretrain")
    assert found["data"]["steps"] == 4 and 0 < found["throughput"]["goodput"] < 1
    assert found["throughput"]["lost_seconds"]["saves"] > 0 and found["throughput"]["lost_seconds"]["rewinds"] == 0
    assert pretrain.main(["--config", path, "--max-runtime", "soon"]) == 2
    assert "--max-runtime = 'soon'; a duration such as 3h50m" in capsys.readouterr().err

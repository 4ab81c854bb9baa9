"""`hf-pretrain plan`: what it prints, how fast, and what it refuses in one line."""

import json
import subprocess
import sys
import time

import pytest

from hf_pretrain.scripts.plan import main


def test_text(capsys):
    arguments = ["--params", "8B", "--tokens", "15T", "--gpus", "64xH100", "--mfu", "0.4", "--price", "2.5"]
    assert main([*arguments, "--unique-tokens", "5T", "--inference-tokens", "2T"]) == 0
    text = capsys.readouterr().out
    for part in (
        "8.00B total",
        "15.0T, 1875 a parameter",
        "7.2e+23 FLOPs (6n_total",
        "5.51 times",
        "hoffmann_rounded",
    ):
        assert part in text
    for part in ("deepseek", "step_law", "3.00, worth 14.4T", "device hours     561,735", "at 2.5 an hour", "mind"):
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 160


def test_json_of_a_budget(capsys):
    assert main(["--flops", "1e21", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["tokens_per_parameter"] == pytest.approx(21.59, abs=6e-3)
    assert (plan["law"], plan["param_convention"], plan["flop_convention"]) == ("epoch", "total", "6n_total")
    assert plan["estimate"] is None and len(plan["band"]) == 8


def test_no_price_no_cost(capsys):
    assert main(["--params", "1B", "--gpus", "8xTPU v4"]) == 0
    text = capsys.readouterr().out
    assert "device hours" in text and "  cost" not in text and "no price is known" in text


@pytest.mark.parametrize("size", ["7b", "7B", "7e9"])
def test_sizes(size, capsys):
    assert main(["--params", size, "--tokens", "2T", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["parameters"] == 7e9


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--params", "7", "--tokens", "1T"], "params = '7'; a unit is needed: 7B"),
        (["--params", "7B", "--tokens", "15"], "tokens = '15'; a unit is needed"),
        (["--params", "7B", "--gpus", "64xH10O"], "Did you mean 'H100'?"),
        (["--flops", "1e21", "--law", "epcoh"], "Did you mean 'epoch'?"),
        (["--flops", "0"], "flops = 0.0; a positive number"),
        (["--params=-7B"], "a positive number"),
        (["--flops", "nan"], "flops = nan"),
        (["--flops", "lots"], "flops = 'lots'; write it like 1e21"),
        (["--flops", "1e21", "--gpus", "H100", "--mfu", "40"], "0.4 for 40 %"),
        ([], "nothing to plan from"),
    ],
)
def test_mistakes_are_one_line(arguments, message, capsys):
    assert main(arguments) == 2
    output = capsys.readouterr()
    assert output.out == "" and output.err.startswith("error: ") and output.err.count("\n") == 1
    assert message in output.err


def test_fast_and_light():
    code = (
        "import sys; from hf_pretrain.scripts.cli import main; "
        "rc = main(['plan', '--params', '8B', '--tokens', '15T', '--gpus', '64xH100', '--json']); "
        "sys.exit(rc or any(m in sys.modules for m in ('torch', 'transformers', 'numpy', 'scipy')))"
    )
    times = []
    for _ in range(3):  # the best of three: other work on the machine is not ours to measure
        begin = time.monotonic()
        outcome = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        times.append(time.monotonic() - begin)
        assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["flops"] == pytest.approx(7.2e23)
    assert min(times) < 1.5


def planned(capsys, *arguments):
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_model_steps_and_layout(capsys):
    plan = planned(capsys, "--params", "8B", "--tokens", "15T", "--gpus", "64xH100", "--long-context", "131072")
    assert plan["parameter_counts"]["total"] == pytest.approx(8e9, rel=0.03)
    names = [stage["name"] for stage in plan["stages"]]
    shares = [stage["compute_share"] for stage in plan["stages"]]
    assert names == ["stable", "anneal", "long context"] and sum(shares) == pytest.approx(1)
    assert shares[2] > 0.05  # the same share of the tokens costs more at a longer context
    assert plan["steps"] * plan["global_batch_size"] * plan["seq_length"] >= 15e12
    assert len(plan["layout_search"]["layouts"]) == 5 and plan["layout_search"]["rejected"]
    head = plan["head_memory"]
    assert head["liger"] < head["chunked"] < head["naive"]
    assert {one["topic"] for one in plan["advice"]} >= {"embeddings", "warm-up", "decay"}
    assert plan["references"] and plan["warmup_steps"] > 0
    text = main(["--params", "8B", "--tokens", "15T", "--gpus", "64xH100", "--watts", "700"])
    out = capsys.readouterr().out
    assert text == 0 and "layouts, best of" in out and "kWh" in out and "beside it" in out
    assert max(len(line) for line in out.splitlines()) <= 160


def test_configurations(capsys, tmp_path):
    from hf_pretrain.models.strata.configuration_strata import PRESETS, StrataConfig
    from hf_pretrain.planning.counting import count_parameters
    from hf_pretrain.scripts.model_configs import strata_config, strata_presets

    for name in PRESETS:
        ours, real = strata_presets()[name], StrataConfig.preset(name).to_dict()
        assert count_parameters(ours) == count_parameters(real), name
    smaller = strata_config({"preset": "tiny-moe", "hidden_size": 64, "intermediate_size": 96}, "here")
    built = StrataConfig.preset("tiny-moe", hidden_size=64, intermediate_size=96, moe_intermediate_size=48)
    assert count_parameters(smaller).embedding == count_parameters(built.to_dict()).embedding
    llama = {"model_type": "llama", "vocab_size": 32000, "hidden_size": 4096, "num_hidden_layers": 32}
    llama |= {"num_attention_heads": 32, "num_key_value_heads": 32, "intermediate_size": 11008}
    (tmp_path / "config.json").write_text(json.dumps(llama))
    plan = planned(capsys, "--config", str(tmp_path), "--tokens", "2T")
    assert plan["parameters"] == 6738415616 and plan["tokens_per_parameter"] == pytest.approx(296.8, abs=0.05)
    sparse = planned(capsys, "--config", "moe-1b-a300m", "--tokens", "30B")
    assert sparse["parameters"] == sparse["parameter_counts"]["active"] < sparse["parameter_counts"]["total"]
    assert any("dense models" in warning for warning in sparse["warnings"])
    recipe = planned(capsys, "recipes/tiny_cpu")
    assert recipe["tokens"] == 1_950_000 and recipe["seq_length"] == 256 and recipe["global_batch_size"] == 8


@pytest.mark.parametrize(
    "arguments",
    [
        ["--params", "8B", "--tokens", "15T", "--gpus", "64xH100", "--long-context", "131072"],
        ["--config", "moe-1b-a300m", "--gpus", "8xH100", "--days", "7"],
        ["--params", "5M", "--tokens", "20M", "--seq-length", "256"],
    ],
)
def test_a_written_recipe_passes_the_dry_run(arguments, tmp_path, capsys):
    from hf_pretrain.scripts.run import main as run

    folder = tmp_path / "planned"
    assert main([*arguments, "--write", str(folder), "--plot", str(tmp_path / "plan.svg")]) == 0
    capsys.readouterr()
    assert run([str(folder), "--dry-run"]) == 0
    assert "1_pretrain" in capsys.readouterr().out
    plan = json.loads((folder / "plan.json").read_text())
    assert f"global_batch_size: {plan['global_batch_size']}" in (folder / "1_pretrain.yaml").read_text()
    svg = (tmp_path / "plan.svg").read_text()
    assert svg.startswith("<svg") and svg.endswith("</svg>") and "frontier" in svg and "plan: " in svg
    assert main([*arguments, "--write", str(folder)]) == 2
    assert "it holds something already" in capsys.readouterr().err


def test_the_launch_configuration_is_accelerates(tmp_path, capsys):
    from accelerate.commands.config.config_args import load_config_from_file

    folder = tmp_path / "planned"
    assert (
        main(
            [
                "--params",
                "70B",
                "--tokens",
                "1T",
                "--gpus",
                "1024xH100",
                "--seq-length",
                "8192",
                "--write",
                str(folder),
            ]
        )
        == 0
    )
    config = load_config_from_file(str(folder / "accelerate.yaml"))
    assert config.num_processes == 1024 and config.num_machines == 128 and config.fsdp_config["fsdp_version"] == 2
    degrees = config.parallelism_config
    assert degrees["parallelism_config_tp_size"] > 1
    product = 1
    for name in ("dp_replicate", "dp_shard", "tp", "cp"):
        product *= degrees[f"parallelism_config_{name}_size"]
    assert product == 1024


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--config", "dense-1b-x"], "Did you mean 'dense-1b'"),
        (["--config", "dense-1b", "--params", "1B"], "leave one out"),
        (["recipes/tiny_cpu", "--config", "dense-1b"], "leave --config and --params out"),
        (["recipes/none"], "is no folder"),
        (["--params", "1B", "--tokens", "20B", "--anneal", "2"], "anneal = 2.0; a share"),
        (["--params", "1B", "--tokens", "20B", "--long-context", "64"], "it must be longer than seq_length"),
        (["--params", "1B", "--tokens", "20B", "--head", "naiv"], "Did you mean 'naive'"),
        (["--params", "1B", "--gpus", "12xH100"], "they do not fill nodes of 8"),
        (["--params", "1B", "--gpus", "8xH100", "--network-gbs", "0"], "network_gbs = 0"),
        (["--params", "1B", "--gpus", "8xH100", "--hardware", "none.yaml"], "it cannot be read"),
        (["--params", "400B", "--tokens", "1T", "--gpus", "8xH100"], "no layout works"),
        (["--params", "1B", "--gpus", "8xH100", "--watts", "-1"], "watts = -1"),
        (["--params", "1B", "--tokens", "20B", "--vocab-size", "9000000"], "give --vocab-size or --config"),
    ],
)
def test_bad_plans(arguments, message, capsys):
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error and len(error.strip().splitlines()) == 1

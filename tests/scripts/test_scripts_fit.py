"""`hf-pretrain fit`: what it prints, draws and refuses."""

import json
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from hf_pretrain.planning.chinchilla import EPOCH
from hf_pretrain.scripts.fit import main


@pytest.fixture(autouse=True)
def loud(monkeypatch):
    """`--json` and `--quiet` set this for the whole process."""
    monkeypatch.setenv("HF_PRETRAIN_QUIET", "")


@pytest.fixture
def csv_file(tmp_path):
    lines = ["name,parameters,tokens,loss,held_out"]
    for size in (1e8, 3e8, 1e9, 3e9):
        for tokens in (2e9, 6e9, 2e10, 6e10):
            lines.append(
                f"n{size:g}_d{tokens:g},{size},{tokens},{EPOCH.loss(size, tokens)},{int(size * tokens > 1e20)}"
            )
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_the_table_for_people(csv_file, capsys):
    assert main([str(csv_file), "--target", "1e21", "--resamples", "5"]) == 0
    text = capsys.readouterr().out
    assert "15 runs" in text  # one is held out
    assert "  alpha           0.3478" in text
    assert "best split of 1e+21 FLOPs" in text and "2.78B" in text
    assert "n3e+09_d6e+10" in text and "+0.00%" in text


def test_json_and_plots(csv_file, tmp_path, capsys):
    folder = tmp_path / "plots"
    assert main([str(csv_file), "--resamples", "5", "--json", "--target", "1e21", "--plot", str(folder)]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["law"]["beta"] == pytest.approx(EPOCH.beta, rel=1e-3)
    assert len(found["plots"]) == 2
    for file in folder.iterdir():
        root = ElementTree.parse(file).getroot()
        assert root.tag.endswith("svg")
        circles = [item for item in root.iter() if item.tag.endswith("circle")]
        assert len(circles) >= 16


def test_a_named_run_is_held_out(csv_file, capsys):
    assert main([str(csv_file), "--resamples", "3", "--json", "--held-out", "n1e+08_d2e+09"]) == 0
    assert [run["name"] for run in json.loads(capsys.readouterr().out)["held_out"]] == ["n1e+08_d2e+09"]
    assert main([str(csv_file), "--held-out", "nobody"]) == 2
    assert "there is no such run: n1e+08" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--target", "21"], "write all of it with an exponent"),
        (["--resamples", "1"], "at least 2 are needed"),
        (["--level", "80"], "level = 80.0; a share"),
        (["--count", "totals"], "Did you mean 'total'"),
    ],
)
def test_wrong_options_are_one_line(csv_file, capsys, options, message):
    assert main([str(csv_file), *options]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1


def test_the_ladder_on_cpu_predicts_a_run_of_twice_the_cost(tmp_path, capsys):
    """The runs of recipes/ladder_cpu, as they were trained: the fit, its prediction, and what its README says."""
    recipe = Path(__file__).parents[2] / "recipes" / "ladder_cpu"
    copy = tmp_path / "again.csv"
    options = ["--resamples", "20", "--json", "--csv", str(copy)]
    assert main([str(recipe / "points.csv"), *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert len(found["fitted"]) == 13
    (last,) = found["held_out"]
    others = [6 * run["parameters"] * run["tokens"] for run in found["fitted"]]
    assert 6 * last["parameters"] * last["tokens"] > 1.9 * max(others)
    assert abs(last["error"]) < 0.03
    text = (recipe / "README.md").read_text(encoding="utf-8")
    for run in (*found["fitted"], last):
        assert f"| {run['measured']:.4f} | {run['predicted']:.4f} | {run['error']:+.2%} |" in text
    assert copy.read_text(encoding="utf-8") == (recipe / "points.csv").read_text(encoding="utf-8")


def test_no_torch_is_loaded(csv_file):
    code = (
        "import sys; from hf_pretrain.scripts.fit import main; "
        f"main([{str(csv_file)!r}, '--resamples', '2', '--json', '--plot', {str(csv_file.parent)!r}]); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0

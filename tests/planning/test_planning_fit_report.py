"""Points from files, IsoFLOP frontiers, and the report of a fit."""

import json
import math

import numpy as np
import pytest

from hf_pretrain.planning.chinchilla import EPOCH, HOFFMANN_ROUNDED
from hf_pretrain.planning.fit_report import make_fit_report
from hf_pretrain.planning.isoflop import fit_isoflop
from hf_pretrain.planning.ladder_points import RunPoint, point_from_facts, read_points
from hf_pretrain.utils.errors import UserError


SIZES, TOKENS = (1e8, 3e8, 1e9, 3e9), (2e9, 6e9, 2e10, 6e10)


def runs(law=EPOCH, noise=0.0, sizes=SIZES, tokens=TOKENS, seed=0):
    random = np.random.default_rng(seed)
    return [
        RunPoint(f"{n:g}/{d:g}", n, d, law.loss(n, d) * math.exp(noise * random.standard_normal()))
        for n in sizes
        for d in tokens
    ]


def write_csv(path, points, head="name,parameters,tokens,loss"):
    lines = [head, *(f"{p.name},{p.parameters!r},{p.tokens!r},{p.loss!r}" for p in points)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


# Reading


def test_a_csv_gives_constants_to_four_digits(tmp_path):
    points = read_points([write_csv(tmp_path / "runs.csv", runs(HOFFMANN_ROUNDED))])
    law = make_fit_report(points, resamples=10).fit.law
    assert (law.E, law.alpha, law.beta, law.A, law.B) == pytest.approx((1.69, 0.34, 0.28, 406.4, 410.7), rel=1e-4)


def test_other_names_of_columns_are_known(tmp_path):
    path = write_csv(tmp_path / "runs.csv", runs(), "Run,Model Size,Training Tokens,loss")
    assert len(read_points([path])) == 16


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is empty"),
        ("parameters,loss\n1e9,2\n", "no column tokens; it has parameters, loss"),
        ("parameters,tokens,loss\n1e9,2e10,nan\n", "line 2: loss = nan; a positive number"),
        ("parameters,tokens,loss\n1e9,2e10,\n", "line 2: loss = ''; a number"),
        ("parameters,tokens,loss\n1e9,-2e10,3\n", "line 2: tokens = -2e10; a positive"),
        ("parameters,tokens,loss\n1e9,2e10\n", "line 2: 2 values under 3 columns"),
        ("parameters,tokens,loss\n1,20,2.5\n7,140,2.1\n", "parameters = 7 at most .line 3.; are these billions"),
        ("parameters,tokens,loss\n1e9,20,2.5\n7e9,140e9,2.1\n", "tokens span 20 .line 2. to 1.4e.11 .line 3.; one of"),
        ("parameters,tokens,loss\n1e18,2e10,2.5\n", "parameters = 1e.18 .line 2.; nobody has trained that"),
        ("parameters,tokens,loss\n1e9,2e10,25\n", "loss = 25 .line 2.; nats"),
        ("parameters,tokens,loss,flops\n1e9,2e10,2.5,1.2e11\n", "line 2: flops = 1.2e.11, but 6 N D = 1.2e.20"),
    ],
)
def test_a_broken_csv_is_one_clear_error(tmp_path, text, message):
    path = tmp_path / "runs.csv"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message):
        read_points([path])


def test_missing_files_and_unknown_counts(tmp_path):
    with pytest.raises(UserError, match="does not exist"):
        read_points([tmp_path / "none.csv"])
    with pytest.raises(UserError, match="does not exist"):
        read_points([tmp_path / "none"])
    with pytest.raises(UserError, match="holds no finished pretraining"):
        read_points([tmp_path])
    with pytest.raises(UserError, match="Unknown count 'totl'. Did you mean 'total'"):
        read_points([tmp_path], "totl")


def stage_facts(total, tokens, loss):
    return {
        "kind": "pretrain",
        "model": {"total_parameters": total, "non_embedding_parameters": total // 2},
        "data": {"train_tokens": tokens, "sources": {"web": {"epochs": 0.5}, "books": {"epochs": 5.0}}},
        "held_out": {"end": {"web": {"loss": loss, "tokens": 300}, "books": {"loss": loss + 1, "tokens": 100}}},
    }


def test_facts_are_pooled_over_the_held_out_tokens():
    point = point_from_facts(stage_facts(1000, 5000, 4.0), "a")
    assert (point.parameters, point.tokens, point.loss, point.epochs) == (1000, 5000, 4.25, 5.0)
    assert point_from_facts(stage_facts(1000, 5000, 4.0), "a", "non_embedding").parameters == 500
    with pytest.raises(UserError, match="a: its facts are incomplete"):
        point_from_facts({"model": {}}, "a")


def test_the_folder_of_a_ladder(tmp_path):
    for index, total in enumerate((100_000, 400_000)):
        folder = tmp_path / "rungs" / f"r{index}"
        folder.mkdir(parents=True)
        facts = {"schema": 1, "stages": {"1_pretrain": stage_facts(total, 10**6, 4.0)}}
        (folder / "facts.json").write_text(json.dumps(facts), encoding="utf-8")
    (tmp_path / "ladder.json").write_text(json.dumps({"rungs": [{"name": "r1", "held_out": True}]}), encoding="utf-8")
    found = read_points([tmp_path])
    assert [(point.name, point.held_out) for point in found] == [("r0", False), ("r1", True)]
    (tmp_path / "rungs" / "r0" / "facts.json").write_text("{", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be read as JSON"):
        read_points([tmp_path])


def test_a_run_of_many_stages_is_its_first(tmp_path):
    stages = {"2_pretrain": stage_facts(100_000, 10**6, 4.0), "3_anneal": stage_facts(100_000, 10**5, 3.0)}
    (tmp_path / "facts.json").write_text(json.dumps({"schema": 1, "stages": stages}), encoding="utf-8")
    (found,) = read_points([tmp_path])
    assert found.name.endswith("/2_pretrain") and found.tokens == 10**6


# Approach 2


def equal_compute(law, budgets, width):
    points = []
    for flops in budgets:
        best = law.optimum(flops).parameters
        for size in np.geomspace(best / width, best * width, 15):
            tokens = flops / 6 / size
            points.append(RunPoint(f"{size:g}", float(size), float(tokens), law.loss(float(size), float(tokens))))
    return points


@pytest.mark.parametrize(("width", "ratio"), [(2, 0.9990), (4, 0.9961), (8, 0.9912), (16, 0.9844)])
def test_approach_2_has_the_exponent_and_the_known_bias(width, ratio):
    found = fit_isoflop(equal_compute(EPOCH, (1e19, 1e20, 1e21), width))
    assert found.exponent == pytest.approx(EPOCH.a, abs=1e-4)
    assert found.parameters(1e20) / EPOCH.optimum(1e20).parameters == pytest.approx(ratio, abs=5e-5)
    assert not found.interpolated


def test_approach_2_between_runs_of_unequal_compute():
    points = runs(sizes=np.geomspace(1e8, 1e10, 9).tolist(), tokens=np.geomspace(1e9, 3e11, 12).tolist())
    found = fit_isoflop(points)
    assert found.interpolated
    assert found.exponent == pytest.approx(EPOCH.a, abs=0.1)
    assert found.parameters(1e20) == pytest.approx(EPOCH.optimum(1e20).parameters, rel=0.25)


def test_approach_2_needs_a_valley():
    with pytest.raises(UserError, match="have their lowest loss within the sizes"):
        fit_isoflop(runs(sizes=(1e9, 3e9, 1e10), tokens=(1e9, 2e9, 4e9)))


# The report


def test_noise_of_half_a_percent_within_the_bands_of_the_replication():
    """10 sizes by 7 ratios, log noise 0.005: alpha, beta and a within 0.03 (arXiv 2404.10102's set-up)."""
    random = np.random.default_rng(1)
    points = [
        RunPoint(f"{n:g}/{m}", float(n), float(n * m), EPOCH.loss(float(n), float(n * m)) * math.exp(0.005 * z))
        for n in np.logspace(7.7, 10, 10)
        for m, z in zip((2, 5, 10, 20, 50, 100, 200), random.standard_normal(7), strict=True)
    ]
    report = make_fit_report(points, target_flops=1e21, resamples=30)
    law = report.fit.law
    assert (law.alpha, law.beta) == (pytest.approx(EPOCH.alpha, abs=0.03), pytest.approx(EPOCH.beta, abs=0.03))
    assert law.a == pytest.approx(EPOCH.a, abs=0.03)
    low, high = report.target.intervals["parameters"]
    assert low < report.target.parameters < high
    assert low < EPOCH.optimum(1e21).parameters * 1.3 and high > EPOCH.optimum(1e21).parameters / 1.3


def test_the_costliest_run_tests_the_fit():
    report = make_fit_report(runs(noise=0.002), resamples=20)
    (last,) = report.held_out
    assert last.name == "3e+09/6e+10" and abs(last.error) < 0.01
    assert report.fit.num_points == 16
    low, high = last.interval
    assert low <= last.predicted * 1.02 and high >= last.predicted * 0.98


def test_flagged_runs_are_not_fitted():
    points = [RunPoint(p.name, p.parameters, p.tokens, p.loss, p.name == "1e+08/2e+09") for p in runs()]
    report = make_fit_report(points, resamples=10)
    assert report.fit.num_points == 15
    assert [item.name for item in report.held_out] == ["1e+08/2e+09"]
    assert report.held_out[0].error == pytest.approx(0, abs=1e-4)


def test_the_report_is_plain_json():
    report = make_fit_report(runs(noise=0.002), target_flops=1e21, resamples=20)
    plain = json.loads(json.dumps(report.to_dict(), allow_nan=False))
    assert plain["target"]["parameters"] == pytest.approx(report.target.parameters)
    assert set(plain["intervals"]) == {"E", "A", "B", "alpha", "beta", "a", "b", "G"}


def test_too_little_is_refused_with_what_to_add():
    with pytest.raises(UserError, match="4 runs; five constants need at least 5"):
        make_fit_report(runs()[:4])
    with pytest.raises(UserError, match="parameters .N. span a factor of 1.00"):
        make_fit_report(runs(sizes=(1e9,), tokens=np.geomspace(1e9, 1e11, 8).tolist()))
    narrow = runs(noise=0.02, sizes=(1e8, 2e8, 4e8), tokens=(1e9, 2e9, 4e9))
    with pytest.raises(UserError, match="too wide to extrapolate: add runs of larger models"):
        make_fit_report(narrow, target_flops=1e24, resamples=12)


def test_what_to_mind():
    repeated = [RunPoint(p.name, p.parameters, p.tokens, p.loss, epochs=6.0) for p in runs(noise=0.001)]
    words = " ".join(make_fit_report(repeated, target_flops=1e24, resamples=20).warnings)
    assert "more than 4 epochs over a source" in words
    assert "times the costliest run" in words

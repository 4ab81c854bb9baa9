"""The page: whole, self-contained, for any part of a run."""

import json
import re
from html.parser import HTMLParser

import pytest
from run_fixture import facts, write_run

from hf_pretrain.hub.model_card import numbers_not_in_facts
from hf_pretrain.reporting.page import THEME, render_report, write_report
from hf_pretrain.reporting.run_data import RunData, last_router_load, load_run, mixture_over_time
from hf_pretrain.scripts.report import main
from hf_pretrain.utils.errors import UserError


VOID = {"meta", "link", "input", "br", "line", "polyline", "polygon", "path"}


class Checker(HTMLParser):
    """Collects text outside of drawings and style, and that tags close in order."""

    def __init__(self):
        super().__init__()
        self.stack, self.text, self.links, self.ids = [], [], [], []

    def handle_starttag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("href", "src", "action")]
        self.ids += [value for name, value in attributes if name == "id"]
        if tag not in VOID:
            self.stack.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.links += [value for name, value in attributes if name in ("href", "src")]

    def handle_endtag(self, tag):
        assert self.stack.pop() == tag

    def handle_data(self, data):
        if not {"style", "svg"} & set(self.stack):
            self.text.append(data)


def read(page):
    checker = Checker()
    checker.feed(page)
    assert checker.stack == []
    return checker


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run") / "tiny_cpu")


@pytest.fixture(scope="module")
def page(run_dir):
    return render_report(load_run(run_dir))


def test_page_is_whole_and_needs_nothing_from_elsewhere(page):
    checker = read(page)
    assert "<script" not in page and "@import" not in page and "url(" not in page
    assert [link for link in checker.links if not link.startswith("#")] == ["data:,"]
    assert {link[1:] for link in checker.links if link.startswith("#")} <= set(checker.ids)
    assert len(page) < 400_000


def test_every_section_is_there(page):
    titles = re.findall(r"<h2>(.*?)</h2>", page)
    assert titles == [
        "Result",
        "Long context",
        "Benchmarks",
        "Training",
        "Data mixture",
        "Routers",
        "Corpus",
        "Instruction tuning",
        "Sources and licences",
        "Sample",
        "Versions",
    ]
    assert page.count('class="chart wide"') == page.count('class="chart narrow"') >= 11


def test_numbers_of_the_text_are_facts_or_log_values(page, run_dir):
    text = " ".join(read(page).text)
    # The load of the experts is read from the log, relative to the mean of its layer.
    _, load = last_router_load(load_run(run_dir).logs)
    known = [facts(), [[round(value, 2) for value in row] for row in load], {"layers": list(range(8))}]
    # How many log entries a running median spans is said in its caption.
    text = re.sub(r"running median of \d+ entries|1\.00 is balance|0 is balance|ln 2|UTF-8", "", text)
    assert numbers_not_in_facts(text, known) == []


def test_rewinds_are_told(page):
    for text in ("Rewinds", "back to step", "3840 to 3968"):
        assert text in page


def test_themes_name_the_same_colours(page):
    used = set(re.findall(r"var\(--([\w-]+)\)", page)) - {"k"}
    assert used <= set(THEME)
    assert page.count("color-scheme: dark;") == 2 and page.count("color-scheme: light;") == 2


@pytest.mark.parametrize("count", range(8))
def test_partial_runs_have_pages(tmp_path, count):
    stages = facts()["recipe"]["stages"][:count]
    text = render_report(load_run(write_run(tmp_path / "run", stages)))
    read(text)
    assert "None" not in re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL)
    if count < 7:
        assert "Not run yet" in text


def test_a_dense_model_without_logs_has_a_page(tmp_path):
    write_run(tmp_path / "run")
    content = facts()
    for name in ("2_pretrain", "3_anneal", "4_long_context"):
        content["stages"][name]["model"]["config"]["num_experts"] = 0
        (tmp_path / "run" / name / "log.jsonl").unlink()
    (tmp_path / "run" / "facts.json").write_text(json.dumps(content))
    text = render_report(load_run(tmp_path / "run"))
    read(text)
    assert "A dense language model" in text and "Routers" not in text


def test_text_from_the_run_is_escaped(tmp_path):
    content = facts()
    attack = "<img src=x onerror=alert(1)>\"'&"
    content["recipe"]["name"] = attack
    corpus = content["stages"]["1_corpus"]
    corpus["sources"][attack] = corpus["sources"].pop("web")
    corpus["funnel"]["alarms"] = [attack]
    corpus["funnel"]["stages"][0]["stage"] = attack
    content["stages"]["7_push"]["reload"]["text"] = attack
    content["stages"]["6_evaluate"]["convention"] = attack
    text = render_report(RunData(content))
    read(text)
    assert "<img" not in text


def test_half_written_and_repeated_log_lines_are_read_once(tmp_path):
    write_run(tmp_path / "run")
    path = tmp_path / "run" / "2_pretrain" / "log.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join([*lines, lines[5], lines[6][:40]]) + "\n")
    log = load_run(tmp_path / "run").logs[0]
    assert [line["step"] for line in log.lines] == list(range(1, 201))
    assert log.tokens == sorted(log.tokens)


def test_stages_follow_each_other_on_the_token_axis(run_dir):
    logs = load_run(run_dir).logs
    totals = [facts()["stages"][log.name]["data"]["train_tokens"] for log in logs]
    assert [log.offset for log in logs] == [0, totals[0], totals[0] + totals[1]]
    assert logs[-1].tokens[-1] == sum(totals)


def test_mixture_shares_sum_to_one_and_show_the_anneal(run_dir):
    borders, shares = mixture_over_time(load_run(run_dir).logs)
    assert len(borders) == len(next(iter(shares.values()))) + 1 and borders == sorted(borders)
    for place in range(len(borders) - 1):
        assert sum(values[place] for values in shares.values()) == pytest.approx(1)
    assert shares["web"][0] == pytest.approx(0.3, abs=0.01) and min(shares["web"]) < 0.1


def test_router_load_is_relative_to_the_layer(run_dir):
    stage, load = last_router_load(load_run(run_dir).logs)
    assert stage == "4_long_context"
    assert all(sum(row) / len(row) == pytest.approx(1) for row in load)


def test_command_line(run_dir, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert main([str(run_dir), "--out", str(target)]) == 0
    assert capsys.readouterr().out.strip() == str(target) and target.read_text().startswith("<!doctype html>")
    assert main([str(tmp_path / "nowhere")]) == 2
    assert "holds no facts.json" in capsys.readouterr().err


def test_missing_facts_raise(tmp_path):
    with pytest.raises(UserError, match="holds no facts.json"):
        write_report(tmp_path, tmp_path / "x.html")

"""A recipe runs in order, skips what is done, goes on where it stopped, and fails in one line."""

import errno
import json
import re
import signal
import sys
import types
from pathlib import Path

import pytest

from hf_pretrain.scripts import cli, execution, recipe
from hf_pretrain.scripts import run as run_script
from hf_pretrain.utils.errors import Interrupted, UserError
from hf_pretrain.utils.facts import Facts


Capture = pytest.CaptureFixture


class Recorder:
    """Stands in for the stage scripts: notes what ran, and fails on command."""

    def __init__(self) -> None:
        self.ran: list[str] = []
        self.fail: dict[str, BaseException] = {}
        self.files: list[Path] = []

    def check(self, spec: recipe.StageSpec) -> None:
        if "bad" in spec.config:
            raise UserError("bad = 1; nothing is allowed.")

    def run(self, spec: recipe.StageSpec) -> None:
        self.ran.append(spec.name)
        (spec.stage_dir / "partial").write_text("x")
        if spec.name in self.fail:
            raise self.fail[spec.name]
        Facts(spec.run_dir).record_stage(spec.name, spec.kind, {"n": 1})

    def inputs(self, spec: recipe.StageSpec) -> list[Path]:
        return self.files if spec.kind == "corpus" else []


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    module = types.ModuleType("fake_stage")
    module.check, module.run, module.inputs = recorder.check, recorder.run, recorder.inputs
    monkeypatch.setitem(sys.modules, "fake_stage", module)
    monkeypatch.setattr(recipe, "STAGE_MODULES", dict.fromkeys(recipe.STAGE_MODULES, "fake_stage"))
    monkeypatch.setattr(execution, "STAGE_MODULES", recipe.STAGE_MODULES)
    report = types.ModuleType("fake_report")
    report.write_report = lambda run_dir, out: Path(out).write_text("report")
    monkeypatch.setitem(sys.modules, "hf_pretrain.scripts.report", report)
    return recorder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "mine"
    folder.mkdir()
    run_dir = tmp_path / "run"
    (folder / "1_corpus.yaml").write_text(f"stage: corpus\nrun_dir: {run_dir}\n")
    (folder / "2_pretrain.yaml").write_text(f"stage: pretrain\nrun_dir: {run_dir}\ncorpus: 1_corpus\nlr: 1\n")
    (folder / "3_sft.yaml").write_text(f"stage: sft\nrun_dir: {run_dir}\ninit_from: 2_pretrain\n")
    return folder


def run(folder: Path, *options: str) -> int:
    return run_script.main([str(folder), *options])


def test_everything_once_then_nothing(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    assert run(folder) == 0
    assert recorder.ran == ["1_corpus", "2_pretrain", "3_sft"]
    capsys.readouterr()
    assert run(folder) == 0
    assert len(recorder.ran) == 3
    assert "Nothing to do" in capsys.readouterr().out
    facts = Facts(folder.parent / "run").load()
    assert facts["recipe"]["name"] == "mine" and facts["environment"]["versions"]["hf_pretrain"]
    assert facts["stages"]["2_pretrain"]["n"] == 1 and "seconds" in facts["stages"]["2_pretrain"]


def test_what_changed_runs_again_with_what_hangs_on_it(recorder: Recorder, folder: Path) -> None:
    run(folder)
    recorder.ran.clear()
    assert run(folder, "--set", "2_pretrain.lr=2") == 0
    assert recorder.ran == ["2_pretrain", "3_sft"]
    assert (folder.parent / "run" / "2_pretrain.previous" / "partial").exists()
    recorder.ran.clear()
    assert run(folder, "--set", "2_pretrain.lr=2", "--force", "1_corpus") == 0
    assert recorder.ran == ["1_corpus", "2_pretrain", "3_sft"]


def test_changed_input_files_count(recorder: Recorder, folder: Path, tmp_path: Path) -> None:
    recorder.files = [tmp_path / "pages.jsonl"]
    recorder.files[0].write_text("1")
    run(folder)
    recorder.ran.clear()
    run(folder)
    assert recorder.ran == []
    recorder.files[0].write_text("12")
    run(folder)
    assert recorder.ran == ["1_corpus", "2_pretrain", "3_sft"]


def test_an_interrupted_stage_goes_on_in_its_folder(recorder: Recorder, folder: Path) -> None:
    recorder.fail = {"2_pretrain": Interrupted(signal.SIGTERM)}
    assert run(folder) == 128 + signal.SIGTERM
    recorder.fail.clear()
    recorder.ran.clear()
    assert run(folder) == 0
    assert recorder.ran == ["2_pretrain", "3_sft"]
    assert not (folder.parent / "run" / "2_pretrain.previous").exists()


@pytest.mark.parametrize(
    "name, content, message",
    [
        ("", "x", "run_dir = .*run; no folder can be made there"),
        ("1_corpus", "x", "the stage's folder = .*1_corpus; no folder can be made there"),
        ("recipe.json", "{", "recipe.json is damaged"),
        ("recipe.json", "[]", "recipe.json is damaged"),
        ("facts.json", "[1]", "schema None"),
    ],
)
def test_a_run_folder_that_cannot_be_used_is_refused_before_the_work(
    recorder: Recorder, folder: Path, capsys: Capture, name: str, content: str, message: str
) -> None:
    place = folder.parent / "run"
    if name:
        place.mkdir()
        (place / "recipe.json").write_text('{"name": "mine"}')
    (place / name if name else place).write_text(content)
    assert run(folder) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1 and re.match(f"error: .*{message}", lines[0])
    assert recorder.ran == []


@pytest.mark.parametrize(
    "error, code, message",
    [
        (UserError("rate = 2; below 1 is allowed."), 2, "error: rate = 2"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "error: the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 2, "error: the disk is full"),
        # What torch.save says of a file system that fills up while it writes.
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 64 vs 0"), 2, "the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "out.json"), 2, "error: out.json: Permission denied"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "aaa"), 2, "error: aaa: File name too long"),
        (KeyboardInterrupt(), 130, "run the same command again"),
    ],
)
def test_failures_are_one_line(
    recorder: Recorder, folder: Path, capsys: Capture, error: BaseException, code: int, message: str
) -> None:
    recorder.fail = {"2_pretrain": error}
    assert run(folder) == code
    text = capsys.readouterr().err
    assert message in text and "Traceback" not in text
    assert len(text.strip().splitlines()) == 1


def test_our_own_faults_keep_their_traceback(recorder: Recorder, folder: Path) -> None:
    recorder.fail = {"1_corpus": ZeroDivisionError("ours")}
    with pytest.raises(ZeroDivisionError):
        run(folder)


def test_all_stages_are_checked_before_the_first(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    assert run(folder, "--set", "3_sft.bad=1") == 2
    assert recorder.ran == [] and "bad = 1" in capsys.readouterr().err


def test_dry_run_and_until(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    assert run(folder, "--dry-run", "--json") == 0
    assert [item["reason"] for item in json.loads(capsys.readouterr().out)] == ["not run yet"] * 3
    assert not (folder.parent / "run").exists()
    assert run(folder, "--until", "1_corpus") == 0 and recorder.ran == ["1_corpus"]
    assert run(folder, "--until", "corpus") == 2 and run(folder, "--force", "corpus") == 2


def test_a_run_folder_belongs_to_one_recipe(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    run(folder)
    other = folder.parent / "other"
    folder.rename(other)
    assert run(other) == 2
    assert "holds a run of the recipe 'mine', not of 'other'" in capsys.readouterr().err


def test_a_foreign_folder_is_refused(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    (folder.parent / "run").mkdir()
    (folder.parent / "run" / "thesis.txt").write_text("dear")
    assert run(folder) == 2
    assert "was not made by a recipe" in capsys.readouterr().err
    assert (folder.parent / "run" / "thesis.txt").read_text() == "dear"


def test_two_processes_do_not_share_a_run_folder(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    with execution.run_folder_lock(folder.parent / "run"):
        assert run(folder) == 2
    assert "another process works in it" in capsys.readouterr().err


def test_a_single_stage_needs_what_it_builds_on(recorder: Recorder, folder: Path, capsys: Capture) -> None:
    config = ["--config", str(folder / "2_pretrain.yaml")]
    assert execution.stage_main("pretrain", recorder.run, config) == 2
    assert "builds on 1_corpus, which is not done" in capsys.readouterr().err
    assert execution.stage_main("corpus", recorder.run, ["--config", str(folder / "1_corpus.yaml")]) == 0
    assert execution.stage_main("pretrain", recorder.run, config) == 0
    assert execution.stage_main("corpus", recorder.run, config) == 2
    assert execution.stage_main("pretrain", recorder.run, [*config, "--check"]) == 0
    # A done stage stays as it is, whatever would overwrite its facts, until it is asked for.
    recorder.ran.clear()
    capsys.readouterr()
    assert execution.stage_main("pretrain", recorder.run, config) == 0 and recorder.ran == []
    assert "2_pretrain is done and unchanged" in capsys.readouterr().out
    assert execution.stage_main("pretrain", recorder.run, [*config, "--force"]) == 0
    assert recorder.ran == ["2_pretrain"]
    # What single verbs did, the recipe does not repeat.
    recorder.ran.clear()
    assert run(folder) == 0 and recorder.ran == ["3_sft"]


def test_the_command_names_its_verbs(capsys: Capture) -> None:
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    assert all(verb in text for verb in cli.VERBS)
    assert cli.main(["--version"]) == 0
    assert cli.main(["rnu"]) == 2
    assert "Did you mean 'run'" in capsys.readouterr().err


def test_an_interrupt_outside_the_guarded_part_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.importlib, "import_module", interrupted)
    assert cli.main(["run", "x"]) == 130
    assert capsys.readouterr().err.strip() == "interrupted: run the same command again to go on."

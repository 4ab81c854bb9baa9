"""Steps: complete or absent, skipped when done, resumed after an interrupt, done again when something changed."""

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from datatrove.data import Document
from datatrove.io import DataFolder
from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.documents import (
    DocumentReader,
    DocumentWriter,
    count_rows,
    document_files,
    read_documents,
)
from hf_pretrain.corpus.funnel import Counted
from hf_pretrain.corpus.stage import StepRunner, corpus_lock, run_pipeline
from hf_pretrain.utils.atomic import read_json
from hf_pretrain.utils.errors import Interrupted, UserError


def write_documents(folder, files: int = 3) -> None:
    target = folder / "documents" / "web"
    target.mkdir(parents=True)
    for rank in range(files):
        rows = [{"id": f"{rank}-{i}", "text": f"text {i}", "metadata": {"source": "web"}} for i in range(4)]
        (target / f"{rank:05d}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


class Odd(PipelineStep):
    """Drops every other document; fails on one id as often as asked."""

    name = "Odd"
    type = "TEST"
    seen: list[str] = []

    def __init__(self, fails: dict[str, BaseException] | None = None) -> None:
        super().__init__()
        self.fails = fails or {}

    def run(self, data, rank: int = 0, world_size: int = 1):
        for document in data:
            Odd.seen.append(document.id)
            if document.id in self.fails:
                raise self.fails[document.id]
            if int(document.id[-1]) % 2:
                yield document


def run_odd(folder, source, fails=None, tasks: int = 3, workers: int = 1):
    return run_pipeline(
        [
            DocumentReader(source / "documents", ["web"]),
            Counted("odd", Odd(fails), folder / "logs", 0),
            DocumentWriter(folder / "documents", folder / "logs"),
        ],
        folder / "logs",
        tasks,
        workers,
    )


class Killed(PipelineStep):
    """Ends its process as the system does when memory runs out."""

    name = "Killed"
    type = "TEST"

    def run(self, data, rank: int = 0, world_size: int = 1):
        for document in data:
            if document.id == "1-1":
                os.kill(os.getpid(), signal.SIGKILL)
            yield document


def test_a_killed_worker_is_an_error_and_no_endless_wait(tmp_path) -> None:
    write_documents(tmp_path / "in")
    blocks = [DocumentReader(tmp_path / "in" / "documents", ["web"]), Killed()]
    with pytest.raises(UserError, match="a worker process was killed"):
        run_pipeline(blocks, tmp_path / "logs", tasks=3, workers=2)


def test_step_runs_once_and_again_when_settings_or_inputs_change(tmp_path) -> None:
    calls: list[str] = []

    def work(name: str, value: int):
        def inner(folder):
            calls.append(name)
            (folder / "out.txt").write_text(str(value))
            return {"value": value}

        return inner

    def both(first: int, second: int):
        runner = StepRunner(tmp_path)
        one = runner.run("one", {"x": first}, [], work("one", first))
        two = runner.run("two", {"y": second}, [one], work("two", second))
        return runner, one, two

    _, one, two = both(1, 1)
    assert calls == ["one", "two"] and two.folder.name.startswith("02_two-")
    manifest = read_json(one.folder / "manifest.json")
    assert manifest["status"] == "done" and manifest["details"]["value"] == 1 and manifest["seconds"] >= 0
    _, again, _ = both(1, 1)
    assert calls == ["one", "two"] and again.reused and again.details == {"inputs": [], "value": 1}
    _, _, changed = both(1, 2)
    assert calls == ["one", "two", "two"] and (changed.folder / "out.txt").read_text() == "2"
    runner, _, _ = both(2, 2)
    assert calls[3:] == ["one", "two"]
    # The folders of other settings stay until they are cleared away, so going back costs nothing.
    both(1, 1)
    assert len(calls) == 5
    removed = runner.remove_superseded()
    assert len(removed) == 3 and one.folder.name in removed
    assert len(list(tmp_path.glob("steps/*"))) == 2


def test_interrupted_step_is_not_taken_for_done(tmp_path) -> None:
    def interrupted(folder):
        (folder / "half.txt").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        StepRunner(tmp_path).run("one", {}, [], interrupted)
    (partial,) = tmp_path.glob("steps/*")
    assert partial.name.endswith(".partial") and read_json(partial / "manifest.json")["status"] == "running"
    result = StepRunner(tmp_path).run("one", {}, [], lambda folder: {"seen": (folder / "half.txt").exists()})
    assert result.details["seen"] and not result.reused and not partial.exists()


def test_interrupted_pipeline_goes_on_with_the_tasks_left(tmp_path) -> None:
    write_documents(tmp_path / "in")
    Odd.seen = []
    with pytest.raises(Interrupted):
        run_odd(tmp_path / "out", tmp_path / "in", {"1-2": Interrupted(15)})
    assert Odd.seen == ["0-0", "0-1", "0-2", "0-3", "1-0", "1-1", "1-2"]
    Odd.seen = []
    outcome = run_odd(tmp_path / "out", tmp_path / "in")
    assert Odd.seen[0] == "1-0" and len(Odd.seen) == 8
    # Statistics and rows cover all tasks, those done before the interrupt as well.
    assert sum(row["documents_in"] for row in outcome.tallies) == 12
    assert count_rows(tmp_path / "out" / "logs") == {f"web/{rank:05d}.jsonl": 2 for rank in range(3)}
    files = document_files(tmp_path / "out" / "documents", ["web"])
    assert [document.id for file in files for document in read_documents(file)] == [
        f"{rank}-{i}" for rank in range(3) for i in (1, 3)
    ]


def test_two_workers_give_what_one_gives(tmp_path) -> None:
    write_documents(tmp_path / "in")
    one = run_odd(tmp_path / "one", tmp_path / "in")
    two = run_odd(tmp_path / "two", tmp_path / "in", workers=2)
    for outcome in (one, two):
        for row in outcome.tallies:
            row.pop("seconds")
    assert one.tallies == two.tallies
    for file in document_files(tmp_path / "one" / "documents", ["web"]):
        assert file.read_bytes() == (tmp_path / "two" / "documents" / "web" / file.name).read_bytes()


def test_mistakes_of_the_user_come_through_without_a_traceback(tmp_path, capfd) -> None:
    write_documents(tmp_path / "in")
    with pytest.raises(UserError, match="row 3 is bad"):
        run_odd(tmp_path / "out", tmp_path / "in", {"0-2": UserError("row 3 is bad")})
    captured = capfd.readouterr()
    assert "Traceback" not in captured.err + captured.out
    with pytest.raises(ZeroDivisionError):
        run_odd(tmp_path / "other", tmp_path / "in", {"0-2": ZeroDivisionError("bug")})
    assert "ZeroDivisionError" in (tmp_path / "other" / "logs" / "logs" / "task_00000.log").read_text()


def test_damaged_documents_are_named(tmp_path) -> None:
    write_documents(tmp_path / "01_step-abc")
    file = tmp_path / "01_step-abc" / "documents" / "web" / "00001.jsonl"
    file.write_text(file.read_text()[:-20])
    with pytest.raises(UserError, match="00001.jsonl, line 4 was changed or damaged .* remove the folder 01_step-abc"):
        run_odd(tmp_path / "out", tmp_path / "01_step-abc")


def test_documents_survive_the_round_trip(tmp_path) -> None:
    given = [Document("caf\u00e9\n\u2028 \U0001f40b", "x", metadata={"source": "a", "row": 3, "list": [1, None]})]
    writer = DocumentWriter(tmp_path / "documents", tmp_path / "logs")
    assert list(writer.run(iter(given))) == given
    (file,) = document_files(tmp_path / "documents", ["a", "missing"])
    assert read_documents(file) == given


def test_second_process_is_kept_out(tmp_path) -> None:
    code = textwrap.dedent(
        f"""
        from hf_pretrain.corpus.stage import corpus_lock
        try:
            with corpus_lock({str(tmp_path)!r}):
                print("in")
        except ValueError as error:
            print(error)
        """
    )
    with corpus_lock(tmp_path):
        inside = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    after = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "another process builds it" in inside and after.strip() == "in"


def test_a_full_disk_under_the_log_is_one_error_without_a_traceback(tmp_path, monkeypatch, capsys) -> None:
    write_documents(tmp_path / "in")

    def refuse(stream, text):
        raise OSError(errno.ENOSPC, "No space left on device")

    opened = DataFolder.open

    def open_full(self, path, *args, **kwargs):
        stream = opened(self, path, *args, **kwargs)
        if path.startswith("logs/"):
            stream.write = refuse.__get__(stream)
        return stream

    monkeypatch.setattr(DataFolder, "open", open_full)
    with pytest.raises(OSError, match="No space left"):
        run_odd(tmp_path / "out", tmp_path / "in", {"0-1": ValueError("first")})
    assert capsys.readouterr().err == ""

"""Files are complete or absent, facts are finite, fingerprints are stable."""

import errno
import json
import os
import threading
from dataclasses import dataclass
from pathlib import Path

import pytest

from hf_pretrain.utils import atomic
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts
from hf_pretrain.utils.fingerprint import fingerprint, fingerprint_files
from hf_pretrain.utils.manifest import StepManifest


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "a.txt"
    atomic.write_text(target, "old")

    def full_disk(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        atomic.write_text(target, "new")
    assert target.read_text() == "old"
    assert [item.name for item in tmp_path.iterdir()] == ["a.txt"]


def test_files_have_usual_permissions(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    target = tmp_path / "folder"
    with atomic.atomic_directory(target) as staging:
        (staging / "one").write_text("1")
        assert not target.exists()
    assert (target / "one").read_text() == "1"
    with pytest.raises(RuntimeError, match="boom"), atomic.atomic_directory(target) as staging:
        (staging / "two").write_text("2")
        raise RuntimeError("boom")
    with atomic.atomic_directory(tmp_path / "other"):
        pass
    assert sorted(item.name for item in tmp_path.iterdir()) == ["folder", "other"]
    assert [item.name for item in target.iterdir()] == ["one"]


def test_private_files_of_other_writers_become_usual_ones(tmp_path: Path) -> None:
    with atomic.atomic_directory(tmp_path / "folder") as staging:
        (staging / "weights").touch(mode=0o600)
        (staging / "other").write_text("x")
    assert (tmp_path / "folder" / "weights").stat().st_mode == (tmp_path / "folder" / "other").stat().st_mode


def test_a_folder_is_replaced(tmp_path: Path) -> None:
    for name in ("one", "two"):
        with atomic.atomic_directory(tmp_path / "folder") as staging:
            (staging / name).write_text(name)
    assert [item.name for item in (tmp_path / "folder").iterdir()] == ["two"]
    assert [item.name for item in tmp_path.iterdir()] == ["folder"]


def test_json_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        atomic.write_json(tmp_path / "a.json", {"x": float("nan")})
    assert not (tmp_path / "a.json").exists()


def test_facts_keep_sections_apart(tmp_path: Path) -> None:
    facts = Facts(tmp_path)
    facts.record("recipe", {"name": "tiny"})
    facts.record_stage("1_corpus", "corpus", {"documents": 3})
    facts.annotate_stage("1_corpus", seconds=1.5)
    facts.record_stage("2_pretrain", "pretrain", {"loss": {"last": 2.0}})
    loaded = facts.load()
    assert loaded["recipe"] == {"name": "tiny"}
    assert loaded["stages"]["1_corpus"] == {"kind": "corpus", "documents": 3, "seconds": 1.5}
    assert list(loaded["stages"]) == ["1_corpus", "2_pretrain"]


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_facts_refuse_what_is_not_finite(tmp_path: Path, bad: float) -> None:
    with pytest.raises(ValueError, match=r"2_pretrain.loss\[1\] = "):
        Facts(tmp_path).record_stage("2_pretrain", "pretrain", {"loss": [1.0, bad]})


def test_facts_refuse_objects_and_other_schemas(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="plain JSON data"):
        Facts(tmp_path).record("x", {"path": tmp_path})
    (tmp_path / "facts.json").write_text('{"schema": 99}')
    for content, message in ((b'{"schema": 1}', "has no stages"), (b"\xff\xfe", "is no JSON"), (b"{", "is no JSON")):
        (tmp_path / "facts.json").write_bytes(content)
        with pytest.raises(UserError, match=message):
            Facts(tmp_path).load()
    (tmp_path / "facts.json").write_text('{"schema": 99}')
    with pytest.raises(UserError, match="reads schema 1"):
        Facts(tmp_path).load()
    (tmp_path / "facts.json").write_text("{")
    with pytest.raises(UserError, match="no JSON"):
        Facts(tmp_path).load()


def test_writers_at_the_same_time_lose_nothing(tmp_path: Path) -> None:
    def write(number: int) -> None:
        Facts(tmp_path).record_stage(f"stage_{number}", "pretrain", {"n": number})

    threads = [threading.Thread(target=write, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Facts(tmp_path).load()["stages"]) == 16


@dataclass
class Settings:
    rate: float = 0.5
    names: tuple[str, ...] = ("a", "b")


def test_fingerprints_follow_content_not_order(tmp_path: Path) -> None:
    assert fingerprint({"a": 1, "b": [2]}) == fingerprint({"b": (2,), "a": 1})
    assert fingerprint(Settings()) == fingerprint({"names": ["a", "b"], "rate": 0.5})
    assert fingerprint(Settings()) != fingerprint(Settings(rate=0.6))
    with pytest.raises(TypeError, match="plain data"):
        fingerprint({"x": object()})
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = fingerprint_files([tmp_path / "a", tmp_path / "b"])
    assert before == fingerprint_files([tmp_path / "b", tmp_path / "a"])
    (tmp_path / "b").write_text("3")
    assert before != fingerprint_files([tmp_path / "a", tmp_path / "b"])


def test_a_manifest_survives_and_adds_up(tmp_path: Path) -> None:
    path = tmp_path / "stage.json"
    assert StepManifest.load(path) is None
    StepManifest(path, "abc").start()
    running = StepManifest.load(path)
    assert running.status == "running" and not running.is_done("abc")
    running.finish(2.0, rows=3)
    StepManifest.load(path).finish(1.0)
    done = StepManifest.load(path)
    assert done.is_done("abc") and not done.is_done("abd")
    assert done.seconds == 3.0 and done.details == {"rows": 3}
    path.write_text("{")
    assert StepManifest.load(path) is None


def test_jsonl_skips_blank_lines(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"a": 1}\n\n{"a": 2}\n')
    assert [row["a"] for row in atomic.read_jsonl(tmp_path / "a.jsonl")] == [1, 2]
    with pytest.raises(json.JSONDecodeError):
        (tmp_path / "b.jsonl").write_text("{")
        list(atomic.read_jsonl(tmp_path / "b.jsonl"))

"""Fetching transformers' test suite: what is accepted and what is not. The suite itself runs by `make conformance`."""

import importlib.util
import io
import subprocess
import tarfile
from pathlib import Path

import pytest


FILE = Path(__file__).parents[1] / "conformance" / "suite.py"


@pytest.fixture
def suite(monkeypatch):
    spec = importlib.util.spec_from_file_location("conformance_suite", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "MIXINS", ("test_one.py", "test_two.py"))
    return module


def pack(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


GOOD = [("t-1/tests/test_one.py", b"ONE = 1\n"), ("t-1/tests/test_two.py", b"from .exporters.test_export import *\n")]


def test_only_the_mixins_are_unpacked_beside_the_stand_ins(suite, tmp_path):
    strangers = [
        ("t-1/tests/../../test_one.py", b"raise"),
        ("/tests/test_two.py", b"raise"),
        ("t-1/setup.py", b"raise"),
    ]
    archive = pack(tmp_path / "a.tar.gz", [*strangers, *GOOD, ("t-1/tests/test_three.py", b"raise")])
    suite.unpack(archive, tmp_path / "package")
    found = {path.relative_to(tmp_path / "package").as_posix() for path in (tmp_path / "package").rglob("*.py")}
    folders = {"__init__.py", "exporters/__init__.py", "generation/__init__.py"}
    assert found == {"test_one.py", "test_two.py", *suite.REPLACED, *folders}
    assert (tmp_path / "package/test_one.py").read_bytes() == b"ONE = 1\n"


def test_archives_beyond_the_limits_are_refused(suite, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"lacks test_two\.py"):
        suite.unpack(pack(tmp_path / "a.tar.gz", GOOD[:1]), tmp_path / "package")
    monkeypatch.setattr(suite, "MAX_FILE_BYTES", 10)
    with pytest.raises(ValueError, match="at most 10 are read"):
        suite.unpack(pack(tmp_path / "b.tar.gz", GOOD), tmp_path / "package")
    monkeypatch.setattr(suite, "MAX_MEMBERS", 1)
    with pytest.raises(ValueError, match="more than 1 members"):
        suite.unpack(pack(tmp_path / "c.tar.gz", GOOD), tmp_path / "package")


def test_the_hash_decides(suite, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="note the new hash"):
        suite.download("0.0.1", tmp_path)
    archive = pack(tmp_path / "transformers-5.24.0.tar.gz", GOOD)
    with pytest.raises(ValueError, match="delete it and try again"):
        suite.download("5.24.0", tmp_path)
    monkeypatch.setattr(suite, "MAX_ARCHIVE_BYTES", 1)
    with pytest.raises(ValueError, match="at most 1 are read"):
        suite.download("5.24.0", tmp_path)
    archive.unlink()


def test_without_a_registry_the_suite_is_unavailable(suite, tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "warning\nERROR: no matching distribution\n")
    monkeypatch.setattr(suite.subprocess, "run", lambda *args, **kwargs: failed)
    with pytest.raises(suite.SuiteUnavailable, match="ERROR: no matching distribution"):
        suite.download("5.24.0", tmp_path)
    assert not list(tmp_path.iterdir())

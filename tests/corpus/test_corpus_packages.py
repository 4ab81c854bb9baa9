"""Packages as a source of text: cache, hashes, limits and what a failing pip says."""

import dataclasses
import hashlib
import io
import subprocess
import tarfile
import zipfile

import pytest

from hf_pretrain.corpus.ingest import packages
from hf_pretrain.corpus.ingest.packages import PINS, PackageArchive, PackagePin, fetch_packages, package_cache
from hf_pretrain.utils.errors import UserError


def zip_bytes(members):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return data.getvalue()


@pytest.fixture
def pin(monkeypatch):
    """One pinned package, whose bytes are known."""
    data = zip_bytes({"a/text.txt": "one\r\ntwo", "a/latin.txt": "caf\u00e9".encode("latin-1")})
    made = PackagePin("tiny", "1.0", "tiny-1.0-py3-none-any.whl", hashlib.sha256(data).hexdigest(), "MIT")
    monkeypatch.setattr(packages, "PINS", {"tiny": made})
    return made, data


def refuse(*args, **kwargs):
    raise AssertionError("pip was called")


def test_a_full_cache_calls_no_pip(tmp_path, pin, monkeypatch):
    (tmp_path / pin[0].filename).write_bytes(pin[1])
    monkeypatch.setattr(subprocess, "run", refuse)
    archive = fetch_packages(cache_dir=tmp_path)["tiny"]
    assert archive.names("a/", ".txt") == ["a/latin.txt", "a/text.txt"]
    assert archive.read_text("a/text.txt") == "one\ntwo"
    assert archive.read_text("a/latin.txt") == "caf\u00e9"


def pip_that(writes=None, code=0, stderr=""):
    def run(command, **kwargs):
        assert "--no-deps" in command
        assert "--require-hashes" in command
        if writes is not None:
            folder, data = command[command.index("--dest") + 1], writes
            with open(f"{folder}/tiny-1.0-py3-none-any.whl", "wb") as stream:
                stream.write(data)
        return subprocess.CompletedProcess(command, code, "", stderr)

    return run


def test_pip_fills_the_cache(tmp_path, pin, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pip_that(writes=pin[1]))
    fetch_packages(cache_dir=tmp_path / "new", quiet=True)
    assert [file.name for file in (tmp_path / "new").iterdir()] == [pin[0].filename]


def test_a_damaged_cache_entry_is_fetched_again(tmp_path, pin, monkeypatch):
    (tmp_path / pin[0].filename).write_bytes(b"half")
    monkeypatch.setattr(subprocess, "run", pip_that(writes=pin[1]))
    assert fetch_packages(cache_dir=tmp_path, quiet=True)["tiny"].read("a/text.txt")


def test_another_archive_is_refused(tmp_path, pin, monkeypatch):
    monkeypatch.setattr(subprocess, "run", pip_that(writes=zip_bytes({"evil.py": "x"})))
    with pytest.raises(UserError, match="tiny==1.0: what pip fetched is not .* with the pinned SHA-256"):
        fetch_packages(cache_dir=tmp_path, quiet=True)
    assert list(tmp_path.iterdir()) == []


def test_a_failing_pip_is_one_line(tmp_path, pin, monkeypatch):
    stderr = "WARNING: noise\nERROR: No matching distribution found for tiny==1.0\nmore\n"
    monkeypatch.setattr(subprocess, "run", pip_that(code=1, stderr=stderr))
    with pytest.raises(
        UserError, match=r"package tiny==1\.0: pip could not fetch it \(No matching .*put tiny-1\.0"
    ) as caught:
        fetch_packages(cache_dir=tmp_path, quiet=True)
    assert "\n" not in str(caught.value)


def test_a_pip_that_hangs_is_given_up(tmp_path, pin, monkeypatch):
    def hang(command, **kwargs):
        raise subprocess.TimeoutExpired(command, kwargs["timeout"])

    monkeypatch.setattr(subprocess, "run", hang)
    with pytest.raises(UserError, match="pip gave nothing within"):
        fetch_packages(cache_dir=tmp_path, quiet=True)


def tar_file(path, members):
    with tarfile.open(path, "w:gz") as archive:
        for name, content, kind in members:
            item = tarfile.TarInfo(name)
            item.type, item.size = kind, len(content) if kind == tarfile.REGTYPE else 0
            item.linkname = "/etc/hostname" if kind == tarfile.SYMTYPE else ""
            archive.addfile(item, io.BytesIO(content) if item.size else None)
    return path


def test_links_in_an_archive_are_not_followed(tmp_path):
    path = tar_file(tmp_path / "x.tar.gz", [("x/link", b"", tarfile.SYMTYPE), ("x/a.txt", b"text", tarfile.REGTYPE)])
    archive = PackageArchive(path)
    assert archive.names() == ["x/a.txt"]
    with pytest.raises(UserError, match="no member 'x/link'"):
        archive.read("x/link")


def test_size_limits(tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "MAX_MEMBER_BYTES", 10)
    with pytest.raises(UserError, match="larger than allowed"):
        PackageArchive(tar_file(tmp_path / "x.tar.gz", [("x/a.txt", b"x" * 11, tarfile.REGTYPE)]))
    (tmp_path / "x.whl").write_bytes(zip_bytes({"a": "x" * 11, "b": "ok"}))
    archive = PackageArchive(tmp_path / "x.whl")
    assert archive.read("b") == b"ok"
    with pytest.raises(UserError, match="more than 10"):
        archive.read("a")
    monkeypatch.setattr(packages, "MAX_TOTAL_BYTES", 12)
    with pytest.raises(UserError, match="unpacked"):
        PackageArchive(tmp_path / "x.whl")


@pytest.mark.parametrize("name", ["x.whl", "x.tar.gz"])
def test_no_archive(tmp_path, name):
    (tmp_path / name).write_bytes(b"nonsense")
    with pytest.raises(UserError, match="not a readable archive"):
        PackageArchive(tmp_path / name)


def test_pins_are_complete():
    assert len(PINS) == 5
    for pin in PINS.values():
        assert len(pin.sha256) == 64
        assert all(dataclasses.astuple(pin))
        assert pin.version in pin.filename


def test_cache_folder_follows_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path))
    assert package_cache() == tmp_path / "packages"
    assert package_cache(tmp_path / "x") == tmp_path / "x"

"""Files and folders that are complete or absent, never half written.

Everything is written under a temporary name beside its target, flushed to disk and renamed: a crash, a full disk or a
kill leaves the old content.
"""

import contextlib
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def _sync_folder(folder: Path) -> None:
    """Makes a rename inside `folder` durable; a file system that cannot sync a folder is left as it is."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_bytes(path: str | os.PathLike, data: bytes) -> None:
    """Writes a file so that readers see the old content or the new, nothing between.

    Args:
        path (`str` or `os.PathLike`): The file; missing parent folders are made.
        data (`bytes`): The whole content.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes private files; what we publish takes the usual permissions.
        umask = os.umask(0)
        os.umask(umask)
        os.chmod(name, 0o666 & ~umask)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
    _sync_folder(target.parent)


def write_text(path: str | os.PathLike, text: str) -> None:
    """Writes a UTF-8 text file atomically.

    Args:
        path (`str` or `os.PathLike`): The file.
        text (`str`): The whole content.
    """
    write_bytes(path, text.encode("utf-8"))


def write_json(path: str | os.PathLike, value: Any) -> None:
    """Writes a JSON file atomically; numbers must be finite.

    Args:
        path (`str` or `os.PathLike`): The file.
        value (`Any`): Plain JSON data.

    Raises:
        ValueError: If a number is NaN or infinite.
    """
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: str | os.PathLike) -> Any:
    """Reads a JSON file.

    Args:
        path (`str` or `os.PathLike`): The file.

    Returns:
        `Any`: Its content.
    """
    return json.loads(Path(path).read_text(encoding="utf-8"))


def read_jsonl(path: str | os.PathLike) -> Iterator[Any]:
    """Reads a file of one JSON value a line; blank lines are passed over.

    Args:
        path (`str` or `os.PathLike`): The file.

    Yields:
        `Any`: The value of each line.
    """
    with open(path, encoding="utf-8") as stream:
        for line in stream:
            if line.strip():
                yield json.loads(line)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Builds a folder aside and moves it to its place when the block ends without an error.

    Args:
        path (`str` or `os.PathLike`): The folder to make. An existing one is replaced once the new one is whole.

    Yields:
        `Path`: The temporary folder to write into.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp"))
    try:
        yield staging
        umask = os.umask(0)
        os.umask(umask)
        for file in staging.rglob("*"):
            if file.is_file() and not file.is_symlink():
                # Some writers (safetensors) make private files; what we publish takes the usual permissions.
                file.chmod(file.stat().st_mode | (0o666 & ~umask))
                with open(file, "rb") as stream:
                    os.fsync(stream.fileno())
        os.chmod(staging, 0o777 & ~umask)
        if target.exists():
            retired = Path(tempfile.mkdtemp(dir=target.parent, prefix=f".{target.name}.", suffix=".old"))
            os.replace(target, retired / "content")
            os.replace(staging, target)
            shutil.rmtree(retired)
        else:
            os.replace(staging, target)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        raise
    _sync_folder(target.parent)


def sha256_file(path: str | os.PathLike) -> str:
    """Hashes a file's content.

    Args:
        path (`str` or `os.PathLike`): The file.

    Returns:
        `str`: The SHA-256 digest, 64 hexadecimal digits.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()

"""Members of tar and zip archives of strangers, read in memory; nothing is ever unpacked to disk.

Refused, by member: names that lead out of the archive (`unsafe_path`), members that are too large or encrypted. Links
and devices are passed over. Refused as a whole: an archive that unpacks to more than `RATIO` times its size (a bomb),
or has more members than any tree. A damaged or cut-off archive gives what there is and then says so.
"""

from __future__ import annotations

import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from hf_pretrain.corpus.ingest.reader import FileFault, RowFault, Skipped
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault


TAR_SUFFIXES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
ZIP_SUFFIXES = (".zip", ".whl")
# Text packs to a fifth or a tenth; a bomb to a thousandth.
RATIO, FLOOR_BYTES, MAX_MEMBERS = 200, 64 * 2**20, 2_000_000

Member = tuple[str, bytes | RowFault | Skipped]


def read_members(path: Path, max_member_bytes: int) -> Iterator[Member]:
    """
    Members of an archive, by the ending of its name.

    Args:
        path (`Path`): A tar, plain or compressed, or a zip.
        max_member_bytes (`int`): Larger members are given as a fault.

    Returns:
        `Iterator[tuple[str, bytes | RowFault | Skipped]]`: name in the archive, and content or why there is none.

    Raises:
        FileFault: If the archive is damaged, cut off or a bomb; after the members before that.
    """
    if path.name.endswith(ZIP_SUFFIXES):
        yield from read_zip(path, max_member_bytes)
    else:
        with open_stream(path) as stream:
            yield from read_tar(stream, path.stat().st_size, max_member_bytes)


def read_tar(stream: BinaryIO, packed_bytes: int, max_member_bytes: int) -> Iterator[Member]:
    """
    Members of a tar stream; see [`read_members`].

    Args:
        stream (`BinaryIO`): Unpacked bytes.
        packed_bytes (`int`): Size of the file they come from.
        max_member_bytes (`int`): Larger members are given as a fault.

    Returns:
        `Iterator[tuple[str, bytes | RowFault | Skipped]]`: name and content.
    """
    budget = _Budget(packed_bytes)
    tail = _Tail(stream, budget)
    number = 0
    try:
        with tarfile.open(fileobj=tail, mode="r|") as archive:
            for item in archive:
                if item.isdir():
                    continue
                number += 1
                budget.member(number)
                name = item.name.removeprefix("./")
                if not _is_safe(item.name):
                    yield name, RowFault("unsafe_path", f"{item.name!r} leads out of the archive")
                elif item.issym() or item.islnk():
                    yield name, Skipped("link")
                elif not item.isfile():
                    yield name, Skipped("special_file")
                elif item.size > max_member_bytes:
                    yield name, RowFault("too_large", f"{name!r} has {item.size} bytes")
                else:
                    yield name, archive.extractfile(item).read()
        # The packed stream goes on after the end of the tar; only at its own end is it known to be whole.
        while tail.read(1 << 16):
            pass
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        what = "no tar archive" if number == 0 else f"damaged after member {number}"
        raise FileFault(stream_fault(stream) or f"{what} ({error})") from error
    if fault := stream_fault(stream):
        raise FileFault(f"{fault} after member {number}")
    if tail.last.strip(b"\0") != b"" or not tail.last:
        raise FileFault(f"tar archive cut off after member {number}")


def read_zip(path: Path | BinaryIO, max_member_bytes: int) -> Iterator[Member]:
    """
    Members of a zip; see [`read_members`].

    Args:
        path (`Path` or `BinaryIO`): The zip.
        max_member_bytes (`int`): Larger members are given as a fault.

    Returns:
        `Iterator[tuple[str, bytes | RowFault | Skipped]]`: name and content.
    """
    try:
        archive = zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError, ValueError, EOFError, NotImplementedError) as error:
        raise FileFault(f"no zip archive, or cut off ({error})") from error
    with archive:
        size = path.stat().st_size if isinstance(path, Path) else path.seek(0, io.SEEK_END)
        budget = _Budget(size)
        for number, item in enumerate(archive.infolist(), 1):
            if item.is_dir():
                continue
            budget.member(number)
            name = item.filename
            if not _is_safe(name):
                yield name, RowFault("unsafe_path", f"{name!r} leads out of the archive")
            elif item.flag_bits & 1:
                yield name, RowFault("encrypted", f"{name!r} is encrypted")
            elif item.file_size > max_member_bytes:
                yield name, RowFault("too_large", f"{name!r} has {item.file_size} bytes")
            else:
                yield name, _zip_member(archive, item, budget, max_member_bytes)


def _zip_member(
    archive: zipfile.ZipFile, item: zipfile.ZipInfo, budget: _Budget, max_member_bytes: int
) -> bytes | RowFault:
    try:
        with archive.open(item) as stream:
            data = stream.read(max_member_bytes + 1)  # the size in the directory may lie
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, NotImplementedError, RuntimeError) as error:
        return RowFault("broken_member", f"{item.filename!r} cannot be unpacked ({error})")
    budget.add(len(data))
    if len(data) > max_member_bytes:
        return RowFault("too_large", f"{item.filename!r} has more than {max_member_bytes} bytes")
    return data


class _Budget:
    """Raises once an archive has given more than an honest one of its size can."""

    def __init__(self, packed_bytes: int) -> None:
        self.packed, self.given = packed_bytes, 0

    def add(self, size: int) -> None:
        self.given += size
        if self.given > FLOOR_BYTES + RATIO * self.packed:
            raise FileFault(f"unpacks to more than {RATIO} times its {self.packed} bytes; refused as a bomb")

    def member(self, number: int) -> None:
        if number > MAX_MEMBERS:
            raise FileFault(f"more than {MAX_MEMBERS} members; refused")


class _Tail:
    """A stream that is counted, and whose last bytes are remembered: a whole tar ends in zeros."""

    def __init__(self, stream: BinaryIO, budget: _Budget) -> None:
        self._stream, self._budget, self.last = stream, budget, b""

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._budget.add(len(data))
        if data:
            self.last = (self.last + data)[-512:]
        return data


def _is_safe(name: str) -> bool:
    path = PurePosixPath(name.replace("\\", "/"))
    return not path.is_absolute() and ".." not in path.parts and "\0" not in name and not name[1:2] == ":"

"""Byte streams of raw files that give all they hold before they say that something is wrong.

Python's `gzip` raises at a fault and loses what it had unpacked of the same block: up to a whole small file. Here the
unpacked bytes come first; what was wrong is in `fault` afterwards.
"""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from pathlib import Path
from typing import BinaryIO


_BLOCK = 1 << 16


class GzipStream(io.RawIOBase):
    """
    Unpacked bytes of a gzip file of one or many members (RFC 1952).

    Args:
        path (`Path` or `BinaryIO`): The file, or an open one.

    Attributes:
        fault (`str`): Why reading ended early; `""` while nothing is wrong.
    """

    def __init__(self, path: Path | BinaryIO) -> None:
        super().__init__()
        self._file = open(path, "rb") if isinstance(path, Path) else path
        self._member = zlib.decompressobj(31)
        self._packed = b""
        self._started = False
        self.fault = ""

    def readable(self) -> bool:
        """
        Part of the stream protocol.

        Returns:
            `bool`: always `True`.
        """
        return True

    def readinto(self, buffer: memoryview) -> int:
        """
        Part of the stream protocol.

        Args:
            buffer (`memoryview`): Takes the bytes.

        Returns:
            `int`: how many; 0 at the end and after a fault.
        """
        while not self.fault:
            if not self._packed:
                self._packed = self._file.read(_BLOCK)
                if not self._packed:
                    if self._started:
                        self.fault = "gzip data cut off"
                    return 0
            if not self._started:
                # Zero padding may follow a member.
                self._packed = self._packed.lstrip(b"\0")
                if not self._packed:
                    continue
                self._started = True
            try:
                data = self._member.decompress(self._packed, len(buffer))
            except zlib.error as error:
                self.fault = f"damaged gzip data ({error})"
                return 0
            self._packed = self._member.unused_data if self._member.eof else self._member.unconsumed_tail
            if self._member.eof:
                self._member, self._started = zlib.decompressobj(31), False
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0

    def close(self) -> None:
        """Close the file."""
        self._file.close()
        super().close()


class BlockStream(GzipStream):
    """
    Unpacked bytes of a bzip2 or xz file of one or many streams; see [`GzipStream`] for the rest.

    Args:
        path (`Path`): The file, `.bz2` or `.xz`.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._kind = "bzip2" if path.name.endswith(".bz2") else "xz"
        self._new = bz2.BZ2Decompressor if self._kind == "bzip2" else lzma.LZMADecompressor
        self._member = self._new()

    def readinto(self, buffer: memoryview) -> int:
        """
        Part of the stream protocol.

        Args:
            buffer (`memoryview`): Takes the bytes.

        Returns:
            `int`: how many; 0 at the end and after a fault.
        """
        while not self.fault:
            if not self._packed and self._member.needs_input:
                self._packed = self._file.read(_BLOCK)
                if not self._packed:
                    if self._started:
                        self.fault = f"{self._kind} data cut off"
                    return 0
            if not self._started:
                self._packed = self._packed.lstrip(b"\0")
                if not self._packed:
                    continue
                self._started = True
            try:
                data = self._member.decompress(self._packed, len(buffer))
            except (OSError, EOFError, lzma.LZMAError) as error:
                self.fault = f"damaged {self._kind} data ({error})"
                return 0
            self._packed = b""
            if self._member.eof:
                self._packed = self._member.unused_data
                self._member, self._started = self._new(), False
            if data:
                buffer[: len(data)] = data
                return len(data)
        return 0


def open_stream(path: Path) -> io.BufferedReader:
    """
    Open a file for reading bytes; names that end in `.gz`, `.bz2` or `.xz` are unpacked.

    Args:
        path (`Path`): The file.

    Returns:
        `io.BufferedReader`: the stream, see [`stream_fault`].
    """
    if path.name.endswith((".gz", ".tgz")):
        return io.BufferedReader(GzipStream(path), _BLOCK)
    if path.name.endswith((".bz2", ".xz")):
        return io.BufferedReader(BlockStream(path), _BLOCK)
    return open(path, "rb")


def stream_fault(stream: io.BufferedReader) -> str:
    """
    What was wrong with a stream of [`open_stream`] that has been read to its end.

    Args:
        stream (`io.BufferedReader`): The stream.

    Returns:
        `str`: the fault, `""` if there is none.
    """
    return getattr(getattr(stream, "raw", None), "fault", "")

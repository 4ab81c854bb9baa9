"""Pieces of a source of tokens: a shard file mapped into memory, a chunk of an Arrow table, arrays in memory.

Each has `tokens` (sliceable, ids of any integer type), `ends` (rising ends of its documents), `num_documents` and
`record(document)`. Nothing is read before it is asked for: a damaged index is noticed where it is used, by looking at
the ends around the range that was asked for, because looking through an index of 10^9 documents takes minutes.
"""

import json
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from hf_pretrain.utils.errors import UserError


_SMALL_INDEX = 1 << 20
_SAMPLED_ENDS = 64


class Shard(Protocol):
    """What [`~hf_pretrain.data.token_source.TokenSource`] needs of a piece."""

    tokens: np.ndarray
    # Whether all of `ends` are known to rise once they were asked for.
    looked_through: bool

    @property
    def ends(self) -> np.ndarray:
        """Rising ends of the documents, in tokens of the piece."""

    @property
    def num_documents(self) -> int:
        """Number of documents."""

    def record(self, document: int) -> dict[str, Any]:
        """Provenance of a document of the piece."""


class FileShard:
    """One shard: tokens, document ends and, on disk, the provenance lines.

    Args:
        tokens (`np.ndarray`): Ids.
        ends (`np.ndarray`): Where each document ends.
        path (`Path`, *optional*): The `.ds` file; without it the shard is in memory and has no provenance.
    """

    def __init__(self, tokens: np.ndarray, ends: np.ndarray, path: Path | None = None) -> None:
        # Plain arrays over the mapped memory: slicing a `memmap` object costs ten times as much.
        self.tokens = tokens.view(np.ndarray)
        self.path = path
        self._ends = ends.view(np.ndarray)
        self._checked = False
        self.looked_through = False

    @classmethod
    def open(cls, path: Path, dtype: np.dtype, eos_token_id: int | None = None) -> "FileShard":
        """Maps a shard's files.

        Args:
            path (`Path`): The `.ds` file.
            dtype (`np.dtype`): Type of its tokens.
            eos_token_id (`int`, *optional*): Id that ends every document, looked for at some of the ends.

        Returns:
            `FileShard`: The shard.

        Raises:
            UserError: If a file is missing or cut off, or tokens and document ends disagree.
        """
        tokens = map_file(path, dtype)
        ends = map_file(Path(f"{path}.index"), np.dtype("<u8"))
        last = int(ends[-1]) if len(ends) else 0
        if last != len(tokens):
            raise UserError(
                f"{path.name}.index: the last document ends at token {last}, but {path.name} "
                f"holds {len(tokens)} tokens of "
                f"{dtype.itemsize} bytes; the two files do not belong together. Tokenize this source again."
            )
        shard = cls(tokens, ends, path)
        if eos_token_id is not None:
            shard._check_last_tokens(eos_token_id)
        return shard

    def _check_last_tokens(self, eos_token_id: int) -> None:
        """An index shifted by one token fits the sizes, and would put every label into the wrong document."""
        places = (
            np.unique(np.linspace(0, len(self._ends) - 1, _SAMPLED_ENDS).astype(np.int64)) if len(self._ends) else []
        )
        wrong = 0
        for place in places:
            end = int(self._ends[place])
            before = int(self._ends[place - 1]) if place else 0
            wrong += before < end <= len(self.tokens) and int(self.tokens[end - 1]) != eos_token_id
        if wrong * 2 > len(places):
            raise UserError(
                f"{self.path}.index: at {wrong} of {len(places)} document ends looked at there is no end-of-text id "
                f"{eos_token_id}; the index is shifted, or of another tokenizer. Tokenize this source again."
            )

    @property
    def ends(self) -> np.ndarray:
        """Document ends. A small index is looked through once; in a large one each look-up checks its neighbours."""
        if not self._checked:
            self.looked_through = len(self._ends) <= _SMALL_INDEX
            if self.looked_through and np.any(self._ends[1:] < self._ends[:-1]):
                raise UserError(damaged_index(self.path))
            self._checked = True
        return self._ends

    @property
    def num_documents(self) -> int:
        """Number of documents, which needs no look at their ends."""
        return len(self._ends)

    def record(self, document: int) -> dict[str, Any]:
        """Reads one document's line of provenance by its place in the file.

        Args:
            document (`int`): Number of the document in the shard.

        Returns:
            `dict[str, Any]`: The line; empty where none was written.
        """
        if self.path is None:
            return {}
        lines = Path(f"{self.path}.docs.jsonl")
        index = Path(f"{self.path}.docs.index")
        if not lines.exists() or not index.exists():
            return {}
        ends = map_file(index, np.dtype("<u8"))
        if len(ends) != self.num_documents:
            raise UserError(
                f"{index.name}: {len(ends)} lines for {self.num_documents} documents; the provenance "
                "does not belong to these "
                "tokens. Tokenize this source again."
            )
        start = int(ends[document - 1]) if document else 0
        with open(lines, "rb") as stream:
            stream.seek(start)
            return json.loads(stream.read(int(ends[document]) - start))

    def documents_with_id(self, document_id: str) -> list[int]:
        """Searches nothing: lines of provenance are looked through by `data.lookup`.

        Args:
            document_id (`str`): The id.

        Returns:
            `list[int]`: An empty list.
        """
        return []


def map_file(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps a file of numbers; an empty file gives an empty array, which `numpy.memmap` refuses.

    Args:
        path (`Path`): The file.
        dtype (`np.dtype`): Type of its numbers.

    Returns:
        `np.ndarray`: The numbers, read when they are looked at.

    Raises:
        UserError: If the file is missing or cut off.
    """
    if not path.is_file():
        raise UserError(f"{path}: no such file; this folder is not a complete source. Tokenize this source again.")
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise UserError(
            f"{path}: {size} bytes is no multiple of {dtype.itemsize}; the file was cut off. "
            "Tokenize this source again."
        )
    return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)


def damaged_index(path: Path | None) -> str:
    """Says that document ends do not rise.

    Args:
        path (`Path`, *optional*): The shard's file.

    Returns:
        `str`: The message.
    """
    return f"{path or 'tokens'}.index: the document ends do not rise; the file is damaged. Tokenize this source again."


def find_ends(shard: Shard, position: int, path: Path | None = None) -> int:
    """Counts the documents that end at or before a position, in O(log n).

    Args:
        shard (`Shard`): The piece.
        position (`int`): A token of the piece.
        path (`Path`, *optional*): The file, for the message.

    Returns:
        `int`: The number of the document that holds the token.

    Raises:
        UserError: If the ends around the place found do not rise.
    """
    ends = shard.ends
    # A Python int would be compared as int64, for which numpy copies the whole uint64 index to float64.
    found = int(np.searchsorted(ends, ends.dtype.type(position), side="right"))
    if (found and ends[found - 1] > position) or (found < len(ends) and ends[found] <= position):
        raise UserError(damaged_index(path))
    return found

"""A source of tokens: one folder of token shards, mapped into memory and read as fixed windows.

A shard is `NAME.ds` (raw little-endian uint16 or uint32), `NAME.ds.index` (uint64 ends of the documents, in tokens)
and optionally `NAME.ds.docs.jsonl` with `NAME.ds.docs.index` (one line of provenance a document, and where each line
ends). `source.json` names the shards and their sizes. The tokens of all shards count as one line of positions, so a
window may span two shards. Nothing is read before it is asked for: opening costs the same for a megabyte and a
terabyte.
"""

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from hf_pretrain.utils.errors import UserError


SOURCE_FILE = "source.json"


@dataclass(frozen=True)
class DocumentSpan:
    """The part of one document that lies in an asked range of tokens.

    Args:
        document_index (`int`): Number of the document in its source, from 0.
        start (`int`): First token of the part, as a position in the source.
        stop (`int`): End of the part, exclusive.
        document_start (`int`): Position in the source of the document's first token.
        record (`dict`): The document's provenance (`id`, `url`, ...); empty where none was written.
    """

    document_index: int
    start: int
    stop: int
    document_start: int
    record: dict[str, Any] = field(default_factory=dict)


class _Shard:
    """One shard: tokens, document ends and, on disk, the provenance lines."""

    def __init__(self, tokens: np.ndarray, ends: np.ndarray, path: Path | None = None):
        self.tokens = tokens
        self.path = path
        self._ends = ends
        self._checked = False

    @classmethod
    def open(cls, path: Path, dtype: np.dtype) -> "_Shard":
        tokens = _map_file(path, dtype)
        ends = _map_file(Path(f"{path}.index"), np.dtype("<u8"))
        last = int(ends[-1]) if len(ends) else 0
        if last != len(tokens):
            raise UserError(
                f"{path.name}.index: the last document ends at token {last}, but {path.name} "
                f"holds {len(tokens)} tokens of "
                f"{dtype.itemsize} bytes; the two files do not belong together. Tokenize this source again."
            )
        return cls(tokens, ends, path)

    @property
    def ends(self) -> np.ndarray:
        """Document ends, looked through once when they are first needed: a damaged index would shift every label."""
        if not self._checked:
            if np.any(self._ends[1:] < self._ends[:-1]):
                raise UserError(
                    f"{self.path or 'tokens'}.index: the document ends do not rise; the file is damaged. "
                    "Tokenize this source again."
                )
            self._checked = True
        return self._ends

    @property
    def num_documents(self) -> int:
        """Number of documents, which needs no look at their ends."""
        return len(self._ends)

    def record(self, document: int) -> dict[str, Any]:
        """Reads one document's line of provenance by its place in the file."""
        if self.path is None:
            return {}
        lines = Path(f"{self.path}.docs.jsonl")
        index = Path(f"{self.path}.docs.index")
        if not lines.exists() or not index.exists():
            return {}
        ends = _map_file(index, np.dtype("<u8"))
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


def _map_file(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps a file of numbers; an empty file gives an empty array, which `numpy.memmap` refuses."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; this folder is not a complete source. Tokenize this source again.")
    size = path.stat().st_size
    if size % dtype.itemsize:
        raise UserError(
            f"{path}: {size} bytes is no multiple of {dtype.itemsize}; the file was cut off. "
            "Tokenize this source again."
        )
    return np.memmap(path, dtype=dtype, mode="r") if size else np.empty(0, dtype=dtype)


class TokenSource:
    """Token shards as one line of tokens, cut into documents and into windows of any length.

    Use [`TokenSource.open`] for a folder and [`TokenSource.from_arrays`] for tokens in memory.

    Args:
        name (`str`): Name of the source, as mixture weights call it.
        shards (`Sequence[_Shard]`): The shards in order.
        vocab_size (`int`): Number of ids of the tokenizer that made the tokens, added ones included.
        eos_token_id (`int`, *optional*): Id that ends every document.
        folder (`Path`, *optional*): Where the shards lie.
        metadata (`dict`, *optional*): The content of `source.json`.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[_Shard],
        vocab_size: int,
        eos_token_id: int | None = None,
        folder: Path | None = None,
        metadata: dict[str, Any] | None = None,
    ):
        self.name = name
        self.vocab_size = vocab_size
        self.eos_token_id = eos_token_id
        self.folder = folder
        self.metadata = metadata or {}
        self._set_shards(shards)

    def _set_shards(self, shards: Sequence[_Shard]) -> None:
        self._shards = list(shards)
        self._token_offsets = [0]
        self._document_offsets = [0]
        for shard in self._shards:
            self._token_offsets.append(self._token_offsets[-1] + len(shard.tokens))
            self._document_offsets.append(self._document_offsets[-1] + shard.num_documents)

    @classmethod
    def open(cls, folder: str | Path) -> "TokenSource":
        """Opens a folder of token shards.

        Args:
            folder (`str` or `Path`): The folder that holds `source.json`.

        Returns:
            `TokenSource`: The source.

        Raises:
            UserError: If a file is missing or cut off, or tokens, document ends and `source.json` disagree.
        """
        folder = Path(folder)
        description = folder / SOURCE_FILE
        if not description.is_file():
            raise UserError(
                f"{folder}: no {SOURCE_FILE}; give a folder that the corpus stage wrote (tokens/<split>/<source>)"
            )
        try:
            metadata = json.loads(description.read_text(encoding="utf-8"))
        except json.JSONDecodeError as error:
            raise UserError(f"{description}: no valid JSON ({error}); tokenize this source again") from error
        missing = {"name", "token_size", "vocab_size", "num_tokens", "num_documents", "files"} - set(metadata)
        if missing:
            raise UserError(
                f"{description}: the fields {', '.join(sorted(missing))} are missing; tokenize this source again"
            )
        size, vocab_size = metadata["token_size"], metadata["vocab_size"]
        if size not in (2, 4):
            raise UserError(f"{description}: token_size = {size}; allowed are 2 and 4; tokenize this source again")
        if size == 2 and vocab_size > 65536:
            raise UserError(
                f"{description}: vocab_size = {vocab_size} does not fit tokens of 2 bytes (at most 65536 ids); "
                "tokenize this source again with token_size 4"
            )
        shards = []
        for entry in metadata["files"]:
            shard = _Shard.open(folder / entry["name"], np.dtype(f"<u{size}"))
            found = (len(shard.tokens), shard.num_documents)
            if found != (entry["num_tokens"], entry["num_documents"]):
                raise UserError(
                    f"{folder / entry['name']}: holds {found[0]} tokens of {size} bytes in {found[1]} documents, but "
                    f"{SOURCE_FILE} says {entry['num_tokens']} tokens in {entry['num_documents']} documents; "
                    "tokenize this source again"
                )
            shards.append(shard)
        source = cls(metadata["name"], shards, vocab_size, metadata.get("eos_token_id"), folder, metadata)
        if (source.num_tokens, source.num_documents) != (metadata["num_tokens"], metadata["num_documents"]):
            raise UserError(
                f"{description}: num_tokens = {metadata['num_tokens']}, num_documents = "
                f"{metadata['num_documents']}, but the "
                f"listed files hold {source.num_tokens} and {source.num_documents}; tokenize this source again"
            )
        return source

    @classmethod
    def from_arrays(
        cls,
        name: str,
        tokens: Sequence[int] | np.ndarray,
        document_ends: Sequence[int] | np.ndarray,
        vocab_size: int | None = None,
        eos_token_id: int | None = None,
    ) -> "TokenSource":
        """Makes a source of tokens in memory.

        Args:
            name (`str`): Name of the source.
            tokens (`Sequence[int]` or `np.ndarray`): All tokens, documents one after the other.
            document_ends (`Sequence[int]` or `np.ndarray`): Where each document ends; the last is the number of
                tokens.
            vocab_size (`int`, *optional*): Number of ids; by default one more than the largest id.
            eos_token_id (`int`, *optional*): Id that ends every document.

        Returns:
            `TokenSource`: The source.

        Raises:
            UserError: If the document ends fall or do not end at the last token.
        """
        tokens = np.asarray(tokens, dtype=np.int64)
        ends = np.asarray(document_ends, dtype=np.int64)
        if len(ends) and np.any(np.diff(ends, prepend=0) < 0):
            raise UserError(f"source {name!r}: document_ends must rise; give cumulative ends in tokens")
        last = int(ends[-1]) if len(ends) else 0
        if last != len(tokens):
            raise UserError(f"source {name!r}: the last document ends at {last}, but there are {len(tokens)} tokens")
        if vocab_size is None:
            vocab_size = int(tokens.max()) + 1 if len(tokens) else 0
        return cls(name, [_Shard(tokens, ends)], vocab_size, eos_token_id)

    def __getstate__(self) -> dict[str, Any]:
        # A mapped array pickles as a copy of the whole file; a worker process maps the files again instead.
        state = dict(self.__dict__)
        if self.folder is not None:
            state["_shards"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shards is None:
            dtype = np.dtype(f"<u{self.metadata['token_size']}")
            self._set_shards([_Shard.open(self.folder / entry["name"], dtype) for entry in self.metadata["files"]])

    def __repr__(self) -> str:
        return f"TokenSource({self.name!r}, num_tokens={self.num_tokens}, num_documents={self.num_documents})"

    @property
    def num_tokens(self) -> int:
        """Number of tokens in all shards."""
        return self._token_offsets[-1]

    @property
    def num_documents(self) -> int:
        """Number of documents in all shards."""
        return self._document_offsets[-1]

    def num_windows(self, seq_length: int) -> int:
        """Counts the full windows; a tail shorter than one window is never read.

        Args:
            seq_length (`int`): Window length in tokens.

        Returns:
            `int`: `num_tokens // seq_length`.
        """
        return self.num_tokens // seq_length

    def tokens(self, start: int, stop: int) -> np.ndarray:
        """Reads tokens by position.

        Args:
            start (`int`): First position.
            stop (`int`): End, exclusive.

        Returns:
            `np.ndarray`: int64 ids of shape `[stop - start]`.

        Raises:
            IndexError: If the range leaves the source.
            UserError: If an id lies outside the vocabulary.
        """
        if not 0 <= start <= stop <= self.num_tokens:
            raise IndexError(f"tokens [{start}, {stop}) of {self.name!r}, which holds {self.num_tokens}")
        out = np.empty(stop - start, dtype=np.int64)
        for shard_index, low, high in self._pieces(start, stop):
            offset = self._token_offsets[shard_index]
            out[low - start : high - start] = self._shards[shard_index].tokens[low - offset : high - offset]
        if self.vocab_size and len(out) and int(out.max()) >= self.vocab_size:
            raise UserError(
                f"source {self.name!r}: tokens [{start}, {stop}) hold the id {int(out.max())}, its vocabulary has "
                f"{self.vocab_size}; the file is damaged. Tokenize this source again."
            )
        return out

    def window(self, index: int, seq_length: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads one window.

        Args:
            index (`int`): Number of the window, from 0.
            seq_length (`int`): Window length in tokens.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: int64 ids of shape `[seq_length]`, and the rising offsets in the window at
            which a document begins (offset 0 is among them only if a document begins exactly there).
        """
        start = index * seq_length
        stop = start + seq_length
        return self.tokens(start, stop), self.document_starts(start, stop) - start

    def document_starts(self, start: int, stop: int) -> np.ndarray:
        """Finds where documents begin inside a range.

        Args:
            start (`int`): First position.
            stop (`int`): End, exclusive.

        Returns:
            `np.ndarray`: Rising int64 positions in the source.
        """
        found = []
        for shard_index, low, high in self._pieces(start, stop):
            offset = self._token_offsets[shard_index]
            ends = self._shards[shard_index].ends
            if low == offset:
                found.append(np.zeros(1, dtype=np.int64) + offset)
            # Ends are starts of the next document; of a document without tokens nothing begins.
            first, last = np.searchsorted(ends, (low - offset, high - offset), side="left")
            inside = np.asarray(ends[first:last], dtype=np.int64) + offset
            found.append(inside[inside > offset])
        return np.unique(np.concatenate(found)) if found else np.empty(0, dtype=np.int64)

    def documents_of(self, start: int, stop: int) -> list[DocumentSpan]:
        """Names the documents whose tokens lie in a range.

        Args:
            start (`int`): First position in the source.
            stop (`int`): End, exclusive.

        Returns:
            `list[DocumentSpan]`: One span a document, in order; together they cover the range exactly.
        """
        spans = []
        for shard_index, low, high in self._pieces(start, stop):
            shard, offset = self._shards[shard_index], self._token_offsets[shard_index]
            document = int(np.searchsorted(shard.ends, low - offset, side="right"))
            while low < high:
                document_start = offset + (int(shard.ends[document - 1]) if document else 0)
                document_stop = offset + int(shard.ends[document])
                if document_stop > low:
                    index = self._document_offsets[shard_index] + document
                    end = min(document_stop, high)
                    spans.append(DocumentSpan(index, low, end, document_start, shard.record(document)))
                    low = end
                document += 1
        return spans

    def _pieces(self, start: int, stop: int) -> list[tuple[int, int, int]]:
        """Cuts a range of positions at the shards' edges: `(shard, low, high)`."""
        pieces = []
        shard_index = bisect.bisect_right(self._token_offsets, start) - 1
        while start < stop:
            high = min(stop, self._token_offsets[shard_index + 1])
            if high > start:
                pieces.append((shard_index, start, high))
            start = high
            shard_index += 1
        return pieces

"""A source of tokens: a folder of token shards or a tokenised dataset, mapped into memory and read as fixed windows.

A shard is `NAME.ds` (raw little-endian uint16 or uint32), `NAME.ds.index` (uint64 ends of the documents, in tokens)
and optionally `NAME.ds.docs.jsonl` with `NAME.ds.docs.index` (one line of provenance a document, and where each line
ends). `source.json` names the shards and their sizes. The tokens of all shards count as one line of positions, so a
window may span two shards. Nothing is read before it is asked for: opening costs the same for a megabyte and a
terabyte.
"""

import bisect
import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_pretrain.data.arrow_shards import ArrowTable
from hf_pretrain.data.shards import FileShard, Shard, damaged_index, find_ends
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from datasets import Dataset

SOURCE_FILE = "source.json"
_NEAR_ENDS = 64
_HASHED_BLOCKS, _HASHED_ITEMS = 256, 4096
_SAVED_DATASET = ("dataset_info.json", "state.json")  # what `Dataset.save_to_disk` writes beside the tables


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


class TokenSource:
    """Token shards as one line of tokens, cut into documents and into windows of any length.

    Use [`TokenSource.open`] for a folder, [`TokenSource.from_dataset`] for a `datasets.Dataset` and
    [`TokenSource.from_arrays`] for tokens in memory.

    Args:
        name (`str`): Name of the source, as mixture weights call it.
        shards (`Sequence[Shard]`): The shards in order.
        vocab_size (`int`): Number of ids of the tokenizer that made the tokens, added ones included.
        eos_token_id (`int`, *optional*): Id that ends every document.
        folder (`Path`, *optional*): Where the shards lie.
        metadata (`dict`, *optional*): The content of `source.json`.
    """

    def __init__(
        self,
        name: str,
        shards: Sequence[Shard],
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
        self._dataset: Any = None
        self._set_shards(shards)

    def _set_shards(self, shards: Sequence[Shard]) -> None:
        self._shards = list(shards)
        self._token_offsets = [0]
        self._document_offsets = [0]
        for shard in self._shards:
            self._token_offsets.append(self._token_offsets[-1] + len(shard.tokens))
            self._document_offsets.append(self._document_offsets[-1] + shard.num_documents)

    @classmethod
    def open(
        cls,
        folder: str | Path,
        name: str | None = None,
        vocab_size: int | None = None,
        eos_token_id: int | None = None,
    ) -> "TokenSource":
        """Opens a folder of token shards, one that `Dataset.save_to_disk` wrote, or an `.arrow` file.

        Args:
            folder (`str` or `Path`): The folder that holds `source.json`, or the saved dataset.
            name (`str`, *optional*): Name of the source; by default the one in `source.json`, or the folder's.
            vocab_size (`int`, *optional*): Number of ids, of a saved dataset, which does not say it itself.
            eos_token_id (`int`, *optional*): Id that ends every document, likewise.

        Returns:
            `TokenSource`: The source.

        Raises:
            UserError: If a file is missing or cut off, or tokens, document ends and `source.json` disagree.
        """
        folder = Path(folder)
        description = folder / SOURCE_FILE
        if folder.suffix == ".arrow" and folder.is_file():
            from datasets import Dataset

            dataset = Dataset.from_file(str(folder))
            return cls.from_dataset(dataset, name or folder.stem, vocab_size, eos_token_id, folder)
        if not description.is_file() and all((folder / item).is_file() for item in _SAVED_DATASET):
            from datasets import load_from_disk

            dataset = load_from_disk(str(folder))
            return cls.from_dataset(dataset, name or folder.name, vocab_size, eos_token_id, folder)
        if (folder / "dataset_dict.json").is_file():
            raise UserError(f"{folder}: holds several splits; give the folder of one of them, e.g. {folder / 'train'}")
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
            shard = FileShard.open(folder / entry["name"], np.dtype(f"<u{size}"), metadata.get("eos_token_id"))
            found = (len(shard.tokens), shard.num_documents)
            if found != (entry["num_tokens"], entry["num_documents"]):
                raise UserError(
                    f"{folder / entry['name']}: holds {found[0]} tokens of {size} bytes in {found[1]} documents, but "
                    f"{SOURCE_FILE} says {entry['num_tokens']} tokens in {entry['num_documents']} documents; "
                    "tokenize this source again"
                )
            shards.append(shard)
        source = cls(name or metadata["name"], shards, vocab_size, metadata.get("eos_token_id"), folder, metadata)
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
        return cls(name, [FileShard(tokens, ends)], vocab_size, eos_token_id)

    @classmethod
    def from_dataset(
        cls,
        dataset: "Dataset",
        name: str,
        vocab_size: int | None = None,
        eos_token_id: int | None = None,
        folder: str | Path | None = None,
    ) -> "TokenSource":
        """Makes a source of a tokenised dataset, over its memory-mapped Arrow table.

        Args:
            dataset (`datasets.Dataset`): With a column `input_ids`; a row is a document, or holds documents of the
                lengths in a column `seq_lengths`. All other columns are provenance.
            name (`str`): Name of the source.
            vocab_size (`int`, *optional*): Number of ids of the tokenizer; without it ids are not checked.
            eos_token_id (`int`, *optional*): Id that ends every document.
            folder (`str` or `Path`, *optional*): Where `save_to_disk` has put the dataset, so that a trace can open it
                again.

        Returns:
            `TokenSource`: The source.

        Raises:
            UserError: If there is no column `input_ids` of lists of whole numbers, or documents have no end-of-text
                id.
        """
        files = [
            {"name": Path(entry["filename"]).name, "size": os.path.getsize(entry["filename"])}
            for entry in getattr(dataset, "cache_files", [])
        ]
        metadata = {"files": [*files, {"dataset": getattr(dataset, "_fingerprint", None)}]}
        shards = ArrowTable(dataset, name).shards()
        folder = None if folder is None else Path(folder)
        source = cls(name, shards, vocab_size or 0, eos_token_id, folder, metadata)
        source._dataset = dataset
        if eos_token_id is not None and shards and len(shards[0].tokens):
            last = int(shards[0].tokens[int(shards[0].ends[0]) - 1])
            if last != eos_token_id:
                raise UserError(
                    f"source {name!r}: its first document ends with the id {last}, not with the end-of-text id "
                    f"{eos_token_id}; append it to every document when tokenizing, or the model never learns to stop"
                )
        return source

    def __getstate__(self) -> dict[str, Any]:
        # A mapped array pickles as a copy of the whole file; a worker process maps the files again instead.
        state = dict(self.__dict__)
        if self.folder is not None or self._dataset is not None:
            state["_shards"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        if self._shards is not None:
            return
        if self._dataset is not None:
            self._set_shards(ArrowTable(self._dataset, self.name).shards())
            return
        dtype = np.dtype(f"<u{self.metadata['token_size']}")
        self._set_shards([FileShard.open(self.folder / entry["name"], dtype) for entry in self.metadata["files"]])

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

    def content_hash(self) -> str:
        """Hashes some of the tokens and document ends of every shard, in bounded time for any size.

        A small shard is hashed whole; of a large one blocks spread over it, so that a file that was written anew is
        noticed. A single changed token between the blocks is not: for that there are the sums in `source.json`.

        Returns:
            `str`: 16 hexadecimal digits.
        """
        digest = hashlib.sha256()
        blocks = max(_HASHED_BLOCKS // max(len(self._shards), 1), 2)
        for shard in self._shards:
            for array in (shard.tokens, shard.ends):
                digest.update(len(array).to_bytes(8, "little"))
                last = max(len(array) - _HASHED_ITEMS, 0)
                count = min(blocks, -(-len(array) // _HASHED_ITEMS))
                for start in np.unique(np.linspace(0, last, count).astype(np.int64)) if count else ():
                    digest.update(np.ascontiguousarray(array[start : start + _HASHED_ITEMS]).tobytes())
        return digest.hexdigest()[:16]

    @property
    def is_dataset(self) -> bool:
        """Whether it lies over a `datasets.Dataset`, whose columns are the provenance."""
        return self._dataset is not None

    def documents_with_id(self, document_id: str) -> list[int]:
        """Searches the column `id` of a dataset.

        Args:
            document_id (`str`): The id.

        Returns:
            `list[int]`: Numbers of the documents; empty where there is no such column.
        """
        found = []
        for offset, shard in zip(self._document_offsets[:-1], self._shards, strict=True):
            found += [offset + document for document in shard.documents_with_id(document_id)]
        return found

    def document_range(self, document: int) -> tuple[int, int]:
        """Finds a document's tokens.

        Args:
            document (`int`): Its number in the source.

        Returns:
            `tuple[int, int]`: First position and end.
        """
        number = bisect.bisect_right(self._document_offsets, document) - 1
        ends, place = self._shards[number].ends, document - self._document_offsets[number]
        offset = self._token_offsets[number]
        return offset + (int(ends[place - 1]) if place else 0), offset + int(ends[place])

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
        self.read_into(start, out)
        if self.vocab_size and len(out):
            self.check_ids(start, stop, int(out.max()))
        return out

    def read_into(self, start: int, out: np.ndarray) -> None:
        """Reads tokens into an array, without a look at their values.

        Args:
            start (`int`): First position.
            out (`np.ndarray`): int64 array, filled to its end.
        """
        stop = start + len(out)
        shard_index = bisect.bisect_right(self._token_offsets, start) - 1
        offset = self._token_offsets[shard_index]
        if stop <= self._token_offsets[shard_index + 1]:
            out[:] = self._shards[shard_index].tokens[start - offset : stop - offset]
            return
        for shard_index, low, high in self._pieces(start, stop):
            offset = self._token_offsets[shard_index]
            out[low - start : high - start] = self._shards[shard_index].tokens[low - offset : high - offset]

    def read_row(self, start: int, out: np.ndarray) -> np.ndarray:
        """Reads tokens into an array and finds the documents that begin among them, without a look at their order.

        Whoever reads many rows checks all their offsets at once; [`TokenSource.document_starts`] checks each time.

        Args:
            start (`int`): First position.
            out (`np.ndarray`): int64 array, filled to its end.

        Returns:
            `np.ndarray`: A new int64 array of the offsets in `out` at which documents begin. They rise if the index is
            whole.
        """
        stop = start + len(out)
        shard_index = bisect.bisect_right(self._token_offsets, start) - 1
        offset = self._token_offsets[shard_index]
        # A row over an edge of shards, or one that begins with a shard, is rare and goes the long way.
        if start == offset or stop > self._token_offsets[shard_index + 1]:
            self.read_into(start, out)
            return self.document_starts(start, stop) - start
        shard = self._shards[shard_index]
        low, high = start - offset, stop - offset
        out[:] = shard.tokens[low:high]
        ends = shard.ends
        # A start is the end of the document before it. The key has the index's type, or numpy copies the index.
        key = ends.dtype.type
        first = int(ends.searchsorted(key(low)))
        near = ends[first : first + _NEAR_ENDS]
        is_far = len(near) == _NEAR_ENDS and near[-1] < high
        # A single wrong end sends the search astray; where not all were looked through, those nearby are.
        if is_far or not (shard.looked_through or (near[1:] >= near[:-1]).all()):
            return self.document_starts(start, stop) - start
        starts = near[: near.searchsorted(key(high))].astype(np.int64)
        starts -= low
        return starts

    def check_ids(self, start: int, stop: int, largest: int) -> None:
        """Makes sure that tokens read lie inside the vocabulary.

        Args:
            start (`int`): First position read.
            stop (`int`): End, exclusive.
            largest (`int`): Largest id found.

        Raises:
            UserError: If it is too large.
        """
        if self.vocab_size and largest >= self.vocab_size:
            raise UserError(
                f"source {self.name!r}: tokens [{start}, {stop}) hold the id {largest}, its vocabulary has "
                f"{self.vocab_size}; the file is damaged. Tokenize this source again."
            )

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
            shard = self._shards[shard_index]
            # Ends are starts of the next document, and the shard itself begins with one.
            first = find_ends(shard, low - offset - 1, getattr(shard, "path", None)) if low > offset else 0
            if low == offset:
                found.append(np.array([offset], dtype=np.int64))
            inside = self._ends_below(shard, first, high - offset)
            if len(inside):
                found.append(inside.astype(np.int64) + offset)
        if not found:
            return np.empty(0, dtype=np.int64)
        starts = found[0] if len(found) == 1 else np.concatenate(found)
        # Of a document without tokens nothing begins.
        return starts if len(starts) < 2 or (starts[1:] > starts[:-1]).all() else np.unique(starts)

    @staticmethod
    def _ends_below(shard: Shard, first: int, stop: int) -> np.ndarray:
        """The ends from number `first` on that lie before `stop`, without a look at the rest of the index."""
        ends, count = shard.ends, 32
        while True:
            part = ends[first : first + count]
            if len(part) < count or part[-1] >= stop:
                break
            count *= 4
        if len(part) > 1 and (part[1:] < part[:-1]).any():
            raise UserError(damaged_index(getattr(shard, "path", None)))
        return part[: int(np.searchsorted(part, part.dtype.type(stop)))]

    def document_ends(self) -> Iterator[tuple[int, np.ndarray]]:
        """Goes through the document ends of all shards.

        Returns:
            `Iterator[tuple[int, np.ndarray]]`: Position of each shard in the source, and the ends in it.
        """
        for offset, shard in zip(self._token_offsets[:-1], self._shards, strict=True):
            yield offset, shard.ends

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
            document = find_ends(shard, low - offset, getattr(shard, "path", None))
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

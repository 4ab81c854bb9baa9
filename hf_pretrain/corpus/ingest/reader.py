"""The base of the readers: every fault named or counted, every row accounted for.

Readers are datatrove disk readers (a task reads files `[rank::world_size]` of the sorted listing), so they stand in
any datatrove pipeline. Where datatrove warns and goes on, they follow the source's `on_bad_row` and `on_bad_file`:
stop with one line that names file and row, or skip and count. Documents already read before a fault stay read. Rows
that a source leaves out by rule (a redirect, a generated file) are counted as `skipped_<reason>`; rows read are
documents + bad rows + skipped rows, and a reader that loses one raises.
Metadata of each document: `source`, `domain`, `file`, `row` (0-based), `license`, and `url`, `language` where known.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datatrove.pipeline.readers.base import BaseDiskReader

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.language_codes import known_language
from hf_pretrain.corpus.ingest.listing import list_files
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from datatrove.data import Document, DocumentsPipeline


# Fields of a row that datatrove or a later step would take for its own.
_TAKEN = ("media", "token_count", "pii")
# Control characters that no text holds; tab, line feed, carriage return, form feed and escape are left out.
_BINARY = bytes(code for code in range(32) if chr(code) not in "\t\n\r\f\x0b\x1b")


class FileFault(Exception):
    """A file cannot be read further; the message says why."""


class RowFault(Exception):
    """A row holds no document; `reason` is a short name, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Skipped:
    """A row that is left out by rule; `reason` is a short name.

    Args:
        reason (`str`): Letters, digits and underscores.
    """

    def __init__(self, reason: str) -> None:
        self.reason = reason


Row = dict[str, Any] | RowFault | Skipped


class SourceReader(BaseDiskReader):
    """
    Base of the readers: listing, bad rows and files, metadata.

    Args:
        config (`SourceConfig`): The source; `config.path` is a file, a folder or a glob.

    Raises:
        UserError: If there is no such file, or (while reading) at a bad row or file that is not to be skipped.
    """

    name = "Source"

    def __init__(self, config: SourceConfig) -> None:
        self.config = config
        self.files = list_files(config)
        root = self.files[0].parent
        while not all(root in file.parents for file in self.files):
            root = root.parent
        super().__init__(
            str(root),
            limit=-1 if config.max_documents is None else config.max_documents,
            text_key=config.text_key,
            id_key=config.id_key,
        )
        self.root = root

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """
        Read this task's files.

        Args:
            data (`DocumentsPipeline`, *optional*): Documents of earlier readers, passed on first.
            rank (`int`, *optional*, defaults to 0): This task.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Returns:
            `DocumentsPipeline`: documents.
        """
        if data:
            yield from data
        for doc in self.read_files_shard([str(file.relative_to(self.root)) for file in self.files[rank::world_size]]):
            self.update_doc_stats(doc)
            yield doc

    def read_file(self, filepath: str) -> Iterator[Document]:
        """
        Read one file.

        Args:
            filepath (`str`): Path below the source's common folder.

        Returns:
            `Iterator[Document]`: its documents.
        """
        path = self.root / filepath
        rows = self.read_rows(path)
        row, read, given, left_out = -1, 0, 0, 0
        while True:
            try:
                with self.track_time():
                    row, record = next(rows)
                    read += 1
                    document = record if isinstance(record, Skipped) else self._document(record, filepath, row)
            except StopIteration:
                break
            except FileFault as fault:
                self._bad_file(path, str(fault))
                return
            if isinstance(document, RowFault):
                self._bad_row(path, row, document)
                left_out += 1
            elif isinstance(document, Skipped):
                self.stat_update("skipped_rows", f"skipped_{document.reason}")
                left_out += 1
            else:
                given += 1
                yield document
        if read != given + left_out:
            raise RuntimeError(f"{path}: {read} rows read, {given} given and {left_out} left out")
        if row < 0:
            self._bad_file(path, "it holds no record" if path.stat().st_size else "empty file")

    @abstractmethod
    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Rows of one file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: 0-based row number, and the row's fields, what is wrong
            with it, or why it is left out.
        """

    def _document(self, record: dict[str, Any] | RowFault, filepath: str, row: int) -> Document | RowFault:
        from datatrove.data import Document

        if isinstance(record, RowFault):
            return record
        fields = dict(record)
        text = fields.pop(self.text_key, None)
        if not isinstance(text, str) or not text.strip():
            found = "no text" if not text else f"{self.text_key} is no string"
            return RowFault("no_text", f"{found}; fields are {', '.join(map(str, record)) or 'none'}")
        try:
            data = text.encode("utf-8")
        except UnicodeEncodeError:  # from "\ud800" in JSON; it cannot be written later
            return RowFault("binary", "lone surrogates in the text")
        size = len(data)
        if size > self.config.max_document_bytes:
            return RowFault("too_large", f"{size} bytes; max_document_bytes = {self.config.max_document_bytes}")
        if len(data.translate(None, _BINARY)) != size or text.count("\ufffd") * 20 > len(text):
            return RowFault("binary", "binary data in the text")
        identifier = fields.pop(self.id_key, None)
        extra = fields.pop("metadata", None)
        metadata = {**(extra if isinstance(extra, dict) else {}), **fields}
        for name in _TAKEN:
            metadata.pop(name, None)
        for name in ("url", "license"):
            if metadata.get(name) is not None:
                metadata[name] = str(metadata[name])
        metadata.update(source=self.config.name, domain=self.config.effective_domain, file=filepath, row=row)
        metadata["license"] = metadata.get("license") or self.config.license
        language = known_language(metadata.get("language")) or known_language(self.config.language)
        if language:
            metadata["language"] = language
        else:
            metadata.pop("language", None)
        if identifier is None or identifier == "":
            identifier = f"{self.config.name}/{filepath}/{row}"
        try:
            metadata = _json_data(str(identifier), metadata)
        except TypeError as error:
            return RowFault("bad_field", f"a field cannot be stored as JSON ({error})")
        return Document(text=text, id=str(identifier), metadata=metadata)

    def _bad_row(self, path: Path, row: int, fault: RowFault) -> None:
        if self.config.on_bad_row == "error":
            raise UserError(
                f"source '{self.config.name}': {path}, row {row + 1}: {fault}; mend the row, or set on_bad_row: skip "
                "to count and skip such rows"
            )
        self.stat_update("bad_rows", f"bad_rows_{fault.reason}")

    def _bad_file(self, path: Path, message: str) -> None:
        if self.config.on_bad_file == "error":
            raise UserError(
                f"source '{self.config.name}': {path}: {message}; fetch the file again, or set on_bad_file: skip "
                "to keep what can be read"
            )
        self.stat_update("bad_files")


def _json_data(identifier: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Makes sure that a document can be written; a TypeError says why not (surrogates, nesting, huge integers)."""
    import orjson

    try:
        orjson.dumps((identifier, metadata))
    except TypeError:
        # Decimals and bytes of Parquet become text; what is wrong in itself raises again.
        return orjson.loads(orjson.dumps((identifier, metadata), default=str))[1]
    return metadata

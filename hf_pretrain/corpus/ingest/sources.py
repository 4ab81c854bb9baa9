"""Raw files to datatrove documents, with every fault named or counted.

Readers are datatrove disk readers (a task reads files `[rank::world_size]` of the sorted listing), so they stand in
any datatrove pipeline. Where datatrove warns and goes on, they follow the source's `on_bad_row` and `on_bad_file`:
stop with one line that names file and row, or skip and count. Documents already read before a fault stay read.
Metadata of each document: `source`, `domain`, `file`, `row` (0-based), `license`, and `url`, `language` where known.
"""

from __future__ import annotations

import glob
import json
from abc import abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from datatrove.pipeline.readers.base import BaseDiskReader

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.language_codes import known_language
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from datatrove.data import Document, DocumentsPipeline


SUFFIXES = {
    "warc": (".warc", ".warc.gz"),
    "jsonl": (".jsonl", ".jsonl.gz", ".ndjson", ".ndjson.gz"),
    "parquet": (".parquet",),
    "text": (".txt", ".txt.gz", ".md", ".rst"),
}
# Fields of a row that datatrove or a later step would take for its own.
_TAKEN = ("media", "token_count", "pii")
# Control characters that no text holds; tab, line feed, carriage return, form feed and escape are left out.
_BINARY = frozenset(chr(code) for code in range(32) if chr(code) not in "\t\n\r\f\x0b\x1b")


class FileFault(Exception):
    """A file cannot be read further; the message says why."""


class RowFault(Exception):
    """A row holds no document; `reason` is a short name, the message says more."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


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
        row = -1
        while True:
            try:
                with self.track_time():
                    row, record = next(rows)
                    document = self._document(record, filepath, row)
            except StopIteration:
                break
            except RowFault as fault:
                self._bad_row(path, row, fault)
                continue
            except FileFault as fault:
                self._bad_file(path, str(fault))
                return
            if isinstance(document, RowFault):
                self._bad_row(path, row, document)
            else:
                yield document
        if row < 0:
            self._bad_file(path, "it holds no record" if path.stat().st_size else "empty file")

    @abstractmethod
    def read_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
        """
        Rows of one file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict | RowFault]]`: 0-based row number, and the row's fields or what is wrong with it.
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
        # Lone surrogates (from "\ud800" in JSON) cannot be written as UTF-8 later.
        size = len(text.encode("utf-8", "surrogatepass"))
        if size > self.config.max_document_bytes:
            return RowFault("too_large", f"{size} bytes; max_document_bytes = {self.config.max_document_bytes}")
        if not _BINARY.isdisjoint(text) or text.count("\ufffd") * 20 > len(text):
            return RowFault("binary", "binary data in the text")
        if any("\ud800" <= character <= "\udfff" for character in text) if not text.isascii() else False:
            return RowFault("binary", "lone surrogates in the text")
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


class WarcSource(SourceReader):
    """
    HTML responses of WARC files (ISO 28500), plain or gzip; WET conversions pass as text.

    Unlike datatrove's `WarcReader` it needs no libmagic: a record without `WARC-Identified-Payload-Type` is judged by
    its HTTP type and its first bytes. Records of other types are counted (`skipped_not_html`), truncated ones are a
    bad file.
    """

    name = "WARC source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
        """
        Records of one WARC file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict | RowFault]]`: record number and `text` (HTML), `id`, `url`, `date`.
        """
        require("warcio", "corpus", "reading WARC files")
        from warcio.archiveiterator import ArchiveIterator

        with open_stream(path) as stream:
            archive = ArchiveIterator(stream)
            archive.INC_RECORD = ""  # warcio's own warning would break the progress line; the row says what is wrong
            for row, record in enumerate(_records(archive, stream)):
                if not hasattr(record.raw_stream, "limit"):
                    raise FileFault(stream_fault(stream) or f"record {row + 1} has no Content-Length")
                fields = self._record_fields(record)
                # The reader gives what there is of a record that was cut off; its length tells.
                record.raw_stream.read()
                if missing := record.raw_stream.limit:
                    raise FileFault(f"cut off in record {row + 1}, {missing} bytes are missing")
                if fields is not None:
                    yield row, fields
            if fault := stream_fault(stream):
                raise FileFault(fault)

    def _record_fields(self, record: Any) -> dict[str, Any] | RowFault | None:
        self.stat_update("records")
        if record.rec_type not in ("response", "conversion"):
            return None
        body = record.content_stream().read(self.config.max_document_bytes + 1)
        if len(body) > self.config.max_document_bytes:
            return RowFault("too_large", f"more than max_document_bytes = {self.config.max_document_bytes}")
        kind = record.rec_headers.get_header("WARC-Identified-Payload-Type")
        http = record.http_headers.get_header("Content-Type", "") if record.http_headers else ""
        if not _is_html(kind or http, body) and not (
            record.rec_type == "conversion" and "text/plain" in (kind or "text/plain")
        ):
            self.stat_update("skipped_not_html")
            return None
        if not body.strip():
            self.stat_update("skipped_empty_body")
            return None
        status = record.http_headers.get_statuscode() if record.http_headers else "200"
        if not status.startswith("2"):
            self.stat_update("skipped_http_status")
            return None
        headers = record.rec_headers
        return {
            self.text_key: decode_html(body, http),
            self.id_key: headers.get_header("WARC-Record-ID"),
            "url": headers.get_header("WARC-Target-URI"),
            "date": headers.get_header("WARC-Date"),
        }


class JsonlSource(SourceReader):
    """JSON Lines, plain or gzip. A bad row: not UTF-8, not a JSON object, no text, binary, too large."""

    name = "JSONL source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
        """
        Rows of one file; blank lines are passed over.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict | RowFault]]`: line number from 0, and the row's fields or its fault.
        """
        with open_stream(path) as stream:
            # A row may hold other fields than its text, hence twice the document limit.
            longest = 2 * self.config.max_document_bytes + 65_536
            row = 0
            while line := stream.readline(longest):
                if len(line) == longest and not line.endswith(b"\n"):
                    yield row, RowFault("too_large", f"line of more than {longest} bytes")
                    while (rest := stream.readline(longest)) and not rest.endswith(b"\n"):
                        pass
                elif line.strip() and (line.endswith(b"\n") or not stream_fault(stream)):
                    yield row, _json_object(line)
                row += 1
            if fault := stream_fault(stream):
                raise FileFault(f"{fault} after row {row}")


class ParquetSource(SourceReader):
    """Parquet files with a text column."""

    name = "Parquet source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
        """
        Rows of one file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict]]`: row number from 0 and its columns.
        """
        parquet = require("pyarrow.parquet", "corpus", "reading Parquet files")
        from pyarrow.lib import ArrowException

        try:
            with parquet.ParquetFile(path) as file:
                if self.text_key not in file.schema_arrow.names:
                    raise FileFault(
                        f"no column '{self.text_key}'; columns are {', '.join(file.schema_arrow.names)} (text_key)"
                    )
                row = 0
                for batch in file.iter_batches(batch_size=256):
                    for record in batch.to_pylist():
                        yield row, record
                        row += 1
        except (ArrowException, OSError) as error:
            raise FileFault(f"no readable Parquet file ({' '.join(str(error).split())[:160]})") from error


class TextSource(SourceReader):
    """UTF-8 text files, one document a file, plain or gzip."""

    name = "Text source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, dict[str, Any] | RowFault]]:
        """
        The one document of a file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict | RowFault]]`: row 0 and its text.
        """
        with open_stream(path) as stream:
            data = stream.read(self.config.max_document_bytes + 1)
            if fault := stream_fault(stream):
                raise FileFault(fault)
        if not data:
            return
        try:
            yield (
                0,
                {
                    self.text_key: data.decode("utf-8-sig"),
                    self.id_key: f"{self.config.name}/{path.relative_to(self.root)}",
                },
            )
        except UnicodeDecodeError as error:
            yield 0, RowFault("binary", f"not UTF-8 at byte {error.start}")


_READERS = {"warc": WarcSource, "jsonl": JsonlSource, "parquet": ParquetSource, "text": TextSource}


def build_reader(config: SourceConfig, sample_dir: str | Path | None = None) -> SourceReader:
    """
    The reader of a source.

    Args:
        config (`SourceConfig`): The source.
        sample_dir (`str` or `Path`, *optional*): Folder made by `build_sample`; needed for `kind: sample`.

    Returns:
        `SourceReader`: a datatrove reader.

    Raises:
        UserError: If no file is there.
    """
    config = resolve_source(config, sample_dir)
    return _READERS[config.kind](config)


def resolve_source(config: SourceConfig, sample_dir: str | Path | None = None) -> SourceConfig:
    """
    Turn a part of the sample into the file it is.

    Args:
        config (`SourceConfig`): Any source.
        sample_dir (`str` or `Path`, *optional*): Folder made by `build_sample`.

    Returns:
        `SourceConfig`: one of kind `"warc"`, `"jsonl"`, `"parquet"` or `"text"`.
    """
    import dataclasses

    if config.kind != "sample":
        return config
    if sample_dir is None:
        raise UserError(f"source '{config.name}': kind = 'sample' needs the folder of a built sample (sample_dir)")
    part = config.path or config.name
    kind, name = ("warc", "web.warc.gz") if part == "web" else ("jsonl", f"{part}.jsonl.gz")
    return dataclasses.replace(config, kind=kind, path=str(Path(sample_dir) / name), domain=config.effective_domain)


def list_files(config: SourceConfig) -> list[Path]:
    """
    Files of a source, sorted; the order in which tasks share them.

    Args:
        config (`SourceConfig`): A source that is not of kind `"sample"`.

    Returns:
        `list[Path]`: absolute paths.

    Raises:
        UserError: If there are none.
    """
    path = Path(config.path).expanduser()
    if path.is_dir():
        found = [file for file in path.rglob("*") if file.is_file() and file.name.endswith(SUFFIXES[config.kind])]
        wanted = f"a file that ends in {', '.join(SUFFIXES[config.kind])}"
    elif path.is_file():
        found, wanted = [path], ""
    else:
        found = [Path(name) for name in glob.glob(str(path), recursive=True) if Path(name).is_file()]
        wanted = "a file, a folder or a glob that matches"
    if not found:
        raise UserError(f"source '{config.name}': path = {config.path!r} has no file; it needs {wanted}")
    return sorted(file.absolute() for file in found)


def decode_html(body: bytes, content_type: str = "") -> str:
    """
    Decode a page: the HTTP charset, else a byte-order mark, `<meta charset>` or statistics (resiliparse's detector).

    Args:
        body (`bytes`): The page.
        content_type (`str`, *optional*, defaults to `""`): HTTP header.

    Returns:
        `str`: the page; undecodable bytes become U+FFFD.
    """
    charset = content_type.lower().partition("charset=")[2].partition(";")[0].strip(" \"'") or "utf-8"
    try:
        return body.decode(charset)
    except (UnicodeDecodeError, LookupError):
        encoding = require("resiliparse.parse.encoding", "corpus", "decoding HTML pages")
        return encoding.bytes_to_str(body, encoding.detect_encoding(body) or "utf-8", errors="replace")


def _records(iterator: Any, stream: Any) -> Iterator[Any]:
    from warcio.exceptions import ArchiveLoadFailed

    number = 0
    while True:
        try:
            record = next(iterator)
        except StopIteration:
            return
        # warcio does not check headers that were cut off before it uses them.
        except (ArchiveLoadFailed, AttributeError, ValueError, LookupError) as error:
            what = "no WARC file" if number == 0 else f"damaged after record {number}"
            raise FileFault(stream_fault(stream) or f"{what} ({str(error).partition(',')[0][:120]})") from error
        yield record
        number += 1


def _json_data(identifier: str, metadata: dict[str, Any]) -> dict[str, Any]:
    """Makes sure that a document can be written; a TypeError says why not (surrogates, nesting, huge integers)."""
    import orjson

    try:
        orjson.dumps((identifier, metadata))
    except TypeError:
        # Decimals and bytes of Parquet become text; what is wrong in itself raises again.
        return orjson.loads(orjson.dumps((identifier, metadata), default=str))[1]
    return metadata


def _is_html(kind: str, body: bytes) -> bool:
    if kind:
        return kind.partition(";")[0].strip().lower() in ("text/html", "application/xhtml+xml")
    head = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype html", b"<html")) or b"<html" in head


def _json_object(line: bytes) -> dict[str, Any] | RowFault:
    try:
        value = json.loads(line)
    except UnicodeDecodeError as error:
        return RowFault("binary", f"not UTF-8 at byte {error.start}")
    except ValueError as error:
        return RowFault("not_json", f"not JSON ({error})")
    except RecursionError:
        return RowFault("not_json", "JSON nested too deeply")
    return value if isinstance(value, dict) else RowFault("not_json", f"a JSON {type(value).__name__}, not an object")

"""Crawl archives: HTML responses of WARC files (ISO 28500) and plain text of WET files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.utils.optional import require


class WarcSource(SourceReader):
    """
    HTML responses of WARC files (ISO 28500), plain or gzip.

    Unlike datatrove's `WarcReader` it needs no libmagic: a record without `WARC-Identified-Payload-Type` is judged by
    its HTTP type and, where that says nothing or "XML", by its first bytes. Records that are left out are counted
    (`skipped_not_html`, `skipped_empty_body`, `skipped_http_status`); a truncated one is a bad file, the text of a WET
    file a bad row.
    """

    name = "WARC source"
    record_types = ("response",)

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
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
                if record.format != "warc":  # warcio takes any line for an ARC record, the format before WARC
                    raise FileFault("no WARC file" if row == 0 else f"damaged after record {row}")
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

    def _record_fields(self, record: Any) -> Row | None:
        """`None` for records that are no document: requests, metadata, information on the crawl."""
        self.stat_update("records")
        if record.rec_type not in ("response", "conversion"):
            return None
        if record.rec_type not in self.record_types:
            kinds = {
                "response": "a page as fetched; kind: warc reads it",
                "conversion": "plain text; kind: wet reads it",
            }
            return RowFault("record_type", f"a '{record.rec_type}' record, {kinds[record.rec_type]}")
        body = record.content_stream().read(self.config.max_document_bytes + 1)
        if len(body) > self.config.max_document_bytes:
            return RowFault("too_large", f"more than max_document_bytes = {self.config.max_document_bytes}")
        text = self._text(record, body)
        if isinstance(text, Skipped):
            return text
        headers = record.rec_headers
        fields = {
            self.text_key: text,
            self.id_key: headers.get_header("WARC-Record-ID"),
            "url": headers.get_header("WARC-Target-URI"),
            "date": headers.get_header("WARC-Date"),
        }
        languages = headers.get_header("WARC-Identified-Content-Language")
        return {**fields, "language": languages.partition(",")[0]} if languages else fields

    def _text(self, record: Any, body: bytes) -> str | Skipped:
        kind = record.rec_headers.get_header("WARC-Identified-Payload-Type")
        http = record.http_headers.get_header("Content-Type", "") if record.http_headers else ""
        if not _is_html(kind or http, body):
            return Skipped("not_html")
        if not body.strip():
            return Skipped("empty_body")
        status = record.http_headers.get_statuscode() if record.http_headers else "200"
        return decode_html(body, http) if status.startswith("2") else Skipped("http_status")


class WetSource(WarcSource):
    """
    Text of WET files, the `conversion` records that Common Crawl makes of its pages.

    The text is UTF-8 by definition; a record that is not is a bad row (`binary`). Blank ones are counted
    (`skipped_empty_body`).
    """

    name = "WET source"
    record_types = ("conversion",)

    def _record_fields(self, record: Any) -> Row | None:
        try:
            return super()._record_fields(record)
        except UnicodeDecodeError as error:
            return RowFault("binary", f"not UTF-8 at byte {error.start}")

    def _text(self, record: Any, body: bytes) -> str | Skipped:
        return body.decode("utf-8") if body.strip() else Skipped("empty_body")


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


def _is_html(kind: str, body: bytes) -> bool:
    kind = kind.partition(";")[0].strip().lower()
    # XHTML is served and identified as XML, and servers that do not know say "octet-stream".
    if kind not in ("", "text/xml", "application/xml", "application/octet-stream"):
        return kind in ("text/html", "application/xhtml+xml")
    head = body[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    return head.startswith((b"<!doctype html", b"<html")) or b"<html" in head

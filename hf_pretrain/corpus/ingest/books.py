"""Books: plain text (Project Gutenberg's header and licence taken off) and EPUB (chapters in the order of reading)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from posixpath import dirname, join, normpath
from typing import Any
from urllib.parse import unquote

from hf_pretrain.corpus.ingest.archives import read_zip
from hf_pretrain.corpus.ingest.html_fragments import fragment_text
from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.safe_xml import local_name, parse_xml
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.utils.optional import require


_START = re.compile(r"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG[^\n]{0,300}$", re.M | re.I)
_OLD_START = re.compile(r"^\*END\*? ?THE SMALL PRINT[^\n]{0,200}$", re.M | re.I)
_END = re.compile(
    r"^\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG|^End of (?:the |this )?Project Gutenberg(?:'s)? ", re.M | re.I
)
_FIELD = re.compile(r"^(Title|Author|Language):[ \t]*(\S[^\n]{0,300})$", re.M)
_CREDITS = re.compile(
    r"\A\s*(?:Produced by|E-text prepared by|Transcribed from)[^\n]{0,300}(?:\n[^\n]{1,300}){0,5}\n\s*\n"
)
_CHAPTER_BYTES = 20_000_000


class BooksSource(SourceReader):
    """
    Books as text files or EPUB, see `BooksOptions`.

    Text that is not UTF-8 is decoded by resiliparse's detector. An EPUB whose text is encrypted is a bad file; a
    chapter that is missing or broken is a bad row; covers and other files without text are `skipped_no_text`.
    Metadata: `title`, `author`, `language` where the book names them, `chapter` (from 0).
    """

    name = "Books source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        The book, or its chapters.

        Args:
            path (`Path`): A text file or an EPUB.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: number from 0 and text.
        """
        options = self.config.kind_options
        if path.name.lower().endswith(".epub"):
            yield from self._epub(path, options)
            return
        limit = self.config.max_document_bytes
        with open_stream(path) as stream:
            data = stream.read(limit + 1)
            if fault := stream_fault(stream):
                raise FileFault(fault)
        if not data:
            return
        if len(data) > limit:
            yield 0, RowFault("too_large", f"more than max_document_bytes = {limit}")
            return
        text = _decoded(data)
        fields: dict[str, Any] = {}
        if options.gutenberg:
            text, fields = strip_gutenberg(text)
        yield 0, {self.text_key: text, self.id_key: f"{self.config.name}/{path.relative_to(self.root)}", **fields}

    def _epub(self, path: Path, options: Any) -> Iterator[tuple[int, Row]]:
        parts: dict[str, bytes] = {}
        faults: dict[str, RowFault] = {}
        for name, content in read_zip(path, _CHAPTER_BYTES):
            if isinstance(content, bytes):
                # Pictures and fonts are not kept.
                if name.lower().endswith((".xml", ".opf", ".xhtml", ".html", ".htm", ".ncx")):
                    parts[name] = content
            elif isinstance(content, RowFault):
                faults[name] = content
        try:
            spine, fields = _spine(parts)
        except (ValueError, KeyError) as error:
            raise FileFault(f"no readable EPUB ({error})") from error
        encrypted = _encrypted(parts)
        if encrypted & set(spine):
            raise FileFault("the text is encrypted (DRM)")
        chapters: list[str] = []
        for row, name in enumerate(spine):
            chapter = faults.get(name) or self._chapter(name, parts)
            if isinstance(chapter, str) and options.unit == "book":
                chapters.append(chapter)
                continue
            yield row, chapter if not isinstance(chapter, str) else self._record(path, fields, chapter, row)
        if chapters:
            text = "\n\n".join(chapters)
            if options.gutenberg:
                text = strip_gutenberg(text)[0]
            yield len(spine), self._record(path, fields, text, None)

    def _chapter(self, name: str, parts: dict[str, bytes]) -> str | Row:
        if name not in parts:
            return RowFault("missing_chapter", f"{name!r} of the spine is not in the archive")
        try:
            text = fragment_text(_decoded(parts[name]), "reading EPUB")
        except ValueError as error:
            return RowFault("too_deep", str(error))
        return text or Skipped("no_text")

    def _record(self, path: Path, fields: dict[str, Any], text: str, chapter: int | None) -> Row:
        identifier = f"{self.config.name}/{path.relative_to(self.root)}"
        record = {self.text_key: text, self.id_key: identifier, **fields}
        if chapter is not None:
            record |= {self.id_key: f"{identifier}/{chapter}", "chapter": chapter}
        return record


def strip_gutenberg(text: str) -> tuple[str, dict[str, str]]:
    """
    Take off what Project Gutenberg puts around a book.

    Args:
        text (`str`): The file.

    Returns:
        `tuple[str, dict]`: the book, and `title`, `author`, `language` of the header; the text as it is for others.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    start = _START.search(text) or _OLD_START.search(text)
    if start is None:
        return text.strip(), {}
    fields = {name.lower(): value.strip() for name, value in _FIELD.findall(text[: start.start()])}
    end = _END.search(text, start.end())
    body = text[start.end() : end.start() if end else len(text)].strip()
    return _CREDITS.sub("", body).strip(), {**fields, "license": "public-domain"}


def _spine(parts: dict[str, bytes]) -> tuple[list[str], dict[str, str]]:
    """Files of the book in the order of reading, and what it says of itself."""
    container = parse_xml(parts["META-INF/container.xml"], allow_doctype=True)
    package = next((item.get("full-path") for item in container.iter() if local_name(item.tag) == "rootfile"), None)
    if not package or package not in parts:
        raise ValueError("there is no package file")
    root = parse_xml(parts[package], allow_doctype=True)
    items, order, fields = {}, [], {}
    for element in root.iter():
        name = local_name(element.tag)
        if name == "item" and element.get("id") and element.get("href"):
            items[element.get("id")] = normpath(join(dirname(package), unquote(element.get("href"))))
        elif name == "itemref" and element.get("linear", "yes") != "no":
            order.append(element.get("idref"))
        elif name in ("title", "creator", "language", "rights") and (element.text or "").strip():
            key = {"creator": "author", "rights": "license"}.get(name, name)
            fields.setdefault(key, element.text.strip()[:300])
    if not order:
        raise ValueError("the spine is empty")
    return [items.get(entry, f"(no item '{entry}')") for entry in order], fields


def _encrypted(parts: dict[str, bytes]) -> set[str]:
    """Files that are encrypted; fonts often are, which is no matter."""
    if "META-INF/encryption.xml" not in parts:
        return set()
    root = parse_xml(parts["META-INF/encryption.xml"], allow_doctype=True)
    return {unquote(item.get("URI", "")) for item in root.iter() if local_name(item.tag) == "CipherReference"}


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        encoding = require("resiliparse.parse.encoding", "corpus", "decoding text")
        return encoding.bytes_to_str(data, encoding.detect_encoding(data) or "cp1252", errors="replace")

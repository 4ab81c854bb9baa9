"""Wikipedia (MediaWiki) XML dumps, plain, bzip2 or gzip: one article, one document.

The dump is read as a stream and each `<page>` is parsed on its own, so memory is that of one page, and a damaged page
is one bad row and not the end of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.safe_xml import local_name, parse_xml
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.corpus.ingest.wikitext import wikitext_to_text
from hf_pretrain.utils.optional import require


_BASE = re.compile(rb"<base>([^<]{1,500})</base>")
_LANGUAGE = re.compile(rb"<mediawiki\b[^>]{0,2000}\bxml:lang=\"([A-Za-z-]{1,20})\"")
_REDIRECT = re.compile(r"#[^\s\[]{3,30}\s*:?\s*\[\[")
_LINE = 1 << 20


class WikipediaSource(SourceReader):
    """
    Articles of MediaWiki XML dumps (`pages-articles`), as text.

    Rows left out are counted: `skipped_redirect`, `skipped_namespace`, `skipped_model` (pages that are no wikitext),
    `skipped_no_prose` (nothing but templates and tables). Metadata: `url`, `title`, `date`; `language` of the dump.
    """

    name = "Wikipedia source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Pages of one dump.

        Args:
            path (`Path`): The dump.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: page number from 0, and its text, title and address.
        """
        require("mwparserfromhell", "sources", "reading Wikipedia dumps")
        options = self.config.kind_options
        head, limit = b"", self.config.max_document_bytes
        page: list[bytes] | None = None
        size = row = 0
        with open_stream(path) as stream:
            while line := stream.readline(_LINE):
                if page is None:
                    if line.lstrip()[:6] != b"<page>":
                        head += line if len(head) < 100_000 else b""
                        continue
                    page, size = [], 0
                    if row == 0 and b"<mediawiki" not in head:
                        raise FileFault("no MediaWiki dump (there is no <mediawiki> before the first page)")
                elif line.lstrip()[:6] == b"<page>":
                    # The page before this one was never closed.
                    yield row, RowFault("broken_xml", "the page has no end")
                    row, page, size = row + 1, [], 0
                size += len(line)
                if size <= 2 * limit + 65_536:
                    page.append(line)
                if line.rstrip()[-7:] == b"</page>":
                    if size > 2 * limit + 65_536:
                        yield row, RowFault("too_large", f"page of {size} bytes")
                    else:
                        yield row, self._page(b"".join(page), head, options)
                    row, page = row + 1, None
            if fault := stream_fault(stream):
                raise FileFault(f"{fault} in page {row + 1}")
            if page is not None:
                raise FileFault(f"cut off in page {row + 1}")
            if row == 0:
                raise FileFault("it holds no page of a MediaWiki dump")

    def _page(self, data: bytes, head: bytes, options: Any) -> Row:
        try:
            page = parse_xml(data)
        except ValueError as error:
            return RowFault("broken_xml", str(error))
        fields = {local_name(child.tag): child for child in page}
        revision = {local_name(child.tag): child for child in fields.get("revision", ())}
        title = (fields["title"].text or "").strip() if "title" in fields else ""
        number = (fields["ns"].text or "0").strip() if "ns" in fields else "0"
        if "text" not in revision or not title:
            return RowFault("no_text", "a page without title or revision")
        if not number.lstrip("-").isdigit() or int(number) not in options.namespaces:
            return Skipped("namespace")
        wikitext = revision["text"].text or ""
        if "redirect" in fields or _REDIRECT.match(wikitext.lstrip()):
            return Skipped("redirect")
        model = revision["model"].text if "model" in revision else "wikitext"
        if (model or "wikitext").strip() != "wikitext":
            return Skipped("model")
        try:
            text = wikitext_to_text(wikitext, options.tables, options.drop_sections)
        except ValueError as error:
            return RowFault("wikitext", str(error))
        if not text:
            return Skipped("no_prose")
        record: dict[str, Any] = {self.text_key: f"{title}\n\n{text}", "title": title}
        if "id" in fields and fields["id"].text:
            record[self.id_key] = f"{self.config.name}/{fields['id'].text.strip()}"
        if "timestamp" in revision:
            record["date"] = revision["timestamp"].text
        if base := _BASE.search(head):
            root = base[1].decode("utf-8", "replace").rpartition("/")[0]
            record["url"] = f"{root}/{quote(title.replace(' ', '_'), safe='/:()!,')}"
        if language := _LANGUAGE.search(head):
            record["language"] = language[1].decode()
        record["license"] = "CC-BY-SA-4.0" if self.config.license == "unknown" else self.config.license
        return record

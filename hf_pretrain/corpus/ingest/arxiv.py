"""LaTeX sources of arXiv: a `.tar.gz` or a `.gz` a paper, or the bulk `.tar` of many such; one paper, one document."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

from hf_pretrain.corpus.ingest.archives import FLOOR_BYTES, RATIO, read_members, read_tar
from hf_pretrain.corpus.ingest.latex import body_of, flatten, latex_to_text
from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, Skipped, SourceReader
from hf_pretrain.corpus.ingest.streams import GzipStream, open_stream, stream_fault


_PAPER = re.compile(r"(\d{4}\.\d{4,5}|[a-z-]+/?\d{7})(v\d+)?")
_MEMBER_BYTES = 50_000_000


class ArxivSource(SourceReader):
    """
    Papers as LaTeX (`options: {output: latex}`) or text.

    Papers that are a PDF alone are counted (`skipped_pdf`, `skipped_no_latex`). Metadata: `paper`, `title`, `url`,
    `missing_inputs`.
    """

    name = "arXiv source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Papers of one file.

        Args:
            path (`Path`): A paper's `.gz` or `.tar.gz`, a `.tex`, or a `.tar` of papers.

        Returns:
            `Iterator[tuple[int, dict | RowFault | Skipped]]`: number of the paper from 0, and its text.
        """
        if path.name.endswith(".tar"):
            for row, (name, content) in enumerate(read_members(path, _MEMBER_BYTES)):
                if isinstance(content, bytes) and name.endswith(".gz"):
                    content = self._unpacked(io.BytesIO(content), len(content))
                yield row, content if not isinstance(content, bytes) else self._paper(name, content)
            return
        size = path.stat().st_size
        if path.name.endswith((".gz", ".tgz")):
            with open_stream(path) as stream:
                content = self._read(stream, size)
                if fault := stream_fault(stream):
                    raise FileFault(fault)
        else:
            content = path.read_bytes() if size <= _MEMBER_BYTES else RowFault("too_large", f"{size} bytes")
        if content:
            yield 0, content if isinstance(content, RowFault) else self._paper(path.name, content)

    def _unpacked(self, stream: io.BytesIO, size: int) -> bytes | RowFault:
        with io.BufferedReader(GzipStream(stream)) as unpacked:
            content = self._read(unpacked, size)
            fault = stream_fault(unpacked)
        return RowFault("broken_archive", fault) if fault else content

    def _read(self, stream: io.BufferedReader, size: int) -> bytes | RowFault:
        limit = min(FLOOR_BYTES + RATIO * size, 4 * _MEMBER_BYTES)
        content = stream.read(limit + 1)
        return content if len(content) <= limit else RowFault("too_large", f"unpacks to more than {limit} bytes")

    def _paper(self, name: str, content: bytes) -> Row:
        if content.startswith(b"%PDF") or name.endswith(".pdf"):
            return Skipped("pdf")
        files: dict[str, str] = {}
        if content[257:262] == b"ustar":
            try:
                for member, data in read_tar(io.BytesIO(content), len(content), _MEMBER_BYTES):
                    if isinstance(data, RowFault):
                        return data
                    if isinstance(data, bytes) and member.lower().endswith((".tex", ".ltx", ".bbl")):
                        files[member] = _decoded(data)
            except FileFault as fault:
                return RowFault("broken_archive", str(fault))
        elif b"\\" in content[:100_000]:
            files[name.removesuffix(".gz")] = _decoded(content)
        if not any(not member.endswith(".bbl") for member in files):
            return Skipped("no_latex")
        return self._record(name, files)

    def _record(self, name: str, files: dict[str, str]) -> Row:
        options = self.config.kind_options
        try:
            text, main, missing = flatten(files)
            body, title = body_of(text, options.bibliography)
            if options.bibliography and "\\begin{thebibliography}" not in body:
                body += "".join("\n\n" + text for file, text in sorted(files.items()) if file.endswith(".bbl"))
            if options.output == "text":
                body, title = latex_to_text(body), latex_to_text(title)
        except ValueError as error:
            return RowFault("latex", str(error))
        if not body:
            return Skipped("no_latex")
        record = {self.text_key: body, "title": title, "main_file": main, "missing_inputs": missing}
        if title and title not in body:
            record[self.text_key] = f"{title}\n\n{body}"
        if paper := _PAPER.search(name):
            record |= {
                self.id_key: f"{self.config.name}/{paper[0]}",
                "paper": paper[0],
                "url": f"https://arxiv.org/abs/{paper[0]}",
            }
        return record


def _decoded(data: bytes) -> str:
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        # Before UTF-8 papers were written in the encoding that `inputenc` names, mostly this one.
        return data.decode("latin-1")

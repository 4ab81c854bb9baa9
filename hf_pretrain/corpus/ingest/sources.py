"""Every kind of source by its name, and plain text files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.arxiv import ArxivSource
from hf_pretrain.corpus.ingest.books import BooksSource
from hf_pretrain.corpus.ingest.code import CodeSource
from hf_pretrain.corpus.ingest.problems import ProblemsSource
from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, SourceReader
from hf_pretrain.corpus.ingest.stackexchange import StackExchangeSource
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.corpus.ingest.tables import DatasetSource, JsonlSource, ParquetSource
from hf_pretrain.corpus.ingest.web_archives import WarcSource, WetSource
from hf_pretrain.corpus.ingest.wikipedia import WikipediaSource
from hf_pretrain.utils.errors import UserError


class TextSource(SourceReader):
    """UTF-8 text files, one document a file, plain or gzip."""

    name = "Text source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
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


_READERS = {
    "warc": WarcSource,
    "wet": WetSource,
    "wikipedia": WikipediaSource,
    "arxiv": ArxivSource,
    "stackexchange": StackExchangeSource,
    "code": CodeSource,
    "books": BooksSource,
    "problems": ProblemsSource,
    "jsonl": JsonlSource,
    "parquet": ParquetSource,
    "dataset": DatasetSource,
    "text": TextSource,
}


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
        `SourceConfig`: one of another kind.
    """
    if config.kind != "sample":
        return config
    if sample_dir is None:
        raise UserError(f"source '{config.name}': kind = 'sample' needs the folder of a built sample (sample_dir)")
    part = config.path or config.name
    kind, name = ("warc", "web.warc.gz") if part == "web" else ("jsonl", f"{part}.jsonl.gz")
    return dataclasses.replace(config, kind=kind, path=str(Path(sample_dir) / name), domain=config.effective_domain)

"""Documents between the steps: plain JSONL, one folder a source, one file a task.

Unlike datatrove's reader ours never passes over a row: these files are written by us, and a row that cannot be read
means that the disk or a hand changed them.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.pipeline.writers.jsonl import JsonlWriter

from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import UserError


def _plain(writer: JsonlWriter, document: Document) -> dict[str, Any]:
    return {"id": document.id, "text": document.text, "metadata": document.metadata}


class DocumentWriter(JsonlWriter):
    """Writes documents to `<folder>/<source>/<rank>.jsonl` and notes how many rows each file got.

    Args:
        folder (`str` or `Path`): Folder of the documents.
        logging_dir (`str` or `Path`): Logging folder of the pipeline; row counts go to `rows/`.
    """

    name = "Documents"

    def __init__(self, folder: str | Path, logging_dir: str | Path) -> None:
        super().__init__(str(folder), output_filename="${source}/${rank}.jsonl", compression=None, adapter=_plain)
        self._logging_dir = str(logging_dir)
        self._rows: dict[str, int] = {}

    def _write(self, document: dict[str, Any], file_handler: Any, filename: str) -> None:
        super()._write(document, file_handler, filename)
        self._rows[filename] = self._rows.get(filename, 0) + 1

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Writes the documents.

        Args:
            data (`DocumentsPipeline`): Documents with `metadata["source"]`.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: Every document, once it is written.
        """
        self._rows = {}
        yield from super().run(data, rank, world_size)
        write_json(Path(self._logging_dir) / "rows" / f"{rank:05d}.json", self._rows)


class DocumentReader(PipelineStep):
    """Reads what [`DocumentWriter`] wrote; a task reads files `[rank::world_size]`.

    Args:
        folder (`str` or `Path`): Folder of the documents.
        sources (`Sequence[str]`): Sources to read, in this order.
    """

    name = "Documents"
    type = "READER"

    def __init__(self, folder: str | Path, sources: Sequence[str]) -> None:
        super().__init__()
        self.folder, self.sources = str(folder), list(sources)

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Reads the files of one task.

        Args:
            data (`DocumentsPipeline`, *optional*): Not used.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: Every document.
        """
        for file in document_files(self.folder, self.sources)[rank::world_size]:
            yield from iter_documents(file)


def document_files(folder: str | Path, sources: Sequence[str]) -> list[Path]:
    """Lists the files of some sources.

    Args:
        folder (`str` or `Path`): Folder of the documents.
        sources (`Sequence[str]`): Sources, in order.

    Returns:
        `list[Path]`: Files, source after source; none for a source that has lost all documents.
    """
    return [file for name in sources for file in sorted((Path(folder) / name).glob("*.jsonl"))]


def iter_documents(file: Path) -> Iterator[Document]:
    """Reads one file, a document at a time.

    Args:
        file (`Path`): A file of [`DocumentWriter`].

    Yields:
        `Document`: Its documents.

    Raises:
        UserError: If a row cannot be read.
    """
    with open(file, "rb") as stream:
        for number, line in enumerate(stream, 1):
            try:
                row = orjson.loads(line)
                document = Document(text=row["text"], id=row["id"], metadata=row["metadata"])
            except (json.JSONDecodeError, KeyError, TypeError) as error:
                raise UserError(
                    f"{file}, line {number} was changed or damaged after it was written; remove the folder "
                    f"{file.parents[2].name} and run again."
                ) from error
            yield document


def read_documents(file: Path) -> list[Document]:
    """Reads one file at once.

    Args:
        file (`Path`): A file of [`DocumentWriter`].

    Returns:
        `list[Document]`: Its documents.

    Raises:
        UserError: If a row cannot be read.
    """
    return list(iter_documents(file))


def count_rows(logging_dir: Path) -> dict[str, int]:
    """Rows of every file a pipeline wrote.

    Args:
        logging_dir (`Path`): Its logging folder.

    Returns:
        `dict[str, int]`: Rows by file.
    """
    rows: dict[str, int] = {}
    for file in sorted((logging_dir / "rows").glob("*.json")):
        rows.update(read_json(file))
    return rows

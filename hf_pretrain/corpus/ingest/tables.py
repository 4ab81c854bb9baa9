"""Rows of tables: JSON Lines, Parquet, and the Arrow files of a saved `datasets` folder. One row, one document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hf_pretrain.corpus.ingest.reader import FileFault, Row, RowFault, SourceReader
from hf_pretrain.corpus.ingest.streams import open_stream, stream_fault
from hf_pretrain.utils.optional import require


class JsonlSource(SourceReader):
    """JSON Lines, plain or gzip. A bad row: not UTF-8, not a JSON object, no text, binary, too large."""

    name = "JSONL source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
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

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Rows of one file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict]]`: row number from 0 and its columns.
        """
        return read_parquet(path, self.text_key)


class DatasetSource(SourceReader):
    """
    Arrow files of a folder of `datasets` (`save_to_disk`, one split or several), read as they lie, without a cache.

    The folder of a `DatasetDict` gives all its splits; name `path: folder/train` for one. Rows are those of the files,
    which `save_to_disk` writes in the order of the dataset.
    """

    name = "Dataset source"

    def read_rows(self, path: Path) -> Iterator[tuple[int, Row]]:
        """
        Rows of one file.

        Args:
            path (`Path`): The file.

        Returns:
            `Iterator[tuple[int, dict]]`: row number from 0 and its columns.
        """
        arrow = require("pyarrow", "corpus", "reading datasets")
        row = 0
        try:
            with arrow.memory_map(str(path)) as source, arrow.ipc.open_stream(source) as batches:
                if self.text_key not in batches.schema.names:
                    raise FileFault(_no_column(self.text_key, batches.schema.names))
                for batch in batches:
                    for start in range(0, len(batch), 256):
                        for record in batch.slice(start, 256).to_pylist():
                            yield row, record
                            row += 1
        except (arrow.ArrowException, OSError) as error:
            what = f"damaged after row {row}" if row else "no readable Arrow file"
            raise FileFault(f"{what} ({' '.join(str(error).split())[:160]})") from error


def read_parquet(path: Path, column: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """
    Rows of a Parquet file.

    Args:
        path (`Path`): The file.
        column (`str`): A column that it must have.

    Returns:
        `Iterator[tuple[int, dict]]`: row number from 0 and its columns.

    Raises:
        FileFault: If it cannot be read, or has no such column.
    """
    parquet = require("pyarrow.parquet", "corpus", "reading Parquet files")
    from pyarrow.lib import ArrowException

    row = 0
    try:
        with parquet.ParquetFile(path) as file:
            if column not in file.schema_arrow.names:
                raise FileFault(_no_column(column, file.schema_arrow.names))
            for batch in file.iter_batches(batch_size=256):
                for record in batch.to_pylist():
                    yield row, record
                    row += 1
    except (ArrowException, OSError) as error:
        what = f"damaged after row {row}" if row else "no readable Parquet file"
        raise FileFault(f"{what} ({' '.join(str(error).split())[:160]})") from error


def _no_column(column: str, names: list[str]) -> str:
    return f"no column '{column}'; columns are {', '.join(names)} (text_key)"


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

"""`pairs.parquet`: every removal with the document that stays and their similarity."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


SCHEMA = pa.schema(
    [
        ("kept", pa.string()),
        ("kept_source", pa.string()),
        ("removed", pa.string()),
        ("removed_source", pa.string()),
        ("similarity", pa.float64()),
    ]
)


def safe_text(text: str) -> str:
    """A text that can be written as UTF-8: lone surrogates become their escapes.

    Args:
        text (`str`): Any text.

    Returns:
        `str`: The same text, but for lone surrogates.
    """
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def write_pairs(file: str | Path, rows: Iterable[tuple[str, str, str, str, float]]) -> None:
    """Writes pairs, a piece at a time.

    Args:
        file (`str` or `Path`): Where they go.
        rows (`Iterable[tuple]`): Id and source of the kept document, id and source of the removed one, similarity.
    """
    Path(file).parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(str(file), SCHEMA) as writer:
        batch: list[dict[str, Any]] = []
        for kept, kept_source, removed, removed_source, similarity in rows:
            values = [*map(safe_text, (kept, kept_source, removed, removed_source)), round(similarity, 4)]
            batch.append(dict(zip(SCHEMA.names, values, strict=True)))
            if len(batch) == 16384:
                writer.write_table(pa.Table.from_pylist(batch, SCHEMA))
                batch = []
        writer.write_table(pa.Table.from_pylist(batch, SCHEMA))


def read_pairs(file: str | Path) -> list[dict[str, Any]]:
    """Reads pairs.

    Args:
        file (`str` or `Path`): A file of [`write_pairs`].

    Returns:
        `list[dict]`: Its rows.
    """
    return pq.read_table(str(file)).to_pylist()

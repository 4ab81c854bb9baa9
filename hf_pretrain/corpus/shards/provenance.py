"""Where each document of a token shard came from: one JSON line a document, and an index of where the lines end.

`00000.ds.docs.jsonl` holds {"id", "source", "url", "language", "file", "row", "num_bytes", "num_tokens", "metadata"}
in the order of the tokens; `00000.ds.docs.index` holds the cumulative byte ends of its lines (little-endian
`uint64`), so that one document can be named without reading the others.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from datatrove.data import Document


_OWN_KEYS = ("source", "url", "language", "file", "row")


def provenance_record(document: Document, num_tokens: int) -> dict[str, Any]:
    """The line of one document.

    Args:
        document (`Document`): The document.
        num_tokens (`int`): Its tokens, the closing one included.

    Returns:
        `dict`: A JSON object.
    """
    metadata = document.metadata
    record: dict[str, Any] = {"id": document.id}
    record.update((key, metadata.get(key)) for key in _OWN_KEYS)
    record["num_bytes"] = len(document.text.encode("utf-8", "replace"))
    record["num_tokens"] = num_tokens
    record["metadata"] = {key: value for key, value in metadata.items() if key not in _OWN_KEYS}
    return record


class ProvenanceWriter:
    """Writes the sidecar of one shard.

    Args:
        shard (`Path`): The shard file, e.g. `00000.ds`.
    """

    def __init__(self, shard: Path) -> None:
        self._stream = open(f"{shard}.docs.jsonl", "wb")
        self._index_path = f"{shard}.docs.index"
        self._ends: list[int] = []

    def write(self, record: dict[str, Any]) -> None:
        """Adds the line of the next document.

        Args:
            record (`dict`): A JSON object.
        """
        line = json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "replace") + b"\n"
        self._stream.write(line)
        self._ends.append((self._ends[-1] if self._ends else 0) + len(line))

    def close(self) -> None:
        """Finishes both files."""
        self._stream.close()
        np.array(self._ends, "<u8").tofile(self._index_path)


def read_provenance(shard: str | Path, document: int) -> dict[str, Any]:
    """Reads the line of one document.

    Args:
        shard (`str` or `Path`): The shard file.
        document (`int`): Number of the document in it.

    Returns:
        `dict`: Its record.
    """
    ends = np.fromfile(f"{shard}.docs.index", "<u8")
    start = int(ends[document - 1]) if document else 0
    with open(f"{shard}.docs.jsonl", "rb") as stream:
        stream.seek(start)
        return json.loads(stream.read(int(ends[document]) - start))

"""Token shards over the Arrow table of a tokenised `datasets.Dataset`: no copy, no pass over the data.

Each chunk of the column `input_ids` is a piece of the source, its list offsets are the document ends, and the other
columns are the provenance. A row is one document; where TRL's packing has left a column `seq_lengths`, a row holds
documents of these lengths.
"""

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

TOKENS, LENGTHS = "input_ids", "seq_lengths"
# What tokenisation and packing leave beside the ids, and what says nothing about where a document came from.
_NOT_PROVENANCE = (TOKENS, LENGTHS, "attention_mask", "labels", "position_ids", "token_type_ids", "completion_mask")


class ArrowShard:
    """One chunk of the column `input_ids`.

    Args:
        table (`ArrowTable`): What the chunks of one source share.
        number (`int`): Number of the chunk.
        first_row (`int`): Row of the dataset at which it begins.
    """

    looked_through = False
    __slots__ = ("_ends", "_first_row", "_number", "_rows", "_table", "_tokens", "num_documents")

    def __init__(self, table: "ArrowTable", number: int, first_row: int) -> None:
        self._table = table
        self._number = number
        self._first_row = first_row
        self._tokens: np.ndarray | None = None
        self._ends: np.ndarray | None = None
        self._rows: np.ndarray | None = None
        self.num_documents = table.num_documents(number, first_row)

    @property
    def tokens(self) -> np.ndarray:
        """Ids of the chunk, as they lie in the mapped file."""
        if self._tokens is None:
            self._tokens = self._table.flat(self._number)[0]
        return self._tokens

    @property
    def ends(self) -> np.ndarray:
        """Where each document ends, in tokens of the chunk."""
        if self._ends is None:
            self._ends = self._table.flat(self._number)[1]
            if self._table.lengths is not None:
                rows = self._ends
                lengths, self._rows = self._table.packed_lengths(self._first_row, len(rows))
                self._ends = np.cumsum(lengths, dtype=np.int64)
                at_row_ends = np.concatenate(([0], self._ends))[np.concatenate(([0], self._rows))]
                if not np.array_equal(at_row_ends[1:], rows):
                    raise UserError(
                        f"source {self._table.name!r}: in rows {self._first_row} to {self._first_row + len(rows)} "
                        f"{LENGTHS} does not sum to the length of {TOKENS}; drop the column, or pack again"
                    )
        return self._ends

    def record(self, document: int) -> dict[str, Any]:
        """Reads the other columns of a document's row.

        Args:
            document (`int`): Number of the document in the chunk.

        Returns:
            `dict[str, Any]`: Column to value.
        """
        row = document
        if self._table.lengths is not None:
            row = int(np.searchsorted(self.ends[self._rows - 1], self.ends[document])) if len(self.ends) else 0
        provenance = self._table.provenance
        return {} if provenance is None else dict(provenance[self._first_row + row])

    def documents_with_id(self, document_id: str) -> list[int]:
        """Searches the column `id`.

        Args:
            document_id (`str`): The id.

        Returns:
            `list[int]`: Numbers of the documents in the chunk.
        """
        rows = self._table.rows_with_id(document_id, self._first_row, self._number)
        if self._table.lengths is None:
            return rows
        bounds = np.concatenate(([0], self._rows if len(self.ends) else [])).astype(np.int64)
        return [document for row in rows for document in range(bounds[row], bounds[row + 1])]


class ArrowTable:
    """The columns of a tokenised dataset that a source reads.

    Args:
        dataset (`datasets.Dataset`): With a column `input_ids`.
        name (`str`): Name of the source, for messages.

    Raises:
        UserError: If there is no column `input_ids` of lists of whole numbers, or rows are missing.
    """

    def __init__(self, dataset: "Dataset", name: str) -> None:
        import pyarrow as pa

        self.name = name
        columns = list(getattr(dataset, "column_names", None) or [])
        if TOKENS not in columns:
            raise UserError(
                f"source {name!r}: the dataset has the columns {columns}, none is {TOKENS!r}; tokenize it first "
                f"(dataset.map), with an end-of-text id after every document"
            )
        if dataset._indices is not None:
            logger.info("Source %s: rows were selected or shuffled; they are written once in their order", name)
            dataset = dataset.flatten_indices()
        self.column = dataset.data.column(TOKENS)
        kind = self.column.type
        is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
        if not is_list or not pa.types.is_integer(kind.value_type):
            raise UserError(f"source {name!r}: {TOKENS} is of type {kind}; lists of whole numbers are needed")
        if self.column.null_count:
            raise UserError(f"source {name!r}: {self.column.null_count} rows have no {TOKENS}; filter them out")
        self.lengths = dataset.data.column(LENGTHS) if LENGTHS in columns else None
        self.ids = dataset.data.column("id") if "id" in columns else None
        others = [column for column in columns if column not in _NOT_PROVENANCE]
        self.provenance = dataset.select_columns(others).with_format(None) if others else None

    def shards(self) -> list[ArrowShard]:
        """Makes one piece a chunk.

        Returns:
            `list[ArrowShard]`: In the order of the rows; chunks without rows are left out.
        """
        found, row = [], 0
        for number in range(self.column.num_chunks):
            count = len(self.column.chunk(number))
            if count:
                found.append(ArrowShard(self, number, row))
            row += count
        return found

    def num_documents(self, number: int, first_row: int) -> int:
        """Counts the documents of a chunk.

        Args:
            number (`int`): Number of the chunk.
            first_row (`int`): Its first row.

        Returns:
            `int`: Rows, or with `seq_lengths` all its entries.
        """
        count = len(self.column.chunk(number))
        return count if self.lengths is None else len(self.packed_lengths(first_row, count)[0])

    def flat(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        """Gives a chunk's ids and row ends without a copy.

        Args:
            number (`int`): Number of the chunk.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: All ids, and where each row ends.

        Raises:
            UserError: If an id is missing.
        """
        import pyarrow as pa

        chunk = self.column.chunk(number)
        if pa.types.is_fixed_size_list(chunk.type):
            values = chunk.flatten()
            ends = np.arange(1, len(chunk) + 1, dtype=np.int64) * chunk.type.list_size
        else:
            offsets = chunk.offsets.to_numpy(zero_copy_only=True)
            values = chunk.values.slice(int(offsets[0]), int(offsets[-1] - offsets[0]))
            ends = offsets[1:] if offsets[0] == 0 else offsets[1:] - offsets[0]
        if values.null_count:
            raise UserError(f"source {self.name!r}: {values.null_count} ids are missing (null); tokenize again")
        return values.to_numpy(zero_copy_only=True), ends

    def rows_with_id(self, document_id: str, first_row: int, number: int) -> list[int]:
        """Searches the column `id` in the rows of a chunk.

        Args:
            document_id (`str`): The id.
            first_row (`int`): First row of the chunk.
            number (`int`): Number of the chunk.

        Returns:
            `list[int]`: Rows, counted in the chunk.
        """
        import pyarrow.compute as pc

        if self.ids is None:
            return []
        part = self.ids.slice(first_row, len(self.column.chunk(number)))
        return np.flatnonzero(pc.equal(pc.cast(part, "string"), document_id).to_numpy(zero_copy_only=False)).tolist()

    def packed_lengths(self, first_row: int, count: int) -> tuple[np.ndarray, np.ndarray]:
        """Reads `seq_lengths` of some rows.

        Args:
            first_row (`int`): First row.
            count (`int`): Number of rows.

        Returns:
            `tuple[np.ndarray, np.ndarray]`: All lengths, and the number of documents up to the end of each row.
        """
        lists = self.lengths.slice(first_row, count)
        parts = [chunk.flatten().to_numpy() for chunk in lists.chunks]
        counts = np.concatenate([np.diff(chunk.offsets.to_numpy()) for chunk in lists.chunks])
        return np.concatenate(parts), np.cumsum(counts)

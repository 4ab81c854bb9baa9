"""What the stages of deduplication leave on disk for each other, and the checks that it is whole.

    <folder>/signatures/<shard>/   documents.parquet, keys_<k>.u64, present.u8, manifest.json     one a task
    <folder>/buckets/<k>/          members.i64, lengths.i64, manifest.json                        one a key
    <folder>/features/<shard>/     rows.i64, offsets.i64, values.u64, manifest.json               one a task
    <folder>/clusters/             removed/<shard>.npz, pairs.parquet, manifest.json

Every folder appears complete or not at all. A manifest holds {fingerprint, inputs, rows, schema}; the next stage
refuses files that are missing, cut short, or made with other settings.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from datatrove.data import Document

from hf_pretrain.corpus.dedup.keep import KeepFacts, KeepPolicy, keep_facts
from hf_pretrain.corpus.dedup.methods import DedupMethod
from hf_pretrain.corpus.dedup.pairs import safe_text
from hf_pretrain.utils.atomic import atomic_directory, read_json, write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint


_BATCH_CHARACTERS = 1 << 18
_BATCH_DOCUMENTS = 4096
_DOCUMENTS = pa.schema(
    [
        ("id", pa.string()),
        ("source", pa.string()),
        ("quality", pa.float64()),
        ("length", pa.int64()),
        ("date", pa.float64()),
        ("tie", pa.uint64()),
    ]
)


def document_batches(documents: Iterable[Document]) -> Iterator[list[Document]]:
    """Groups documents so that a batch fits a processor's cache; a long one is a batch of its own.

    Args:
        documents (`Iterable[Document]`): Documents.

    Yields:
        `list[Document]`: A batch.
    """
    batch: list[Document] = []
    size = 0
    for document in documents:
        if batch and (size + len(document.text) > _BATCH_CHARACTERS or len(batch) == _BATCH_DOCUMENTS):
            yield batch
            batch, size = [], 0
        batch.append(document)
        size += len(document.text)
    if batch:
        yield batch


class IdDigest:
    """A hash of the ids that passed, in order: the proof that two passes saw the same documents."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self.rows = 0

    def add(self, id: str) -> None:
        """Takes the next id.

        Args:
            id (`str`): Id of a document.
        """
        data = str(id).encode("utf-8", "surrogatepass")
        self._hash.update(len(data).to_bytes(8, "little") + data)
        self.rows += 1

    def hexdigest(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()


class StageFolder:
    """The working folder of one deduplication: reads and writes its stages with their manifests.

    Args:
        folder (`str` or `Path`): The folder; it belongs to one corpus and one method.
        method (`DedupMethod`): The method.
        policy (`KeepPolicy`): Names the metadata fields that are stored.
    """

    def __init__(self, folder: str | Path, method: DedupMethod, policy: KeepPolicy) -> None:
        self.folder, self.method, self.policy = Path(folder), method, policy
        fields = [policy.quality_field, policy.date_field]
        self.fingerprint = fingerprint([method.settings(), fields])

    def write_manifest(self, folder: Path, rows: int, inputs: dict[str, Any], **more: Any) -> None:
        """Writes the manifest of a finished part.

        Args:
            folder (`Path`): Folder of the part.
            rows (`int`): Rows in it.
            inputs (`dict`): What it was made from.
            more (`Any`): Further entries.
        """
        files = {file.name: file.stat().st_size for file in sorted(folder.iterdir()) if file.is_file()}
        schema = {"keys": self.method.num_keys, "documents": _DOCUMENTS.names, "files": files}
        content = {"fingerprint": self.fingerprint, "inputs": inputs, "rows": rows, "schema": schema, **more}
        write_json(folder / "manifest.json", content)

    def check(self, stage: str, part: str = "") -> dict[str, Any]:
        """Reads a manifest and checks that what it describes is there.

        Args:
            stage (`str`): The stage.
            part (`str`, *optional*): The shard or key.

        Returns:
            `dict`: The manifest.

        Raises:
            UserError: If something is missing, cut short, or made with other settings.
        """
        folder = self.folder / stage / part if part else self.folder / stage
        advice = f"run the stage '{stage}' of the deduplication again"
        if not (folder / "manifest.json").is_file():
            raise UserError(f"{folder} is missing or incomplete; {advice}.")
        manifest = read_json(folder / "manifest.json")
        if manifest["fingerprint"] != self.fingerprint:
            raise UserError(f"{folder} was made with other settings; use another folder or {advice}.")
        for name, size in manifest["schema"]["files"].items():
            file = folder / name
            found = file.stat().st_size if file.is_file() else None
            if found != size:
                state = "is missing" if found is None else f"has {found} bytes, not {size}"
                raise UserError(f"{file} {state}; {advice}.")
        return manifest

    def shards(self) -> list[dict[str, Any]]:
        """Manifests of all signature shards, checked to be one set.

        Returns:
            `list[dict]`: One entry a task, in order.

        Raises:
            UserError: If one is missing or belongs to another run.
        """
        present = sorted(path.name for path in (self.folder / "signatures").glob("[0-9]*") if path.is_dir())
        if not present:
            raise UserError(f"{self.folder}/signatures is empty; run the stage 'signatures' first.")
        first = self.check("signatures", present[0])
        manifests = [self.check("signatures", shard_name(rank)) for rank in range(first["tasks"])]
        if len(present) != first["tasks"] or any(item["tasks"] != first["tasks"] for item in manifests):
            raise UserError(
                f"{self.folder}/signatures holds shards of runs with different numbers of tasks; remove the folder "
                "and run the stage 'signatures' again."
            )
        return manifests

    def write_signatures(
        self,
        documents: Iterable[Document],
        rank: int,
        tasks: int,
        with_features: bool = False,
        target: Path | None = None,
    ) -> Iterator[Document]:
        """Writes the signature shard of one task, a batch at a time.

        Args:
            documents (`Iterable[Document]`): Its documents.
            rank (`int`): The task.
            tasks (`int`): Number of tasks.
            with_features (`bool`, *optional*, defaults to `False`): Whether features of all documents are stored too.
            target (`Path`, *optional*): The folder, `signatures/<rank>` by default.

        Yields:
            `Document`: Every document once its row is written.
        """
        digest = IdDigest()
        target = target or self.folder / "signatures" / shard_name(rank)
        with atomic_directory(target) as staging:
            keys = [open(staging / f"keys_{key:03d}.u64", "wb") for key in range(self.method.num_keys)]
            features = FeatureWriter(staging / "features") if with_features else None
            present_file = open(staging / "present.u8", "wb")
            table = pq.ParquetWriter(str(staging / "documents.parquet"), _DOCUMENTS)
            try:
                for batch in document_batches(documents):
                    contents = [self.method.content(document) for document in batch]
                    present, values = self.method.keys(contents)
                    for file, column in zip(keys, values.T, strict=True):
                        file.write(np.ascontiguousarray(column, "<u8").tobytes())
                    present_file.write(present.astype(np.uint8).tobytes())
                    if features is not None:
                        features.write(range(digest.rows, digest.rows + len(batch)), self.method.features(contents))
                    for document in batch:
                        digest.add(document.id)
                    table.write_table(_document_table([keep_facts(document, self.policy) for document in batch]))
                    yield from batch
            finally:
                for file in [*keys, present_file, table, *([features] if features else [])]:
                    file.close()
            self.write_manifest(staging, digest.rows, {}, tasks=tasks, rank=rank, ids=digest.hexdigest())

    def facts(self, shard: Path, rows: np.ndarray) -> list[KeepFacts]:
        """Facts of some documents of a shard.

        Args:
            shard (`Path`): Folder of the shard.
            rows (`np.ndarray`): Ascending row numbers.

        Returns:
            `list[KeepFacts]`: One entry a row.
        """
        result: list[KeepFacts] = []
        file = pq.ParquetFile(str(shard / "documents.parquet"))
        first = 0
        for batch in file.iter_batches(batch_size=1 << 14):
            low, high = np.searchsorted(rows, [first, first + len(batch)])
            if high > low:
                chosen = pa.Table.from_batches([batch]).take(pa.array(rows[low:high] - first)).to_pylist()
                result.extend(KeepFacts(**row) for row in chosen)
            first += len(batch)
        return result


def _document_table(facts: Sequence[KeepFacts]) -> pa.Table:
    columns: dict[str, list] = {name: [getattr(item, name) for item in facts] for name in _DOCUMENTS.names}
    columns["id"] = [safe_text(value) for value in columns["id"]]
    columns["source"] = [safe_text(value) for value in columns["source"]]
    return pa.table(columns, _DOCUMENTS)


def shard_name(rank: int) -> str:
    """Folder name of a task's shard.

    Args:
        rank (`int`): The task.

    Returns:
        `str`: Five digits.
    """
    return f"{rank:05d}"


class FeatureWriter:
    """Feature sets of some rows of a shard, one after the other on disk.

    Args:
        folder (`Path`): Where they go; it is made.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._values, self._offsets = open(folder / "values.u64", "wb"), open(folder / "offsets.i64", "wb")
        self._rows, self._end = open(folder / "rows.i64", "wb"), 0
        self._offsets.write(np.zeros(1, "<i8").tobytes())

    def write(self, rows: Iterable[int], features: Sequence[np.ndarray]) -> None:
        """Adds some rows.

        Args:
            rows (`Iterable[int]`): Row numbers, ascending over all calls.
            features (`Sequence[np.ndarray]`): Feature set of each.
        """
        self._rows.write(np.fromiter(rows, "<i8").tobytes())
        for values in features:
            self._values.write(values.astype("<u8", copy=False).tobytes())
            self._end += len(values)
            self._offsets.write(np.array([self._end], "<i8").tobytes())

    def close(self) -> None:
        """Closes the files."""
        for file in (self._values, self._offsets, self._rows):
            file.close()


class FeatureReader:
    """Reads feature sets back, by row.

    Args:
        folder (`Path`): A folder of [`FeatureWriter`].
    """

    def __init__(self, folder: Path) -> None:
        self._file = folder / "values.u64"
        self.rows = np.fromfile(folder / "rows.i64", "<i8")
        self._offsets = np.fromfile(folder / "offsets.i64", "<i8")
        self._place = {int(row): place for place, row in enumerate(self.rows)}
        self._loaded: np.ndarray | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of all sets."""
        return 8 * int(self._offsets[-1])

    def load(self) -> None:
        """Takes all sets into memory."""
        self._loaded = np.fromfile(self._file, "<u8")

    def __getitem__(self, row: int) -> np.ndarray:
        place = self._place[row]
        start, stop = int(self._offsets[place]), int(self._offsets[place + 1])
        if self._loaded is not None:
            return self._loaded[start:stop]
        return np.fromfile(self._file, "<u8", stop - start, offset=8 * start)

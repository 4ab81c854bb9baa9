"""Deduplication over shards, in stages that datatrove's executors run: for corpora that do not fit into memory.

    1  reader -> DedupSignatures                   N tasks   keys of every document
    2  DedupBuckets                                1..keys   documents that share a key
       reader -> DedupFeatures                     N tasks   feature sets of those alone
    3  DedupClusters                               1 task    who stays, by exact similarity
    4  reader -> DedupFilter -> writer             N tasks   the survivors

The reader and N are the same in every stage; ids are compared and a difference is an error. Memory: a batch of texts
in stages 1 and 4, `memory_bytes` in stage 2, and in stage 3 what concerns documents that share a key. The decisions
are those of `verified_clusters`, so the survivors are those of the in-memory blocks.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.dedup.index import DedupIndex
from hf_pretrain.corpus.dedup.keep import KeepFacts, KeepOrder, KeepPolicy
from hf_pretrain.corpus.dedup.methods import DedupMethod
from hf_pretrain.corpus.dedup.pairs import write_pairs
from hf_pretrain.corpus.dedup.stage_files import (
    FeatureReader,
    FeatureWriter,
    IdDigest,
    StageFolder,
    document_batches,
    shard_name,
)
from hf_pretrain.corpus.dedup.verified_clusters import remove_duplicates
from hf_pretrain.utils.atomic import atomic_directory
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

CLUSTER_ALARM_SHARE = 0.01
_CHUNK = 1 << 20
_BYTES_A_KEY = 48  # key, document, and what sorting them takes


class _Stage(PipelineStep):
    type = "DEDUP"

    def __init__(self, folder: str | Path, method: DedupMethod, policy: KeepPolicy | None = None) -> None:
        super().__init__()
        self.stage_folder = StageFolder(folder, method, policy or KeepPolicy())


class DedupSignatures(_Stage):
    """Stage 1: keys of every document.

    Args:
        folder (`str` or `Path`): Working folder of this deduplication.
        method (`DedupMethod`): How duplicates are found.
        policy (`KeepPolicy`, *optional*): Names the metadata fields that decide who stays.
    """

    name = "Deduplication 1: signatures"

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Consumes the documents of one task.

        Args:
            data (`DocumentsPipeline`): Documents of the task.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Returns:
            `DocumentsPipeline`: Nothing is passed on.
        """
        with self.track_time():
            for _ in self.stage_folder.write_signatures(data, rank, world_size):
                self.stat_update(StatHints.total)
        return iter(())


class DedupBuckets(_Stage):
    """Stage 2: which documents share a key. A task takes every `world_size`-th key.

    Args:
        folder (`str` or `Path`): Working folder of this deduplication.
        method (`DedupMethod`): How duplicates are found.
        policy (`KeepPolicy`, *optional*): As in stage 1.
        index (`str` or `Path`, *optional*): Folder of a [`DedupIndex`] of what was kept before.
        memory_bytes (`int`, *optional*, defaults to 1000000000): Memory for keys; more keys than that hold are sorted
            in several passes.
    """

    name = "Deduplication 2: buckets"

    def __init__(
        self,
        folder: str | Path,
        method: DedupMethod,
        policy: KeepPolicy | None = None,
        index: str | Path | None = None,
        memory_bytes: int = 1_000_000_000,
    ) -> None:
        super().__init__(folder, method, policy)
        self.index, self.memory_bytes = index, memory_bytes

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Sorts the keys of this task.

        Args:
            data (`DocumentsPipeline`, *optional*): Not used.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Returns:
            `DocumentsPipeline`: Nothing is passed on.
        """
        shards = _Shards(self.stage_folder, self.index)
        for key in range(rank, self.stage_folder.method.num_keys, world_size):
            with self.track_time(), atomic_directory(self.stage_folder.folder / "buckets" / f"{key:03d}") as staging:
                members = self._sort(shards, key, staging)
                self.stage_folder.write_manifest(staging, members, shards.inputs)
            self.stat_update("documents_in_buckets", value=members)
        return iter(())

    def _sort(self, shards: "_Shards", key: int, staging: Path) -> int:
        passes = max(1, -(-shards.total * _BYTES_A_KEY // self.memory_bytes))
        total = 0
        with open(staging / "members.i64", "wb") as members_file, open(staging / "lengths.i64", "wb") as lengths_file:
            for number in range(passes):
                keys, documents = shards.keys(key, number, passes)
                members, lengths = group_equal(keys, documents)
                members_file.write(members.astype("<i8").tobytes())
                lengths_file.write(lengths.astype("<i8").tobytes())
                total += len(members)
        return total


def group_equal(keys: np.ndarray, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Groups documents by key and leaves out those that are alone.

    Args:
        keys (`np.ndarray`): `uint64`, shape `[n]`.
        documents (`np.ndarray`): `int64`, shape `[n]`.

    Returns:
        `tuple[np.ndarray, np.ndarray]`: Documents, group after group; size of each group.
    """
    if not len(keys):
        return np.empty(0, np.int64), np.empty(0, np.int64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    lengths = np.diff(np.append(starts, len(keys)))
    shared = lengths > 1
    return documents[order[np.repeat(shared, lengths)]], lengths[shared]


class _Shards:
    """The signature shards of a run, those of an index first, with one number for every document."""

    def __init__(self, stage_folder: StageFolder, index: str | Path | None) -> None:
        self.manifests = stage_folder.shards()
        self.folders = [stage_folder.folder / "signatures" / shard_name(rank) for rank in range(len(self.manifests))]
        rows = [item["rows"] for item in self.manifests]
        self.num_index = 0
        if index is not None:
            opened = DedupIndex(index, stage_folder.method, stage_folder.policy)
            self.folders = [*opened.folders, *self.folders]
            rows = [*opened.rows, *rows]
            self.num_index = len(opened.folders)
        self.starts = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
        self.first_new = int(self.starts[self.num_index])
        self.total = int(self.starts[-1])
        self.inputs = {
            "signatures": {shard_name(rank): [m["rows"], m["ids"]] for rank, m in enumerate(self.manifests)},
            "index": None if index is None else [int(rows[place]) for place in range(self.num_index)],
        }

    def keys(self, key: int, number: int, passes: int) -> tuple[np.ndarray, np.ndarray]:
        keys: list[np.ndarray] = []
        documents: list[np.ndarray] = []
        for folder, start, stop in zip(self.folders, self.starts, self.starts[1:], strict=False):
            for first in range(0, int(stop - start), _CHUNK):
                values = np.fromfile(folder / f"keys_{key:03d}.u64", "<u8", _CHUNK, offset=8 * first)
                wanted = np.fromfile(folder / "present.u8", np.uint8, _CHUNK, offset=first).astype(bool)
                if passes > 1:
                    wanted &= (values >> np.uint64(32)) * np.uint64(passes) >> np.uint64(32) == np.uint64(number)
                places = np.flatnonzero(wanted)
                keys.append(values[places])
                documents.append(places + int(start) + first)
        if not keys:
            return np.empty(0, np.uint64), np.empty(0, np.int64)
        return np.concatenate(keys), np.concatenate(documents)


def _bucket_members(stage_folder: StageFolder, inputs: dict) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    for key in range(stage_folder.method.num_keys):
        manifest = stage_folder.check("buckets", f"{key:03d}")
        folder = stage_folder.folder / "buckets" / f"{key:03d}"
        if manifest["inputs"] != inputs:
            raise UserError(
                f"{folder} was made from other shards; run the stage 'buckets' of the deduplication again."
            )
        yield np.fromfile(folder / "members.i64", "<i8"), np.fromfile(folder / "lengths.i64", "<i8")


class DedupFeatures(_Stage):
    """Between stages 2 and 3: feature sets of the documents that share a key.

    Args:
        folder (`str` or `Path`): Working folder of this deduplication.
        method (`DedupMethod`): How duplicates are found.
        policy (`KeepPolicy`, *optional*): As in stage 1.
        index (`str` or `Path`, *optional*): As in stage 2.
    """

    name = "Deduplication 2: features"

    def __init__(
        self,
        folder: str | Path,
        method: DedupMethod,
        policy: KeepPolicy | None = None,
        index: str | Path | None = None,
    ) -> None:
        super().__init__(folder, method, policy)
        self.index = index

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Consumes the documents of one task a second time.

        Args:
            data (`DocumentsPipeline`): The documents of stage 1, in the same order.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Returns:
            `DocumentsPipeline`: Nothing is passed on.
        """
        stage = self.stage_folder
        shards = _Shards(stage, self.index)
        check = _SameDocuments(stage, shards, rank, world_size)
        start, stop = shards.starts[shards.num_index + rank], shards.starts[shards.num_index + rank + 1]
        wanted = np.zeros(int(stop - start), bool)
        for members, _ in _bucket_members(stage, shards.inputs):
            wanted[members[(members >= start) & (members < stop)] - start] = True
        with atomic_directory(stage.folder / "features" / shard_name(rank)) as staging:
            writer = FeatureWriter(staging)
            try:
                with self.track_time():
                    chosen: list[int] = []

                    def candidates() -> Iterator[Document]:
                        for row, document in check(data):
                            if wanted[row]:
                                chosen.append(row)
                                yield document

                    for batch in document_batches(candidates()):
                        rows, chosen[:] = chosen[: len(batch)], chosen[len(batch) :]
                        writer.write(rows, stage.method.features([stage.method.content(item) for item in batch]))
            finally:
                writer.close()
            stage.write_manifest(staging, int(wanted.sum()), shards.inputs)
        return iter(())


class _SameDocuments:
    """Numbers the documents of a task and makes sure that they are those of stage 1."""

    def __init__(self, stage: StageFolder, shards: _Shards, rank: int, world_size: int) -> None:
        tasks = len(shards.manifests)
        if world_size != tasks:
            raise UserError(
                f"tasks = {world_size}; the signatures were made by {tasks} tasks: run all stages with {tasks}."
            )
        self.manifest, self.where = shards.manifests[rank], stage.folder / "signatures" / shard_name(rank)

    def __call__(self, documents: DocumentsPipeline) -> Iterator[tuple[int, Document]]:
        digest = IdDigest()
        for row, document in enumerate(documents):
            if row == self.manifest["rows"]:
                raise UserError(f"{self.where} has {row} documents, the reader has more; {self._advice()}")
            digest.add(document.id)
            yield row, document
        if digest.rows != self.manifest["rows"]:
            raise UserError(
                f"{self.where} has {self.manifest['rows']} documents, the reader {digest.rows}; {self._advice()}"
            )
        if digest.hexdigest() != self.manifest["ids"]:
            raise UserError(
                f"{self.where} has other document ids, or another order, than the reader; {self._advice()}"
            )

    def _advice(self) -> str:
        return "the input changed between two stages: run the stage 'signatures' again."


class DedupClusters(_Stage):
    """Stage 3: who stays, by exact similarity to a document that stays. One task.

    Args:
        folder (`str` or `Path`): Working folder of this deduplication.
        method (`DedupMethod`): How duplicates are found.
        policy (`KeepPolicy`, *optional*): Who stays.
        source_order (`list[str]`, *optional*): Source names, most trusted first.
        index (`str` or `Path`, *optional*): As in stage 2. What is in it stays.
        memory_bytes (`int`, *optional*, defaults to 1000000000): Feature sets are held in memory up to this size and
            read from disk one by one beyond it.
        on_progress (`Callable`, *optional*): Called with the number of documents decided since its last call.
    """

    name = "Deduplication 3: clusters"

    def __init__(
        self,
        folder: str | Path,
        method: DedupMethod,
        policy: KeepPolicy | None = None,
        source_order: list[str] | None = None,
        index: str | Path | None = None,
        memory_bytes: int = 1_000_000_000,
        on_progress: Callable[[int], None] | None = None,
    ) -> None:
        super().__init__(folder, method, policy)
        self.source_order, self.index, self.memory_bytes = list(source_order or []), index, memory_bytes
        self.on_progress = on_progress

    def run(self, data: DocumentsPipeline = None, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Decides.

        Args:
            data (`DocumentsPipeline`, *optional*): Not used.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks; must be 1.

        Returns:
            `DocumentsPipeline`: Nothing is passed on.
        """
        if world_size != 1:
            raise ValueError(f"{self.name} decides over all documents; it runs as 1 task, not {world_size}.")
        stage, shards = self.stage_folder, _Shards(self.stage_folder, self.index)
        with self.track_time():
            candidates, groups_of = self._groups(shards)
            facts = self._facts(shards, candidates)
            order = KeepOrder(stage.policy, self.source_order).sort(facts)
            fixed = candidates < shards.first_new
            order = sorted(order, key=lambda place: not fixed[place])  # stable: what was kept before comes first
            pairs = remove_duplicates(
                order,
                groups_of,
                self._features(shards, candidates),
                stage.method.threshold,
                stage.method.max_comparisons,
                lambda place: bool(fixed[place]),
                self.on_progress,
            )
            self._write(shards, candidates, facts, pairs)
        self.stat_update("removed", value=len(pairs))
        return iter(())

    def _groups(self, shards: _Shards) -> tuple[np.ndarray, Callable[[int], list[int]]]:
        members, groups, count = [], [], 0
        for documents, lengths in _bucket_members(self.stage_folder, shards.inputs):
            members.append(documents)
            groups.append(np.repeat(np.arange(count, count + len(lengths)), lengths))
            count += len(lengths)
        flat, group = np.concatenate(members), np.concatenate(groups)
        candidates, places = np.unique(flat, return_inverse=True)
        by_place = np.argsort(places, kind="stable")
        starts = np.searchsorted(places[by_place], np.arange(len(candidates) + 1))
        group = group[by_place]
        return candidates, lambda place: group[starts[place] : starts[place + 1]].tolist()

    def _facts(self, shards: _Shards, candidates: np.ndarray) -> list[KeepFacts]:
        facts: list[KeepFacts] = []
        for folder, start, stop in zip(shards.folders, shards.starts, shards.starts[1:], strict=False):
            low, high = np.searchsorted(candidates, [start, stop])
            if high > low:
                facts.extend(self.stage_folder.facts(folder, candidates[low:high] - start))
        return facts

    def _features(self, shards: _Shards, candidates: np.ndarray) -> Callable[[int], np.ndarray]:
        readers = [FeatureReader(folder / "features") for folder in shards.folders[: shards.num_index]]
        for rank in range(len(shards.manifests)):
            if self.stage_folder.check("features", shard_name(rank))["inputs"] != shards.inputs:
                raise UserError(
                    f"{self.stage_folder.folder}/features was made from other shards; run the stage 'features' of the "
                    "deduplication again."
                )
            readers.append(FeatureReader(self.stage_folder.folder / "features" / shard_name(rank)))
        if sum(reader.num_bytes for reader in readers) <= self.memory_bytes:
            for reader in readers:
                reader.load()
        owners = np.searchsorted(shards.starts, candidates, side="right") - 1
        rows = candidates - shards.starts[owners]
        return lambda place: readers[owners[place]][int(rows[place])]

    def _write(self, shards: _Shards, candidates: np.ndarray, facts: list[KeepFacts], pairs: list) -> None:
        stage = self.stage_folder
        total_new = shards.total - shards.first_new
        copies = Counter(pair.kept for pair in pairs)
        for place, count in copies.most_common(3):
            if count + 1 > max(CLUSTER_ALARM_SHARE * total_new, 100):
                logger.warning(
                    "%s: document %r of %r stands for %d of %d documents; look whether it is a template",
                    stage.method.name, facts[place].id, facts[place].source, count + 1, total_new,
                )  # fmt: skip
        removed = np.sort(candidates[np.array([pair.removed for pair in pairs], np.int64)])
        kept = np.array(sorted(copies), np.int64)
        counts = np.array([copies[int(place)] for place in kept], np.int64)
        with atomic_directory(stage.folder / "clusters") as staging:
            for rank in range(len(shards.manifests)):
                start, stop = shards.starts[shards.num_index + rank], shards.starts[shards.num_index + rank + 1]
                low, high = np.searchsorted(removed, [start, stop])
                own = (candidates[kept] >= start) & (candidates[kept] < stop)
                np.savez(
                    staging / f"removed_{shard_name(rank)}.npz",
                    removed=removed[low:high] - start,
                    kept=candidates[kept[own]] - start,
                    copies=counts[own],
                )
            write_pairs(
                staging / "pairs.parquet",
                (
                    (a.id, a.source, b.id, b.source, pair.similarity)
                    for pair in pairs
                    for a, b in [(facts[pair.kept], facts[pair.removed])]
                ),
            )
            stage.write_manifest(staging, total_new, shards.inputs, removed=len(pairs))


class DedupFilter(_Stage):
    """Stage 4: passes the survivors on; `metadata["duplicates"]` counts the copies one stands for.

    Args:
        folder (`str` or `Path`): Working folder of this deduplication.
        method (`DedupMethod`): How duplicates are found.
        policy (`KeepPolicy`, *optional*): As in stage 1.
        index (`str` or `Path`, *optional*): As in stage 2.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Deduplication 4: filter"

    def __init__(
        self,
        folder: str | Path,
        method: DedupMethod,
        policy: KeepPolicy | None = None,
        index: str | Path | None = None,
        exclusion_writer=None,
    ) -> None:
        super().__init__(folder, method, policy)
        self.index, self.exclusion_writer = index, exclusion_writer

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Passes the survivors of one task on.

        Args:
            data (`DocumentsPipeline`): The documents of stage 1, in the same order.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: A survivor.

        Raises:
            UserError: If the documents are not those of stage 1.
        """
        stage = self.stage_folder
        shards = _Shards(stage, self.index)
        check = _SameDocuments(stage, shards, rank, world_size)
        if stage.check("clusters")["inputs"] != shards.inputs:
            raise UserError(
                f"{stage.folder}/clusters was made from other shards; run the stage 'clusters' of the deduplication "
                "again."
            )
        with np.load(stage.folder / "clusters" / f"removed_{shard_name(rank)}.npz") as stored:
            removed = set(stored["removed"].tolist())
            copies = dict(zip(stored["kept"].tolist(), stored["copies"].tolist(), strict=True))
        present = np.fromfile(shards.folders[shards.num_index + rank] / "present.u8", np.uint8)
        dropped = forwarded = 0
        for row, document in check(data):
            self.stat_update(StatHints.total)
            reason = stage.method.reason if row in removed else None if present[row] else stage.method.blank_reason
            if reason is not None:
                dropped += 1
                self.stat_update(StatHints.dropped, f"dropped_{reason}")
                document.metadata["filter_reason"] = reason
                if self.exclusion_writer is not None:
                    self.exclusion_writer.write(document, rank)
                continue
            if row in copies:
                document.metadata["duplicates"] = document.metadata.get("duplicates", 0) + copies[row]
            forwarded += 1
            self.stat_update(StatHints.forwarded)
            yield document
        if forwarded + dropped != len(present):
            raise RuntimeError(f"{len(present)} documents in, {forwarded} out and {dropped} dropped")

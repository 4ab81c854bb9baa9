"""Deduplication of documents that fit into memory, as datatrove blocks of one task each; see `stages` for more.

Dropped documents carry their reason; pairs are written as (kept, removed, similarity).
"""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.dedup.index import DedupIndex
from hf_pretrain.corpus.dedup.keep import KeepFacts, KeepOrder, KeepPolicy, keep_facts
from hf_pretrain.corpus.dedup.methods import DedupMethod, ExactText, Minhash
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.pairs import write_pairs
from hf_pretrain.corpus.dedup.stage_files import FeatureReader, document_batches
from hf_pretrain.corpus.dedup.verified_clusters import RemovedPair, remove_duplicates, shared_buckets


class MemoryDeduplication(PipelineStep):
    """Drops the documents that a method finds to repeat a better placed one.

    Args:
        method (`DedupMethod`): How duplicates are found.
        source_order (`Sequence[str]`): Source names, most trusted first.
        pairs_file (`str` or `Path`): Where the pairs go (Parquet).
        policy (`KeepPolicy`, *optional*): Who stays.
        index (`str` or `Path`, *optional*): Folder of a [`DedupIndex`]; what resembles a document in it goes.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Deduplication"
    type = "DEDUP"

    def __init__(
        self,
        method: DedupMethod,
        source_order: Sequence[str],
        pairs_file: str | Path,
        policy: KeepPolicy | None = None,
        index: str | Path | None = None,
        exclusion_writer=None,
    ) -> None:
        super().__init__()
        self.method, self.source_order, self.pairs_file = method, list(source_order), str(pairs_file)
        self.policy, self.index, self.exclusion_writer = policy or KeepPolicy(), index, exclusion_writer

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Passes the survivors on, in the order they came.

        Args:
            data (`DocumentsPipeline`): All documents of the corpus.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks; must be 1.

        Yields:
            `Document`: A survivor; `metadata["duplicates"]` counts the copies it stands for.
        """
        if world_size != 1:
            raise ValueError(
                f"{self.name} compares all documents with each other; it runs as 1 task, not {world_size}."
            )
        documents = list(data)
        with self.track_time("corpus"):
            present, facts, pairs = self._find(documents)
        write_pairs(
            self.pairs_file,
            (
                (kept.id, kept.source, removed.id, removed.source, pair.similarity)
                for pair in pairs
                for kept, removed in [(facts[pair.kept], facts[pair.removed])]
            ),
        )
        before = len(facts) - len(documents)
        copies = Counter(pair.kept for pair in pairs)
        removed = {pair.removed for pair in pairs}
        dropped = 0
        for index, document in enumerate(documents, before):
            self.stat_update(StatHints.total)
            reason = self.method.reason
            if index not in removed:
                reason = None if present[index - before] else self.method.blank_reason
            if reason is not None:
                dropped += 1
                self.stat_update(StatHints.dropped, f"dropped_{reason}")
                document.metadata["filter_reason"] = reason
                if self.exclusion_writer is not None:
                    self.exclusion_writer.write(document, rank)
                continue
            if copies[index]:
                document.metadata["duplicates"] = document.metadata.get("duplicates", 0) + copies[index]
            self.stat_update(StatHints.forwarded)
            yield document

    def _find(self, documents: list[Document]) -> tuple[np.ndarray, list[KeepFacts], list[RemovedPair]]:
        """Documents of the index come first in the numbering; they are never removed."""
        method = self.method
        contents = [method.content(document) for document in documents]
        present, keys, place = np.zeros(len(documents), bool), np.zeros((len(documents), method.num_keys), "<u8"), 0
        for batch in document_batches(documents):
            stop = place + len(batch)
            present[place:stop], keys[place:stop] = method.keys(contents[place:stop])
            place = stop
        facts = [keep_facts(document, self.policy) for document in documents]
        features: dict[int, np.ndarray] = {}
        before, usable = 0, present
        if self.index is not None:
            opened = DedupIndex(self.index, method, self.policy)
            before = sum(opened.rows)
            old_facts, old_keys, old_present = _read_index(opened, method.num_keys)
            facts, keys = old_facts + facts, np.concatenate([old_keys, keys])
            usable = np.concatenate([old_present, present])
        numbers = np.flatnonzero(usable)
        groups, rows = shared_buckets(keys[numbers])
        candidates = {int(numbers[row]): row for row in rows}
        own = [number for number in candidates if number >= before]
        start = 0
        for batch in document_batches(documents[number - before] for number in own):
            chosen = own[start : start + len(batch)]
            features.update(
                zip(chosen, method.features([contents[number - before] for number in chosen]), strict=True)
            )
            start += len(batch)
        if before:
            first = 0
            for folder, count in zip(opened.folders, opened.rows, strict=True):
                reader = FeatureReader(folder / "features")
                features.update((n, reader[n - first]) for n in candidates if first <= n < first + count)
                first += count
        order = [number for number in KeepOrder(self.policy, self.source_order).sort(facts) if number in candidates]
        order.sort(key=lambda number: number >= before)
        pairs = remove_duplicates(
            order,
            lambda number: groups[candidates[number]][groups[candidates[number]] >= 0].tolist(),
            features.__getitem__,
            method.threshold,
            method.max_comparisons,
            lambda number: number < before,
        )
        return present, facts, pairs


def _read_index(index: DedupIndex, num_keys: int) -> tuple[list[KeepFacts], np.ndarray, np.ndarray]:
    facts: list[KeepFacts] = []
    keys, present = [], []
    for folder, rows in zip(index.folders, index.rows, strict=True):
        facts += index.stage.facts(folder, np.arange(rows))
        columns = [np.fromfile(folder / f"keys_{key:03d}.u64", "<u8") for key in range(num_keys)]
        keys.append(np.stack(columns, axis=1))
        present.append(np.fromfile(folder / "present.u8", np.uint8).astype(bool))
    return facts, np.concatenate(keys), np.concatenate(present)


class ExactDeduplication(MemoryDeduplication):
    """Drops texts that repeat a better placed one (`exact_duplicate`) and blank ones (`empty_text`).

    Args:
        source_order (`Sequence[str]`): Source names, most trusted first.
        pairs_file (`str` or `Path`): Where the pairs go.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Exact deduplication"

    def __init__(self, source_order: Sequence[str], pairs_file: str | Path, exclusion_writer=None) -> None:
        super().__init__(ExactText(), source_order, pairs_file, exclusion_writer=exclusion_writer)


class NearDuplicateRemoval(MemoryDeduplication):
    """Drops documents whose exact similarity to one that stays reaches the threshold (`near_duplicate`).

    Args:
        source_order (`Sequence[str]`): Source names, most trusted first.
        pairs_file (`str` or `Path`): Where the pairs go.
        config (`MinhashConfig`): The setting.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Near-duplicate removal"

    def __init__(
        self, source_order: Sequence[str], pairs_file: str | Path, config: MinhashConfig, exclusion_writer=None
    ) -> None:
        super().__init__(Minhash(config), source_order, pairs_file, exclusion_writer=exclusion_writer)

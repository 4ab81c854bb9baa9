"""The datatrove blocks of deduplication, over documents that fit into memory.

Both see all documents of all sources at once, so they run as one task. Dropped documents carry their reason; pairs are
written as (kept, removed, similarity).
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.dedup.exact import find_exact_duplicates, survivor_order, text_key
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.verified_clusters import RemovedPair, find_near_duplicates


class _InMemoryDeduplication(PipelineStep, ABC):
    type = "DEDUP"

    def __init__(self, source_order: Sequence[str], pairs_file: str | Path, exclusion_writer=None) -> None:
        super().__init__()
        self.source_order, self.pairs_file = list(source_order), str(pairs_file)
        self.exclusion_writer = exclusion_writer

    @abstractmethod
    def find(self, documents: list[Document], order: list[int]) -> tuple[list[RemovedPair], dict[int, str]]:
        """Finds what to remove.

        Args:
            documents (`list[Document]`): All documents.
            order (`list[int]`): Their indices, best first.

        Returns:
            `tuple[list[RemovedPair], dict[int, str]]`: The pairs, and the reason for each removed document.
        """

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
            order = survivor_order(
                [str(document.metadata.get("source", "")) for document in documents],
                [len(document.text) for document in documents],
                [document.id for document in documents],
                self.source_order,
            )
            pairs, reasons = self.find(documents, order)
        self._write_pairs(documents, pairs)
        copies = Counter(pair.kept for pair in pairs)
        for index, document in enumerate(documents):
            self.stat_update(StatHints.total)
            if index in reasons:
                self.stat_update(StatHints.dropped, f"dropped_{reasons[index]}")
                document.metadata["filter_reason"] = reasons[index]
                if self.exclusion_writer is not None:
                    self.exclusion_writer.write(document, rank)
                continue
            if copies[index]:
                document.metadata["duplicates"] = document.metadata.get("duplicates", 0) + copies[index]
            self.stat_update(StatHints.forwarded)
            yield document

    def _write_pairs(self, documents: Sequence[Document], pairs: Iterable[RemovedPair]) -> None:
        file = Path(self.pairs_file)
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "w", encoding="utf-8") as stream:
            for pair in pairs:
                kept, removed = documents[pair.kept], documents[pair.removed]
                row = {
                    "kept": kept.id,
                    "kept_source": kept.metadata.get("source"),
                    "removed": removed.id,
                    "removed_source": removed.metadata.get("source"),
                    "similarity": round(pair.similarity, 4),
                }
                stream.write(json.dumps(row, ensure_ascii=False) + "\n")


class ExactDeduplication(_InMemoryDeduplication):
    """Drops texts that repeat a better placed one (`exact_duplicate`) and blank ones (`empty_text`).

    Args:
        source_order (`Sequence[str]`): Source names, most trusted first.
        pairs_file (`str` or `Path`): Where the pairs go.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Exact deduplication"

    def find(self, documents: list[Document], order: list[int]) -> tuple[list[RemovedPair], dict[int, str]]:
        """Finds exact duplicates and blank texts.

        Args:
            documents (`list[Document]`): All documents.
            order (`list[int]`): Their indices, best first.

        Returns:
            `tuple[list[RemovedPair], dict[int, str]]`: The pairs, and the reason for each removed document.
        """
        texts = [document.text for document in documents]
        removed = find_exact_duplicates(texts, order)
        reasons = dict.fromkeys(removed, "exact_duplicate")
        reasons.update((index, "empty_text") for index, text in enumerate(texts) if not text_key(text))
        return [RemovedPair(kept, index, 1.0) for index, kept in removed.items()], reasons


class NearDuplicateRemoval(_InMemoryDeduplication):
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
        super().__init__(source_order, pairs_file, exclusion_writer)
        self.config = config

    def find(self, documents: list[Document], order: list[int]) -> tuple[list[RemovedPair], dict[int, str]]:
        """Finds near-duplicates.

        Args:
            documents (`list[Document]`): All documents.
            order (`list[int]`): Their indices, best first.

        Returns:
            `tuple[list[RemovedPair], dict[int, str]]`: The pairs, and the reason for each removed document.
        """
        pairs = find_near_duplicates([document.text for document in documents], order, self.config)
        return pairs, {pair.removed: "near_duplicate" for pair in pairs}

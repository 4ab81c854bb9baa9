"""Blocks below the level of documents: paragraphs, passages, n-grams seen before. One task each, in memory.

All take documents in the order of the keep policy, so the copy that stays does not depend on the order of the files.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from datatrove.data import Document, DocumentsPipeline
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.dedup.bloom import BloomFilter, NgramConfig, seen_documents
from hf_pretrain.corpus.dedup.keep import KeepOrder, KeepPolicy, keep_facts
from hf_pretrain.corpus.dedup.paragraphs import ParagraphConfig, remove_paragraphs
from hf_pretrain.corpus.dedup.substrings import SubstringConfig, cut_spans, repeated_spans


class _Trimming(PipelineStep, ABC):
    type = "DEDUP"

    def __init__(
        self,
        config: ParagraphConfig | SubstringConfig | NgramConfig,
        source_order: Sequence[str] = (),
        policy: KeepPolicy | None = None,
        exclusion_writer=None,
    ) -> None:
        super().__init__()
        self.config = config
        self.source_order, self.policy = list(source_order), policy or KeepPolicy()
        self.exclusion_writer = exclusion_writer

    @abstractmethod
    def decide(self, texts: list[str], order: list[int]) -> tuple[dict[int, str], dict[int, str]]:
        """New texts of the documents that change, and reasons of those that go.

        Args:
            texts (`list[str]`): All texts.
            order (`list[int]`): Their indices, best first.

        Returns:
            `tuple[dict[int, str], dict[int, str]]`: New text by index; reason by index.
        """

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Passes on what is left, in the order it came.

        Args:
            data (`DocumentsPipeline`): All documents of the corpus.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks; must be 1.

        Yields:
            `Document`: A document.
        """
        if world_size != 1:
            raise ValueError(f"{self.name} looks at all documents; it runs as 1 task, not {world_size}.")
        documents: list[Document] = list(data)
        with self.track_time("corpus"):
            order = KeepOrder(self.policy, self.source_order).sort(
                keep_facts(document, self.policy) for document in documents
            )
            changed, reasons = self.decide([document.text for document in documents], order)
        for index, document in enumerate(documents):
            self.stat_update(StatHints.total)
            if index in changed:
                self.stat_update("trimmed_characters", value=len(document.text) - len(changed[index]))
            if index in reasons:
                self.stat_update(StatHints.dropped, f"dropped_{reasons[index]}")
                document.metadata["filter_reason"] = reasons[index]
                if self.exclusion_writer is not None:
                    self.exclusion_writer.write(document, rank)
                continue
            document.text = changed.get(index, document.text)
            self.stat_update(StatHints.forwarded)
            yield document


def _too_short(changed: dict[int, str], min_words: int, reason: str) -> dict[int, str]:
    # Scripts without spaces have no words to count; there 4 characters stand for one.
    return {
        index: reason
        for index, text in changed.items()
        if len(text.split()) < min_words and (text.isascii() or len(text) < 4 * min_words)
    }


class ParagraphDeduplication(_Trimming):
    """Takes repeated paragraphs out; what is left too short goes as `duplicate_paragraphs`.

    Args:
        config (`ParagraphConfig`): The setting.
        source_order (`Sequence[str]`): Source names, most trusted first.
        policy (`KeepPolicy`, *optional*): Who stays.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Paragraph deduplication"
    config: ParagraphConfig

    def decide(self, texts: list[str], order: list[int]) -> tuple[dict[int, str], dict[int, str]]:
        """See [`_Trimming.decide`]."""
        changed, _ = remove_paragraphs(texts, order, self.config)
        return changed, _too_short(changed, self.config.min_words_left, "duplicate_paragraphs")


class SubstringDeduplication(_Trimming):
    """Cuts passages that stand elsewhere too; what is left too short goes as `duplicate_passages`.

    Args:
        config (`SubstringConfig`): The setting.
        source_order (`Sequence[str]`): Source names, most trusted first.
        policy (`KeepPolicy`, *optional*): Who stays.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Substring deduplication"
    config: SubstringConfig

    def decide(self, texts: list[str], order: list[int]) -> tuple[dict[int, str], dict[int, str]]:
        """See [`_Trimming.decide`]."""
        spans = repeated_spans(texts, order, self.config.window)
        changed = {index: cut_spans(texts[index], found) for index, found in spans.items()}
        return changed, _too_short(changed, self.config.min_words_left, "duplicate_passages")


class NgramDeduplication(_Trimming):
    """Drops documents most of whose n-grams were seen before (`seen_ngrams`), by a Bloom filter.

    Args:
        config (`NgramConfig`): The setting.
        source_order (`Sequence[str]`): Source names, most trusted first.
        policy (`KeepPolicy`, *optional*): Who stays.
        load_from (`str` or `Path`, *optional*): Folder of a saved filter to go on from.
        save_to (`str` or `Path`, *optional*): Where the filter is saved.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "N-gram deduplication"

    def __init__(
        self,
        config: NgramConfig,
        source_order: Sequence[str] = (),
        policy: KeepPolicy | None = None,
        load_from: str | Path | None = None,
        save_to: str | Path | None = None,
        exclusion_writer=None,
    ) -> None:
        super().__init__(config, source_order, policy, exclusion_writer)
        self.load_from, self.save_to = load_from, save_to

    def decide(self, texts: list[str], order: list[int]) -> tuple[dict[int, str], dict[int, str]]:
        """See [`_Trimming.decide`]."""
        config = self.config
        settings = {"ngram_size": config.ngram_size}
        if self.load_from is not None:
            bloom = BloomFilter.load_from(self.load_from, settings)
        else:
            bloom = BloomFilter(config.expected_ngrams, config.false_positive_rate)
        shares = seen_documents((texts[index] for index in order), bloom, config)
        reasons = {
            index: "seen_ngrams" for index, share in zip(order, shares, strict=True) if share >= config.threshold
        }
        if self.save_to is not None:
            bloom.save(self.save_to, settings)
        return {}, reasons

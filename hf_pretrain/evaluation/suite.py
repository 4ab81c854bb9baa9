"""All that is measured of a model, for one model after the other, with the documents and items read once.

`EvaluationSuite.score` takes a model and a name and adds its numbers; `as_facts` gives them as plain JSON data, each
with its convention.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_pretrain.evaluation.bits_per_byte import CONVENTION, ByteScore, evaluate_documents, evaluate_positions
from hf_pretrain.evaluation.byte_lengths import token_byte_lengths
from hf_pretrain.evaluation.contamination_scores import CONVENTION as BENCHMARK_CONVENTION
from hf_pretrain.evaluation.contamination_scores import BenchmarkItem, score_items, split_scores
from hf_pretrain.utils.progress import Progress


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

POSITION_CONVENTION = (
    "bits per byte of the tokens between two positions of a document, the same tokens at every context length"
)


@dataclass(frozen=True)
class Benchmark:
    """A benchmark and what is known about its items.

    Args:
        name (`str`): Its name.
        items (`Sequence[BenchmarkItem]`): Its items.
        contaminated (`frozenset[str]`): Ids of the items that were found in the raw corpus.
    """

    name: str
    items: Sequence[BenchmarkItem]
    contaminated: frozenset[str]


class EvaluationSuite:
    """Measures models on the same text.

    Args:
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer of all models, byte-level.
        documents (`Mapping[str, Sequence[np.ndarray]]`): Held-out documents by source, token ids each.
        context_length (`int`): Window length for the scores by source, in tokens.
        benchmarks (`Sequence[Benchmark]`, *optional*): Benchmarks.
        long_documents (`Sequence[np.ndarray]`, *optional*): Documents for the scores by position.
        long_context_lengths (`Sequence[int]`, *optional*): Window lengths for the scores by position.
        edges (`Sequence[int]`, *optional*): Borders of the position buckets.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass.
        resamples (`int`, *optional*, defaults to 1000): Draws of the bootstrap.
        confidence (`float`, *optional*, defaults to 0.95): Mass of the intervals.
        seed (`int`, *optional*, defaults to 0): Seed of the bootstrap.
    """

    def __init__(
        self,
        tokenizer: "PreTrainedTokenizerBase",
        documents: Mapping[str, Sequence[np.ndarray]],
        context_length: int,
        benchmarks: Sequence[Benchmark] = (),
        long_documents: Sequence[np.ndarray] = (),
        long_context_lengths: Sequence[int] = (),
        edges: Sequence[int] = (),
        tokens_per_batch: int = 4096,
        resamples: int = 1000,
        confidence: float = 0.95,
        seed: int = 0,
    ) -> None:
        self.tokenizer, self.documents, self.context_length = tokenizer, documents, context_length
        self.benchmarks, self.long_documents = benchmarks, long_documents
        self.long_context_lengths, self.edges = long_context_lengths, edges
        self.tokens_per_batch, self.resamples = tokens_per_batch, resamples
        self.confidence, self.seed = confidence, seed
        self._lengths = token_byte_lengths(tokenizer)
        self._scores: dict[str, dict[str, float]] = {}
        self._nats: dict[str, float] = {}
        self._sizes: dict[str, dict[str, int]] = {}
        self._benchmark_scores: dict[str, dict[str, Any]] = {}
        self._positions: dict[str, dict[str, list[float]]] = {}

    def score(self, name: str, model: Any, by_source: bool = True, by_position: bool = False) -> None:
        """Measures one model.

        Args:
            name (`str`): What the numbers are kept under.
            model (`PreTrainedModel`): The model.
            by_source (`bool`, *optional*, defaults to `True`): Measure held-out text by source, and benchmarks.
            by_position (`bool`, *optional*, defaults to `False`): Measure long documents by position.
        """
        if by_source:
            self._score_sources(name, model)
            self._score_benchmarks(name, model)
        if by_position and len(self.long_documents):
            self._positions[name] = {
                str(length): [
                    score.bits_per_byte
                    for score in evaluate_positions(
                        model, self.long_documents, self._lengths, length, self.edges, self.tokens_per_batch
                    )
                ]
                for length in self.long_context_lengths
            }

    def _score_sources(self, name: str, model: Any) -> None:
        size = sum(len(document) for found in self.documents.values() for document in found)
        with Progress(f"evaluate {name}", total=size, unit="tokens") as progress:
            parts = {
                source: evaluate_documents(
                    model, found, self._lengths, self.context_length, self.tokens_per_batch, progress.update
                )
                for source, found in self.documents.items()
            }
        parts["all"] = sum(parts.values(), ByteScore(0.0, 0, 0))
        self._scores[name] = {source: part.bits_per_byte for source, part in parts.items()}
        self._nats[name] = parts["all"].nats_per_token
        # The text is the same for all models.
        self._sizes = {
            source: {"tokens": part.num_tokens, "bytes": part.num_bytes, "documents": part.num_documents}
            for source, part in parts.items()
        }

    def _score_benchmarks(self, name: str, model: Any) -> None:
        for benchmark in self.benchmarks:
            scores = score_items(
                model, self.tokenizer, benchmark.items, self._lengths, self.context_length, self.tokens_per_batch
            )
            self._benchmark_scores.setdefault(benchmark.name, {})[name] = split_scores(
                scores, set(benchmark.contaminated), self.resamples, self.confidence, self.seed
            )

    def as_facts(self) -> dict[str, Any]:
        """All numbers so far.

        Returns:
            `dict`: `bits_per_byte` and `nats_per_token` by model, `scored` (sizes by source), `benchmarks`,
            `long_context` where it was measured, and the conventions. `ratio` is a model's bits per byte over those of
            the first model.
        """
        first = next(iter(self._scores.values()), {})
        facts: dict[str, Any] = {
            "bits_per_byte": self._scores,
            "ratio": {name: scores["all"] / first["all"] for name, scores in self._scores.items()},
            "nats_per_token": self._nats,
            "scored": self._sizes,
            "convention": CONVENTION.format(context=self.context_length),
            "benchmarks": self._benchmark_scores,
            "benchmark_convention": BENCHMARK_CONVENTION.format(resamples=self.resamples, confidence=self.confidence),
        }
        if self._positions:
            facts["long_context"] = {
                "edges": list(self.edges),
                "documents": len(self.long_documents),
                "bits_per_byte": self._positions,
                "convention": POSITION_CONVENTION,
            }
        return facts

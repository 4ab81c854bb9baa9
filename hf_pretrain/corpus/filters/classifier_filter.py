"""Classifiers at work in a pipeline: scores, ranks and buckets on every document, and a rule that keeps some.

Rules: a threshold by the share to keep, GPT-3's Pareto rule (arXiv 2005.14165: keep if a Lomax(alpha) number exceeds
1 - score, so that some low scores stay), a least bucket, or none (annotate). With several classifiers a document's
rank is its highest among them (Nemotron-CC, arXiv 2412.02595), in `num_buckets` buckets. Random numbers come from the
document's id, so the choice is the same in every shard, order and run.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from datatrove.pipeline.filters.base_filter import BaseFilter

from hf_pretrain.corpus.config_checks import at_least, between, choice
from hf_pretrain.corpus.config_filters import CLASSIFIER_RULES
from hf_pretrain.corpus.filters.classifier import load_classifier


if TYPE_CHECKING:
    from collections.abc import Sequence

    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter

    from hf_pretrain.corpus.filters.classifier import TextClassifier


def pareto_keep_probability(score: float, alpha: float) -> float:
    """
    How likely the Pareto rule keeps a score: `(2 - score) ** -alpha`.

    Args:
        score (`float`): In [0, 1].
        alpha (`float`): 9 in GPT-3, 3 in the Pile.

    Returns:
        `float`: probability.
    """
    return (2 - score) ** -alpha


def uniform_of(identifier: str, seed: int = 0) -> float:
    """
    A number that looks drawn and is the same for the same document.

    Args:
        identifier (`str`): The document's id.
        seed (`int`, *optional*, defaults to 0): Another seed, another number.

    Returns:
        `float`: in [0, 1).
    """
    digest = hashlib.blake2b(f"{seed}\0{identifier}".encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


class ClassifierFilter(BaseFilter):
    """
    Writes `metadata["<name>_score"]` (one classifier), `metadata["<name>_scores"]` (several), `["<name>_rank"]` and
    `["<name>_bucket"]`, and keeps what the rule keeps. Dropped documents leave the reasons `<name>_threshold`,
    `<name>_pareto` or `<name>_bucket`.

    Args:
        folders (`Sequence[str or Path]`):
            Classifiers, see [`hf_pretrain.corpus.filters.classifier_training.train_quality_classifier`].
        rule (`str`, *optional*, defaults to `"annotate"`):
            `"annotate"`, `"threshold"`, `"pareto"` or `"bucket"`.
        keep_fraction (`float`, *optional*, defaults to 0.1):
            For `"threshold"`: the share of held-out negatives that would stay; several classifiers: of ranks.
        alpha (`float`, *optional*, defaults to 9.0):
            For `"pareto"`.
        min_bucket (`int`, *optional*, defaults to 10):
            For `"bucket"`: the lowest that stays, of `num_buckets` from 0.
        num_buckets (`int`, *optional*, defaults to 20):
            Buckets of equal share of the held-out negatives.
        keep (`str`, *optional*, defaults to `"high"`):
            `"high"` keeps high scores, `"low"` keeps low ones (toxicity): `keep_fraction` of the negatives stays
            either way.
        name (`str`, *optional*, defaults to `"quality"`):
            What metadata and reasons are called.
        domains (`Sequence[str]`, *optional*, defaults to `()`):
            Domains held to the rule; empty is all. Documents of others are scored all the same.
        seed (`int`, *optional*, defaults to 0):
            For `"pareto"`.
        exclusion_writer (`DiskWriter`, *optional*):
            Takes the dropped documents.
        batch_size (`int`, *optional*, defaults to 64):
            Documents scored together.
    """

    def __init__(
        self,
        folders: Sequence[str | Path],
        rule: Literal["annotate", "threshold", "pareto", "bucket"] = "annotate",
        keep_fraction: float = 0.1,
        alpha: float = 9.0,
        min_bucket: int = 10,
        num_buckets: int = 20,
        keep: Literal["high", "low"] = "high",
        name: str = "quality",
        domains: Sequence[str] = (),
        seed: int = 0,
        exclusion_writer: DiskWriter | None = None,
        batch_size: int = 64,
    ) -> None:
        super().__init__(exclusion_writer, batch_size)
        choice(f"{name}.rule", rule, CLASSIFIER_RULES)
        choice(f"{name}.keep", keep, ("high", "low"))
        between(f"{name}.keep_fraction", keep_fraction, 1e-6, 1.0)
        at_least(f"{name}.alpha", alpha, 0.1)
        at_least(f"{name}.num_buckets", num_buckets, 2)
        between(f"{name}.min_bucket", min_bucket, 0, num_buckets - 1)
        self.name = name.capitalize()
        self.folders, self.rule, self.keep_fraction, self.alpha = [str(f) for f in folders], rule, keep_fraction, alpha
        self.min_bucket, self.num_buckets, self.low = min_bucket, num_buckets, keep == "low"
        self.key, self.domains, self.seed = name, frozenset(domains), seed
        self._models: list[TextClassifier] = []
        self.models()  # a missing or changed classifier is an error now, not in a worker

    def __getstate__(self) -> dict:
        # A fastText model does not travel to a worker; it is read there.
        return {**self.__dict__, "_models": []}

    def models(self) -> list[TextClassifier]:
        """
        The classifiers, read at the first call in each process.

        Returns:
            `list[TextClassifier]`: one a folder.
        """
        if not self._models:
            self._models = [load_classifier(folder) for folder in self.folders]
        return self._models

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Score one document and decide on it.

        Args:
            doc (`Document`): The document; its metadata is written to.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        return self.filter_batch([doc])[0]

    def filter_batch(self, batch: list[Document]) -> list[bool | tuple[bool, str]]:
        """
        Score documents together and decide on each.

        Args:
            batch (`list[Document]`): The documents; their metadata is written to.

        Returns:
            `list`: a verdict a document, as of `filter`.
        """
        models, texts = self.models(), [doc.text for doc in batch]
        scores = np.stack([model.score(texts) for model in models])
        ranks = np.stack([model.percentile(row) for model, row in zip(models, scores, strict=True)])
        best = ranks.max(0)
        buckets = np.minimum((best * self.num_buckets).astype(int), self.num_buckets - 1)
        verdicts = []
        for place, doc in enumerate(batch):
            if len(models) == 1:
                doc.metadata[f"{self.key}_score"] = round(float(scores[0, place]), 6)
            else:
                doc.metadata[f"{self.key}_scores"] = [round(float(score), 6) for score in scores[:, place]]
            doc.metadata[f"{self.key}_rank"] = round(float(best[place]), 4)
            doc.metadata[f"{self.key}_bucket"] = int(buckets[place])
            score = float(scores[:, place].max())
            kept = self._keeps(doc, score, float(best[place]), int(buckets[place]))
            verdicts.append(True if kept else (False, f"{self.key}_{self.rule}"))
        return verdicts

    def _keeps(self, doc: Document, score: float, rank: float, bucket: int) -> bool:
        if self.rule == "annotate" or (self.domains and doc.metadata.get("domain") not in self.domains):
            return True
        if self.rule == "pareto":
            draw = uniform_of(str(doc.id), self.seed)
            return draw < pareto_keep_probability(1 - score if self.low else score, self.alpha)
        if self.rule == "bucket":
            return bucket <= self.num_buckets - 1 - self.min_bucket if self.low else bucket >= self.min_bucket
        if len(self.folders) > 1:
            return rank <= self.keep_fraction if self.low else rank >= 1 - self.keep_fraction
        (model,) = self.models()
        if self.low:
            return score <= model.threshold(1 - self.keep_fraction) if self.keep_fraction < 1 else True
        return score >= model.threshold(self.keep_fraction)

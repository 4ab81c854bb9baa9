"""The steps that score documents after deduplication: toxicity by lexicon and classifier, quality by classifier.

They come late because they are the dearest of the filters, and because a classifier trained here must not see the same
page a hundred times. Each is one entry of [`scoring_steps`], which the pipeline runs in order.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_pretrain.corpus.documents import document_files, read_documents
from hf_pretrain.corpus.filters.classifier import classifier_hash
from hf_pretrain.corpus.filters.classifier_filter import ClassifierFilter
from hf_pretrain.corpus.filters.classifier_training import train_quality_classifier
from hf_pretrain.corpus.filters.toxicity import ToxicityFilter
from hf_pretrain.utils.atomic import read_json
from hf_pretrain.utils.errors import UserError


if TYPE_CHECKING:
    from datatrove.pipeline.base import PipelineStep

    from hf_pretrain.corpus.config_filters import FilterConfig, QualityConfig, ToxicityConfig


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ScoringStep:
    """
    One step.

    Args:
        name (`str`): Its name.
        settings (`Any`): Everything its output depends on, classifiers by their content.
        make (`Callable[[Path, Path], PipelineStep]`): Makes the block, given the step's folder and that of the
            documents it will see.
        details (`Callable[[Path], dict]`): What to keep of the step besides its counts, given its folder.
    """

    name: str
    settings: Any
    make: Callable[[Path, Path], PipelineStep]
    details: Callable[[Path], dict[str, Any]]


def scoring_steps(filters: FilterConfig) -> list[ScoringStep]:
    """
    The steps that the settings ask for, in order.

    Args:
        filters (`FilterConfig`): Settings.

    Returns:
        `list[ScoringStep]`: none, where nothing is to be scored.

    Raises:
        UserError: If a classifier is missing or was changed.
    """
    steps = []
    toxicity, quality = filters.toxicity, filters.quality
    if toxicity.action != "off":
        steps.append(ScoringStep("toxicity", asdict(toxicity), lambda *_: _lexicon_block(toxicity), lambda _: {}))
        if toxicity.models:
            settings = [asdict(toxicity), [classifier_hash(folder) for folder in toxicity.models]]
            steps.append(ScoringStep("toxicity_model", settings, lambda *_: _model_block(toxicity), lambda _: {}))
    if quality.enabled:
        settings = [asdict(quality), [classifier_hash(folder) for folder in quality.models]]
        make = _QualityBlock(quality)
        steps.append(ScoringStep("quality", settings, make, make.details))
    return steps


def _lexicon_block(config: ToxicityConfig) -> PipelineStep:
    return ToxicityFilter(
        config.action,
        lexicon=config.lexicon,
        max_density=config.max_density,
        min_hits=config.min_hits,
        min_distinct=config.min_distinct,
        languages=config.languages,
        exceptions=config.exceptions,
        skip_domains=config.skip_domains,
    )


def _model_block(config: ToxicityConfig) -> PipelineStep:
    return ClassifierFilter(
        config.models,
        rule="threshold" if config.action == "drop" else "annotate",
        keep_fraction=config.keep_fraction,
        keep="low",
        name="toxicity",
    )


class _QualityBlock:
    """Trains a classifier where one is asked for, and makes the block."""

    def __init__(self, config: QualityConfig) -> None:
        self.config = config

    def __call__(self, folder: Path, documents: Path) -> PipelineStep:
        config = self.config
        models: list[str | Path] = list(config.models)
        if config.trains:
            trained = folder / "classifier"
            if not (trained / "card.json").is_file():  # one that an interrupted run has finished is the same one
                self._train(trained, documents)
            models.append(trained)
        return ClassifierFilter(
            models,
            rule=config.rule,
            keep_fraction=config.keep_fraction,
            alpha=config.alpha,
            min_bucket=config.min_bucket,
            num_buckets=config.num_buckets,
            domains=config.domains,
            seed=config.seed,
        )

    def _train(self, folder: Path, documents: Path) -> None:
        sides = {"positives": self.config.positives, "negatives": self.config.negatives}
        texts = {name: list(_texts(documents, sources, self.config.max_texts)) for name, sources in sides.items()}
        try:
            train_quality_classifier(texts["positives"], texts["negatives"], folder, self.config.training)
        except UserError as error:
            raise UserError(f"filters.quality.{error}") from error

    def details(self, folder: Path) -> dict[str, Any]:
        if not self.config.trains:
            return {}
        card = read_json(folder / "classifier" / "card.json")
        return {"classifier": {key: card[key] for key in ("backend", "counts", "metrics", "content_hash")}}


def _texts(documents: Path, sources: list[str], most: int) -> Iterator[str]:
    """Texts of some sources, the same number of each as far as they have them."""
    streams = [
        (document.text for file in document_files(documents, [name]) for document in read_documents(file))
        for name in sources
    ]
    gone = object()
    rounds = itertools.chain.from_iterable(itertools.zip_longest(*streams, fillvalue=gone))
    return itertools.islice((text for text in rounds if text is not gone), most)

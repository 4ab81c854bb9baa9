"""What the `dedup` section of a recipe may say, and the steps that follow from it, in order."""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.dedup.bloom import NgramConfig
from hf_pretrain.corpus.dedup.keep import KeepPolicy
from hf_pretrain.corpus.dedup.methods import DedupMethod, ExactText, ExactUrl, Minhash, Simhash
from hf_pretrain.corpus.dedup.minhash import MinhashConfig
from hf_pretrain.corpus.dedup.paragraphs import ParagraphConfig
from hf_pretrain.corpus.dedup.simhash import SimhashConfig
from hf_pretrain.corpus.dedup.steps import MemoryDeduplication
from hf_pretrain.corpus.dedup.substrings import SubstringConfig
from hf_pretrain.corpus.dedup.trimming import NgramDeduplication, ParagraphDeduplication, SubstringDeduplication


@dataclass
class DedupConfig:
    """Settings of deduplication.

    Args:
        exact (`bool`, *optional*, defaults to `True`): Whether equal texts are removed.
        url (`bool`, *optional*, defaults to `False`): Whether of several documents of one canonical address the best
            alone stays.
        url_field (`str`, *optional*, defaults to `"url"`): Metadata field with the address.
        keep (`KeepPolicy`, *optional*): Which copy stays.
        minhash (`MinhashConfig`, *optional*): Removal of near-duplicates.
        simhash (`SimhashConfig`, *optional*): Another way to propose them; off by default.
        paragraphs (`ParagraphConfig`, *optional*): Repeated paragraphs; off by default.
        substrings (`SubstringConfig`, *optional*): Repeated passages; off by default.
        ngrams (`NgramConfig`, *optional*): Documents of n-grams seen before; off by default.
        index (`list[str]`, *optional*): Folders `dedup_index` of earlier corpora; what resembles them goes.
        save_index (`bool`, *optional*, defaults to `False`): Whether `dedup_index` is written for later corpora.
    """

    exact: bool = True
    url: bool = False
    url_field: str = "url"
    keep: KeepPolicy = field(default_factory=KeepPolicy)
    minhash: MinhashConfig = field(default_factory=MinhashConfig)
    simhash: SimhashConfig = field(default_factory=SimhashConfig)
    paragraphs: ParagraphConfig = field(default_factory=ParagraphConfig)
    substrings: SubstringConfig = field(default_factory=SubstringConfig)
    ngrams: NgramConfig = field(default_factory=NgramConfig)
    index: list[str] = field(default_factory=list)
    save_index: bool = False


@dataclass(frozen=True)
class DedupStep:
    """One step of deduplication.

    Args:
        name (`str`): Its name in the funnel.
        settings (`Any`): What its result depends on.
        make (`Callable`): Makes the in-memory block, given the folder of the step.
        method (`DedupMethod`, *optional*): The method, where the step can work over shards.
        index (`list[str]`, *optional*): Folders of the indices for this method.
    """

    name: str
    settings: Any
    make: Callable[[Path], PipelineStep]
    method: DedupMethod | None = None
    index: tuple[str, ...] = ()


def dedup_steps(config: DedupConfig, source_order: Sequence[str]) -> list[DedupStep]:
    """The steps of a setting, cheap ones first.

    Args:
        config (`DedupConfig`): The setting.
        source_order (`Sequence[str]`): Source names, most trusted first.

    Returns:
        `list[DedupStep]`: The steps.
    """
    steps: list[DedupStep] = []

    def whole(name: str, method: DedupMethod) -> None:
        index = tuple(str(Path(folder) / name) for folder in config.index)

        def make(folder: Path) -> PipelineStep:
            return MemoryDeduplication(
                method, source_order, folder / "pairs.parquet", config.keep, list(index) or None
            )

        steps.append(DedupStep(name, [method.settings(), asdict(config.keep), index], make, method, index))

    def part(name: str, setting: Any, make: Callable[[Path], PipelineStep]) -> None:
        steps.append(DedupStep(name, [asdict(setting), asdict(config.keep)], make))

    if config.url:
        whole("url", ExactUrl(config.url_field))
    if config.exact:
        whole("exact", ExactText())
    if config.minhash.enabled:
        whole("near", Minhash(config.minhash))
    if config.simhash.enabled:
        whole("simhash", Simhash(config.simhash))
    if config.paragraphs.enabled:
        part(
            "paragraphs",
            config.paragraphs,
            lambda folder: ParagraphDeduplication(config.paragraphs, source_order, config.keep),
        )
    if config.substrings.enabled:
        part(
            "substrings",
            config.substrings,
            lambda folder: SubstringDeduplication(config.substrings, source_order, config.keep),
        )
    if config.ngrams.enabled:
        part(
            "ngrams",
            config.ngrams,
            lambda folder: NgramDeduplication(config.ngrams, source_order, config.keep, save_to=folder / "bloom"),
        )
    return steps

"""Settings of the corpus stage: everything `1_corpus.yaml` may say.

Each part of the work has its own dataclass where the work is; this file puts them together and checks what concerns
more than one of them. See `config_ingest` for sources, extraction, language, filters and PII.
"""

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_pretrain.corpus.config_filters import FilterConfig, PIIConfig
from hf_pretrain.corpus.config_ingest import (
    ExtractionConfig,
    LanguageConfig,
    SampleConfig,
    SourceConfig,
    UrlConfig,
)
from hf_pretrain.corpus.contamination.index import ContaminationSettings
from hf_pretrain.corpus.contamination.report import BenchmarkConfig
from hf_pretrain.corpus.dedup.config import DedupConfig
from hf_pretrain.corpus.shards.long_documents import LongDocumentsConfig
from hf_pretrain.corpus.shards.splits import ValidationConfig
from hf_pretrain.corpus.shards.tokenizer import TokenizerConfig
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message
from hf_pretrain.utils.strict import build


@dataclass
class InstructionConfig:
    """One set of instruction data, copied to `sft/<name>.jsonl` for the SFT stage.

    Args:
        name (`str`): Its name.
        path (`str`, *optional*, defaults to `"sample"`): A JSONL file, or `"sample"` for the sample's of that name.
    """

    name: str
    path: str = "sample"

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise UserError(f"instruction set name = {self.name!r}; use letters, digits, '-', '_' and '.'.")


@dataclass
class ContaminationConfig:
    """Settings of decontamination.

    Args:
        enabled (`bool`, *optional*, defaults to `True`): Whether the corpus is searched for benchmark items.
        action (`str`, *optional*, defaults to `"drop"`): `"drop"` the document, `"remove_span"`, or `"report"` alone.
        settings (`ContaminationSettings`, *optional*): What counts as contamination.
        min_words_left (`int`, *optional*, defaults to 50): Fewest words of a document after a cut.
    """

    enabled: bool = True
    action: Literal["drop", "remove_span", "report"] = "drop"
    settings: ContaminationSettings = field(default_factory=ContaminationSettings)
    min_words_left: int = 50


@dataclass
class LimitsConfig:
    """Limits of the work.

    Args:
        shard_tokens (`int`, *optional*, defaults to 100000000): A token shard is closed once it has this many tokens.
        memory_bytes (`int`, *optional*, defaults to 8000000000): Most bytes of text that deduplication and
            tokenization may hold; more is an error before the work and not in its middle.
    """

    shard_tokens: int = 100_000_000
    memory_bytes: int = 8_000_000_000

    def __post_init__(self) -> None:
        for name in ("shard_tokens", "memory_bytes"):
            if getattr(self, name) < 1:
                raise UserError(f"limits.{name} = {getattr(self, name)}; at least 1 is needed.")


@dataclass
class CorpusConfig:
    """Everything the corpus stage needs to know.

    Args:
        sources (`list[SourceConfig]`): Where documents come from. The order is the order of trust: of two equal
            documents the one of the earlier source stays.
        benchmarks (`list[BenchmarkConfig]`, *optional*): Benchmarks whose items must not be in the corpus.
        instructions (`list[InstructionConfig]`, *optional*): Instruction data for the SFT stage.
        sample (`SampleConfig`, *optional*): The sample crawl.
        urls (`UrlConfig`, *optional*): Pages dropped by their address.
        extraction (`ExtractionConfig`, *optional*): HTML to text.
        language (`LanguageConfig`, *optional*): Language identification.
        filters (`FilterConfig`, *optional*): Rules of quality.
        dedup (`DedupConfig`, *optional*): Exact and near-duplicates.
        pii (`PIIConfig`, *optional*): Personal data.
        contamination (`ContaminationConfig`, *optional*): Benchmark items.
        tokenizer (`TokenizerConfig`, *optional*): The tokenizer.
        validation (`ValidationConfig`, *optional*): The held-out split.
        long_documents (`LongDocumentsConfig`, *optional*): The extra source of long documents.
        limits (`LimitsConfig`, *optional*): Limits of the work.
        workers (`int`, *optional*, defaults to 1): Processes for the steps that look at one document at a time.
        tasks (`int`, *optional*): Shares of the input files; `workers` by default.
        keep_old_steps (`bool`, *optional*, defaults to `False`): Keep the folders of steps made with other settings.
    """

    sources: list[SourceConfig]
    benchmarks: list[BenchmarkConfig] = field(default_factory=list)
    instructions: list[InstructionConfig] = field(default_factory=list)
    sample: SampleConfig = field(default_factory=SampleConfig)
    urls: UrlConfig = field(default_factory=UrlConfig)
    extraction: ExtractionConfig = field(default_factory=ExtractionConfig)
    language: LanguageConfig = field(default_factory=LanguageConfig)
    filters: FilterConfig = field(default_factory=FilterConfig)
    dedup: DedupConfig = field(default_factory=DedupConfig)
    pii: PIIConfig = field(default_factory=PIIConfig)
    contamination: ContaminationConfig = field(default_factory=ContaminationConfig)
    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)
    long_documents: LongDocumentsConfig = field(default_factory=LongDocumentsConfig)
    limits: LimitsConfig = field(default_factory=LimitsConfig)
    workers: int = 1
    tasks: int | None = None
    keep_old_steps: bool = False

    def __post_init__(self) -> None:
        names = [source.name for source in self.sources]
        if not names:
            raise UserError("sources is empty; name at least one, e.g. `- {name: web, kind: warc, path: crawl/}`.")
        for kind, given in (
            ("source", names),
            ("benchmark", [item.name for item in self.benchmarks]),
            ("instruction set", [item.name for item in self.instructions]),
        ):
            twice = sorted({name for name in given if given.count(name) > 1})
            if twice:
                raise UserError(f"{kind} '{twice[0]}' is named twice; give each its own name.")
        if self.long_documents.name in names:
            raise UserError(
                f"long_documents.name = {self.long_documents.name!r}; a source has that name: choose another."
            )
        for name in self.long_documents.sources:
            if name not in names:
                raise UserError(f"long_documents.sources: {unknown_name_message('source', name, names)}")
        routed = {source.name for source in self.sources if source.kind == "routed"}
        for code, name in self.language.route.items():
            if name not in routed:
                raise UserError(f"language.route[{code!r}]: {unknown_name_message('routed source', name, routed)}")
        for name in sorted(routed - set(self.language.route.values())):
            raise UserError(f"source '{name}' is of kind 'routed', but language.route sends nothing there.")
        domains = {source.effective_domain for source in self.sources}
        for name in self.filters.domains:
            if name not in domains:
                raise UserError(f"filters.domains: {unknown_name_message('domain', name, domains)}")
        for side in ("positives", "negatives"):
            for name in getattr(self.filters.quality, side):
                if name not in names:
                    raise UserError(f"filters.quality.{side}: {unknown_name_message('source', name, names)}")
        for name in self.filters.quality.domains if self.filters.quality.rule != "annotate" else ():
            if name not in domains:
                raise UserError(f"filters.quality.domains: {unknown_name_message('domain', name, domains)}")
        if self.contamination.enabled and not self.benchmarks:
            raise UserError(
                "contamination is enabled but benchmarks is empty, so everything would pass as clean; "
                "name the benchmarks or set `contamination: {enabled: false}`."
            )
        if self.workers < 1 or (self.tasks is not None and self.tasks < 1):
            raise UserError(f"workers = {self.workers}, tasks = {self.tasks}; each must be at least 1.")

    @property
    def num_tasks(self) -> int:
        """Shares of the input files."""
        return self.tasks or self.workers

    @property
    def source_names(self) -> list[str]:
        """Names of the sources, in order of trust."""
        return [source.name for source in self.sources]

    @property
    def uses_sample(self) -> bool:
        """Whether anything is taken from the sample crawl."""
        others = [item.path for item in [*self.benchmarks, *self.instructions]]
        return "sample" in others or any(source.kind == "sample" for source in self.sources)

    @classmethod
    def from_mapping(cls, mapping: dict[str, Any], where: str = "corpus") -> "CorpusConfig":
        """Reads the settings of a recipe.

        Args:
            mapping (`dict`): What the YAML file says.
            where (`str`, *optional*, defaults to `"corpus"`): The file, for messages.

        Returns:
            `CorpusConfig`: The settings.

        Raises:
            UserError: If a key is unknown, missing, or of the wrong type or value.
        """
        return build(cls, mapping, where)

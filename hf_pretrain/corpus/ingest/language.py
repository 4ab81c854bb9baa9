"""Language identification by a model that a package ships; nothing is downloaded at run time.

The detector sees the first `max_chars` characters with line breaks replaced by spaces: enough for a sure answer, and a
long document costs no more than a short one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from datatrove.pipeline.filters.base_filter import BaseFilter

from hf_pretrain.corpus.config_ingest import LanguageConfig
from hf_pretrain.corpus.filters.profiles import load_profiles
from hf_pretrain.corpus.ingest.language_codes import canonical_language, known_language
from hf_pretrain.corpus.ingest.language_detectors import Detector, load_detector


if TYPE_CHECKING:
    from collections.abc import Mapping

    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter

    from hf_pretrain.corpus.filters.profiles import LanguageProfile


def detect_language(text: str, max_chars: int = 2000, detector: Detector | None = None) -> tuple[str, float]:
    """
    Name the language of a text.

    Args:
        text (`str`): The text.
        max_chars (`int`, *optional*, defaults to 2000): Characters looked at.
        detector (`Callable`, *optional*): One of [`load_detector`]; py3langid by default.

    Returns:
        `tuple[str, float]`: canonical code and probability in [0, 1]; `("und", 0.0)` for a text without a letter.
    """
    head = " ".join(text[: 2 * max_chars].split())[:max_chars]
    if not any(map(str.isalpha, head)):
        return "und", 0.0
    if not head.isascii():
        head = head.encode("utf-8", "ignore").decode()  # detectors refuse lone surrogates
    code, score = (detector or load_detector(LanguageConfig()))(head)
    return known_language(code) or code, score


class LanguageStep(BaseFilter):
    """
    Writes `metadata["language"]` and `metadata["language_score"]`; drops documents in other languages if `keep` is
    set.

    Documents of a language in `route` change their `metadata["source"]` and `["domain"]` and note where they are from
    in `["routed_from"]`.

    A language that the source declared is kept as `metadata["language_declared"]`, for sources are often wrong about
    it. Dropped documents leave the reasons `language_empty`, `language_<code>` or `language_score`.

    Args:
        config (`LanguageConfig`, *optional*): Settings.
        domains (`dict[str, str]`, *optional*): Domain of each source that documents are routed to.
        profiles (`Mapping[str, LanguageProfile]`, *optional*): For `profile_scores`; else the package's.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped documents.
    """

    name = "Language"

    def __init__(
        self,
        config: LanguageConfig | None = None,
        domains: dict[str, str] | None = None,
        profiles: Mapping[str, LanguageProfile] | None = None,
        exclusion_writer: DiskWriter | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        self.config, self.domains = config or LanguageConfig(), domains or {}
        self.routes = {canonical_language(code): name for code, name in self.config.route.items()}
        kept = frozenset(canonical_language(code) for code in self.config.keep)
        self.keep = kept | self.routes.keys() if kept else kept
        found = (load_profiles() if profiles is None else profiles) if self.config.profile_scores else {}
        self.min_scores = {code: profile.min_language_score for code, profile in found.items()}
        self.min_scores |= {canonical_language(code): score for code, score in self.config.min_scores.items()}
        self._detector: Detector | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_detector": None}

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Annotate one document and decide on it.

        Args:
            doc (`Document`): The document; its metadata is written to.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        if doc.metadata.get("domain") in self.config.skip_domains:
            return True
        if not doc.text.strip():
            return False, "language_empty"
        declared = doc.metadata.get("language")
        if self._detector is None:  # loaded by the process that uses it: models cannot be pickled
            self._detector = load_detector(self.config)
        code, score = detect_language(doc.text, self.config.max_chars, self._detector)
        doc.metadata["language"], doc.metadata["language_score"] = code, round(score, 4)
        if declared and known_language(declared) != code:
            doc.metadata["language_declared"] = declared
            self.stat_update("language_differs_from_declared")
        if self.keep and code not in self.keep:
            return False, f"language_{code}"
        if (self.keep or code in self.routes) and score < self.min_scores.get(code, self.config.min_score):
            return False, "language_score"
        if code in self.routes:
            self._route(doc, self.routes[code])
        return True

    def _route(self, doc: Document, target: str) -> None:
        doc.metadata["routed_from"] = doc.metadata.get("source")
        doc.metadata["source"] = target
        doc.metadata["domain"] = self.domains.get(target, target)
        self.stat_update(f"routed_{target}")

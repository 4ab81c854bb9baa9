"""HTML to text as datatrove steps, in this process.

datatrove ships each page to a sandbox process and drops it after a wall-clock time, so a busy machine loses good
pages. Here the page's size is bounded instead, which gives the same result everywhere. resiliparse (C++, about 20
times faster) is the default; trafilatura is called with `deduplicate=False`, for its own default remembers paragraphs
across documents (trafilatura#778).
"""

from __future__ import annotations

import contextlib
import logging
import re
from abc import abstractmethod
from typing import TYPE_CHECKING

from datatrove.pipeline.base import PipelineStep
from datatrove.utils.typeshelper import StatHints

from hf_pretrain.corpus.config_ingest import ExtractionConfig
from hf_pretrain.corpus.ingest.cpu_limit import CpuTimeout, cpu_limit
from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from datatrove.data import DocumentsPipeline
    from datatrove.pipeline.writers.disk_base import DiskWriter


# Deeper trees than any page has; parsers that recurse must not meet them.
MAX_DEPTH = 5_000
_TAG = re.compile(
    r"<(/?)(?!area|base|br|col|embed|hr|img|input|link|meta|source|track|wbr|p\b|li\b|d[td]\b|t[dhr]\b)[a-zA-Z]"
)
_LICENSE_LINK = re.compile(r"<(?:a|link)\b[^>]{0,400}\brel=[\"']?license\b[^>]{0,400}>", re.I)
_HREF = re.compile(r"\bhref=[\"']?([^\"'\s>]+)", re.I)
_CC = re.compile(r"creativecommons\.org/(?:licenses/([a-z-]+)/(\d\.\d)|publicdomain/(zero|mark))", re.I)
_KNOWN_LICENSES = (
    ("docs.python.org/3/license", "PSF-2.0"),
    ("spdx.org/licenses/", ""),
    ("apache.org/licenses/LICENSE-2.0", "Apache-2.0"),
    ("opensource.org/licenses/MIT", "MIT"),
    ("opensource.org/license/mit", "MIT"),
)


def page_license(html: str) -> str | None:
    """
    Licence that a page declares by a link with `rel="license"`.

    Args:
        html (`str`): The page.

    Returns:
        `str` or `None`: SPDX name where the address is known, else the address; `None` without such a link.
    """
    link = _LICENSE_LINK.search(html) if "license" in html else None
    target = _HREF.search(link[0]) if link else None
    if target is None:
        return None
    address = target[1]
    if creative := _CC.search(address):
        if creative[3]:
            return "CC0-1.0" if creative[3].lower() == "zero" else "public-domain"
        return f"CC-{creative[1].upper()}-{creative[2]}"
    for part, name in _KNOWN_LICENSES:
        if part in address:
            return name or address.rpartition("/")[2].removesuffix(".html")
    return address


class HtmlExtractor(PipelineStep):
    """
    Base of the extractors: size limits, counts, licence, and what to do with a page that gives no text.

    Dropped pages leave the reasons `too_large`, `too_deep`, `parse_error`, `cpu_time`, `empty`,
    `too_short`. The page's size stays
    in `metadata["html_bytes"]`.

    Args:
        config (`ExtractionConfig`, *optional*): Settings.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped pages, as HTML.
    """

    type = "Extractor"
    name = "HTML"

    def __init__(self, config: ExtractionConfig | None = None, exclusion_writer: DiskWriter | None = None) -> None:
        super().__init__()
        self.config = config or ExtractionConfig()
        self.exclusion_writer = exclusion_writer

    @abstractmethod
    def extract(self, html: str) -> str:
        """
        Text of one page.

        Args:
            html (`str`): The page.

        Returns:
            `str`: its text, `""` where there is none.
        """

    def _checked(self, html: str) -> tuple[str, str | None]:
        data = html.encode("utf-8", "replace")  # parsers refuse lone surrogates
        if len(data) > self.config.max_html_bytes:
            return "", "too_large"
        if nesting_depth(html) > MAX_DEPTH:
            return "", "too_deep"
        try:
            text = self.extract(data.decode()).strip()
        except (ValueError, RuntimeError, RecursionError):
            return "", "parse_error"
        except CpuTimeout:
            return "", "cpu_time"
        if not text:
            return "", "empty"
        return text, "too_short" if len(text) < self.config.min_chars else None

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """
        Extract a stream of pages.

        Args:
            data (`DocumentsPipeline`): Documents whose text is HTML.
            rank (`int`, *optional*, defaults to 0): This task, names the exclusion file.
            world_size (`int`, *optional*, defaults to 1): Number of tasks; no influence.

        Returns:
            `DocumentsPipeline`: documents whose text is plain.
        """
        with self.exclusion_writer or contextlib.nullcontext():
            for doc in data:
                self.stat_update(StatHints.total)
                with self.track_time():
                    text, reason = self._checked(doc.text)
                if reason is not None:
                    self.stat_update(StatHints.dropped, f"dropped_{reason}")
                    if self.exclusion_writer is not None:
                        doc.metadata["filter_reason"] = reason
                        self.exclusion_writer.write(doc, rank)
                    continue
                size = len(doc.text.encode("utf-8", "surrogatepass"))
                doc.metadata["html_bytes"] = size
                if license_name := page_license(doc.text):
                    doc.metadata["license"] = license_name
                doc.text = text
                self.stat_update(StatHints.forwarded)
                self.stat_update("html_bytes", value=size)
                self.update_doc_stats(doc)
                yield doc


class ResiliparseExtractor(HtmlExtractor):
    """Text by resiliparse, as DCLM (arXiv 2406.11794) did; see [`HtmlExtractor`] for arguments and reasons."""

    name = "resiliparse"

    def extract(self, html: str) -> str:
        """
        Text of one page.

        Args:
            html (`str`): The page.

        Returns:
            `str`: its text, `""` where there is none.
        """
        html2text = require("resiliparse.extract.html2text", "corpus", "extraction by resiliparse")
        return html2text.extract_plain_text(
            html,
            preserve_formatting=True,
            main_content=self.config.main_content,
            list_bullets=True,
            alt_texts=False,
            links=False,
            form_fields=False,
            noscript=False,
        )


class TrafilaturaExtractor(HtmlExtractor):
    """Text by trafilatura with the settings of FineWeb (arXiv 2406.17557) but no memory across pages; see
    [`HtmlExtractor`]."""

    name = "trafilatura"

    def extract(self, html: str) -> str:
        """
        Text of one page.

        Args:
            html (`str`): The page.

        Returns:
            `str`: its text, `""` where there is none.
        """
        trafilatura = require("trafilatura", "corpus", "extraction by trafilatura")
        logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # it reports every page without text
        with cpu_limit(self.config.cpu_seconds):
            return trafilatura.extract(html, favor_precision=True, include_comments=False, deduplicate=False) or ""


def build_extractor(config: ExtractionConfig, exclusion_writer: DiskWriter | None = None) -> HtmlExtractor:
    """
    The extractor a recipe asks for.

    Args:
        config (`ExtractionConfig`): Settings.
        exclusion_writer (`DiskWriter`, *optional*): Takes the dropped pages.

    Returns:
        `HtmlExtractor`: a datatrove step.
    """
    extractors = {"resiliparse": ResiliparseExtractor, "trafilatura": TrafilaturaExtractor}
    return extractors[config.extractor](config, exclusion_writer)


def nesting_depth(html: str) -> int:
    """
    Upper bound on how deep elements nest; those that HTML closes by itself do not count.

    Args:
        html (`str`): A page.

    Returns:
        `int`: the bound; 0 where the page has too few tags to matter.
    """
    if html.count("<") <= MAX_DEPTH:
        return 0
    depth = deepest = 0
    for tag in _TAG.finditer(html):
        depth += -1 if tag[1] else 1
        if depth > deepest:
            deepest = depth
    return deepest

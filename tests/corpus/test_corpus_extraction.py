"""HTML extraction: content stays, frame goes, faults are counted, and nothing is remembered between pages."""

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config_ingest import ExtractionConfig
from hf_pretrain.corpus.ingest.extraction import (
    MAX_DEPTH,
    ResiliparseExtractor,
    TrafilaturaExtractor,
    build_extractor,
    page_license,
)
from hf_pretrain.corpus.ingest.pages import paragraphs_html, render_page
from hf_pretrain.utils.errors import UserError


SENTENCE = "The old mill by the river ground corn for the whole valley until the railway came and changed everything. "
PAGE = render_page(
    "The mill", paragraphs_html(SENTENCE * 3 + "\n\n" + SENTENCE * 2), "en", "CC-BY-SA-4.0", "Local history"
)


def run(step, *pages):
    return list(
        step([Document(page, str(number), metadata={"license": "unknown"}) for number, page in enumerate(pages)])
    )


@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_content_stays_and_the_frame_goes(extractor):
    (doc,) = run(build_extractor(ExtractionConfig(extractor=extractor)), PAGE)
    assert SENTENCE.strip() in doc.text
    for frame in ("Recent changes", "Privacy policy", "window.page", "See also"):
        assert frame not in doc.text
    assert doc.metadata["license"] == "CC-BY-SA-4.0"
    assert doc.metadata["html_bytes"] == len(PAGE.encode())


@pytest.mark.parametrize("extractor", ["resiliparse", "trafilatura"])
def test_a_paragraph_shared_by_many_pages_stays_in_all(extractor):
    documents = run(build_extractor(ExtractionConfig(extractor=extractor)), *[PAGE] * 8)
    assert len({doc.text for doc in documents}) == 1
    assert len(documents) == 8


def test_code_keeps_its_lines():
    page = render_page("Code", f"<p>{SENTENCE}</p><pre>def f():\n    return 1</pre>", "en", "MIT", "Notes")
    (doc,) = run(ResiliparseExtractor(), page)
    assert "def f():\n    return 1" in doc.text


def test_dropped_pages_leave_their_reason():
    step = ResiliparseExtractor(ExtractionConfig(max_html_bytes=5_000, min_chars=40))
    assert run(step, "x" * 5_001, "<html><body></body></html>", "<p>tiny</p>", PAGE) != []
    assert {name: step.stats[f"dropped_{name}"].total for name in ("too_large", "empty", "too_short")} == {
        "too_large": 1,
        "empty": 1,
        "too_short": 1,
    }
    assert (step.stats["total"].total, step.stats["forwarded"].total) == (4, 1)


def test_depth_is_bounded_before_parsing():
    step = ResiliparseExtractor()
    assert run(step, "<div>" * (MAX_DEPTH + 1) + "deep") == []
    assert step.stats["dropped_too_deep"].total == 1
    flat = "<ul>" + "<li>item of a long list<br>" * (MAX_DEPTH + 10) + "</ul>"
    assert len(run(ResiliparseExtractor(ExtractionConfig(main_content=False)), flat)) == 1


@pytest.mark.parametrize(
    "page", ["<p>a\x00b</p>", "<<<>>><a", "<p>\ud800</p>", "&#xD800;&#1114112;", "<table><tr><td>x"]
)
def test_broken_pages_do_not_stop_the_work(page):
    assert [doc.id for doc in run(ResiliparseExtractor(), page, PAGE)][-1] == "1"
    assert [doc.id for doc in run(TrafilaturaExtractor(), page, PAGE)][-1] == "1"


@pytest.mark.parametrize(
    ("link", "name"),
    [
        ('<a rel="license" href="https://creativecommons.org/licenses/by-sa/4.0/">', "CC-BY-SA-4.0"),
        ("<link href='https://creativecommons.org/publicdomain/zero/1.0/' rel='license'>", "CC0-1.0"),
        ('<link rel="license" href="https://docs.python.org/3/license.html">', "PSF-2.0"),
        ('<a rel="license" href="/our-terms">', "/our-terms"),
        ('<a href="/license">', None),
    ],
)
def test_licence_links(link, name):
    assert page_license(f"<html>{link}</html>") == name


def test_trafilatura_cannot_keep_the_whole_page():
    with pytest.raises(UserError, match="use resiliparse"):
        ExtractionConfig(extractor="trafilatura", main_content=False)
    (doc,) = run(ResiliparseExtractor(ExtractionConfig(main_content=False)), PAGE)
    assert "Recent changes" in doc.text


def test_exclusion_writer_takes_the_page(tmp_path):
    from datatrove.pipeline.writers.jsonl import JsonlWriter

    step = ResiliparseExtractor(exclusion_writer=JsonlWriter(str(tmp_path), compression=None))
    run(step, "<html></html>", PAGE)
    assert '"filter_reason":"empty"' in (tmp_path / "00000.jsonl").read_text().replace(" ", "")

"""Texts as they come: no filter stops, and every row that goes in comes out or is dropped for a reason."""

import resource
import time

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config_filters import DOMAIN_PRESETS, FilterConfig, PIIConfig
from hf_pretrain.corpus.filters.heuristics import build_filters
from hf_pretrain.corpus.filters.pii import PIIFormatter
from hf_pretrain.corpus.filters.toxicity import ToxicityFilter
from hf_pretrain.corpus.funnel import Counted, check_funnel, merge_rows
from hf_pretrain.corpus.ingest.language import LanguageStep
from hf_pretrain.utils.atomic import read_json


HEBREW = (
    "\u05e9\u05dc\u05d5\u05dd \u05e2\u05d5\u05dc\u05dd, \u05d6\u05d4 \u05de\u05e9\u05e4\u05d8 \u05e7\u05e6\u05e8. "
)
ARABIC = (
    "\u0630\u0647\u0628 \u0627\u0644\u0631\u062c\u0644 \u0625\u0644\u0649 \u0627\u0644\u0645\u062f\u064a\u0646\u0629. "
)
TEXTS = {
    "empty": "",
    "blank": " \n\t\u00a0\u2003\n",
    "marks": "... --- !!! ???",
    "one word": "word",
    "lone surrogates": "The \ud800 end \udfff of the story. " * 20,
    "right to left": HEBREW * 30,
    "mixed scripts": (HEBREW + ARABIC + "and \u6f22\u5b57 \u30ab\u30ca \u0e44\u0e21\u0e48 e\u0301 \U0001f600. ") * 20,
    "direction marks": "\u202eabc\u202c \u2066x\u2069 " * 50,
    "zero bytes": "a\x00b\x1b[0m " * 60,
    "combining marks": "e" + "\u0301" * 5000,
    "line breaks of every kind": "The one.\r\nThe two.\rThe three.\u2028The four.\x0bThe five.\x85" * 10,
    "one long word": "x" * 100_000,
    "brackets": "[" * 20_000 + "]" * 20_000,
    "dots and at signs": "a.b@" * 20_000,
    "digits": "1 2 3 4 " * 3000,
    "colons": "1:2:3:4:5:6:7:8:" * 5000,
    "prose": "The history of printing begins with movable type, and it spread over Europe in decades. " * 3,
}


def blocks(tmp_path, domains=tuple(DOMAIN_PRESETS)):
    (tmp_path / "en.txt").write_text("blorp\n")
    yield "language", LanguageStep()
    for domain in domains:
        for place, step in enumerate(build_filters(FilterConfig(), domain)):
            yield f"{domain}_{place}", step
    yield "toxicity", ToxicityFilter("drop", str(tmp_path))
    yield "pii", PIIFormatter(PIIConfig(max_findings=5))


def test_rows_in_are_rows_out_and_rows_dropped_for_a_reason(tmp_path):
    for name, block in blocks(tmp_path):
        documents = [Document(text, kind, metadata={"source": "bad"}) for kind, text in TEXTS.items()]
        begin = time.process_time()
        kept = list(Counted(name, block, tmp_path / name, 0).run(iter(documents)))
        assert time.process_time() - begin < 3, name
        rows = merge_rows(read_json(tmp_path / name / "tallies" / "00_00000.json"))
        check_funnel(rows)
        (row,) = rows
        assert row["documents_in"] == len(TEXTS) and row["documents_out"] == len(kept)
        reasons = {reason: counts["documents"] for reason, counts in row["removed"].items()}
        assert sum(reasons.values()) == len(TEXTS) - len(kept)
        assert name not in reasons, f"{name} dropped a document without a reason"


@pytest.mark.slow
def test_a_line_of_fifty_megabytes_goes_through(tmp_path):
    words = " ".join(f"word{number % 9973}" for number in range(50_000))
    line = (words + " ") * (50_000_000 // len(words))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.process_time()
    for name, block in blocks(tmp_path, ("web",)):
        documents = [Document(line, "long", metadata={"source": "bad"})]
        list(Counted(name, block, tmp_path / name, 0).run(iter(documents)))
        check_funnel(merge_rows(read_json(tmp_path / name / "tallies" / "00_00000.json")))
    seconds = time.process_time() - begin
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    assert seconds < 120 and grown < 4000, (seconds, grown)

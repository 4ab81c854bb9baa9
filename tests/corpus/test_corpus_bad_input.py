"""Input that means harm or is merely odd, through readers, extraction, language: counted, bounded, no traceback."""

import gzip
import json

import pytest
from datatrove.data import Document

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.config_ingest import ExtractionConfig, LanguageConfig, SourceConfig
from hf_pretrain.corpus.ingest.extraction import ResiliparseExtractor, build_extractor
from hf_pretrain.corpus.ingest.language import LanguageStep
from hf_pretrain.corpus.ingest.pages import Page, write_warc
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.corpus.pipeline import build_corpus
from hf_pretrain.utils.strict import build


ODD_PAGES = {
    "nested_divs": "<div>" * 200_000 + "x",
    "nested_tables": "<table><tr><td>" * 20_000 + "x",
    "nested_inline": "<b><i><span>" * 30_000 + "text",
    "nested_lists": "<ul><li>" * 20_000 + "x",
    "unclosed": "<p>text " * 10_000,
    "attributes": "<p " + " ".join(f"a{n}='{n}'" for n in range(20_000)) + ">text</p>",
    "one_attribute": "<p title='" + "x" * 2_000_000 + "'>text</p>",
    "comments": "<!-- <p> -->" * 20_000 + "<p>text</p>",
    "open_comment": "<p>text</p><!-- " + "-" * 100_000,
    "entities": "<p>" + "&amp;&#x110000;&#0;&nosuch;" * 5_000 + "</p>",
    "right_to_left": "<p dir=rtl>\u0645\u0631\u062d\u0628\u0627 \u202ehello\u202c \u05e9\u05dc\u05d5\u05dd</p>",
    "mixed_scripts": "<p>\u4e2d\u6587 mixed \u0441 \u0440\u0443\u0441 \u0939\u093f\u0902</p>",
    "surrogates": "<p>a\ud800b \udfff</p>",
    "controls": "<p>\x01\x02\x1b[31m</p>",
    "zero_bytes": "\x00<p>te\x00xt</p>\x00",
    "empty": "",
    "blank": " \n\t ",
    "no_tags": "just text",
    "script_only": "<script>" + "var a = '<p>x</p>';" * 1000 + "</script>",
}


@pytest.mark.parametrize("extractor", ["resiliparse", pytest.param("trafilatura", marks=pytest.mark.slow)])
def test_odd_pages_are_extracted_or_dropped_with_a_reason(extractor):
    pytest.importorskip(extractor)
    step = build_extractor(ExtractionConfig(extractor=extractor, cpu_seconds=2))
    documents = [
        Document(html, name) for name, html in ODD_PAGES.items() if extractor == "resiliparse" or len(html) < 9e5
    ]
    kept = list(step.run(iter(documents)))
    assert len(kept) + step.stats["dropped"].total == len(documents)
    assert all(document.text.strip() for document in kept)
    if extractor == "resiliparse":  # trafilatura takes pages of a few words for empty
        assert {"right_to_left", "mixed_scripts", "no_tags"} <= {document.id for document in kept}
    for document in kept:
        json.dumps(document.text).encode()
        document.text.encode("utf-8")
    assert step.stats["dropped_too_deep"].total >= 3


def test_odd_texts_get_a_language_or_a_reason():
    step = LanguageStep(LanguageConfig(keep=["en"], min_score=0.1))
    documents = [Document(text, str(number)) for number, text in enumerate(ODD_PAGES.values())]
    kept = list(step.run(iter(documents)))
    assert len(kept) + step.stats["dropped"].total == len(documents)
    assert step.stats["dropped_language_empty"].total == 2


def corpus_of(path, kind, **source):
    mapping = {
        "sources": [
            {"name": "odd", "kind": kind, "path": str(path), "on_bad_row": "skip", "on_bad_file": "skip", **source}
        ],
        "dedup": {"minhash": {"enabled": False}},
        "contamination": {"enabled": False},
        "tokenizer": {"vocab_size": 300},
        "validation": {"fraction": 0.1},
    }
    return mapping


def test_a_tag_soup_in_a_warc_is_counted_to_the_last_record(tmp_path):
    pages = [
        Page(f"https://example.org/{name}", html, encoding="utf-8")
        for name, html in ODD_PAGES.items()
        if name not in ("surrogates", "one_attribute")
    ]
    write_warc(tmp_path / "x.warc.gz", pages, "test")
    reader = build_reader(SourceConfig(name="odd", kind="warc", path=str(tmp_path / "x.warc.gz"), on_bad_row="skip"))
    step = ResiliparseExtractor()
    kept = list(step.run(reader()))
    accounted = (
        len(kept) + step.stats["dropped"].total + reader.stats["bad_rows"].total + reader.stats["skipped_rows"].total
    )
    assert accounted == len(pages)


@pytest.mark.slow
def test_a_line_of_fifty_megabytes(tmp_path):
    sentence = "The quick brown fox jumps over the lazy dog. "
    long = sentence * (50_000_000 // len(sentence) - 1)
    path = tmp_path / "x.jsonl.gz"
    with gzip.open(path, "wt", compresslevel=1) as stream:
        for text in ("short one", long, "short two", long + sentence * 9):
            stream.write(json.dumps({"text": text}) + "\n")
    reader = build_reader(SourceConfig(name="odd", kind="jsonl", path=str(path), on_bad_row="skip"))
    lengths = [len(document.text) for document in LanguageStep().run(reader())]
    assert lengths == [9, len(long), 9]
    assert reader.stats["bad_rows_too_large"].total == 1


@pytest.mark.slow
def test_ten_thousand_files_of_one_document(tmp_path):
    for number in range(10_000):
        folder = tmp_path / f"{number % 100:02d}"
        folder.mkdir(exist_ok=True)
        (folder / f"{number}.txt").write_text(f"Document number {number} about nothing much.")
    config = SourceConfig(name="many", kind="text", path=str(tmp_path))
    documents = [doc for rank in range(3) for doc in build_reader(config).run(rank=rank, world_size=3)]
    assert len({doc.id for doc in documents}) == len({doc.text for doc in documents}) == 10_000


@pytest.mark.parametrize(
    ("kind", "name", "content"),
    [
        ("jsonl", "x.jsonl", b'{"text": "fine"}\n{"text": ""}\n{"text": "caf\xe9"}\nnot json\n{"text": "\\ud800"}\n'),
        ("text", "x.txt", b"\xff\xfe\x00"),
        ("wikipedia", "x.xml", b"<mediawiki>\n<page>\n<title>&x;</title>\n</page>\n</mediawiki>"),
        ("stackexchange", "Posts.xml", b"<posts>\n<row Id='&x;'/>\n</posts>"),
        ("arxiv", "2401.00001.gz", gzip.compress(b"plain words " * 1000)),
        ("arxiv", "2401.00001.tar", b"\0" * 1024),
        ("code", "x.zip", b"PK\x05\x06" + b"\0" * 18),
        ("books", "x.epub", b"PK\x05\x06" + b"\0" * 18),
        ("problems", "x.jsonl", b'{"problem": {"a": 1}}\n[]\n'),
        ("dataset", "x.arrow", b"\xff\xff\xff\xff"),
        ("warc", "x.warc", b"WARC/1.0\r\nContent-Length: -1\r\n\r\n"),
        ("wet", "x.wet", b"\x00" * 100),
    ],
)
def test_every_reader_counts_what_it_cannot_read(tmp_path, kind, name, content):
    (tmp_path / name).write_bytes(content)
    source = SourceConfig(name="odd", kind=kind, path=str(tmp_path / name), on_bad_row="skip", on_bad_file="skip")
    reader = build_reader(source)
    documents = list(reader())
    left_out = reader.stats["bad_rows"].total + reader.stats["bad_files"].total + reader.stats["skipped_rows"].total
    assert len(documents) <= 1 and left_out >= 1


def test_rows_left_out_by_rule_stand_in_the_funnel(tmp_path):
    sentences = "This is a perfectly ordinary sentence about the weather of number {0} in the town of {0}. "
    rows = [{"problem": f"Problem {n}?", "solution": (sentences * 9).format(n * 7919)} for n in range(60)]
    rows[5]["solution"] = ""
    (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\nnot json\n")
    config = build(CorpusConfig, corpus_of(tmp_path / "x.jsonl", "problems", domain="math"), "test")
    build_corpus(config, tmp_path / "out")
    funnel = json.loads((tmp_path / "out" / "funnel.json").read_text())
    read = next(row for row in funnel["rows"] if row["stage"] == "read")
    assert (read["documents_in"], read["documents_out"]) == (61, 59)
    removed = {reason: counts["documents"] for reason, counts in read["removed"].items()}
    assert removed == {"skipped_no_solution": 1, "bad_row_not_json": 1}

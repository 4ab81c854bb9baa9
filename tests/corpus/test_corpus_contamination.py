"""Contamination: the disguises of bug C3, the rules by length, the index on disk, the report, the datatrove block."""

import json

import numpy as np
import pytest
from datatrove.data import Document

from hf_pretrain.corpus.contamination.index import BenchmarkItem, ContaminationIndex, ContaminationSettings
from hf_pretrain.corpus.contamination.matching import measure_overlap, remove_word_spans, word_spans
from hf_pretrain.corpus.contamination.report import (
    BenchmarkConfig,
    benchmark_items,
    contamination_report,
    match_record,
    read_rows,
)
from hf_pretrain.corpus.contamination.steps import DecontaminationFilter
from hf_pretrain.utils.atomic import read_json, read_jsonl, write_json
from hf_pretrain.utils.errors import UserError


QUESTION = "How many eggs does Janet sell each day at the market when her sixteen ducks lay one each morning?"
FILLER = "Some words stand before it that nobody reads. " * 5


def index_of(*texts: str, **settings) -> ContaminationIndex:
    items = [BenchmarkItem("quiz", str(i), "question", text) for i, text in enumerate(texts)]
    return ContaminationIndex.build(items, ContaminationSettings(**settings))


@pytest.mark.parametrize(
    "disguise",
    [
        lambda q: q,
        str.upper,
        lambda q: q.replace(" ", "\n"),
        lambda q: q.replace(" ", "\t \t"),
        lambda q: q.replace(" ", "\u00a0"),
        lambda q: q.replace(" ", "-"),
        lambda q: "**" + q.replace(" ", "** **") + "**",
        lambda q: q.translate({code: code + 0xFEE0 for code in range(33, 127)}),
        lambda q: "\u200b".join(q),
        lambda q: q.replace("e", "e\u00ad"),
        lambda q: q.replace(" ", "&nbsp;"),
        lambda q: "".join(f"&#{ord(c)};" for c in q),
    ],
    ids=(
        "verbatim upper newlines tabs nbsp hyphens bold full-width zero-width soft-hyphen nbsp-entity entities".split()
    ),
)
def test_disguises_are_seen_through(disguise) -> None:
    # bug C3: one 19-word question.
    assert len(QUESTION.split()) == 19
    index = index_of(QUESTION)
    (match,) = index.match_text(FILLER + disguise(QUESTION) + " And so on.")
    assert (match.benchmark, match.item_id, match.longest_run, match.coverage) == ("quiz", "0", 19, 1.0)
    assert index.match_text(FILLER) == []


def test_rules_by_length() -> None:
    long = " ".join(f"w{i}" for i in range(40))
    index = index_of(
        long, "What is the colour of the sky", "Yes", "w1 w2 w3 w4 w5 w6 w7 w8 w9 x10 x11 x12 x13 x14 x15"
    )
    assert [bool(record["checked"]) for record in index.items] == [True, True, False, True]
    run = " ".join(f"w{i}" for i in range(5, 18))
    assert [m.longest_run for m in index.match_text(f"a b {run} c d") if m.item_id == "0"] == [13]
    assert not [m for m in index.match_text(f"a b {run.rsplit(' ', 1)[0]} c d") if m.item_id == "0"]
    pieces = [" ".join(f"w{i}" for i in range(start, start + 10)) for start in (0, 20)]
    (match,) = [m for m in index.match_text(f"{pieces[1]} between {pieces[0]}") if m.item_id == "0"]
    assert (match.longest_run, match.coverage) == (10, 0.5)
    # Shorter items: the whole item, or a run of 13; a shared opening is not enough.
    assert [m.item_id for m in index.match_text("so what IS the colour, of the sky?")] == ["1"]
    assert index.match_text("what is the colour of the sea") == []
    assert not [m for m in index.match_text("w1 w2 w3 w4 w5 w6 w7 w8 w9 x10 x11 end") if m.item_id == "3"]


def test_numbers_alone_prove_nothing() -> None:
    digits = " ".join(str(i) for i in range(40))
    index = index_of(digits, "Continue the list of primes for me please 2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53")
    assert index.match_text(digits + " " + digits) == []
    assert index.match_text("2 3 5 7 11 13 17 19 23 29 31 37 41 43 47 53 59 61") == []
    assert index.items[0]["checked"] is False
    hexadecimal = index_of("the digits 0 1 2 3 4 5 6 7 8 9 A B C D E F count")
    assert hexadecimal.match_text("0 1 2 3 4 5 6 7 8 9 a b c d e f g h") == []
    assert [m.item_id for m in index.match_text("Continue the list of primes for me please 2 3 5 7 11 13 17 19")] == [
        "1"
    ]


def test_short_item_that_ends_in_numbers_is_found_whole() -> None:
    text = "add these eight numbers up and tell me 1 2 3 4 5 6 7 8"
    assert [m.item_id for m in index_of(text).match_text(f"now {text} ok")] == ["0"]


def test_many_items_share_ngrams() -> None:
    stem = "which of the following best describes the main"
    ending = "topic{0} of chapter{0} in the history{0} of the nation{0} seen from afar{0}"
    index = index_of(*(f"{stem} {ending.format(i)}" for i in range(50)))
    (match,) = index.match_text(f"Quiz: {stem} {ending.format(7)}?")
    assert match.item_id == "7" and match.longest_run == 20
    assert index.match_text(f"Then {stem} rain.") == []


def test_batch_finds_what_each_text_alone_would() -> None:
    index = index_of(QUESTION, "what is the colour of the sky", "who was first on the moon")
    half = QUESTION.split()[:10], QUESTION.split()[10:]
    texts = ["", QUESTION, " ".join(half[0]), " ".join(half[1]), FILLER, "a what is the colour of the sky", "who was"]
    together = index.match_texts([*texts, "first on the moon"])
    assert together == [index.match_text(text) for text in texts] + [[]]
    assert [len(found) for found in together] == [0, 1, 0, 0, 0, 1, 0, 0]


def test_overlap_takes_the_longest_diagonal() -> None:
    overlap = measure_overlap(np.array([3, 4, 5, 20, 9]), np.array([0, 1, 2, 0, 7]), 8, 20)
    assert (overlap.longest_run, overlap.start, overlap.first, overlap.stop) == (10, 3, 3, 28)
    assert overlap.coverage == 15 / 20


def test_index_on_disk(tmp_path) -> None:
    index = index_of(QUESTION, "what is the colour of the sky")
    index.save(tmp_path / "index")
    again = ContaminationIndex.load(tmp_path / "index", ContaminationSettings())
    assert again.fingerprint == index.fingerprint
    assert again.match_text(QUESTION) == index.match_text(QUESTION) != []
    with pytest.raises(UserError, match="build it again"):
        ContaminationIndex.load(tmp_path / "index", ContaminationSettings(ngram_size=12))
    with pytest.raises(UserError, match="there is none"):
        ContaminationIndex.load(tmp_path / "nowhere")
    (tmp_path / "index" / "index.npz").rename(tmp_path / "index.npz")
    for content in (b"", b"x" * 200, (tmp_path / "index.npz").read_bytes()[:100]):
        (tmp_path / "index" / "index.npz").write_bytes(content)
        with pytest.raises(UserError, match="it is damaged"):
            ContaminationIndex.load(tmp_path / "index")
    (tmp_path / "index.npz").replace(tmp_path / "index" / "index.npz")
    header = read_json(tmp_path / "index" / "index.json")
    write_json(tmp_path / "index" / "index.json", header | {"normalization": "other"})
    with pytest.raises(UserError, match="build it again"):
        ContaminationIndex.load(tmp_path / "index")


def test_empty_index_is_an_error(tmp_path) -> None:
    with pytest.raises(UserError, match="none of 2 benchmark items can be checked"):
        index_of("Yes", "1 2 3 4 5 6 7 8 9 10")
    with pytest.raises(UserError, match="none of 0"):
        ContaminationIndex.build([])
    with pytest.raises(UserError, match="min_run = 5"):
        ContaminationSettings(min_run=5)


def test_cut_leaves_the_rest() -> None:
    text = f"Before   it.\n{QUESTION}\nAfter it, caf\u00e9&nbsp;au lait."
    (match,) = index_of(QUESTION).match_text(text)
    assert remove_word_spans(text, [(match.start, match.stop)]) == "Before   it.\nAfter it, caf\u00e9&nbsp;au lait."
    assert len(word_spans(text)) == 2 + 19 + 5


def test_report_counts_items_and_names_documents() -> None:
    items = [
        BenchmarkItem("quiz", "q1", "question", QUESTION, "r1", "2024-01-01"),
        BenchmarkItem("quiz", "q1", "answer", "no"),
        BenchmarkItem("quiz", "q2", "question", "a clean question that nobody wrote"),
        BenchmarkItem("quiz", "q3", "question", "No"),
    ]
    index = ContaminationIndex.build(items)
    findings = [
        match_record(name, f"http://x/{name}", "web", index.match_text(QUESTION)[0]) for name in ("d2", "d1", "d1")
    ]
    report = contamination_report(index, findings, "drop", 10)
    assert report["benchmarks"] == {
        "quiz": {
            "revision": "r1",
            "published": "2024-01-01",
            "items": 3,
            "checked": 2,
            "unchecked": 1,
            "contaminated": 1,
            "documents": 2,
        }
    }
    (item,) = report["items"]
    assert item["item_id"] == "q1" and [document["id"] for document in item["documents"]] == ["d1", "d2"]
    assert item["documents"][0] == {
        "id": "d1",
        "url": "http://x/d1",
        "source": "web",
        "field": "question",
        "longest_run": 19,
        "coverage": 1.0,
    }


def test_benchmark_files(tmp_path) -> None:
    file = tmp_path / "quiz.jsonl"
    file.write_text('{"id": "a", "question": "What is it?", "revision": "r2"}\n\n{"question": ["x", "y"]}\n')
    items = benchmark_items(BenchmarkConfig("quiz", str(file)), file)
    assert [(item.item_id, item.text, item.revision) for item in items] == [
        ("a", "What is it?", "r2"),
        ("2", "x\ny", None),
    ]
    with pytest.raises(UserError, match="row 1 of .* has no text in prompt; its fields are id, question"):
        benchmark_items(BenchmarkConfig("quiz", fields=["prompt"]), file)
    file.write_text("{}\n{oops\n")
    with pytest.raises(UserError, match="line 2 is no JSON"):
        list(read_rows(file, "quiz"))
    file.write_text("[" * 100_000)
    with pytest.raises(UserError, match="line 1 is nested too deeply"):
        list(read_rows(file, "quiz"))
    file.write_text("[1]\n")
    with pytest.raises(UserError, match="no JSON object"):
        list(read_rows(file, "quiz"))
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="no UTF-8"):
        list(read_rows(file, "quiz"))
    file.write_text("")
    with pytest.raises(UserError, match="no rows"):
        benchmark_items(BenchmarkConfig("quiz"), file)
    with pytest.raises(UserError, match="is no file"):
        list(read_rows(tmp_path / "missing", "quiz"))


@pytest.mark.parametrize(("action", "left"), [("drop", ["clean"]), ("report", ["clean", "dirty", "tiny"])])
def test_block_drops_or_reports(tmp_path, action: str, left: list[str]) -> None:
    index_of(QUESTION).save(tmp_path / "index")
    rows = {"clean": FILLER, "dirty": FILLER * 2 + QUESTION, "tiny": QUESTION}
    documents = [Document(text, name, metadata={"source": "web"}) for name, text in rows.items()]
    block = DecontaminationFilter(str(tmp_path / "index"), ContaminationSettings(), str(tmp_path / "found"), action)
    assert [document.id for document in block.run(iter(documents))] == left
    found = list(read_jsonl(tmp_path / "found" / "00000.jsonl"))
    assert [row["id"] for row in found] == ["dirty", "tiny"] and found[0]["longest_run"] == 19
    if action == "drop":
        assert documents[1].metadata["filter_reason"] == "contaminated_quiz"


def test_block_cuts_spans(tmp_path) -> None:
    index_of(QUESTION).save(tmp_path / "index")
    documents = [Document(FILLER * 3 + QUESTION + " End.", "long"), Document(QUESTION + " End.", "short")]
    block = DecontaminationFilter(
        str(tmp_path / "index"), ContaminationSettings(), str(tmp_path / "found"), "remove_span"
    )
    (document,) = block.run(iter(documents))
    assert document.id == "long" and "Janet" not in document.text and document.text.endswith("reads. End.")
    assert json.loads((tmp_path / "found" / "00000.jsonl").read_text().splitlines()[0])["id"] == "long"

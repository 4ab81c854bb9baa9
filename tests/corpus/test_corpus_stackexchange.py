"""StackExchange dumps: questions with ranked answers out of a small `Posts.xml` in the true format."""

import bz2
from xml.sax.saxutils import quoteattr

import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.utils.errors import UserError


pytest.importorskip("defusedxml")


def row(**fields):
    return "  <row " + " ".join(f"{name}={quoteattr(str(value))}" for name, value in fields.items()) + " />"


def question(number, score=5, **fields):
    return row(
        Id=number,
        PostTypeId=1,
        Score=score,
        Body=f"<p>How does {number} work?</p>\n<pre><code>for x in y:\n    pass\n</code></pre>",
        Title=f"Question {number}",
        Tags="<python><c++>",
        CreationDate="2012-01-01T00:00:00.000",
        ContentLicense="CC BY-SA 3.0",
        **fields,
    )


def answer(number, parent, score, body):
    return row(Id=number, PostTypeId=2, ParentId=parent, Score=score, Body=body, ContentLicense="CC BY-SA 4.0")


ROWS = (
    question(1, AcceptedAnswerId=12),
    answer(11, 1, 9, "<p>The <b>popular</b> one &amp; more.</p>"),
    answer(12, 1, -3, "<p>The accepted one.</p>"),
    answer(13, 1, -1, "<p>Bad.</p>"),
    answer(14, 1, 2, "<p>Third.</p>"),
    answer(15, 1, 1, "<p>Fourth.</p>"),
    question(2),  # nobody answered
    question(3, score=-2),
    answer(31, 3, 1, "<p>Answer of a bad question.</p>"),
    answer(41, 999, 1, "<p>Its question is gone.</p>"),
    row(Id=5, PostTypeId=4, Body="tag wiki"),
)


def write(folder, *rows, end="</posts>\n"):
    site = folder / "cooking.stackexchange.com"
    site.mkdir(exist_ok=True)
    text = '\ufeff<?xml version="1.0" encoding="utf-8"?>\n<posts>\n' + "\n".join(rows) + "\n" + end
    (site / "Posts.xml").write_text(text, "utf-8")
    return site / "Posts.xml"


def read(path, **settings):
    reader = build_reader(SourceConfig(name="qa", kind="stackexchange", path=str(path), **settings))
    return list(reader()), reader.stats


def test_a_question_with_its_answers_the_accepted_one_first(tmp_path):
    write(tmp_path, *ROWS)
    (document,), stats = read(tmp_path, options={"max_answers": 3})
    parts = document.text.split("\n\nAnswer: ")
    assert parts[0].startswith("Question: Question 1\n\nHow does 1 work?") and "for x in y:\n    pass" in parts[0]
    assert parts[1:] == ["The accepted one.", "The popular one & more.", "Third."]
    metadata = document.metadata
    assert (document.id, metadata["url"]) == ("qa/1", "https://cooking.stackexchange.com/questions/1")
    assert (metadata["tags"], metadata["score"], metadata["answers"]) == (["python", "c++"], 5, 3)
    assert metadata["accepted"] is True and metadata["license"] == "CC-BY-SA-3.0 AND CC-BY-SA-4.0"
    left_out = ("in_question", "answer_score", "answer_beyond_max", "no_answer", "score", "answer_of_low_question")
    assert [stats[f"skipped_{name}"].total for name in left_out] == [3, 1, 1, 1, 1, 1]
    assert stats["skipped_answer_without_question"].total == stats["skipped_post_type"].total == 1
    assert stats["skipped_rows"].total + 1 == len(ROWS)  # no line is lost


def test_questions_without_answers_on_request(tmp_path):
    write(tmp_path, *ROWS)
    documents, _ = read(tmp_path, options={"require_answer": False, "min_score": -5})
    assert [doc.metadata["answers"] for doc in documents] == [4, 0, 1]


def test_bad_rows_in_the_middle(tmp_path):
    bad = (
        '  <row Id="7" PostTypeId="1" Body="<p>" />',
        '  <row Id="x" PostTypeId="1" />',
        "  what is this",
        question(1),
    )
    write(tmp_path, ROWS[0], *bad, ROWS[1], question(8), answer(81, 8, 1, "<p>Fine.</p>"))
    with pytest.raises(UserError, match=r"Posts\.xml, row 4: no well-formed XML"):
        read(tmp_path)
    documents, stats = read(tmp_path, on_bad_row="skip")
    assert [doc.id for doc in documents] == ["qa/1", "qa/8"]
    assert (stats["bad_rows_broken_xml"].total, stats["bad_rows_twice"].total) == (3, 1)


def test_html_bombs_and_entities_in_a_post(tmp_path):
    deep = answer(11, 1, 5, "<div>" * 50_000 + "x")
    entity = '  <row Id="12" PostTypeId="2" ParentId="1" Body="&bomb;" />'
    write(tmp_path, question(1), deep, entity, question(2), answer(21, 2, 1, "<p>Fine.</p>"))
    documents, stats = read(tmp_path, on_bad_row="skip")
    assert [doc.id for doc in documents] == ["qa/2"]
    assert stats["bad_rows_too_deep"].total == stats["bad_rows_broken_xml"].total == 1


@pytest.mark.parametrize("packed", [False, True])
def test_a_dump_cut_off_keeps_what_was_read(tmp_path, packed):
    rows = [line for n in range(1, 200) for line in (question(n), answer(1000 + n, n, 1, f"<p>Answer {n}.</p>"))]
    path = write(tmp_path, *rows, end="")
    if packed:
        packed_path = path.with_name("Posts.xml.bz2")
        packed_path.write_bytes(bz2.compress(path.read_bytes())[:-20])
        path = packed_path
    documents, stats = read(path, on_bad_file="skip")
    assert stats["bad_files"].total == 1 and (packed or len(documents) == 199)
    with pytest.raises(UserError, match="cut off after line"):
        read(path)


def test_other_files_are_named(tmp_path):
    path = write(tmp_path, *ROWS)
    path.write_text("<html>\n<p>no dump</p>\n")
    with pytest.raises(UserError, match="no StackExchange dump"):
        read(path)

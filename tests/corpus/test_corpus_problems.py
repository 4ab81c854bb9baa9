"""Problem sets, folders of `datasets`, WET files and packed JSON Lines."""

import bz2
import gzip
import io
import json
import lzma

import pyarrow
import pyarrow.parquet
import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.listing import list_files
from hf_pretrain.corpus.ingest.problems import boxed_answer
from hf_pretrain.corpus.ingest.sources import build_reader
from hf_pretrain.utils import optional
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import MissingPackageError


def read(kind, path, **settings):
    reader = build_reader(SourceConfig(name="mine", kind=kind, path=str(path), **settings))
    return list(reader()), reader.stats


MATH = [
    {"problem": "What is $1+1$?", "solution": r"It is $\boxed{\frac{2}{1}}$.", "level": "Level 1"},
    {"problem": "And $2+2$?", "solution": "Add them.", "answer": 4},
    {"problem": "GSM", "solution": "He has 3*4=<<3*4=12>>12 apples.\n#### 12"},
    {"problem": "Several", "solution": ["", "The second: 5."], "answer": "5"},
    {"problem": "Nobody knows", "solution": None},
    {"problem": " ", "solution": "x"},
    {"problem": "{solution} and {x}", "solution": "{problem}", "answer": ""},
]
TEXTS = [
    "Problem: What is $1+1$?\n\nSolution: It is $\\boxed{\\frac{2}{1}}$.",
    "Problem: And $2+2$?\n\nSolution: Add them.\n\nAnswer: 4",
    "Problem: GSM\n\nSolution: He has 3*4=12 apples.",
    "Problem: Several\n\nSolution: The second: 5.",
    "Problem: {solution} and {x}\n\nSolution: {problem}",
]


@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_problems_with_solutions(tmp_path, form):
    if form == "jsonl":
        (tmp_path / "x.jsonl").write_text("\n".join(map(json.dumps, MATH)))
    else:
        rows = [{**row, "solution": str(row["solution"] or ""), "answer": str(row.get("answer", ""))} for row in MATH]
        rows[3]["solution"] = "The second: 5."
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "x.parquet")
    documents, stats = read("problems", tmp_path, on_bad_row="skip")
    assert [doc.text for doc in documents] == TEXTS
    assert [doc.metadata["answer"] for doc in documents] == [r"\frac{2}{1}", "4", "12", "5", ""]
    assert documents[0].metadata["level"] == "Level 1"
    assert (stats["skipped_no_solution"].total, stats["bad_rows_no_text"].total) == (1, 1)
    with pytest.raises(UserError, match=r"row 6: no text in 'problem'"):
        read("problems", tmp_path)


def test_problems_with_other_fields_and_template(tmp_path):
    (tmp_path / "x.jsonl").write_text(json.dumps({"question": "2+2", "answer": "Four.\n#### 4"}))
    options = {"problem_key": "question", "solution_key": "answer", "template": "Q {problem}\nA {solution} = {answer}"}
    documents, _ = read("problems", tmp_path, options=options)
    assert documents[0].text == "Q 2+2\nA Four. = 4"
    with pytest.raises(UserError, match=r"template = .* needs \{problem\}"):
        SourceConfig(name="x", kind="problems", path="x", options={"template": "{solution}"})


def test_a_missing_parser_is_named_before_anything_is_read(tmp_path, monkeypatch):
    (tmp_path / "x.xml").write_text("<mediawiki>")
    monkeypatch.setattr(optional, "is_available", lambda module: module != "mwparserfromhell")
    with pytest.raises(MissingPackageError, match=r"kind wikipedia needs mwparserfromhell.*hf-pretrain\[sources\]"):
        list_files(SourceConfig(name="wiki", kind="wikipedia", path=str(tmp_path)))


def test_boxed_answers():
    assert boxed_answer(r"\boxed{1} then \boxed{\text{a \} b}^{2}}") == r"\text{a \} b}^{2}"
    assert boxed_answer(r"\boxed{open") == boxed_answer("none") == ""


def test_a_saved_dataset_and_its_splits(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": [f"row {n}" for n in range(600)], "n": list(range(600))})
    datasets.DatasetDict({"train": rows.select(range(500)), "test": rows.select(range(500, 600))}).save_to_disk(
        str(tmp_path / "set"), num_shards={"train": 2, "test": 1}
    )
    documents, _ = read("dataset", tmp_path / "set" / "train")
    assert [doc.text for doc in documents] == [f"row {n}" for n in range(500)]
    assert documents[3].metadata["n"] == 3
    reader = build_reader(SourceConfig(name="mine", kind="dataset", path=str(tmp_path / "set")))
    texts = [doc.text for rank in range(2) for doc in reader.run(rank=rank, world_size=2)]
    assert len(texts) == len(set(texts)) == 600
    with pytest.raises(UserError, match="no column 'body'; columns are text, n"):
        read("dataset", tmp_path / "set", text_key="body")


def test_a_shuffled_dataset_is_saved_in_its_order(tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"text": [f"row {n}" for n in range(50)]}).shuffle(seed=1)
    rows.save_to_disk(str(tmp_path / "set"))
    assert [doc.text for doc in read("dataset", tmp_path / "set")[0]] == list(rows["text"])


def test_a_damaged_arrow_file(tmp_path):
    path = tmp_path / "x.arrow"
    table = pyarrow.table({"text": ["one " * 50] * 2000})
    with pyarrow.OSFile(str(path), "wb") as sink, pyarrow.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=500)
    path.write_bytes(path.read_bytes()[:-150_000])
    with pytest.raises(UserError, match=r"x\.arrow: damaged after row 1000"):
        read("dataset", path)
    documents, stats = read("dataset", path, on_bad_file="skip")
    assert len(documents) == 1000 and stats["bad_files"].total == 1
    path.write_bytes(b"no arrow")
    with pytest.raises(UserError, match="no readable Arrow file"):
        read("dataset", path)


def wet(path, *texts, kind="conversion"):
    from warcio.warcwriter import WARCWriter

    with open(path, "wb") as stream:
        writer = WARCWriter(stream, gzip=True)
        writer.write_record(writer.create_warcinfo_record(path.name, {"software": "test"}))
        for number, text in enumerate(texts):
            data = text if isinstance(text, bytes) else text.encode()
            headers = {"WARC-Identified-Content-Language": "deu,eng"}
            record = writer.create_warc_record(
                f"https://example.org/{number}",
                kind,
                payload=io.BytesIO(data),
                length=len(data),
                warc_content_type="text/plain",
                warc_headers_dict=headers,
            )
            writer.write_record(record)


def test_wet_records(tmp_path):
    path = tmp_path / "x.warc.wet.gz"
    wet(path, "Sch\u00f6ner Text.", "  ", "\u0645\u0631\u062d\u0628\u0627 world", b"caf\xe9", "Ende.")
    with pytest.raises(UserError, match=r"x\.warc\.wet\.gz, row 5: not UTF-8"):
        read("wet", path)
    documents, stats = read("wet", path, on_bad_row="skip")
    assert [doc.metadata["url"] for doc in documents] == [f"https://example.org/{n}" for n in (0, 2, 4)]
    assert documents[0].text == "Sch\u00f6ner Text." and documents[0].metadata["language"] == "de"
    assert (stats["skipped_empty_body"].total, stats["bad_rows_binary"].total) == (1, 1)


def test_the_wrong_kind_of_crawl_file_is_named(tmp_path):
    path = tmp_path / "x.warc.wet.gz"
    wet(path, "text")
    with pytest.raises(UserError, match="kind: wet reads it"):
        read("warc", path)
    wet(path, "HTTP/1.1 200 OK\r\n\r\n<html><p>x</html>", kind="response")
    with pytest.raises(UserError, match="kind: warc reads it"):
        read("wet", path)


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("bz2", bz2.compress), ("xz", lzma.compress)])
def test_packed_json_lines_whole_joined_and_cut_off(tmp_path, ending, pack):
    path = tmp_path / f"x.jsonl.{ending}"
    lines = [json.dumps({"text": f"row {n} " + "".join(chr(97 + n * k % 26) for k in range(300))}) for n in range(500)]
    halves = ["\n".join(lines[:250]) + "\n", "\n".join(lines[250:]) + "\n"]
    path.write_bytes(b"".join(pack(half.encode()) for half in halves))
    assert len(read("jsonl", path)[0]) == 500
    path.write_bytes(path.read_bytes()[:-200])
    documents, stats = read("jsonl", path, on_bad_file="skip")
    assert 250 <= len(documents) < 500 and stats["bad_files"].total == 1
    path.write_bytes(b"no such data")
    with pytest.raises(UserError, match=r"damaged (gzip|bzip2|xz) data"):
        read("jsonl", path)

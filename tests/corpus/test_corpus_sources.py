"""Readers: what they give for good files, and one clear line or a count for each kind of bad one."""

import dataclasses
import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from hf_pretrain.corpus.config_ingest import SourceConfig
from hf_pretrain.corpus.ingest.listing import list_files
from hf_pretrain.corpus.ingest.pages import Page, write_warc
from hf_pretrain.corpus.ingest.sources import build_reader, resolve_source
from hf_pretrain.corpus.ingest.web_archives import decode_html
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.strict import build


def source(path, kind="jsonl", **settings):
    return SourceConfig(name="mine", kind=kind, path=str(path), **settings)


def write_lines(path, *lines):
    data = "".join(line if line.endswith("\n") else line + "\n" for line in lines).encode("utf-8", "surrogatepass")
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def html_pages(number):
    body = "<html><body><p>Caf\u00e9 number {0}</p></body></html>"
    return [Page(f"https://example.org/{n}", body.format(n)) for n in range(number)]


def test_jsonl_documents_and_their_metadata(tmp_path):
    rows = [
        {
            "id": "a",
            "text": "one",
            "url": "https://example.org",
            "language": "eng",
            "license": "MIT",
            "metadata": {"x": 1},
        },
        {"text": "two", "language": "klingon"},
    ]
    path = write_lines(tmp_path / "rows.jsonl.gz", json.dumps(rows[0]), "", json.dumps(rows[1]))
    first, second = build_reader(source(path, language="fra", license="CC0-1.0", domain="books"))()
    assert (first.text, first.id) == ("one", "a")
    assert first.metadata == {
        "x": 1,
        "url": "https://example.org",
        "language": "en",
        "license": "MIT",
        "source": "mine",
        "domain": "books",
        "file": "rows.jsonl.gz",
        "row": 0,
    }
    assert second.id == "mine/rows.jsonl.gz/2"
    assert (second.metadata["language"], second.metadata["license"], second.metadata["row"]) == ("fr", "CC0-1.0", 2)


BAD_ROWS = {
    "not_json": "{'id': 1}",
    "not_an_object": "[1, 2]",
    "no_text": '{"id": "x"}',
    "blank_text": '{"text": "  "}',
    "text_is_number": '{"text": 5}',
    "binary": '{"text": "a\\u0000b"}',
    "surrogate": '{"text": "a\\ud800b"}',
    "too_large": json.dumps({"text": "x" * 101}),
    "deep": "[" * 100_000,
    "surrogate_in_a_field": '{"text": "good", "title": "a\\ud800b"}',
    "surrogate_in_the_id": '{"text": "good", "id": "a\\ud800b"}',
    "huge_number_in_a_field": '{"text": "good", "score": ' + "9" * 40 + "}",
}


def test_fields_of_any_type_travel_along_or_are_left_out(tmp_path):
    row = {"text": "good", "id": {"a": 1}, "token_count": "x", "pii": "x", "url": 9, "license": ["a"], "language": 5}
    path = write_lines(tmp_path / "rows.jsonl", json.dumps({**row, "metadata": 7, "score": float("nan")}))
    (document,) = build_reader(source(path))()
    assert document.id == "{'a': 1}" and (document.metadata["url"], document.metadata["license"]) == ("9", "['a']")
    assert not {"token_count", "pii", "language", "metadata"} & set(document.metadata)


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_an_error_that_names_file_and_row(tmp_path, kind):
    path = write_lines(tmp_path / "rows.jsonl", '{"text": "good"}', BAD_ROWS[kind], '{"text": "good too"}')
    documents = build_reader(source(path, max_document_bytes=100))()
    assert next(documents).text == "good"
    with pytest.raises(UserError, match=r"'mine': .*rows\.jsonl, row 2: .*on_bad_row: skip"):
        next(documents)


@pytest.mark.parametrize("kind", BAD_ROWS)
def test_a_bad_row_is_skipped_and_counted_on_request(tmp_path, kind):
    path = write_lines(tmp_path / "rows.jsonl", '{"text": "good"}', BAD_ROWS[kind], '{"text": "good too"}')
    reader = build_reader(source(path, on_bad_row="skip", max_document_bytes=100))
    assert [doc.metadata["row"] for doc in reader()] == [0, 2]
    assert reader.stats["bad_rows"].total == 1


def test_a_line_that_is_not_utf8_is_a_bad_row(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "caf\xe9"}\n{"text": "fine"}\n')
    with pytest.raises(UserError, match="row 1: not UTF-8"):
        list(build_reader(source(path))())
    assert len(list(build_reader(source(path, on_bad_row="skip"))())) == 1


def test_a_monstrous_line_is_skipped_without_reading_it_whole(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", '{"text": "' + "x" * 500_000 + '"}', '{"text": "fine"}')
    reader = build_reader(source(path, on_bad_row="skip", max_document_bytes=10))
    assert [(doc.text, doc.metadata["row"]) for doc in reader()] == [("fine", 1)]
    assert reader.stats["bad_rows_too_large"].total == 1


def test_gzip_cut_off_keeps_what_was_read(tmp_path):
    rows = [
        json.dumps({"text": f"row {number} " + "".join(chr(97 + (number * k) % 26) for k in range(200))})
        for number in range(3000)
    ]
    path = write_lines(tmp_path / "rows.jsonl.gz", *rows)
    path.write_bytes(path.read_bytes()[:-2000])
    read = []
    with pytest.raises(UserError, match=r"rows\.jsonl\.gz: gzip data cut off after row \d+.*on_bad_file: skip"):
        for doc in build_reader(source(path))():
            read.append(doc)
    reader = build_reader(source(path, on_bad_file="skip"))
    assert len(list(reader())) == len(read) > 100
    assert reader.stats["bad_files"].total == 1


def test_gzip_that_is_none(tmp_path):
    path = tmp_path / "rows.jsonl.gz"
    path.write_bytes(b"plain text")
    with pytest.raises(UserError, match="damaged gzip data"):
        list(build_reader(source(path))())


def test_empty_file_is_an_error_and_an_empty_task_is_none(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(b"")
    with pytest.raises(UserError, match="empty file"):
        list(build_reader(source(tmp_path / "rows.jsonl"))())
    assert list(build_reader(source(tmp_path / "rows.jsonl"))(rank=1, world_size=2)) == []


def test_tasks_share_the_sorted_files(tmp_path):
    for name in ("b", "a", "c"):
        (tmp_path / "deep").mkdir(exist_ok=True)
        write_lines(tmp_path / "deep" / f"{name}.jsonl", json.dumps({"text": name}))
    reader = source(tmp_path)
    assert [doc.text for doc in build_reader(reader)(rank=0, world_size=2)] == ["a", "c"]
    assert [doc.text for doc in build_reader(reader)(rank=1, world_size=2)] == ["b"]
    assert [file.name for file in list_files(source(tmp_path / "deep" / "[ab].jsonl"))] == ["a.jsonl", "b.jsonl"]


def test_nothing_found_is_an_error(tmp_path):
    with pytest.raises(UserError, match="has no file"):
        build_reader(source(tmp_path / "none*.jsonl"))
    with pytest.raises(UserError, match=r"ends in \.parquet"):
        build_reader(source(tmp_path, kind="parquet"))


def test_max_documents(tmp_path):
    path = write_lines(tmp_path / "rows.jsonl", *['{"text": "x"}'] * 9)
    assert len(list(build_reader(source(path, max_documents=4))())) == 4


def test_warc_responses_only(tmp_path):
    pages = [
        *html_pages(2),
        Page("https://example.org/api", "{}", content_type="application/json"),
        Page("https://example.org/gone", "<html>gone</html>", status="404 Not Found"),
        Page(
            "https://example.org/latin",
            "<html><p>Caf\u00e9</html>",
            content_type="text/html; charset=latin-1",
            encoding="latin-1",
        ),
    ]
    write_warc(tmp_path / "x.warc.gz", pages, "test")
    reader = build_reader(source(tmp_path / "x.warc.gz", kind="warc", domain="web"))
    documents = list(reader())
    assert [doc.metadata["url"] for doc in documents] == [f"https://example.org/{n}" for n in (0, 1, "latin")]
    assert "Caf\u00e9" in documents[2].text
    assert documents[0].id.startswith("<urn:uuid:")
    assert documents[0].metadata["date"] == "2025-01-01T00:00:00Z"
    assert (reader.stats["skipped_not_html"].total, reader.stats["skipped_http_status"].total) == (1, 1)


def test_warc_without_payload_type_is_judged_by_its_content(tmp_path):
    write_warc(
        tmp_path / "x.warc.gz",
        [Page("https://example.org/x", "<?xml version='1.0'?><html><p>x</html>", content_type="")],
        "test",
    )
    data = gzip.decompress((tmp_path / "x.warc.gz").read_bytes()).replace(b"WARC-Identified-Payload-Type: \r\n", b"")
    assert b"Identified" not in data
    (tmp_path / "x.warc").write_bytes(data)
    assert len(list(build_reader(source(tmp_path / "x.warc", kind="warc"))())) == 1


@pytest.mark.parametrize("compressed", [True, False])
def test_truncated_warc_keeps_what_was_read(tmp_path, compressed):
    write_warc(tmp_path / "x.warc.gz", html_pages(5), "test")
    data = (tmp_path / "x.warc.gz").read_bytes()
    path = tmp_path / ("cut.warc.gz" if compressed else "cut.warc")
    path.write_bytes(data[:-60] if compressed else gzip.decompress(data)[:-60])
    read = []
    with pytest.raises(UserError, match="cut off"):
        for doc in build_reader(source(path, kind="warc"))():
            read.append(doc)
    assert len(read) == 4
    reader = build_reader(source(path, kind="warc", on_bad_file="skip"))
    assert len(list(reader())) == 4
    assert reader.stats["bad_files"].total == 1


def test_binary_data_for_a_warc_is_one_line(tmp_path, capsys):
    # A line that happens to read like a record is not followed by an empty one, of which warcio warns on its own.
    write_warc(tmp_path / "x.warc.gz", html_pages(1), "test")
    record = gzip.decompress((tmp_path / "x.warc.gz").read_bytes()).rstrip()
    (tmp_path / "x.warc").write_bytes(record + b"x \xff\xfe\r\n\r\n\x00\x01 what\r\n")
    with pytest.raises(UserError, match="x.warc: damaged after record 2"):
        list(build_reader(source(tmp_path / "x.warc", kind="warc"))())
    assert "not followed by newline" not in capsys.readouterr().err


def test_a_warc_cut_anywhere_is_a_bad_file_or_whole(tmp_path):
    write_warc(tmp_path / "x.warc.gz", html_pages(3), "test")
    data = (tmp_path / "x.warc.gz").read_bytes()
    path = tmp_path / "cut.warc.gz"
    for end in range(1, len(data), 37):
        path.write_bytes(data[:end])
        reader = build_reader(source(path, kind="warc", on_bad_file="skip"))
        documents = list(reader())
        assert len(documents) <= 3
        assert reader.stats["bad_files"].total == 1, end
        assert all(doc.text.endswith("</html>") for doc in documents)


def test_gzip_of_one_member_is_read_too(tmp_path):
    write_warc(tmp_path / "x.warc.gz", html_pages(3), "test")
    (tmp_path / "one.warc.gz").write_bytes(
        gzip.compress(gzip.decompress((tmp_path / "x.warc.gz").read_bytes())) + b"\0" * 64
    )
    assert len(list(build_reader(source(tmp_path / "one.warc.gz", kind="warc"))())) == 3


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "empty file"),
        (b"<html>no warc</html>" * 9, "no WARC file|holds no record"),
        (b"\x00\xff" * 99, "no WARC file"),
    ],
)
def test_empty_and_foreign_warc(tmp_path, data, message):
    (tmp_path / "x.warc").write_bytes(data)
    with pytest.raises(UserError, match=message):
        list(build_reader(source(tmp_path / "x.warc", kind="warc"))())


def test_parquet(tmp_path):
    table = pyarrow.table({"text": ["one", None, "three"], "id": ["a", "b", "c"], "n": [1, 2, 3]})
    pyarrow.parquet.write_table(table, tmp_path / "x.parquet")
    config = source(tmp_path / "x.parquet", kind="parquet", on_bad_row="skip")
    assert [(doc.id, doc.metadata["n"]) for doc in build_reader(config)()] == [("a", 1), ("c", 3)]
    with pytest.raises(UserError, match="no column 'body'; columns are text, id, n"):
        list(build_reader(dataclasses.replace(config, text_key="body"))())
    (tmp_path / "y.parquet").write_bytes(b"PAR1 nothing")
    with pytest.raises(UserError, match="no readable Parquet file"):
        list(build_reader(source(tmp_path / "y.parquet", kind="parquet"))())


def test_text_files(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeffhello", encoding="utf-8")
    (tmp_path / "b.txt").write_bytes(b"\x89PNG\r\n\x00\x01")
    (tmp_path / "c.bin").write_bytes(b"ignored")
    documents = build_reader(source(tmp_path, kind="text"))()
    doc = next(documents)
    assert (doc.text, doc.id, doc.metadata["file"]) == ("hello", "mine/a.txt", "a.txt")
    with pytest.raises(UserError, match=r"b\.txt, row 1: not UTF-8"):
        next(documents)


def test_sample_parts_become_files():
    assert resolve_source(SourceConfig(name="web"), "crawl").path.endswith("web.warc.gz")
    assert resolve_source(SourceConfig(name="old", path="books"), "crawl").path.endswith("books.jsonl.gz")
    assert SourceConfig(name="old", path="books").effective_domain == "books"
    with pytest.raises(UserError, match="sample_dir"):
        resolve_source(SourceConfig(name="web"))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"name": "wbe"}, "Did you mean 'web'"),
        ({"name": "a/b", "kind": "text", "path": "x"}, "letters, digits"),
        ({"name": "x", "kind": "jsonl"}, "path is missing"),
        ({"name": "x", "kind": "jsonl", "path": "p", "on_bad_row": "ignore"}, "on_bad_row"),
        ({"name": "x", "kind": "jsonl", "path": "p", "max_documents": 0}, "max_documents = 0"),
        ({"name": "x", "kind": "jsonl", "path": "p", "language": "xx"}, "Unknown language"),
        ({"name": "x", "kind": "json", "path": "p"}, "kind"),
    ],
)
def test_wrong_settings_are_one_clear_line(settings, message):
    with pytest.raises(UserError, match=message):
        build(SourceConfig, settings, "test")


@pytest.mark.parametrize(
    ("body", "header"),
    [
        ("Caf\u00e9".encode(), ""),
        ("Caf\u00e9".encode("latin-1"), "text/html; charset=ISO-8859-1"),
        (b"<html><head><meta charset='windows-1252'></head><p>" + "Caf\u00e9".encode("latin-1"), ""),
        (
            "Caf\u00e9".encode("latin-1") + b" au lait, s'il vous pla\xeet, et un croissant beurr\xe9",
            "text/html; charset=utf-8",
        ),
    ],
)
def test_encodings(body, header):
    assert "Caf\u00e9" in decode_html(body, header)

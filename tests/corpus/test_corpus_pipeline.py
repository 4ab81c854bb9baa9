"""The whole corpus stage on a few inline documents: outputs, reuse, determinism, bad input."""

import gzip
import json
import random
import shutil

import numpy as np
import pytest

from hf_pretrain.corpus.config import CorpusConfig
from hf_pretrain.corpus.pipeline import build_corpus, sources_from_files
from hf_pretrain.scripts import corpus as corpus_script
from hf_pretrain.scripts.recipe import load_stage
from hf_pretrain.utils.atomic import read_json, read_jsonl
from hf_pretrain.utils.errors import UserError


QUESTION = "How many eggs does Janet sell each day at the market when her sixteen ducks lay one each morning?"
WORDS = (
    "the of and to in that was with have been ship whale winter captain harbour letter garden village river stone "
    "morning evening light window table story road mountain forest music paper silver engine history teacher market"
).split()


def prose(seed: int, sentences: int = 12) -> str:
    rng = random.Random(seed)
    return " ".join(
        " ".join(rng.choices(WORDS, k=rng.randint(8, 14))).capitalize() + f" {rng.choice(WORDS)}{seed}."
        for _ in range(sentences)
    )


def page(text: str) -> str:
    nav = "<nav><ul><li><a href='/'>Home</a><li><a href='/about'>About us</a></ul></nav>"
    body = "".join(f"<p>{part.strip()}.</p>" for part in text.split(".") if part.strip())
    return f"<html><head><title>Page</title></head><body>{nav}<main><article>{body}</article></main></body></html>"


def write_warc(path, pages: dict[str, str]) -> None:
    from io import BytesIO

    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    with open(path, "wb") as stream:
        writer = WARCWriter(stream, gzip=True)
        for url, html in pages.items():
            headers = StatusAndHeaders("200 OK", [("Content-Type", "text/html; charset=utf-8")], protocol="HTTP/1.1")
            writer.write_record(
                writer.create_warc_record(url, "response", payload=BytesIO(html.encode()), http_headers=headers)
            )


@pytest.fixture
def inputs(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    notes = [{"id": f"n{i}", "text": prose(i), "license": "MIT"} for i in range(30)]
    notes.append({"id": "copy", "text": "  " + notes[0]["text"]})
    notes.append({"id": "near", "text": notes[1]["text"] + " One more sentence was added here."})
    notes.append({"id": "dirty", "text": prose(90) + " " + QUESTION + " Write to jane.doe@corp.com for more."})
    notes.append({"id": "mail", "text": prose(91) + " Write to jane.doe@corp.com for more."})
    notes.append({"id": "long", "text": prose(92, 150)})
    notes.append({"id": "short", "text": "Too short."})
    with gzip.open(folder / "notes.jsonl.gz", "wt") as stream:
        stream.write("".join(json.dumps(row) + "\n" for row in notes))
    pages = {f"http://x.org/{i}": page(prose(100 + i)) for i in range(20)}
    write_warc(folder / "web.warc.gz", pages | {"http://x.org/dup": page(prose(2))})
    clean = "Which of these questions was never written anywhere?"
    rows = [{"id": "q1", "question": QUESTION}, {"id": "q2", "question": clean}]
    (folder / "quiz.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "chat.jsonl").write_text(json.dumps({"messages": [{"role": "user", "content": "hi"}]}) + "\n")
    return folder


def settings(inputs, **changes) -> dict:
    return {
        "sources": [
            {"name": "notes", "kind": "jsonl", "path": str(inputs / "notes.jsonl.gz"), "domain": "howto"},
            {"name": "web", "kind": "warc", "path": str(inputs / "web.warc.gz"), "license": "CC0-1.0"},
        ],
        "benchmarks": [{"name": "quiz", "path": str(inputs / "quiz.jsonl")}],
        "instructions": [{"name": "chat", "path": str(inputs / "chat.jsonl")}],
        "language": {"skip_domains": ["howto", "web"]},
        "filters": {"domains": {"web": {"gopher_repetition": False}, "howto": {"gopher_repetition": False}}},
        "tokenizer": {"vocab_size": 384},
        "long_documents": {"min_tokens": 1500, "max_compression": 20},
        "validation": {"fraction": 0.05},
        **changes,
    }


def build(inputs, out, **changes) -> dict:
    return build_corpus(CorpusConfig.from_mapping(settings(inputs, **changes)), out)


def ids(out, split: str, source: str) -> list[str]:
    return [row["id"] for row in read_jsonl(out / "tokens" / split / source / "00000.ds.docs.jsonl")]


def tokens_of(out) -> dict[str, bytes]:
    return {str(file.relative_to(out)): file.read_bytes() for file in sorted((out / "tokens").rglob("*.ds*"))}


def test_from_raw_files_to_shards(inputs, tmp_path) -> None:
    out = tmp_path / "corpus"
    facts = build(inputs, out)
    notes = set(ids(out, "train", "notes")) | set(ids(out, "validation", "notes"))
    # Of equal or nearly equal documents the longer one stays; the web's copy of n2 goes because web comes second.
    assert notes == {f"n{i}" for i in range(2, 30)} | {"copy", "near", "mail", "long"}
    assert facts["dedup"]["exact"]["removed"] == 2 and facts["dedup"]["near"]["removed"] == 1
    assert facts["pii"] == {"email": 2}
    (long,) = out.glob("tokens/*/long/00000.ds.docs.jsonl")
    assert [(row["id"], row["source"]) for row in read_jsonl(long)] == [("long", "notes")]
    report = read_json(out / "contamination.json")
    assert [(item["item_id"], [d["id"] for d in item["documents"]]) for item in report["items"]] == [("q1", ["dirty"])]
    assert facts["contamination"]["quiz"]["items"] == 2
    web = facts["sources"]["web"]
    assert web["raw_documents"] == 21 and web["documents"] == 20 and web["licenses"] == ["CC0-1.0"]
    assert facts["sources"]["long"]["derived"] and facts["totals"]["documents"] == web["documents"] + len(notes)
    assert facts["tokenizer"]["vocab_size"] == 384 and facts["instructions"] == {"chat": 1}
    assert {row["id"] for row in read_jsonl(out / "benchmarks" / "quiz.jsonl")} == {"q1", "q2"}
    record = next(read_jsonl(out / "tokens" / "train" / "web" / "00000.ds.docs.jsonl"))
    assert record["url"].startswith("http://x.org/") and record["file"] == "web.warc.gz" and record["source"] == "web"
    funnel = read_json(out / "funnel.json")
    stages = [row["stage"] for row in funnel["rows"] if row["source"] == "web"]
    assert stages[:2] == ["extract", "language"] and stages[-4:] == ["exact", "near", "pii", "decontaminate"]
    source = read_json(out / "tokens" / "train" / "web" / "source.json")
    assert np.fromfile(out / "tokens/train/web/00000.ds", "<u2").size == source["num_tokens"]
    assert not [path for path in out.rglob("*") if path.name.endswith((".tmp", ".old", ".partial"))]


def test_second_run_reuses_and_changes_run_from_there(inputs, tmp_path) -> None:
    out = tmp_path / "corpus"
    first = build(inputs, out)
    steps = {path.name: path.stat().st_mtime_ns for path in (out / "steps").iterdir()}
    assert build(inputs, out) == first
    assert {path.name: path.stat().st_mtime_ns for path in (out / "steps").iterdir()} == steps
    build(inputs, out, pii={"types": ["ipv4"]})
    after = {path.name for path in (out / "steps").iterdir()}
    assert sorted(name[:2] for name in after & set(steps)) == ["01", "02", "03", "04"] and len(after) == 8
    # A file that changes is read again, though its name is the same.
    with gzip.open(inputs / "notes.jsonl.gz", "at") as stream:
        stream.write(json.dumps({"id": "new", "text": prose(500)}) + "\n")
    assert build(inputs, out)["totals"]["documents"] == first["totals"]["documents"] + 1


def test_same_corpus_for_any_number_of_tasks(inputs, tmp_path) -> None:
    shutil.copy(inputs / "notes.jsonl.gz", inputs / "more.jsonl.gz")
    with gzip.open(inputs / "more.jsonl.gz", "wt") as stream:
        stream.write("".join(json.dumps({"id": f"m{i}", "text": prose(i + 20)}) + "\n" for i in range(30)))
    sources = settings(inputs)["sources"]
    sources[0]["path"] = str(inputs / "*.jsonl.gz")
    build(inputs, tmp_path / "one", sources=sources)
    build(inputs, tmp_path / "three", sources=sources, tasks=3)
    one, three = tokens_of(tmp_path / "one"), tokens_of(tmp_path / "three")
    assert one == three and len(one) > 5


def test_interrupt_leaves_done_steps_usable(inputs, tmp_path, monkeypatch) -> None:
    from hf_pretrain.corpus import pipeline

    out = tmp_path / "corpus"
    original = pipeline.train_tokenizer

    def interrupt(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pipeline, "train_tokenizer", interrupt)
    with pytest.raises(KeyboardInterrupt):
        build(inputs, out)
    assert not (out / "tokens").exists() and not (out / "funnel.json").exists()
    assert sum(path.name.endswith(".partial") for path in (out / "steps").iterdir()) == 1
    done = {path.name: path.stat().st_mtime_ns for path in (out / "steps").iterdir() if "partial" not in path.name}
    assert len(done) == 6
    monkeypatch.setattr(pipeline, "train_tokenizer", original)
    build(inputs, out)
    again = {path.name: path.stat().st_mtime_ns for path in (out / "steps").iterdir()}
    assert done.items() <= again.items() and len(again) == 8


def test_parts_can_be_left_out(inputs, tmp_path) -> None:
    facts = build(
        inputs,
        tmp_path / "corpus",
        dedup={"exact": False, "minhash": {"enabled": False}},
        pii={"types": []},
        contamination={"enabled": False},
        benchmarks=[],
    )
    assert facts["dedup"] == {} and facts["contamination"] == {}
    assert not (tmp_path / "corpus" / "contamination.json").exists()
    assert facts["totals"]["documents"] == 35 + 21


def test_tokenizer_of_another_corpus(inputs, tmp_path) -> None:
    build(inputs, tmp_path / "first")
    facts = build(inputs, tmp_path / "second", tokenizer={"path": str(tmp_path / "first" / "tokenizer")})
    assert facts["tokenizer"]["vocab_size"] == 384
    assert tokens_of(tmp_path / "first").keys() == tokens_of(tmp_path / "second").keys()
    with pytest.raises(UserError, match="tokenizer.path = '.*nowhere'; there is no tokenizer.json"):
        build(inputs, tmp_path / "third", tokenizer={"path": str(tmp_path / "nowhere")})


def cut(path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def fill(path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "web.warc.gz").write_bytes(b""), "web.warc.gz"),
        (lambda folder: cut(folder / "web.warc.gz"), "web.warc.gz"),
        (lambda folder: cut(folder / "notes.jsonl.gz"), "cut off"),
        (lambda folder: fill(folder / "notes.jsonl.gz", '{"text": "a"}\n{oops\n'), "row 2"),
        (lambda folder: fill(folder / "notes.jsonl.gz", '{"title": "a"}\n'), "no text"),
        (lambda folder: fill(folder / "quiz.jsonl", '{"id": 1}\n'), "has no text in question"),
        (lambda folder: fill(folder / "quiz.jsonl", ""), "no rows"),
        (lambda folder: fill(folder / "chat.jsonl", "{\n"), "chat.jsonl, line 1 is no JSON"),
        (lambda folder: fill(folder / "chat.jsonl", ""), "chat.jsonl has no rows"),
        (lambda folder: fill(folder / "chat.jsonl", '{"text": "a"}\n'), "row 1 of .* has text; `messages`"),
        (lambda folder: fill(folder / "chat.jsonl", '{"messages": "\\ud800"}\n'), "line 1 holds a lone surrogate"),
        (lambda folder: (folder / "web.warc.gz").unlink(), "has no file"),
        (lambda folder: (folder / "chat.jsonl").unlink(), "no such file"),
    ],
)
def test_bad_input_is_one_clear_line(inputs, tmp_path, damage, message: str) -> None:
    damage(inputs)
    with pytest.raises(UserError, match=message) as caught:
        build(inputs, tmp_path / "corpus")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "corpus" / "tokens").exists()


def test_bad_rows_can_be_skipped_and_are_counted(inputs, tmp_path) -> None:
    (inputs / "notes.jsonl").write_text("{oops\n" + json.dumps({"id": "a", "text": prose(1)}) + '\n{"id": "b"}\n')
    sources = settings(inputs)["sources"]
    sources[0].update(path=str(inputs / "notes.jsonl"), on_bad_row="skip")
    build(inputs, tmp_path / "corpus", sources=sources)
    row = next(row for row in read_json(tmp_path / "corpus" / "funnel.json")["rows"] if row["stage"] == "read")
    assert (row["documents_in"], row["documents_out"]) == (3, 1)
    assert {reason: counts["documents"] for reason, counts in row["removed"].items()} == {
        "bad_row_not_json": 1,
        "bad_row_no_text": 1,
    }


def test_nothing_left_and_too_much_are_errors(inputs, tmp_path) -> None:
    rules = {"domains": {"web": {"min_words": 9000}, "howto": {"min_words": 9000}}}
    with pytest.raises(UserError, match="nothing is left"):
        build(inputs, tmp_path / "corpus", filters=rules)
    with pytest.raises(UserError, match="limits.memory_bytes = 1000"):
        build(inputs, tmp_path / "other", limits={"memory_bytes": 1000})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sourcse": []}, "Did you mean 'sources'"),
        ({"sources": []}, "sources is empty"),
        ({"sources": [{"name": "a"}]}, "a"),
        ({"benchmarks": []}, "benchmarks is empty"),
        ({"workers": True}, "workers = True"),
        ({"validation": {"fraction": 0.7}}, "fraction = 0.7"),
        ({"long_documents": {"name": "web"}}, "a source has that name"),
        ({"long_documents": {"sources": ["wbe"]}}, "Did you mean 'web'"),
        ({"filters": {"domains": {"wbe": {}}}}, "Did you mean 'web'"),
        ({"dedup": {"minhash": {"num_bucket": 3}}}, "num_buckets"),
        ({"contamination": {"action": "delete"}}, "action"),
        ({"workers": 0}, "at least 1"),
    ],
)
def test_wrong_settings_are_named(inputs, changes: dict, message: str) -> None:
    with pytest.raises(UserError, match=message):
        CorpusConfig.from_mapping(settings(inputs, **changes), "1_corpus.yaml")


def test_names_given_twice(inputs) -> None:
    twice = settings(inputs)["sources"] * 2
    with pytest.raises(UserError, match="source 'notes' is named twice"):
        CorpusConfig.from_mapping(settings(inputs, sources=twice))
    assert len(sources_from_files(CorpusConfig.from_mapping(settings(inputs)))) == 4


def test_script_records_facts_and_keeps_steps(inputs, tmp_path, capsys) -> None:
    import yaml

    recipe = tmp_path / "mine" / "1_corpus.yaml"
    recipe.parent.mkdir()
    run_dir = tmp_path / "run"
    recipe.write_text(yaml.safe_dump({"stage": "corpus", "run_dir": str(run_dir), **settings(inputs)}))
    assert corpus_script.main(["--config", str(recipe), "--quiet"]) == 0
    facts = read_json(run_dir / "facts.json")["stages"]["1_corpus"]
    assert facts["kind"] == "corpus" and facts["totals"]["tokens"] > 0
    before = {path.name: path.stat().st_mtime_ns for path in (run_dir / "1_corpus" / "steps").iterdir()}
    assert corpus_script.main(["--config", str(recipe), "--quiet", "--set", "tokenizer.vocab_size=448"]) == 0
    after = {path.name: path.stat().st_mtime_ns for path in (run_dir / "1_corpus" / "steps").iterdir()}
    assert len(before.items() & after.items()) == 6
    assert corpus_script.main(["--config", str(recipe), "--quiet", "--set", "tokenizer.vocab=4"]) == 2
    assert "Did you mean 'vocab_size'" in capsys.readouterr().err
    spec = load_stage(recipe)
    shutil.rmtree(inputs)
    corpus_script.check(spec)  # a dry run needs no inputs
    assert corpus_script.main(["--config", str(recipe), "--quiet"]) == 2

"""Tokenizer, splits, long documents and token shards; the format is read back by datatrove and by hand."""

import json

import numpy as np
import pytest
from datatrove.data import Document

from hf_pretrain.corpus.shards.long_documents import LongDocumentsConfig, compression_ratio, select_long_documents
from hf_pretrain.corpus.shards.provenance import read_provenance
from hf_pretrain.corpus.shards.splits import ValidationConfig, stable_fraction, validation_mask
from hf_pretrain.corpus.shards.tokenization import encode_documents, token_size_for, write_token_source
from hf_pretrain.corpus.shards.tokenizer import (
    SPECIAL_TOKENS,
    TokenizerConfig,
    load_tokenizer,
    pad_vocabulary,
    sample_budgets,
    sample_texts,
    save_tokenizer,
    train_tokenizer,
)
from hf_pretrain.corpus.shards.writing import write_token_shards
from hf_pretrain.utils.atomic import read_json, sha256_file
from hf_pretrain.utils.errors import UserError


TEXTS = [f"The {i}th whale swam 12{i} miles; na\u00efve caf\u00e9 <|endoftext|> {'sea ' * (i % 7)}" for i in range(80)]


@pytest.fixture(scope="module")
def tokenizer_dir(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokenizer")
    save_tokenizer(train_tokenizer(TEXTS, TokenizerConfig(vocab_size=320)), folder)
    return folder


@pytest.fixture(scope="module")
def tokenizer(tokenizer_dir):
    return load_tokenizer(tokenizer_dir)


def documents(count: int = 40) -> list[Document]:
    return [
        Document(
            TEXTS[i],
            f"d{i}",
            metadata={"source": "web", "url": f"http://x/{i}", "language": "en", "row": i, "license": "MIT"},
        )
        for i in range(count)
    ]


def test_training_is_deterministic_and_lossless(tokenizer) -> None:
    for size in (100, 2**40):
        with pytest.raises(UserError, match=f"vocab_size = {size}; at"):
            TokenizerConfig(vocab_size=size)
    config = TokenizerConfig(vocab_size=320)
    first, second = train_tokenizer(TEXTS, config), train_tokenizer(iter(TEXTS), config)
    assert first.to_str() == second.to_str()
    for text in [*TEXTS[:3], "\U0001f40b \x00 \u0e44\u0e21\u0e48\r\n\n  1234567", ""]:
        assert (
            tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text
        )


def test_vocabulary_is_padded(tokenizer) -> None:
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert tokenizer.get_vocab_size() == 320 and pad_vocabulary(320) == 320 and pad_vocabulary(321) == 384
    poor = train_tokenizer(["ab"], TokenizerConfig(vocab_size=4096))
    assert poor.get_vocab_size() == 320 and poor.token_to_id("<|reserved_0|>") is not None


def test_special_tokens_in_documents_are_text(tokenizer) -> None:
    ids = tokenizer.encode("a <|endoftext|> b <|im_end|>", add_special_tokens=False).ids
    assert not {0, 1, 2, 3} & set(ids)


def test_chat_template_marks_the_closing_token(tokenizer_dir) -> None:
    # bugs T1, T2: both assistant turns are marked, each up to and with its end-of-turn token.
    from transformers import AutoTokenizer

    chat = AutoTokenizer.from_pretrained(tokenizer_dir)
    assert (chat.eos_token_id, chat.pad_token_id, len(chat)) == (0, 3, 320)
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "hello"},
        {"role": "user", "content": "again"},
        {"role": "assistant", "content": "yes"},
    ]
    row = chat.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
    marked = [token for token, inside in zip(row["input_ids"], row["assistant_masks"], strict=True) if inside]
    assert chat.decode(marked) == "hello<|im_end|>yes<|im_end|>"
    assert row["input_ids"][0] == 1 and row["input_ids"].count(0) == 0  # no BOS, no end of text
    prompt = chat.apply_chat_template(messages[:3], return_dict=True, add_generation_prompt=True)["input_ids"]
    first = row["assistant_masks"].index(1, row["assistant_masks"].index(1) + len(chat("hello").input_ids) + 1)
    assert row["input_ids"][: len(prompt)] == prompt and first == len(prompt)


def test_tokenizer_problems_are_named(tmp_path) -> None:
    with pytest.raises(UserError, match="no tokenizer.json"):
        load_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match="cannot be read"):
        load_tokenizer(tmp_path)
    with pytest.raises(UserError, match="vocab_size = 100"):
        TokenizerConfig(vocab_size=100)


def test_sample_is_balanced_and_independent_of_order() -> None:
    assert sample_budgets({"a": 900, "b": 100, "c": 0}, 400, 0.5) == {"a": 300, "b": 100, "c": 0}
    assert sample_budgets({"a": 900, "b": 100}, 100, 1.0) == {"a": 90, "b": 10}
    assert sample_budgets({"a": 9000, "b": 1000}, 100, 0.0) == {"a": 50, "b": 50}
    assert sample_budgets({"a": 50, "b": 5}, 1000, 0.5) == {"a": 50, "b": 5}
    rows = [(f"d{i}", f"text {i} " * 10) for i in range(30)]
    config = TokenizerConfig(train_bytes=500)
    first = sample_texts({"a": rows, "b": rows[:3]}, config)
    assert first == sample_texts({"b": rows[:3], "a": rows[::-1]}, config)
    assert abs(sum(first[1].values()) - 500) < 5


def test_split_is_stable_and_gives_every_source_something() -> None:
    config = ValidationConfig(fraction=0.1)
    ids = [f"d{i}" for i in range(2000)]
    mask = validation_mask(ids, config)
    assert 0.08 < sum(mask) / 2000 < 0.12
    assert validation_mask(ids[::-1], config) == mask[::-1]
    assert validation_mask(ids[:1000], config) == mask[:1000]
    assert sum(validation_mask(ids[:8], ValidationConfig(fraction=1e-6))) == 2
    assert sum(validation_mask(ids[:3], ValidationConfig(fraction=1e-6))) == 0
    assert sum(validation_mask(ids, ValidationConfig(fraction=0.0))) == 0
    assert stable_fraction("d1", "a") != stable_fraction("d1", "b")
    with pytest.raises(UserError, match="fraction = 0.9"):
        ValidationConfig(fraction=0.9)


def test_long_documents_must_be_more_than_repetition() -> None:
    prose = " ".join(f"word{i * 7919 % 1009} of{i}" for i in range(500))
    rows = [
        Document(prose, "a", metadata={"source": "books"}),
        Document("spam " * 2000, "b", metadata={"source": "web"}),
    ]
    with pytest.raises(UserError, match="long_documents.name = '../x'"):
        LongDocumentsConfig(name="../x")
    config = LongDocumentsConfig(min_tokens=100)
    assert compression_ratio(rows[1].text) > 8 > compression_ratio(prose)
    assert select_long_documents(rows, [900, 900], config) == [0]
    assert select_long_documents(rows, [99, 900], config) == []
    assert select_long_documents(rows, [900, 900], LongDocumentsConfig(min_tokens=100, sources=["web"])) == []
    assert select_long_documents(rows, [900, 900], LongDocumentsConfig(name="", min_tokens=100)) == []


def test_shards_hold_what_they_say(tmp_path, tokenizer) -> None:
    summary = write_token_source(tmp_path / "web", "web", "train", documents(), tokenizer, shard_tokens=300)
    assert summary == read_json(tmp_path / "web" / "source.json")
    assert len(summary["files"]) > 1 and summary["languages"] == {"en": 40} and summary["licenses"] == ["MIT"]
    assert summary["num_bytes"] == sum(len(document.text.encode()) for document in documents())
    seen, total = [], 0
    for entry in summary["files"]:
        shard = tmp_path / "web" / entry["name"]
        tokens = np.fromfile(shard, "<u2")
        ends = np.fromfile(f"{shard}.index", "<u8").astype(int)
        # bugs B7, B8: the ends cover the file, the closing token included.
        assert ends[-1] == len(tokens) == entry["num_tokens"] and len(ends) == entry["num_documents"]
        assert sha256_file(shard) == entry["sha256"]
        assert f"|{2}\n{len(tokens)}\n" in (tmp_path / "web" / f"{entry['name']}.metadata").read_text()
        starts = [0, *ends[:-1]]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            record = read_provenance(shard, number)
            assert tokens[end - 1] == 0 and 0 not in tokens[start : end - 1]
            text = tokenizer.decode(tokens[start : end - 1].tolist(), skip_special_tokens=False)
            assert text == TEXTS[int(record["id"][1:])]
            assert record["num_tokens"] == end - start and record["num_bytes"] == len(text.encode())
            assert record["url"] == f"http://x/{record['row']}" and record["metadata"] == {"license": "MIT"}
            seen.append(record["id"])
        total += len(tokens)
    assert sorted(seen) == sorted(f"d{i}" for i in range(40)) and total == summary["num_tokens"]
    assert seen != [f"d{i}" for i in range(40)]
    again = write_token_source(tmp_path / "again", "web", "train", documents()[::-1], tokenizer, shard_tokens=300)
    assert again == summary


def test_datatrove_reads_the_shards(tmp_path, tokenizer) -> None:
    from datatrove.utils.dataset import DatatroveFolderDataset

    write_token_source(tmp_path / "web", "web", "train", documents(), tokenizer)
    dataset = DatatroveFolderDataset(str(tmp_path / "web"), 31, filename_pattern="*.ds", token_size=2)
    tokens = np.fromfile(tmp_path / "web" / "00000.ds", "<u2").astype(int)
    assert len(dataset) == len(tokens) // 32
    assert dataset[1]["input_ids"].tolist() == tokens[32:64].tolist()


def test_tokens_wide_enough(tmp_path) -> None:
    # bug B5
    assert token_size_for(1 << 16) == 2 and token_size_for((1 << 16) + 1) == 4
    from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers

    wide = Tokenizer(models.WordLevel({"<|endoftext|>": 0, "a": 65_535, "b": 65_536}, unk_token="a"))
    wide.pre_tokenizer = pre_tokenizers.Whitespace()
    wide.add_tokens([AddedToken("zzz")])
    rows = [Document("a b", "1"), Document("b b", "2")]
    summary = write_token_source(tmp_path, "wide", "train", rows, wide)
    tokens = np.fromfile(tmp_path / "00000.ds", "<u4")
    assert summary["token_size"] == 4 and sorted(tokens.tolist()) == [0, 0, 65_535, 65_536, 65_536, 65_536]


def test_nothing_is_put_before_a_document(tokenizer_dir) -> None:
    # bugs B1, B3: a post-processor that adds a token is not asked.
    from tokenizers import processors

    changed = load_tokenizer(tokenizer_dir)
    changed.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 1)]
    )
    (ids,) = encode_documents([Document("abc", "1")], changed)
    assert 1 not in ids and ids[-1] == 0


def test_all_sources_and_splits(tmp_path, tokenizer) -> None:
    books = [
        Document(" ".join(f"b{i}w{j * 7919 % 509}" for j in range(300)), f"b{i}", metadata={"source": "books"})
        for i in range(9)
    ]
    summaries = write_token_shards(
        tmp_path / "tokens",
        {"web": documents(), "books": books, "none": []},
        tokenizer,
        ValidationConfig(),
        LongDocumentsConfig(min_tokens=600),
    )
    found = {(item["split"], item["name"]): item["num_documents"] for item in summaries}
    assert found[("train", "web")] + found[("validation", "web")] == 40
    assert found[("train", "long")] == found[("train", "books")] and found[("validation", "long")] == 2
    records = [json.loads(line) for line in open(tmp_path / "tokens" / "train" / "long" / "00000.ds.docs.jsonl")]
    assert {record["source"] for record in records} == {"books"}
    held_out = [
        json.loads(line)["id"] for line in open(tmp_path / "tokens" / "validation" / "books" / "00000.ds.docs.jsonl")
    ]
    assert not {record["id"] for record in records} & set(held_out)

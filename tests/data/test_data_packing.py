"""Rows of packed documents: nothing lost, nothing invented, documents whole where they fit."""

import logging
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data.best_fit import assign_rows, build_index, cut_documents
from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.packing import make_rows, pack_rows
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.data.trace import trace_sample
from hf_pretrain.utils.errors import UserError


def source_of(lengths):
    ends = np.cumsum(lengths)
    return TokenSource.from_arrays("a", np.arange(1, 1 + sum(lengths)), ends, eos_token_id=0)


def by_the_book(lengths, capacity):
    """Best fit decreasing as it is written down: one piece after the other into the fullest row it fits."""
    room, rows = [], {}
    for piece in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        fitting = [row for row, free in enumerate(room) if free >= lengths[piece]]
        if not fitting:
            room.append(capacity)
            fitting = [len(room) - 1]
        row = min(fitting, key=lambda number: room[number])
        room[row] -= lengths[piece]
        rows[piece] = row
    return sorted(room)


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 24), max_size=80), st.integers(24, 40))
def test_best_fit_is_best_fit_decreasing(lengths, capacity):
    rows, count = assign_rows(np.array(lengths, dtype=np.int32), capacity)
    held = np.bincount(rows, weights=lengths, minlength=count) if lengths else np.empty(0)
    assert sorted(capacity - held) == by_the_book(lengths, capacity)


@settings(max_examples=80, deadline=None)
@given(st.lists(st.integers(0, 40), min_size=1, max_size=40), st.integers(2, 16))
def test_every_token_is_in_one_row_and_whole_documents_stay_whole(lengths, seq_length):
    index = build_index([(0, np.cumsum(lengths).astype("<u8"))], seq_length)
    pieces = [piece for row in range(index.num_rows) for piece in index.pieces(row)]
    tokens = sorted(token for start, stop in pieces for token in range(start, stop))
    assert tokens == list(range(sum(lengths)))
    ends = np.cumsum(lengths)
    for start, end in zip(ends - lengths, ends, strict=True):
        parts = [piece for piece in pieces if start <= piece[0] < end]
        assert len(parts) == -(-(end - start) // seq_length)
    assert all(sum(stop - start for start, stop in index.pieces(row)) <= seq_length for row in range(index.num_rows))


def test_lengths_that_other_packers_lose_tokens_of():
    # P4: 7, 2, 3 and 0 tokens at 4: a packer that drops overflow keeps 9, this one 12. P5: no more rows at more room.
    rows = make_rows(source_of([7, 2, 3, 0]), 4, "best_fit")
    out = np.empty(4, dtype=np.int64)
    filled = [rows.read_into(row, out)[1] for row in range(rows.num_rows)]
    assert sum(filled) == 12
    assert rows.num_rows == 4
    lengths = [random.Random(0).randint(1, 16) for _ in range(200)]
    for small, large in ((16, 17), (32, 33)):
        counts = [make_rows(source_of(lengths), size, "best_fit").num_rows for size in (small, large)]
        assert counts[0] >= counts[1]


def test_filler_and_first_tokens_have_no_label():
    rows = make_rows(source_of([3, 4]), 8, "best_fit")
    out = np.empty(8, dtype=np.int64)
    starts, filled = rows.read_into(0, out)
    assert (out.tolist(), starts.tolist(), filled) == ([1, 2, 3, 4, 5, 6, 7, 0], [0, 3], 7)
    ids = np.empty((2, 8), dtype=np.int64)
    for labels, positions in zip(*pack_rows([(rows, 0), (rows, 0)], ids), strict=True):
        assert labels.tolist() == [-100, 2, 3, -100, 5, 6, 7, -100]
        assert positions.tolist() == [0, 1, 2, 0, 1, 2, 3, 0]
    assert ids[1].tolist() == out.tolist()


def test_a_shorter_context_cuts_rows_without_touching_the_order():
    rows = make_rows(TokenSource.from_arrays("a", range(24), [6, 24]), 12)
    labels, positions = pack_rows([(rows, 0), (rows, 1)], np.empty((2, 12), dtype=np.int64), [4, None])
    assert positions[0].tolist() == [0, 1, 2, 3, 0, 1, 0, 1, 0, 1, 2, 3]
    assert labels[0].tolist() == [-100, 1, 2, 3, -100, 5, -100, 7, -100, 9, 10, 11]
    assert (positions[1].tolist(), labels[1].tolist()) == (list(range(12)), list(range(12, 24)))


def two_sources(tmp_path):
    names = (("web", 60), ("books", 15))
    return [TokenSource.open(write_token_folder(tmp_path / n, n, random_documents(c, seed=c))) for n, c in names]


def test_phases_of_other_lengths_read_the_same_windows(tmp_path):
    sources = two_sources(tmp_path)
    phases = [
        {"name": "short", "fraction": 0.5, "weights": {"web": 1.0}, "seq_length": 8},
        {"name": "long", "weights": {"web": 1.0}},
    ]
    plain = MixtureDataset(sources, MixtureSchedule.from_weights({"web": 1.0}, 20), 32)
    schedule = MixtureSchedule.from_config({"phases": phases}, 20, 32)
    assert MixtureSchedule.from_json(schedule.to_json()) == schedule
    mixed = MixtureDataset(sources, schedule, 32)
    for index in range(20):
        assert mixed.locate(index) == plain.locate(index)
        assert mixed[index]["input_ids"].equal(plain[index]["input_ids"])
        assert int(mixed[index]["position_ids"].max()) < (8 if index < 10 else 32)
        assert mixed[index]["position_ids"].equal(plain[index]["position_ids"]) == (index >= 10)
    assert schedule.with_phase("anneal", 5, {"books": 1.0}).phases[-1].seq_length == 8
    for length in (5, 64, True, 1):
        phases[0]["seq_length"] = length
        with pytest.raises(UserError, match=rf"phases\[0\].seq_length = {length}; allowed .* seq_length = 32"):
            MixtureSchedule.from_config({"phases": phases}, 20, 32)


def test_the_index_is_cached_and_made_again_for_other_shards(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path / "cache"))
    sources = two_sources(tmp_path)
    schedule = MixtureSchedule.from_weights({"web": 0.7, "books": 0.3}, 30)
    with caplog.at_level(logging.INFO, "hf_pretrain"):
        first = MixtureDataset(sources, schedule, 64, packing="best_fit")
        assert len(list((tmp_path / "cache" / "best_fit").iterdir())) == 2
        assert "web: packed into" in caplog.text
        caplog.clear()
        again = MixtureDataset(sources, schedule, 64, packing="best_fit")
        assert not caplog.records
    assert all(first[index]["input_ids"].equal(again[index]["input_ids"]) for index in range(30))
    write_token_folder(tmp_path / "web", "web", random_documents(61, seed=9))
    MixtureDataset(
        [TokenSource.open(tmp_path / "web")], MixtureSchedule.from_weights({"web": 1.0}, 3), 64, packing="best_fit"
    )
    assert len(list((tmp_path / "cache" / "best_fit").iterdir())) == 3
    with pytest.raises(UserError, match="packing = 'bfd'; allowed are 'concat' and 'best_fit'"):
        MixtureDataset(sources, schedule, 64, packing="bfd")


def test_trace_and_order_of_best_fit_rows(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path / "cache"))
    schedule = MixtureSchedule.from_weights({"web": 0.7, "books": 0.3}, 30)
    dataset = MixtureDataset(two_sources(tmp_path), schedule, 64, packing="best_fit", max_epochs=9)
    DataOrder.of(dataset, 4).write(tmp_path)
    rebuilt = DataOrder.read(tmp_path).build()
    for index in range(30):
        assert rebuilt[index]["input_ids"].equal(dataset[index]["input_ids"])
        trace = trace_sample(rebuilt, index)
        ids = np.concatenate(
            [dataset.sources[0 if trace.source == "web" else 1].tokens(s.start, s.stop) for s in trace.spans]
        )
        assert dataset[index]["input_ids"][: len(ids)].tolist() == ids.tolist()
        assert (dataset[index]["labels"][len(ids) :] == -100).all()
        # Documents of at most 61 tokens fit a row of 64: all are whole.
        assert all(span.start == span.document_start for span in trace.spans)


def test_cut_documents():
    starts, lengths = cut_documents(np.array([7, 7, 9]), 3, offset=100)
    assert starts.tolist() == [100, 103, 106, 107]
    assert lengths.tolist() == [3, 3, 1, 2]


def test_flash_attention_gets_one_row_and_the_bounds_of_documents(tmp_path):
    dataset = MixtureDataset(two_sources(tmp_path), MixtureSchedule.from_weights({"web": 1.0}, 8), 32)
    samples = dataset.__getitems__(range(4))
    rows, flat = (
        PretrainDataCollator()(samples),
        PretrainDataCollator(attn_implementation="flash_attention_2")(samples),
    )
    assert flat["input_ids"].tolist() == [rows["input_ids"].flatten().tolist()]
    assert (flat["labels"][0, 1:] != -100).sum() == (rows["labels"][:, 1:] != -100).sum()
    bounds = flat["cu_seq_lens_q"].tolist()
    assert set(range(0, 129, 32)) <= set(bounds)
    assert [i for i, place in enumerate(flat["position_ids"][0].tolist()) if place == 0] == bounds[:-1]
    assert flat["max_length_k"] == max(np.diff(bounds))
    one_by_one = PretrainDataCollator()([dataset[index] for index in range(4)])
    assert all(rows[key].equal(one_by_one[key]) for key in rows)


def test_packing_of_a_stage_is_one_of_two():
    from hf_pretrain.trainer.stage_options import read_options

    keys = {"corpus": "c", "init_from": "m", "train_tokens": 64}
    assert read_options({**keys, "packing": "best_fit"}, "x.yaml").packing == "best_fit"
    with pytest.raises(UserError, match="packing"):
        read_options({**keys, "packing": "bfd"}, "x.yaml")

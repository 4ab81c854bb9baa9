import random

import datasets
import pytest
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data.lookup import find_documents, sample_of_draw, trace_document
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.data.trace import trace_step
from hf_pretrain.utils.errors import UserError


LENGTH, STEPS, BATCH = 16, 30, 4


@pytest.fixture(params=["concat", "best_fit"])
def run(tmp_path, request, monkeypatch):
    """A run whose mix changed twice, that left samples out and began with draws of an earlier stage."""
    monkeypatch.setenv("HF_PRETRAIN_CACHE", str(tmp_path / "cache"))
    sources = []
    for number, name in enumerate(("web", "code")):
        folder = tmp_path / "1_corpus" / "tokens" / name
        write_token_folder(folder, name, random_documents(30, seed=number), documents_per_file=7)
        sources.append(TokenSource.open(folder))
    schedule = MixtureSchedule.from_weights({"web": 0.7, "code": 0.3}, STEPS * BATCH, start_draws={"web": 9})
    schedule = schedule.with_phase("second", 40, {"web": 0.2, "code": 0.8}).with_phase("third", 90, {"code": 1.0})
    dataset = MixtureDataset(
        sources, schedule, LENGTH, 5, max_epochs=50, skipped=[[20, 31], [64, 70]], packing=request.param
    )
    stage = tmp_path / "2_pretrain"
    DataOrder.of(dataset, BATCH, world_size=2, micro_batch=1).write(stage)
    return stage, dataset


def test_a_document_is_found_at_exactly_the_steps_that_hold_it(run):
    stage, _ = run
    expected = {}
    for step in range(1, STEPS + 1):
        for trace in trace_step(stage, step):
            for entry in trace.to_json()["documents"]:
                place = (step, trace.row, trace.epoch, entry["document_start"], entry["document_stop"])
                expected.setdefault(entry["id"], []).append(place)
    for document in ("web/0", "web/13", "web/29", "code/3", "code/28"):
        (found,) = trace_document(stage, document)
        places = [
            (item.step, item.row, item.epoch, item.document_start, item.document_stop) for item in found.readings
        ]
        assert places == sorted(expected.get(document, []))
        assert found.record["id"] == document
    assert any(len({place[2] for place in places}) > 1 for places in expected.values()), "several epochs were read"


def test_a_document_of_a_dataset_is_found_by_its_id(tmp_path):
    texts = random_documents(25, seed=4)
    rows = {"input_ids": texts, "id": [f"d{number % 20}" for number in range(25)]}
    datasets.Dataset.from_dict(rows).save_to_disk(str(tmp_path / "web"))
    packed = {"input_ids": [[1, 2, 0, 3, 0], [4, 0]], "seq_lengths": [[3, 2], [2]], "id": ["x", "y"]}
    datasets.Dataset.from_dict(packed).save_to_disk(str(tmp_path / "packed"))
    source = TokenSource.open(tmp_path / "web")
    dataset = MixtureDataset([source], MixtureSchedule.from_weights({"web": 1.0}, 40), LENGTH, 5, max_epochs=50)
    DataOrder.of(dataset, BATCH).write(tmp_path / "run")
    held = {id(text): sum(map(len, texts[:number])) for number, text in enumerate(texts)}
    (once,) = trace_document(tmp_path / "run", "d7")
    assert (once.num_tokens, once.record) == (len(texts[7]), {"id": "d7"})
    assert once.readings
    for reading in once.readings:
        ids = dataset[reading.sample_index]["input_ids"].tolist()
        low = held[id(texts[7])] + reading.document_start - reading.window * LENGTH
        part = texts[7][reading.document_start : reading.document_stop]
        assert ids[low : low + len(part)] == part
    assert [found.document_index for found in trace_document(tmp_path / "run", "d3")] == [3, 23]
    assert list(find_documents(TokenSource.open(tmp_path / "packed"), "x")) == [(0, 0, 3), (1, 3, 5)]
    assert list(find_documents(TokenSource.open(tmp_path / "packed"), "y")) == [(2, 5, 7)]


def test_readings_up_to_a_step(run):
    stage, _ = run
    (whole,), (part,) = trace_document(stage, "code/3"), trace_document(stage, "code/3", steps=12)
    assert part.readings == [item for item in whole.readings if item.step <= 12]
    with pytest.raises(UserError, match=r"--doc cod/3; no source of this stage .* \(web, code\)"):
        trace_document(stage, "cod/3")


def test_the_schedule_is_inverted(run):
    _, dataset = run
    generator = random.Random(1)
    for sample in generator.sample(range(STEPS * BATCH), 40):
        source, draw = dataset.schedule.locate(sample)
        name = dataset.schedule.sources[source]
        assert sample_of_draw(dataset, name, draw, STEPS * BATCH) == sample
        assert sample_of_draw(dataset, name, draw, sample) is None
    assert sample_of_draw(dataset, "web", 8, STEPS * BATCH) is None  # of the stage before


def test_rank_and_row_choose_what_a_process_read(run):
    stage, _ = run
    every = trace_step(stage, 7)
    assert [(trace.rank, trace.rank_row) for trace in every] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert trace_step(stage, 7, rank=1) == [every[1], every[3]]
    assert trace_step(stage, 7, rank=1, row=1) == [every[3]]
    assert trace_step(stage, 7, row=2) == [every[2]]
    with pytest.raises(UserError, match="rank = 2; step 7 was made by 2 processes"):
        trace_step(stage, 7, rank=2)
    with pytest.raises(UserError, match="row = 2; there are 2 rows"):
        trace_step(stage, 7, rank=0, row=2)


def test_a_long_run_is_searched_in_no_time(tmp_path):
    # A billion samples: going through them would take hours.
    folder = tmp_path / "web"
    write_token_folder(folder, "web", random_documents(400, seed=2))
    source = TokenSource.open(folder)
    size = source.num_windows(LENGTH)
    schedule = MixtureSchedule.from_weights({"web": 1.0}, 10**9)
    dataset = MixtureDataset([source], schedule, LENGTH, 5, max_epochs=float("inf"))
    draw = 10**8 * size // size + 17
    assert sample_of_draw(dataset, "web", draw, 10**9) == draw

import shutil

import pytest
from testing_utils import random_documents, write_token_folder

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.data.trace import trace_step
from hf_pretrain.utils.errors import UserError


LENGTH = 16


def build(run, num_samples=60, seed=5, global_batch=4, weights=None):
    sources = []
    for number, name in enumerate(("web", "code")):
        folder = run / "1_corpus" / "tokens" / "train" / name
        if not folder.exists():
            write_token_folder(folder, name, random_documents(30, seed=number), documents_per_file=7)
        sources.append(TokenSource.open(folder))
    schedule = MixtureSchedule.from_weights(weights or {"web": 0.7, "code": 0.3}, num_samples)
    dataset = MixtureDataset(sources, schedule, LENGTH, seed, max_epochs=50)
    return dataset, DataOrder.of(dataset, global_batch)


def test_trace_names_the_documents_of_a_step_exactly(tmp_path):
    dataset, order = build(tmp_path)
    stage = tmp_path / "2_pretrain"
    order.write(stage)
    moved = tmp_path.parent / (tmp_path.name + "_moved")
    shutil.move(tmp_path, moved)  # a run folder that was copied elsewhere with its shards
    for step in (1, 3, 15):
        traces = trace_step(moved / "2_pretrain", step)
        assert [trace.sample_index for trace in traces] == list(range(4 * (step - 1), 4 * step))
        assert [trace.row for trace in traces] == [0, 1, 2, 3]
        for trace in traces:
            source = TokenSource.open(moved / "1_corpus" / "tokens" / "train" / trace.source)
            tokens = [token for span in trace.spans for token in source.tokens(span.start, span.stop).tolist()]
            assert tokens == dataset[trace.sample_index]["input_ids"].tolist()
            for entry in trace.to_json()["documents"]:
                assert entry["url"].startswith(f"https://example.org/{trace.source}/")
                assert 0 <= entry["document_start"] < entry["document_stop"] <= entry["num_tokens"]


def test_rebuilt_dataset_gives_the_same_samples(tmp_path):
    dataset, order = build(tmp_path)
    order.write(tmp_path / "2_pretrain")
    rebuilt = DataOrder.read(tmp_path / "2_pretrain").build()
    for index in (0, 17, 59):
        assert rebuilt[index]["input_ids"].tolist() == dataset[index]["input_ids"].tolist()
        assert rebuilt.locate(index) == dataset.locate(index)


def test_another_batch_size_after_a_resume_keeps_the_earlier_steps(tmp_path):
    _, order = build(tmp_path)
    _, later = build(tmp_path, global_batch=6)
    joined = order.continued_by(later, step=5)
    assert joined.samples_of_step(5) == list(range(16, 20))
    assert joined.samples_of_step(6) == list(range(20, 26))
    assert joined.samples_of_step(7) == list(range(26, 32))
    again = joined.continued_by(later, step=7)
    assert again.batches == joined.batches


def test_an_order_that_does_not_continue_is_refused(tmp_path):
    _, order = build(tmp_path)
    with pytest.raises(UserError, match="seed = 6; the run was begun with 5"):
        order.continued_by(build(tmp_path, seed=6)[1], step=2)
    with pytest.raises(UserError, match="the mixture changed for samples that were already read"):
        order.continued_by(build(tmp_path, weights={"web": 0.5, "code": 0.5})[1], step=2)
    assert order.continued_by(build(tmp_path, seed=6)[1], step=0).seed == 6
    write_token_folder(tmp_path / "1_corpus" / "tokens" / "train" / "web", "web", random_documents(30, seed=99))
    with pytest.raises(UserError, match="source 'web' changed since the run began"):
        order.continued_by(build(tmp_path)[1], step=2)
    order.write(tmp_path / "2_pretrain")
    with pytest.raises(UserError, match="are not those of the run"):
        trace_step(tmp_path / "2_pretrain", 1)


def test_bad_requests(tmp_path):
    _, order = build(tmp_path)
    with pytest.raises(UserError, match="data_order.json: no such file"):
        trace_step(tmp_path, 1)
    order.write(tmp_path / "2_pretrain")
    with pytest.raises(UserError, match="step = 0; steps count from 1"):
        trace_step(tmp_path / "2_pretrain", 0)
    with pytest.raises(UserError, match="step = 16; this run plans 60 samples"):
        trace_step(tmp_path / "2_pretrain", 16)

"""The streaming twin: the schedule's shares, the same batches for any workers and processes, exact resume."""

import json

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import IterableDatasetShard
from testing_utils import markov_documents
from tiny_training import BATCH, LENGTH, arguments, equal_weights, losses, tiny_llama, weights
from torch.utils.data import DataLoader, IterableDataset

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.streaming import StreamingMixture
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.trainer.pretrain_trainer import PretrainTrainer
from hf_pretrain.utils.errors import UserError


def documents(count=40, seed=0):
    return markov_documents(count, 64, seed)


def streams(kind="list", shuffle=False):
    texts = {"a": documents(40, 0), "b": documents(25, 1)}
    if kind == "list":
        return texts
    found = {}
    for name, rows in texts.items():
        found[name] = datasets.Dataset.from_dict({"input_ids": rows}).to_iterable_dataset(num_shards=2)
        if shuffle:
            found[name] = found[name].shuffle(seed=5, buffer_size=8)
    return found


def mixture(samples=60, kind="list", shuffle=False, **options):
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, samples)
    return StreamingMixture(streams(kind, shuffle), schedule, LENGTH, max_epochs=50, **options)


def as_lists(samples):
    return [(s["sample_index"], s["source_index"], s["input_ids"].tolist(), s["labels"].tolist()) for s in samples]


def test_it_reads_the_mapped_mixtures_sources_and_every_token_in_order():
    samples = list(mixture())
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, 60)
    assert [s["source_index"] for s in samples] == [schedule.locate(i)[0] for i in range(60)]
    for number, texts in enumerate(streams().values()):
        line = np.concatenate([np.array(text) for text in texts] * 20)
        read = torch.cat([s["input_ids"] for s in samples if s["source_index"] == number]).numpy()
        assert np.array_equal(read, line[: len(read)])
    # The same windows as a mapped source gives, documents and positions included.
    tokens = [token for text in streams()["a"] for token in text]
    ends = np.cumsum([len(text) for text in streams()["a"]])
    source = TokenSource.from_arrays("a", tokens, ends, 64, 0)
    mapped = MixtureDataset([source], MixtureSchedule.from_weights({"a": 1.0}, source.num_windows(LENGTH)), LENGTH)
    windows = {tuple(s["input_ids"].tolist()): s for s in mapped}
    for sample in [s for s in samples if s["source_index"] == 0][: len(mapped)]:
        other = windows[tuple(sample["input_ids"].tolist())]
        for key in ("labels", "position_ids"):
            assert sample[key].equal(other[key])


@pytest.mark.parametrize("kind", ["list", "hf"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_resume_is_exact_and_epochs_are_reshuffled(kind, shuffle):
    if kind == "list" and shuffle:
        pytest.skip("a list is not shuffled")
    whole = as_lists(mixture(kind=kind, shuffle=shuffle))
    for position in (0, 7, 16, 33, 59):
        first = mixture(kind=kind, shuffle=shuffle, state_every=5)
        reading = iter(first)
        for _ in range(min(position + 4, 60)):  # a loader reads ahead
            next(reading)
        state = json.loads(json.dumps(first.state_dict(position)))
        assert position - 5 <= state["at"] <= position
        second = mixture(kind=kind, shuffle=shuffle)
        second.load_state_dict(state)
        assert as_lists(second) == whole[position:]
        assert as_lists(second) == whole[position:]
    assert as_lists(first) == whole
    firsts = [list(reader) for reader in (whole[:5], whole[-5:])]
    assert firsts[0] != firsts[1]


@pytest.mark.parametrize("workers", [1, 3])
def test_workers_and_processes_do_not_change_the_batches(workers):
    plain = [b["input_ids"] for b in DataLoader(mixture(), batch_size=4, collate_fn=PretrainDataCollator())]
    loader = DataLoader(mixture(block_size=4), batch_size=4, num_workers=workers, collate_fn=PretrainDataCollator())
    assert all(one["input_ids"].equal(two) for one, two in zip(loader, plain, strict=True))
    ranks = []
    for rank in range(3):
        shard = IterableDatasetShard(mixture(block_size=12), batch_size=4, num_processes=3, process_index=rank)
        ranks.append(DataLoader(shard, batch_size=4, num_workers=workers - 1, collate_fn=PretrainDataCollator()))
    rounds = zip(*ranks, strict=True)
    together = [batch["input_ids"] for batches in rounds for batch in batches]
    assert all(one.equal(two) for one, two in zip(together, plain, strict=True))


def run(folder, steps=6, **options):
    args = arguments(folder, steps, per_device_train_batch_size=4, **options)
    dataset = mixture(samples=steps * BATCH, kind="hf", state_every=8)
    return PretrainTrainer(tiny_llama(attention_dropout=0.1), args, train_dataset=dataset)


def test_a_stopped_training_goes_on_bit_by_bit(tmp_path):
    whole = run(tmp_path / "whole")
    whole.train()
    first = run(tmp_path / "part", save_strategy="steps", save_steps=4)
    first.train()
    second = run(tmp_path / "part")
    second.train(tmp_path / "part" / "checkpoint-4")
    assert losses(second)[-2:] == losses(whole)[-2:]
    assert equal_weights(weights(whole), weights(second))
    manifest = next(json.loads(p.read_text()) for p in (tmp_path / "part" / "checkpoint-4").glob("*manifest*.json"))
    assert manifest["stream"]["position"] == 32 and manifest["stream"]["at"] == 32


class Rows(IterableDataset):
    def __iter__(self):
        for _ in range(100):
            yield {"input_ids": list(range(8)), "labels": list(range(8)), "position_ids": list(range(8))}


def test_other_data_does_not_silently_begin_anew(tmp_path):
    options = {"save_strategy": "steps", "save_steps": 2}
    PretrainTrainer(tiny_llama(), arguments(tmp_path, 2, **options), train_dataset=Rows()).train()
    options["resume_changes"] = ["max_steps"]
    again = PretrainTrainer(tiny_llama(), arguments(tmp_path, 4, **options), train_dataset=Rows())
    with pytest.raises(UserError, match=r"ignore_data_skip = True; from step 2 on the train_dataset \(Rows\)"):
        again.train(True)
    args = arguments(tmp_path, 4, **options, ignore_data_skip=False)
    allowed = PretrainTrainer(tiny_llama(), args, train_dataset=Rows())
    allowed.train(True)
    assert allowed.state.global_step == 4


def test_what_a_stream_cannot_do_is_said():
    schedule = MixtureSchedule.from_weights({"a": 0.7, "b": 0.3}, 40)
    with pytest.raises(UserError, match="Unknown source 'b'"):
        StreamingMixture({"a": documents()}, schedule, 16)
    with pytest.raises(UserError, match="source 'b' is an iterator"):
        StreamingMixture({"a": documents(), "b": iter(documents())}, schedule, 16)
    with pytest.raises(UserError, match="source 'b' holds no token"):
        list(StreamingMixture({"a": documents(), "b": []}, schedule, 16))
    with pytest.raises(UserError, match=r"source 'b' ended after 4 tokens in 2 epochs, its cap is max_epochs = 2"):
        list(StreamingMixture({"a": documents(), "b": [[1, 0]]}, schedule, 16, max_epochs={"b": 2}))
    with pytest.raises(UserError, match="earlier stage"):
        StreamingMixture(streams(), MixtureSchedule.from_weights({"a": 1.0}, 9, start_draws={"a": 2}), 16)
    with pytest.raises(UserError, match="input_ids is needed"):
        list(StreamingMixture({"a": [{"text": "x"}], "b": documents()}, schedule, 16))
    with pytest.raises(UserError, match="position = 41; the schedule has 40 samples"):
        StreamingMixture(streams(), schedule, 16).load_state_dict({"position": 41, "at": 0, "streams": {}})

import pickle

import numpy as np
import pytest
import torch
from testing_utils import random_documents, write_token_folder
from torch.utils.data import DataLoader

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import MixtureDataset, WindowDataset, pack_window
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


LENGTH = 16


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tokens")
    return [
        TokenSource.open(write_token_folder(folder / name, name, random_documents(count, seed=seed)))
        for seed, (name, count) in enumerate((("web", 60), ("books", 15), ("code", 9)))
    ]


def make(sources, num_samples=200, seed=0, **options):
    schedule = MixtureSchedule.from_weights({"web": 0.6, "books": 0.3, "code": 0.1}, num_samples)
    return MixtureDataset(sources, schedule, LENGTH, seed, max_epochs=100, **options)


def test_every_window_comes_once_an_epoch_and_every_epoch_differs(sources):
    dataset = make(sources, 400)
    windows = {name: {} for name in dataset.schedule.sources}
    for index in range(len(dataset)):
        source, epoch, window = dataset.locate(index)
        windows[dataset.schedule.sources[source]].setdefault(epoch, []).append(window)
    size = sources[1].num_windows(LENGTH)
    epochs = windows["books"]
    assert len(epochs) >= 3
    for epoch in range(len(epochs) - 1):
        assert sorted(epochs[epoch]) == list(range(size))
    assert epochs[0] != epochs[1] != epochs[2]


def test_same_seed_same_order_other_seed_other_order(sources):
    order = [make(sources).locate(index) for index in range(50)]
    assert [make(sources).locate(index) for index in range(50)] == order
    other = [make(sources, seed=1).locate(index) for index in range(50)]
    assert [place[0] for place in other] == [place[0] for place in order]
    assert other != order


def test_positions_restart_and_first_tokens_have_no_label():
    # P2: documents of 1, 1, 2 and 3 tokens; P3: nothing is predicted across a document's edge.
    source = TokenSource.from_arrays("a", [9, 8, 7, 6, 5, 4, 3], [1, 2, 4, 7])
    sample = pack_window(*source.window(0, 7))
    assert sample["position_ids"].tolist() == [0, 0, 0, 1, 0, 1, 2]
    assert sample["labels"].tolist() == [-100, -100, -100, 6, -100, 4, 3]
    two = pack_window(*TokenSource.from_arrays("b", range(7), [3, 7]).window(0, 7))
    assert (two["labels"][1:] != -100).sum() == 5


def test_window_that_begins_inside_a_document():
    sample = pack_window(*TokenSource.from_arrays("a", range(10), [6, 10]).window(1, 4))
    assert sample["input_ids"].tolist() == [4, 5, 6, 7]
    assert sample["position_ids"].tolist() == [0, 1, 0, 1]
    assert sample["labels"].tolist() == [4, 5, -100, 7]


def test_no_token_is_lost_or_invented(sources):
    # B4, B6: the windows of an epoch are the source's tokens up to a tail shorter than one window; nothing is filler.
    source = sources[1]
    windows = [source.window(index, LENGTH)[0] for index in range(source.num_windows(LENGTH))]
    read = np.concatenate(windows)
    assert 0 <= source.num_tokens - len(read) < LENGTH
    assert read.tolist() == source.tokens(0, len(read)).tolist()


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_the_same_batches(sources, workers):
    # X4: shuffling and shares must not depend on the number of workers.
    dataset = make(sources, 40)
    loader = DataLoader(
        dataset, batch_size=4, num_workers=workers, collate_fn=PretrainDataCollator(keep_provenance=True)
    )
    batches = list(loader)
    assert torch.cat([batch["sample_index"] for batch in batches]).tolist() == list(range(40))
    direct = torch.stack([dataset[index]["input_ids"] for index in range(40)])
    assert torch.equal(torch.cat([batch["input_ids"] for batch in batches]), direct)


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_ranks_together_read_the_global_batch(sources, world_size):
    from accelerate.data_loader import BatchSamplerShard
    from torch.utils.data import BatchSampler, SequentialSampler

    dataset, per_step = make(sources, 64), 8
    micro = per_step // world_size
    shards = [
        list(BatchSamplerShard(BatchSampler(SequentialSampler(dataset), micro, False), world_size, rank))
        for rank in range(world_size)
    ]
    for step in range(8):
        indices = sorted(index for shard in shards for index in shard[step])
        assert indices == list(range(step * per_step, (step + 1) * per_step))


def test_dataset_survives_pickling(sources):
    dataset = pickle.loads(pickle.dumps(make(sources)))
    assert torch.equal(dataset[17]["input_ids"], make(sources)[17]["input_ids"])


def test_consumed_tokens_and_epochs(sources):
    dataset = make(sources, 100)
    state = dataset.consumed(50)
    assert sum(entry["tokens"] for entry in state.values()) == 50 * LENGTH
    assert abs(state["web"]["share"] - 0.6) < 0.05
    assert state["books"]["epochs"] == state["books"]["tokens"] / LENGTH / sources[1].num_windows(LENGTH)
    assert {plan.name: plan.tokens for plan in dataset.plan()} == {
        name: entry["tokens"] for name, entry in dataset.consumed(100).items()
    }


def test_errors_before_the_first_sample(sources):
    schedule = MixtureSchedule.from_weights({"wbe": 1.0}, 4)
    with pytest.raises(UserError, match="Unknown source 'wbe'. Did you mean 'web'"):
        MixtureDataset(sources, schedule, LENGTH)
    with pytest.raises(UserError, match="two sources are called 'web'"):
        MixtureDataset([sources[0], sources[0]], MixtureSchedule.from_weights({"web": 1.0}, 4), LENGTH)
    with pytest.raises(UserError, match="seq_length = True"):
        MixtureDataset(sources, MixtureSchedule.from_weights({"web": 1.0}, 4), True)
    with pytest.raises(IndexError, match="sample 200 of a run of 200"):
        make(sources)[200]


def test_different_tokenizers_are_refused(tmp_path, sources):
    other = TokenSource.open(write_token_folder(tmp_path / "x", "x", random_documents(9), vocab_size=128))
    with pytest.raises(UserError, match=r"vocabularies of \[64, 128\] ids"):
        MixtureDataset([sources[0], other], MixtureSchedule.from_weights({"web": 1.0}, 4), LENGTH)


def test_held_out_windows(sources):
    held_out = WindowDataset(sources[2], LENGTH, max_windows=3)
    assert len(held_out) == 3
    assert held_out[2]["input_ids"].tolist() == sources[2].tokens(2 * LENGTH, 3 * LENGTH).tolist()
    with pytest.raises(UserError, match="no full window of 100000"):
        WindowDataset(sources[2], 100000)


def test_collator_emits_no_mask_and_checks_its_input(sources):
    batch = PretrainDataCollator()([make(sources)[0], make(sources)[1]])
    assert set(batch) == {"input_ids", "labels", "position_ids"}
    assert batch["input_ids"].shape == (2, LENGTH)
    with pytest.raises(UserError, match="no labels, position_ids"):
        PretrainDataCollator()([{"input_ids": torch.zeros(3)}])
    with pytest.raises(UserError, match=r"samples of \[2, 3\] tokens"):
        PretrainDataCollator()([pack_window(np.arange(n), np.array([0])) for n in (2, 3)])

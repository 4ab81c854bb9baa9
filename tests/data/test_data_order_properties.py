"""The promises of the data order as properties: shares, epochs, purity, and changes of the machine or of the mix."""

import numpy as np
from accelerate.data_loader import BatchSamplerShard
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, SequentialSampler

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.permutation import Permutation, derive_seed
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource


def sources_of(windows, length=4):
    return [
        TokenSource.from_arrays(f"s{number}", np.arange(count * length), [count * length])
        for number, count in enumerate(windows)
    ]


def mixture(weights, windows, num_samples, **options):
    schedule = MixtureSchedule.from_weights({f"s{i}": weight for i, weight in enumerate(weights)}, num_samples)
    return MixtureDataset(sources_of(windows), schedule, 4, max_epochs=float("inf"), **options)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=20), st.integers(1, 600))
def test_every_prefix_keeps_every_share_within_three_samples(weights, num_samples):
    schedule = MixtureSchedule.from_weights({f"s{i}": weight for i, weight in enumerate(weights)}, num_samples)
    sources = np.array([source for source, _ in schedule.locate_range(0, num_samples)])
    counts = (sources[:, None] == np.arange(len(weights))).cumsum(axis=0)
    shares = np.array(weights) / sum(weights)
    assert np.abs(counts - np.arange(1, num_samples + 1)[:, None] * shares).max() < 3


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.001, 1.0), min_size=1, max_size=6), st.integers(1, 200), st.integers(0, 300), st.floats(0, 1)
)
def test_a_range_is_what_its_samples_are_alone(weights, num_samples, start, ramp):
    names = [f"s{i}" for i in range(len(weights))]
    schedule = MixtureSchedule.from_weights(dict(zip(names, weights, strict=True)), num_samples, start_draws={"s0": 3})
    if num_samples > 1:
        schedule = schedule.with_phase("late", num_samples // 2, dict(zip(names, weights[::-1], strict=True)), ramp)
    stop = start + 130
    assert schedule.locate_range(start, stop) == [schedule.locate(index) for index in range(start, stop)]


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 5000), st.integers(0, 2**64 - 1), st.integers(0, 4999), st.integers(1, 300))
def test_a_block_of_a_permutation_is_what_its_places_are_alone(size, seed, start, count):
    permutation, start = Permutation(size, seed), start % size
    stop = min(start + count, size)
    assert permutation.block(start, stop) == [permutation[place] for place in range(start, stop)]


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.floats(0.05, 1.0), st.integers(1, 30)), min_size=1, max_size=5),
    st.integers(1, 200),
    st.integers(0, 2**32 - 1),
)
def test_every_window_comes_once_an_epoch_in_another_order(sources, num_samples, seed):
    dataset = mixture(*zip(*sources, strict=True), num_samples, seed=seed)
    seen: dict[tuple[int, int], list[int]] = {}
    for index in range(num_samples):
        source, epoch, window = dataset.locate(index)
        seen.setdefault((source, epoch), []).append(window)
    for (source, epoch), windows in seen.items():
        assert len(set(windows)) == len(windows)
        if (source, epoch + 1) in seen:
            assert sorted(windows) == list(range(sources[source][1]))
            following = seen[source, epoch + 1]
            assert len(following) < 12 or following != windows[: len(following)]


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from([(1, 8, 1), (2, 4, 1), (4, 2, 1), (1, 4, 2), (2, 2, 2), (1, 1, 8), (8, 1, 1)]),
    st.lists(st.floats(0.05, 1.0), min_size=1, max_size=4),
)
def test_ranks_micro_batches_and_accumulation_keep_the_global_batch(layout, weights):
    world_size, micro, accumulation = layout
    dataset = mixture(weights, [50] * len(weights), 64)
    ranks = [
        list(BatchSamplerShard(BatchSampler(SequentialSampler(dataset), micro, False), world_size, rank))
        for rank in range(world_size)
    ]
    for step in range(8):
        held = []
        for rank in ranks:
            for batch in rank[step * accumulation : (step + 1) * accumulation]:
                samples = dataset.__getitems__(batch)
                held += [(i, tuple(s["input_ids"].tolist())) for i, s in zip(batch, samples, strict=True)]
        expected = [(index, tuple(dataset[index]["input_ids"].tolist())) for index in range(8 * step, 8 * step + 8)]
        assert sorted(held) == expected


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(0.01, 1.0), min_size=2, max_size=6),
    st.lists(st.floats(0.01, 1.0), min_size=6, max_size=6),
    st.integers(1, 149),
    st.integers(1, 149),
)
def test_mixes_changed_twice_repeat_no_window_and_lose_none(weights, later, first, second):
    first, second = sorted((first, second))
    dataset = mixture(weights, [400] * len(weights), 150, seed=3)
    past = [dataset.locate(index) for index in range(150)]
    names = dataset.schedule.sources
    for step, mix in ((first, later[: len(weights)]), (second, later[::-1][: len(weights)])):
        dataset.set_schedule(dataset.schedule.with_phase(f"at {step}", step, dict(zip(names, mix, strict=True))))
    places = [dataset.locate(index) for index in range(150)]
    assert places[:first] == past[:first]
    for source in range(len(weights)):
        windows = [window for name, _, window in places if name == source]
        order = Permutation(400, derive_seed(dataset.seed, dataset.schedule.sources[source], 0))
        # Exactly the first windows of the source's epoch: none twice, none left out.
        assert windows == order.block(0, len(windows))

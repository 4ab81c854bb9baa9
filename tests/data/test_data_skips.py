import random

import pytest

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import BatchSpan, DataOrder, join_spans, position_after
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.skips import Skips
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.utils.errors import UserError


def test_positions_are_the_samples_in_no_range():
    generator = random.Random(0)
    for _ in range(200):
        ranges = [sorted(generator.choices(range(60), k=2)) for _ in range(generator.randrange(5))]
        skips = Skips(ranges)
        left = [sample for sample in range(200) if not any(start <= sample < stop for start, stop in ranges)]
        assert [skips.sample_at(position) for position in range(100)] == left[:100]
        inverse = {sample: position for position, sample in enumerate(left)}
        assert [skips.position_of(sample) for sample in range(150)] == [inverse.get(sample) for sample in range(150)]
        assert skips.total == 200 - len(left)
        assert skips == Skips(skips.to_json())
        end = skips.end_after(70)
        assert end == left[69] + 1
        assert sum(stop - start for start, stop in skips.below(end)) == end - 70
    assert Skips().end_after(0) == 0


def test_ranges_are_checked_and_joined():
    assert Skips([[5, 9], [0, 2], [2, 3], [7, 12], [4, 4]]).to_json() == [[0, 3], [5, 12]]
    assert Skips([[0, 2]]).with_range(1, 5).to_json() == [[0, 5]]
    for wrong in ([3, 1], [-1, 2], [1], [1, 2, 3], [True, 2], [0.0, 1], "ab", 5):
        with pytest.raises(UserError, match="allowed are pairs"):
            Skips([wrong])


def source(name, tokens=4000, seed=0):
    generator = random.Random(seed)
    ids = [generator.randrange(64) for _ in range(tokens)]
    return TokenSource.from_arrays(name, ids, list(range(40, tokens + 1, 40)), 64)


def mixture(skipped=(), samples=40):
    schedule = MixtureSchedule.from_weights({"a": 0.6, "b": 0.4}, samples)
    return MixtureDataset([source("a"), source("b", seed=1)], schedule, 16, seed=3, skipped=skipped)


def test_a_dataset_leaves_samples_out_and_counts_the_rest():
    whole, part = mixture(), mixture([[4, 9], [20, 21]])
    assert len(part) == len(whole) == 40
    left = [index for index in range(40) if index not in {4, 5, 6, 7, 8, 20}]
    for position, sample in enumerate(left):
        item = part[position]
        assert item["sample_index"] == sample
        assert item["input_ids"].tolist() == whole[sample]["input_ids"].tolist()
    for position in (0, 3, 4, 5, 14, 15, 16, 34):
        counts = part.consumed(position)
        for number, name in enumerate("ab"):
            drawn = sum(part[index]["source_index"] == number for index in range(position))
            assert counts[name]["tokens"] == drawn * 16
    # The last positions reach beyond the planned samples, with windows not read before.
    read = [part.locate(part.skips.sample_at(position)) for position in range(40)]
    assert len(set(read)) == 40


def test_order_keeps_what_is_left_out_and_finds_steps_both_ways(tmp_path):
    order = DataOrder.of(mixture([[4, 12]]), global_batch=4, world_size=2, micro_batch=1)
    order.sources = []
    order.write(tmp_path)
    read = DataOrder.read(tmp_path)
    assert read.skips.to_json() == [[4, 12]]
    assert read.samples_of_step(1) == [0, 1, 2, 3]
    assert read.samples_of_step(2) == [12, 13, 14, 15]
    assert read.step_of_sample(3) == (1, 3)
    assert read.step_of_sample(5) is None
    assert read.step_of_sample(13) == (2, 1)
    # Micro-batches of one row go to the two processes in turn.
    assert [read.span_of_step(2).rank_of(row) for row in range(4)] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert BatchSpan(0, 0, 4).rank_of(1) is None


def test_an_order_may_leave_out_later_samples_only():
    order = DataOrder.of(mixture(), global_batch=4)
    later = order.continued_by(DataOrder.of(mixture([[8, 16]]), global_batch=4), step=2)
    assert later.samples_of_step(3) == [16, 17, 18, 19]
    with pytest.raises(UserError, match="leave out only samples that come later"):
        order.continued_by(DataOrder.of(mixture([[7, 16]]), global_batch=4), step=2)


def test_spans_of_a_run_whose_batch_changed():
    spans = join_spans([], BatchSpan(0, 0, 8, 1, 8), 0)
    spans = join_spans(spans, BatchSpan(0, 0, 8, 1, 8), 3)
    assert spans == [BatchSpan(0, 0, 8, 1, 8)]
    spans = join_spans(spans, BatchSpan(0, 0, 12, 2, 2), 5)
    assert spans[1] == BatchSpan(5, 40, 12, 2, 2)
    assert [position_after(spans, step) for step in (0, 5, 6, 7)] == [0, 40, 52, 64]
    # Going back before the change forgets it.
    assert join_spans(spans, BatchSpan(0, 0, 8, 1, 8), 4) == [BatchSpan(0, 0, 8, 1, 8)]


def test_a_phase_that_starts_beyond_the_plan_because_samples_were_left_out():
    schedule = MixtureSchedule.from_weights({"a": 0.5, "b": 0.5}, 10)
    longer = schedule.with_phase("anneal", 14, {"b": 1.0}, num_samples=18)
    assert longer.num_samples == 18
    assert [longer.locate(index) for index in range(10)] == [schedule.locate(index) for index in range(10)]
    assert {longer.locate(index)[0] for index in range(14, 18)} == {1}
    # Every draw of every source once, none lost.
    draws = sorted(longer.locate(index) for index in range(18))
    assert draws == [(0, number) for number in range(7)] + [(1, number) for number in range(11)]

import numpy as np
import pytest
import torch
from tiny_run import make_run, stage_spec
from tiny_training import LENGTH, memory_source, tiny_llama

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.order import DataOrder
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource
from hf_pretrain.evaluation.memorisation import (
    ExtractionRate,
    extraction_rate,
    memorisation_facts,
    passages_by_repetition,
)
from hf_pretrain.reporting.sections import memorisation_blocks
from hf_pretrain.scripts import evaluate
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.facts import Facts


def passages(count, seed):
    return list(np.random.default_rng(seed).integers(1, 64, (count, 24)))


@pytest.fixture(scope="module")
def memoriser():
    """A model that has read eight passages until it knows them."""
    model = tiny_llama(hidden_size=64, intermediate_size=128)
    ids = torch.as_tensor(np.stack(passages(8, 0)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(150):
        optimizer.zero_grad()
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
    return model


def test_what_was_read_often_comes_back_and_what_was_not_does_not(memoriser):
    known, strange = passages(8, 0), passages(8, 1)
    assert extraction_rate(memoriser, known, 8, 12, batch_size=3).rate == 1.0
    assert extraction_rate(memoriser, strange, 8, 12).rate == 0.0
    mixed = extraction_rate(memoriser, [*known[:2], *strange[:6]], 8, 12)
    assert (mixed.passages, mixed.extracted) == (8, 2)
    facts = memorisation_facts({"m": memoriser}, {"once": strange, "repeated": known, "held_out": []}, 8, 12)
    assert facts["rates"]["m"]["repeated"]["rate"] == 1.0
    assert set(facts["rates"]["m"]) == {"once", "repeated"}
    with pytest.raises(ValueError, match="at least 8 . 20 tokens"):
        extraction_rate(memoriser, known, 8, 20)


def test_one_pass_agrees_with_greedy_decoding(memoriser):
    rows = [*passages(4, 0), *passages(4, 2)]
    # A passage of which only the end is wrong.
    rows[0] = np.concatenate([rows[0][:19], [(rows[0][19] + 1) % 64], rows[0][20:]])
    exact, share = 0, 0.0
    for row in rows:
        ids = torch.as_tensor(row[:8])[None]
        mask = torch.ones_like(ids)
        out = memoriser.generate(
            ids, attention_mask=mask, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        same = (out[0, 8:].numpy() == row[8:20]).tolist()
        exact += all(same)
        share += (same.index(False) if False in same else 12) / 12
    found = extraction_rate(memoriser, rows, 8, 12)
    assert found.extracted == exact == 3
    assert found.matched_tokens == pytest.approx(share / len(rows))


def test_interval_of_a_rate():
    # Wilson's interval for 2 of 20, worked by hand.
    assert ExtractionRate(20, 2, 0.0).interval() == pytest.approx((0.0279, 0.3010), abs=5e-4)
    assert ExtractionRate(20, 0, 0.0).interval()[0] == 0.0
    assert ExtractionRate(0, 0, 0.0).interval() == (0.0, 1.0)


@pytest.mark.parametrize("skipped", [(), ((5, 9), (60, 130))])
@pytest.mark.parametrize("packing", ["concat", "best_fit"])
def test_windows_are_sorted_by_how_often_they_were_read(packing, skipped):
    sources = [memory_source(name, 40, seed=number) for number, name in enumerate("ab")]
    size = sources[0].num_windows(LENGTH)
    schedule = MixtureSchedule.from_weights({"a": 0.8, "b": 0.2}, round(size * 2))
    left_out = sum(stop - start for start, stop in skipped)
    dataset = MixtureDataset(
        sources, schedule, LENGTH, 1, size * 2 - left_out, max_epochs=100, skipped=skipped, packing=packing
    )
    groups = passages_by_repetition(dataset, len(dataset), 16, 1000)
    windows = {}
    for index in range(len(dataset)):
        sample = dataset.skips.sample_at(index)
        if sum(high - low for low, high in dataset.spans(sample)) >= 16:
            windows.setdefault(dataset.locate(sample)[::2], []).append(index)
    expected = {"once": 0, "repeated": 0}
    for found in windows.values():
        expected["once" if len(found) == 1 else "repeated"] += 1
    assert {name: len(found) for name, found in groups.items()} == expected
    assert min(expected.values()) > 5
    assert all(len(passage) == 16 for found in groups.values() for passage in found)
    few = passages_by_repetition(dataset, len(dataset), 16, 4)
    assert [len(few[name]) for name in ("once", "repeated")] == [4, 4]


def test_the_evaluate_stage_measures_what_a_stage_read(tmp_path):
    run = make_run(tmp_path / "run")
    sources = [TokenSource.open(run / "1_corpus" / "tokens" / "validation" / name) for name in ("books", "web")]
    size = sum(source.num_windows(16) for source in sources)
    schedule = MixtureSchedule.from_weights({"books": 0.5, "web": 0.5}, 2 * size)
    DataOrder.of(MixtureDataset(sources, schedule, 16, 1, max_epochs=100), 2).write(run / "2_pretrain")
    text = "stage: evaluate\ncorpus: 1_corpus\nmodels: [2_pretrain]\ncontext_length: 64\nmax_tokens_per_source: 200\n"
    text += "bootstrap_resamples: 20\nmemorisation: {stage: 2_pretrain, prefix_tokens: 4, continuation_tokens: %d}\n"
    evaluate.run(stage_spec(run, "6_evaluate", text % 8))
    facts = Facts(run).load()["stages"]["6_evaluate"]
    found = facts["memorisation"]
    assert found["stage"] == "2_pretrain"
    assert set(found["rates"]) == {"2_pretrain"}
    rate = found["rates"]["2_pretrain"]["repeated"]
    assert rate["passages"] > 0 and 0 <= rate["interval"][0] <= rate["rate"] <= rate["interval"][1] <= 1
    title = memorisation_blocks(facts)[0].title
    assert title == "Training text of 2_pretrain given back word for word"
    assert memorisation_blocks({}) == []
    with pytest.raises(UserError, match="prefix_tokens . continuation_tokens = 17; 2_pretrain read windows of 16"):
        evaluate.run(stage_spec(run, "6_evaluate", text % 13))
    with pytest.raises(UserError, match="continuation_tokens = 0"):
        evaluate.check(stage_spec(run, "6_evaluate", text % 0))

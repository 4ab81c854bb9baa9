"""The worth of repeated tokens, before the first step and in the facts."""

import logging
import math

import pytest
from tiny_training import LENGTH, memory_source, trainer

from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.repeats import SourcePlan
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.trainer.effective_data import effective_data


def plan(name, tokens, held, epochs):
    return SourcePlan(name, tokens // 10, tokens, 0.5, held, epochs, 100.0)


def test_repeats_are_worth_what_the_law_says():
    # Four epochs of 100 tokens: U + U R* (1 - exp(-3 / R*)) with R* = 15.387756.
    four = 100 + 100 * 15.387756 * (1 - math.exp(-3 / 15.387756))
    found = effective_data([plan("once", 200, 200, 1.0), plan("four", 400, 100, 4.0), plan("none", 0, 100, 0.0)])
    assert found.by_source == pytest.approx({"once": 200.0, "four": four}, rel=1e-6)
    assert found.share == pytest.approx((200 + four) / 600, rel=1e-6)
    assert found.warnings == []
    # The last two of four epochs, after two that an earlier stage has read.
    two = 100 + 100 * 15.387756 * (1 - math.exp(-1 / 15.387756))
    assert effective_data([plan("late", 200, 100, 4.0)]).effective_tokens == pytest.approx(four - two, rel=1e-6)
    (sentence,) = effective_data([plan("often", 4000, 100, 40.0)]).warnings
    assert sentence.startswith("often: 40.0 epochs are worth ")
    assert effective_data([]).share == 1.0


def test_it_is_said_before_the_first_step(tmp_path, caplog):
    source = memory_source("a", documents=2)
    schedule = MixtureSchedule.from_weights({"a": 1.0}, 16)
    data = MixtureDataset([source], schedule, LENGTH, 1, max_epochs=100)
    with caplog.at_level(logging.INFO, "hf_pretrain"):
        trainer(tmp_path, steps=2, train_dataset=data).train()
    line = next(record.getMessage() for record in caplog.records if "data-constrained law" in record.getMessage())
    worth = effective_data(data.plan())
    assert line.startswith(f"Data: {16 * LENGTH:,} tokens, worth {worth.effective_tokens:,.0f} fresh ones (")
    assert worth.share < 1

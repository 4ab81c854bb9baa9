"""Scores with and without contaminated items."""

import numpy as np
import pytest
from tiny_text_models import byte_level_tokenizer, tiny_llama

from hf_pretrain.evaluation.bits_per_byte import ByteScore, token_nats
from hf_pretrain.evaluation.byte_lengths import token_byte_lengths
from hf_pretrain.evaluation.contamination_scores import BenchmarkItem, bootstrap, score_items, split_scores


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_tokenizer()


def test_only_the_answer_is_scored(tokenizer):
    model, lengths = tiny_llama(len(tokenizer)), token_byte_lengths(tokenizer)
    item = BenchmarkItem("1", "How do I boil an egg?", " Put it into boiling water.")
    score = score_items(model, tokenizer, [item], lengths, 128)["1"]
    question = tokenizer(item.question)["input_ids"]
    answer = tokenizer(item.answer)["input_ids"]
    nats = token_nats(model, [np.array(question + answer)])[0]
    assert score.nats == pytest.approx(nats[-len(answer) :].sum(), rel=1e-6)
    assert (score.num_tokens, score.num_bytes) == (len(answer), len(item.answer))


def test_long_questions_are_cut_from_the_start_and_empty_ones_left_out(tokenizer):
    model, lengths = tiny_llama(len(tokenizer)), token_byte_lengths(tokenizer)
    items = [
        BenchmarkItem("long", "boil an egg " * 50, "wait"),
        BenchmarkItem("short", " egg boil an egg", "wait"),
        BenchmarkItem("empty", "", "wait"),
        BenchmarkItem("silent", "what?", ""),
    ]
    scores = score_items(model, tokenizer, items, lengths, 12)
    assert set(scores) == {"long", "short"}
    assert scores["long"].num_bytes == 4


def test_groups_add_up_and_intervals_hold_the_value():
    rng = np.random.default_rng(0)
    scores = {str(i): ByteScore(float(rng.uniform(20, 40)), 20, 8, 1) for i in range(40)}
    for name in ("0", "1", "2"):
        scores[name] = ByteScore(1.0, 20, 8, 1)
    report = split_scores(scores, {"0", "1", "2", "not-scored"})
    assert [report[group]["items"] for group in ("all", "clean", "contaminated")] == [40, 37, 3]
    for group in report.values():
        assert group["low"] <= group["bits_per_byte"] <= group["high"]
    assert report["contaminated"]["high"] < report["clean"]["low"]
    expected = sum(score.nats for score in scores.values()) / (np.log(2) * 800)
    assert report["all"]["bits_per_byte"] == pytest.approx(expected)


def test_a_group_without_items_has_no_score():
    assert split_scores({"a": ByteScore(1.0, 1, 1, 1)}, set())["contaminated"] == {"items": 0}


def test_bootstrap_is_deterministic_and_narrows_with_items():
    few = [ByteScore(float(n % 3 + 1), 4, 1) for n in range(6)]
    many = few * 50
    assert bootstrap(few) == bootstrap(few)
    width = [high - low for low, high in (bootstrap(few), bootstrap(many))]
    assert width[1] < width[0] / 3
    # The standard error of the mean of 300 draws of {1, 2, 3} nats over 4 bytes, 1.96 on both sides.
    expected = 2 * 1.96 * np.sqrt(2 / 3) / np.sqrt(300) / (4 * np.log(2))
    assert width[1] == pytest.approx(expected, rel=0.15)

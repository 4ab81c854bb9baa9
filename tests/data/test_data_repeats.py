import logging

import pytest

from hf_pretrain.data.repeats import epoch_caps, fit_repeats, plan_sources
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.utils.errors import UserError


WINDOWS = {"web": 1000, "books": 10}


def schedule(num_samples=200, **start_draws):
    return MixtureSchedule.from_weights({"web": 0.5, "books": 0.5}, num_samples, start_draws=start_draws)


def test_plan_counts_epochs_of_the_whole_run():
    web, books = plan_sources(schedule(40, books=10), WINDOWS, seq_length=8)
    assert (web.samples, web.tokens, web.unique_tokens, web.epochs) == (20, 160, 8000, 0.02)
    assert (books.share, books.epochs, books.max_epochs) == (0.5, 3.0, 4.0)


def test_over_repetition_is_refused_with_what_would_fit():
    # X2: the smaller set was read five times at equal shares, and nothing said so.
    with pytest.raises(
        UserError, match=r"'books' would be read 10\.00 times.*480 tokens too many of 800.*at most 648"
    ):
        fit_repeats(schedule(), WINDOWS, seq_length=8)
    assert fit_repeats(schedule(80), WINDOWS, seq_length=8) == schedule(80)
    with pytest.raises(UserError, match=r"read 5\.00 times \(1\.00 of them in earlier stages\)"):
        fit_repeats(schedule(80, books=10), WINDOWS, seq_length=8)


def test_excess_moves_to_the_others(caplog):
    with caplog.at_level(logging.WARNING):
        fitted = fit_repeats(schedule(), WINDOWS, 8, max_epochs={"books": 2}, on_excess="redistribute")
    counts = fitted.counts(200)
    assert counts["books"] in (19, 20)
    assert counts["web"] == 200 - counts["books"]
    assert "books 0.500 -> 0." in caplog.text


def test_excess_without_room_is_an_error():
    with pytest.raises(UserError, match="no other source of its phase has room"):
        fit_repeats(MixtureSchedule.from_weights({"books": 1.0}, 50), {"books": 10}, 8, on_excess="redistribute")
    with pytest.raises(UserError, match="cannot fill 80,000 tokens"):
        fit_repeats(schedule(10000), WINDOWS, 8, on_excess="redistribute")


def test_empty_source_is_rejected_by_name():
    # X1: an empty source made others repeat, or an IndexError.
    with pytest.raises(UserError, match="source 'books' holds no full window of 8 tokens"):
        fit_repeats(schedule(), {"web": 1000, "books": 0}, 8)


def test_caps_are_checked():
    assert epoch_caps(("a", "b"), {"a": 2}) == {"a": 2.0, "b": 4.0}
    with pytest.raises(UserError, match="Unknown source 'c'"):
        epoch_caps(("a", "b"), {"c": 2})
    with pytest.raises(UserError, match="max_epochs for a = 0"):
        epoch_caps(("a",), 0)
    with pytest.raises(UserError, match="on_excess = 'drop'"):
        fit_repeats(schedule(), WINDOWS, 8, on_excess="drop")

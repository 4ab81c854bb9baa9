import math

import pytest

from hf_pretrain.data.weights import (
    kind_of_source,
    outside_published_shares,
    temperature_weights,
    unimax_tokens,
    unimax_weights,
)
from hf_pretrain.utils.errors import UserError


SIZES = {"a": 1000, "b": 100, "c": 10, "d": 1}


@pytest.mark.parametrize(
    ("temperature", "expected"),
    [
        (1, [0.90009, 0.09001, 0.009, 0.0009]),
        (2, [0.69068, 0.21841, 0.06907, 0.02184]),
        (3.33, [0.53268, 0.26679, 0.13362, 0.06692]),
        (5, [0.43855, 0.2767, 0.17459, 0.11016]),
        (math.inf, [0.25] * 4),
    ],
)
def test_temperature(temperature, expected):
    assert list(temperature_weights(SIZES, temperature).values()) == pytest.approx(expected, abs=6e-6)


def test_unimax():
    assert unimax_tokens(SIZES, 400, 4) == {"a": 178, "b": 178, "c": 40, "d": 4}
    assert unimax_tokens(SIZES, 400, 1) == {"a": 289, "b": 100, "c": 10, "d": 1}
    assert set(unimax_tokens({str(n): n for n in range(100, 600, 100)}, 1000, 2).values()) == {200}
    assert sum(unimax_tokens(SIZES, 10**6, 4).values()) == 4 * 1111
    assert unimax_weights(SIZES, 400, 4)["c"] == 0.1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: temperature_weights(SIZES, 0.5), "temperature = 0.5"),
        (lambda: temperature_weights({"a": 0}, 1), "source 'a' has 0 tokens"),
        (lambda: temperature_weights({}, 1), "no source to weigh"),
        (lambda: unimax_tokens(SIZES, float("nan"), 1), "budget = nan"),
        (lambda: unimax_tokens(SIZES, 10, True), "max_epochs = True"),
    ],
)
def test_bad_values(call, message):
    with pytest.raises(UserError, match=message):
        call()


def test_published_ranges():
    assert kind_of_source("fineweb-edu") == "web"
    assert kind_of_source("stack_v2") == "code"
    assert kind_of_source("tuesday") is None
    assert outside_published_shares({"web": 0.7, "books": 0.2, "code": 0.1}) == []
    assert outside_published_shares({"web": 0.3, "books": 0.55, "code": 0.15}) == [
        "web has a share of 30%, published mixes have 60% to 80%",
        "curated has a share of 55%, published mixes have 5% to 20%",
    ]
    assert outside_published_shares({"web": 0.1, "x": 0.9}) == []

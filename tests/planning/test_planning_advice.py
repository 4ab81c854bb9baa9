"""Advice: the choices of published models and the numbers of the papers."""

import pytest

from hf_pretrain.planning.advice import (
    advise,
    advise_continuing,
    advise_decay,
    advise_repeats,
    advise_sparsity,
    advise_tying,
    advise_warmup,
)
from hf_pretrain.planning.quantities import ModelSize
from hf_pretrain.utils.errors import UserError


@pytest.mark.parametrize(
    ("total", "matrices", "vocab", "hidden", "choice", "share"),
    [
        (8_030_261_248, 2, 128256, 4096, "untie", "13.1%"),  # Llama-3-8B
        (6_738_415_616, 2, 32000, 4096, "untie", "3.9%"),  # Llama-2-7B: no Llama-2 is tied
        (70_553_706_496, 2, 128256, 8192, "untie", "3.0%"),
        (1_235_814_400, 1, 128256, 2048, "tie", "35.1%"),  # Llama-3.2-1B
        (3_212_749_824, 1, 128256, 3072, "tie", "21.8%"),
    ],
)
def test_tying_agrees_with_published_models(
    total: int, matrices: int, vocab: int, hidden: int, choice: str, share: str
) -> None:
    found = advise_tying(total - matrices * vocab * hidden, vocab, hidden)
    assert found.choice == choice
    assert share in found.reason


def test_tying_says_what_it_saves_and_when_it_is_close() -> None:
    llama = advise_tying(8_030_261_248 - 2 * 128256 * 4096, 128256, 4096)
    assert "saves 525M" in llama.reason and "either will do" in llama.reason
    assert advise_tying(6.4e9, 32000, 4096, tie_above=0.03).choice == "tie"
    with pytest.raises(UserError, match="counts non_embedding"):
        advise_tying(ModelSize(8e9, "total"), 128256, 4096)
    with pytest.raises(UserError, match="tie_above = 15"):
        advise_tying(8e9, 128256, 4096, tie_above=15)


def test_sparsity_uses_the_joint_law() -> None:
    found = advise_sparsity(1e9, 2e10)
    assert found.choice == "mixture of experts" and "-3.9%" in found.reason  # 2.51323 against 2.61414
    assert "advisory" in found.source
    assert advise_sparsity(1e9, 2e10, memory_bound=True).choice == "dense"
    assert advise_sparsity(1e9, 2e10, min_gain=0.05).choice == "dense"
    assert advise_sparsity(1e9, 2e10, experts=2).choice == "dense"  # 1.3 %
    assert "lies outside" in advise_sparsity(1e6, 1e6).reason and advise_sparsity(1e6, 1e6).choice == "dense"
    with pytest.raises(UserError, match="counts active"):
        advise_sparsity(ModelSize(1e9, "total"), 2e10)


@pytest.mark.parametrize(
    ("epochs", "choice", "worth"),
    [
        (1, "no repeats", "1.00B"),
        (4, "repeat freely", "3.73B"),
        (10, "repeat, at a loss", "7.81B"),
        (20, "add data before repeats", "11.9B"),
        (44, "find more data or train less", "15.4B"),
    ],
)
def test_repeats_by_the_value_of_a_token(epochs: float, choice: str, worth: str) -> None:
    found = advise_repeats(epochs * 1e9, 1e9)
    assert found.choice == choice
    assert worth in found.reason


def test_continuing_has_a_limit_and_replays() -> None:
    assert advise_continuing(2e8).choice == "fine-tune"
    assert advise_continuing(2e8, continue_from=1e8).choice == "continue pretraining"
    weak, strong = advise_continuing(10e9), advise_continuing(10e9, "strong")
    assert "5%" in weak.reason and "9.50B new" in weak.reason
    assert "25%" in strong.reason and "7.50B new" in strong.reason
    assert "50%" in advise_continuing(10e9, replay=0.5).reason
    with pytest.raises(UserError, match="Unknown shift 'stong'. Did you mean 'strong'"):
        advise_continuing(10e9, "stong")
    with pytest.raises(UserError, match="replay = 1.5"):
        advise_continuing(10e9, replay=1.5)


@pytest.mark.parametrize(
    ("steps", "warmup"), [(928_646, 2000), (50_000, 500), (5_000, 100), (300, 30), (5, 1), (1, 1)]
)
def test_warmup_within_bounds(steps: int, warmup: int) -> None:
    assert advise_warmup(steps).choice == f"{warmup} steps"


def test_warmup_refuses_nonsense() -> None:
    assert advise_warmup(10_000, fraction=0.05).choice == "500 steps"
    with pytest.raises(UserError, match="steps = 0"):
        advise_warmup(0)
    with pytest.raises(UserError, match="at_least = 300"):
        advise_warmup(1000, at_least=300, at_most=200)


def test_decay_length() -> None:
    found = advise_decay(5_240_000, tokens_per_parameter=6429)
    assert found.choice == "524000 steps, linearly to 0"  # SmolLM2-1.7B
    assert "beats a tenth of the peak" in found.reason
    assert "beats" not in advise_decay(1000, tokens_per_parameter=5).reason
    assert "2.5 % were measured" in advise_decay(1000, fraction=0.025).reason
    with pytest.raises(UserError, match="fraction = 1.5"):
        advise_decay(1000, fraction=1.5)


def test_advice_for_what_is_known() -> None:
    assert advise(1e9) == []
    topics = [item.topic for item in advise(2e10, 1e9, 9e8, 32000, 2048, 5e9, 10_000, 2e9)]
    assert topics == ["embeddings", "sparsity", "repeats", "new domain", "warm-up", "decay"]

"""Benchmark scores with and without the items that stood in the training data.

An item is scored by the bits per byte of its reference answer, given its question: a measure that even a tiny model
can be told apart by, and the one that memorised items drop in. The score is reported three times, over all items, over
the clean ones and over those that decontamination found in the raw corpus, each with a percentile bootstrap interval
over items, so that a gap can be told from noise.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hf_pretrain.evaluation.bits_per_byte import ByteScore, token_nats


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


CONVENTION = (
    "bits per byte of the reference answer given the question, pooled over items; interval: percentile bootstrap over "
    "items, {resamples} resamples, {confidence:.0%}"
)


@dataclass(frozen=True)
class BenchmarkItem:
    """One question with its reference answer.

    Args:
        id (`str`): Its name within the benchmark.
        question (`str`): What is asked.
        answer (`str`): The reference answer.
    """

    id: str
    question: str
    answer: str


def score_items(
    model: Any,
    tokenizer: "PreTrainedTokenizerBase",
    items: Sequence[BenchmarkItem],
    byte_lengths: np.ndarray,
    context_length: int,
    tokens_per_batch: int = 4096,
) -> dict[str, ByteScore]:
    """Scores the answer of every item.

    Question and answer are tokenized apart and joined, so that the answer's tokens do not depend on the question. What
    does not fit into the context is cut from the start of the question, then from the end of the answer.

    Args:
        model (`PreTrainedModel`): A causal language model.
        tokenizer (`PreTrainedTokenizerBase`): Its tokenizer, byte-level.
        items (`Sequence[BenchmarkItem]`): The items.
        byte_lengths (`np.ndarray` of shape `(vocab_size,)`): Bytes by token id.
        context_length (`int`): Longest sequence, in tokens.
        tokens_per_batch (`int`, *optional*, defaults to 4096): Tokens in one forward pass.

    Returns:
        `dict[str, ByteScore]`: Scores by item id. An item without a token to predict is left out.
    """
    kept, sequences, answer_starts = [], [], []
    for item in items:
        question = tokenizer(item.question, add_special_tokens=False)["input_ids"]
        answer = tokenizer(item.answer, add_special_tokens=False)["input_ids"][: context_length - 1]
        question = question[-(context_length - len(answer)) :]
        if not question or not answer:
            continue
        kept.append(item.id)
        sequences.append(np.asarray(question + answer, dtype=np.int64))
        answer_starts.append(len(question))
    values = token_nats(model, sequences, tokens_per_batch) if sequences else []
    scores = {}
    for name, sequence, start, nats in zip(kept, sequences, answer_starts, values, strict=True):
        answer = sequence[start:]
        scores[name] = ByteScore(float(nats[start - 1 :].sum()), int(byte_lengths[answer].sum()), len(answer), 1)
    return scores


def bootstrap(
    scores: Sequence[ByteScore], resamples: int = 1000, confidence: float = 0.95, seed: int = 0
) -> tuple[float, float]:
    """Percentile bootstrap of a pooled score over items (Efron 1979).

    Args:
        scores (`Sequence[ByteScore]`): One score an item.
        resamples (`int`, *optional*, defaults to 1000): Draws with replacement.
        confidence (`float`, *optional*, defaults to 0.95): Mass between the two ends.
        seed (`int`, *optional*, defaults to 0): Seed of the draws.

    Returns:
        `tuple[float, float]`: Lower and upper end, in bits per byte.
    """
    nats = np.array([score.nats for score in scores])
    sizes = np.array([score.num_bytes for score in scores], dtype=float)
    draws = np.random.default_rng(seed).integers(len(scores), size=(resamples, len(scores)))
    pooled = nats[draws].sum(1) / (np.log(2) * np.maximum(sizes[draws].sum(1), 1))
    low, high = np.quantile(pooled, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def split_scores(
    scores: dict[str, ByteScore],
    contaminated: set[str],
    resamples: int = 1000,
    confidence: float = 0.95,
    seed: int = 0,
) -> dict[str, dict[str, float | int]]:
    """Reports a benchmark over all, clean and contaminated items.

    Args:
        scores (`dict[str, ByteScore]`): Scores by item id.
        contaminated (`set[str]`): Ids of items found in the raw corpus.
        resamples (`int`, *optional*, defaults to 1000): Draws of the bootstrap.
        confidence (`float`, *optional*, defaults to 0.95): Mass of the interval.
        seed (`int`, *optional*, defaults to 0): Seed of the draws.

    Returns:
        `dict[str, dict]`: For `all`, `clean` and `contaminated`: `items`, and where there are any, `bits_per_byte`,
        `low` and `high`. A group without items has no score, rather than a zero.
    """
    groups = {
        "all": list(scores.values()),
        "clean": [score for name, score in scores.items() if name not in contaminated],
        "contaminated": [score for name, score in scores.items() if name in contaminated],
    }
    report: dict[str, dict[str, float | int]] = {}
    for name, members in groups.items():
        report[name] = {"items": len(members)}
        if members:
            total = sum(members[1:], members[0])
            low, high = bootstrap(members, resamples, confidence, seed)
            report[name].update(bits_per_byte=total.bits_per_byte, low=low, high=high)
    return report

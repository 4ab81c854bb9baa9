"""How much of its training text a model gives back word for word, by how often it read it.

A document is `k`-extractable if, after its first `k` tokens, greedy decoding gives exactly the tokens that follow
(Carlini et al. 2022, https://huggingface.co/papers/2202.07646). The rate grows with the number of repetitions, so
documents that were read once are measured beside those that were read again and again, and beside held-out ones where
there are any, which tell what can be guessed.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_pretrain.data.permutation import Permutation, derive_seed


CONVENTION = (
    "share of passages whose next {continuation} tokens greedy decoding gives exactly after the first {prefix}; "
    "interval of Wilson, 95%"
)


@dataclass(frozen=True)
class ExtractionRate:
    """How many passages were given back.

    Args:
        passages (`int`): Passages tried.
        extracted (`int`): Those given back exactly.
        matched_tokens (`float`): Mean share of the continuation that agrees before the first difference.
    """

    passages: int
    extracted: int
    matched_tokens: float

    @property
    def rate(self) -> float:
        """Share of the passages given back exactly."""
        return self.extracted / self.passages if self.passages else 0.0

    def interval(self, z: float = 1.96) -> tuple[float, float]:
        """Wilson's interval for the rate, which holds for rates near 0 and few passages.

        Args:
            z (`float`, *optional*, defaults to 1.96): Standard deviations; 1.96 is 95%.

        Returns:
            `tuple[float, float]`: Lower and upper end; 0 to 1 where nothing was tried.
        """
        n = self.passages
        if not n:
            return 0.0, 1.0
        centre = (self.rate + z * z / (2 * n)) / (1 + z * z / n)
        half = z / (1 + z * z / n) * math.sqrt(self.rate * (1 - self.rate) / n + z * z / (4 * n * n))
        return max(centre - half, 0.0), min(centre + half, 1.0)

    def to_json(self) -> dict[str, Any]:
        """Describes it as plain JSON data.

        Returns:
            `dict[str, Any]`: Counts, rate and interval.
        """
        return {
            "passages": self.passages,
            "extracted": self.extracted,
            "rate": self.rate,
            "interval": list(self.interval()),
            "matched_tokens": self.matched_tokens,
        }


def extraction_rate(
    model: Any, passages: Sequence[np.ndarray], prefix: int, continuation: int, batch_size: int = 32
) -> ExtractionRate:
    """Asks a model to continue passages.

    Args:
        model (`PreTrainedModel`): A causal language model.
        passages (`Sequence[np.ndarray]`): Token ids, each of at least `prefix + continuation`.
        prefix (`int`): Tokens given.
        continuation (`int`): Tokens that must follow.
        batch_size (`int`, *optional*, defaults to 32): Passages at once.

    Returns:
        `ExtractionRate`: The result.

    Raises:
        ValueError: If a passage is too short.
    """
    import torch

    if any(len(passage) < prefix + continuation for passage in passages):
        raise ValueError(f"passages must have at least {prefix} + {continuation} tokens")
    device = next(model.parameters()).device
    was_training = model.training
    model.eval()
    extracted, matched = 0, 0.0
    try:
        with torch.inference_mode():
            for start in range(0, len(passages), batch_size):
                rows = np.stack([passage[: prefix + continuation] for passage in passages[start : start + batch_size]])
                ids = torch.as_tensor(rows, dtype=torch.long, device=device)
                # Greedy decoding gives the continuation exactly if and only if each of its tokens is the likeliest
                # after the true ones before it: up to the first difference the two have read the same. So one
                # forward pass does for all steps.
                logits = model(input_ids=ids[:, :-1], use_cache=False).logits[:, prefix - 1 :]
                same = logits.argmax(-1) == ids[:, prefix:]
                extracted += int(same.all(1).sum())
                matched += float(same.long().cumprod(1).sum()) / continuation
    finally:
        model.train(was_training)
    return ExtractionRate(len(passages), extracted, matched / len(passages) if passages else 0.0)


def memorisation_facts(
    models: Mapping[str, Any],
    groups: Mapping[str, Sequence[np.ndarray]],
    prefix: int,
    continuation: int,
) -> dict[str, Any]:
    """Measures models on groups of passages.

    Args:
        models (`Mapping[str, PreTrainedModel]`): By name.
        groups (`Mapping[str, Sequence[np.ndarray]]`): Passages by what is said of them, e.g. `once` and `repeated`.
        prefix (`int`): Tokens given.
        continuation (`int`): Tokens that must follow.

    Returns:
        `dict[str, Any]`: Rates by model and group, and the convention.
    """
    return {
        "prefix": prefix,
        "continuation": continuation,
        "convention": CONVENTION.format(prefix=prefix, continuation=continuation),
        "rates": {
            name: {
                group: extraction_rate(model, passages, prefix, continuation).to_json()
                for group, passages in groups.items()
                if len(passages)
            }
            for name, model in models.items()
        },
    }


def passages_by_repetition(
    dataset: Any, samples_read: int, length: int, most: int, candidates: int = 20_000
) -> dict[str, list[np.ndarray]]:
    """Picks windows of a run that were read once and windows that were read more often, earlier stages included.

    Windows are visited in a fixed scattered order, so that passages come from all over the sources.

    Args:
        dataset (`MixtureDataset`): The run's dataset.
        samples_read (`int`): Samples that were trained on.
        length (`int`): Tokens of a passage, taken from the start of a window.
        most (`int`): Most passages a group.
        candidates (`int`, *optional*, defaults to 20000): Most samples looked at.

    Returns:
        `dict[str, list[np.ndarray]]`: `once` and `repeated`; a group is empty where there is no such window.
    """
    groups: dict[str, list[np.ndarray]] = {"once": [], "repeated": []}
    schedule, end = dataset.schedule, dataset.skips.end_after(samples_read)
    drawn = schedule.counts(end)
    left_out = _draws_left_out(dataset, end)
    seen: set[tuple[int, int]] = set()
    stride = max(samples_read // candidates, 1)
    for position in np.random.default_rng(0).permutation(np.arange(0, samples_read, stride)).tolist():
        source, _, window = dataset.locate(dataset.skips.sample_at(position))
        if (source, window) in seen:
            continue
        seen.add((source, window))
        name = schedule.sources[source]
        size = dataset.num_rows(name)
        epochs, rest = divmod(drawn[name] + schedule.start_draws.get(name, 0), size)
        # Every full epoch read the window once, and the last one if its turn came.
        reads = epochs + (Permutation(size, derive_seed(dataset.seed, name, epochs)).index_of(window) < rest)
        reads -= sum(_is_drawn(dataset, name, window, *draws) for draws in left_out[name])
        group = groups["once" if reads == 1 else "repeated"]
        held = sum(high - low for low, high in dataset.spans(dataset.skips.sample_at(position)))
        if len(group) < most and held >= length:  # the rest of a row of whole documents is filler
            group.append(dataset[position]["input_ids"][:length].numpy())
    return groups


def _draws_left_out(dataset: Any, end: int) -> dict[str, list[tuple[int, int]]]:
    """Ranges of the draws of each source that lie in samples the run skipped, an epoch at most each."""
    schedule = dataset.schedule
    found: dict[str, list[tuple[int, int]]] = {name: [] for name in schedule.sources}
    for start, stop in dataset.skips.below(end):
        first, last = schedule.counts(start), schedule.counts(stop)
        for name in schedule.sources:
            before, size = schedule.start_draws.get(name, 0), dataset.num_rows(name)
            low, high = before + first[name], before + last[name]
            while low < high:
                edge = min((low // size + 1) * size, high)
                found[name].append((low, edge))
                low = edge
    return found


def _is_drawn(dataset: Any, name: str, window: int, low: int, high: int) -> bool:
    """Whether draws `[low, high)` of a source, all of one epoch, hold a window."""
    size = dataset.num_rows(name)
    epoch, first = divmod(low, size)
    place = Permutation(size, derive_seed(dataset.seed, name, epoch)).index_of(window)
    return first <= place < first + high - low

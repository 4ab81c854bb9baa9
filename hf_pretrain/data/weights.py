"""Mixture weights from the sizes of the sources, and a check of them against published mixes.

Temperature sampling takes `p_i` proportional to `n_i^(1/T)` (Devlin et al. 2019, multilingual BERT). UniMax spreads a
budget as evenly as a cap on epochs allows (Chung et al. 2023, https://huggingface.co/papers/2304.09151).
"""

import logging
import math
import re
from collections.abc import Mapping

from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

# Shares of the tokens in published general-purpose mixes (web at large; the rest is books, papers, reference works).
PUBLISHED_SHARES = {"web": (0.60, 0.80), "curated": (0.05, 0.20), "code": (0.05, 0.20), "math": (0.0, 0.25)}
_KIND_WORDS = {
    "web": ("web", "crawl", "cc", "fineweb", "c4", "dclm", "pages"),
    "code": ("code", "stack", "github", "python", "starcoder"),
    "math": ("math", "maths", "openwebmath", "finemath", "proofs"),
    "curated": ("books", "book", "wiki", "wikipedia", "encyclopedic", "papers", "arxiv", "howto", "reference", "qa"),
}


def temperature_weights(sizes: Mapping[str, float], temperature: float) -> dict[str, float]:
    """Makes shares that flatten the sizes: 1 keeps them in proportion, infinity makes all equal.

    Args:
        sizes (`Mapping[str, float]`): Tokens of each source.
        temperature (`float`): From 1 up, `math.inf` included.

    Returns:
        `dict[str, float]`: Shares that sum to 1.

    Raises:
        UserError: If the temperature is below 1, or a size is not above 0.
    """
    if isinstance(temperature, bool) or not isinstance(temperature, (int, float)) or not temperature >= 1:
        raise UserError(f"temperature = {temperature!r}; allowed are numbers from 1 up")
    _check_sizes(sizes)
    # Relative to the largest, so that no power overflows.
    largest = max(sizes.values())
    powers = {name: (size / largest) ** (1 / temperature) for name, size in sizes.items()}
    total = math.fsum(powers.values())
    return {name: power / total for name, power in powers.items()}


def unimax_tokens(sizes: Mapping[str, float], budget: float, max_epochs: float) -> dict[str, float]:
    """Spreads a budget as evenly as possible, no source above its cap of epochs.

    Args:
        sizes (`Mapping[str, float]`): Tokens of each source.
        budget (`float`): Tokens to spread.
        max_epochs (`float`): Epochs of each source at most.

    Returns:
        `dict[str, float]`: Tokens of each source; they sum to the budget unless every source is at its cap.

    Raises:
        UserError: If the budget, the cap or a size is not above 0.
    """
    for name, value in (("budget", budget), ("max_epochs", max_epochs)):
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not value > 0:
            raise UserError(f"{name} = {value!r}; allowed are numbers above 0")
    _check_sizes(sizes)
    tokens, rest = {}, float(budget)
    # The smallest first: what it cannot take goes to all that are left.
    for place, name in enumerate(sorted(sizes, key=lambda item: sizes[item])):
        tokens[name] = min(rest / (len(sizes) - place), sizes[name] * max_epochs)
        rest -= tokens[name]
    return {name: tokens[name] for name in sizes}


def unimax_weights(sizes: Mapping[str, float], budget: float, max_epochs: float) -> dict[str, float]:
    """Makes UniMax's shares.

    Args:
        sizes (`Mapping[str, float]`): Tokens of each source.
        budget (`float`): Tokens of the run.
        max_epochs (`float`): Epochs of each source at most.

    Returns:
        `dict[str, float]`: Shares that sum to 1.

    Raises:
        UserError: If the budget, the cap or a size is not above 0.
    """
    tokens = unimax_tokens(sizes, budget, max_epochs)
    total = math.fsum(tokens.values())
    return {name: amount / total for name, amount in tokens.items()}


def kind_of_source(name: str) -> str | None:
    """Guesses from a source's name what kind of text it holds.

    Args:
        name (`str`): The name.

    Returns:
        `str`: `"web"`, `"curated"`, `"code"` or `"math"`; `None` if no word of the name says so.
    """
    words = re.split(r"[^a-z0-9]+", name.lower())
    return next((kind for kind, known in _KIND_WORDS.items() if any(word in known for word in words)), None)


def outside_published_shares(shares: Mapping[str, float]) -> list[str]:
    """Compares a mix with the ranges that published general-purpose mixes lie in.

    Args:
        shares (`Mapping[str, float]`): Share of each source; they sum to 1.

    Returns:
        `list[str]`: One sentence a kind of text that lies outside; kinds that no source is of are left out, and so is
        every kind if some source's kind cannot be told from its name.
    """
    totals: dict[str, float] = {}
    for name, share in shares.items():
        kind = kind_of_source(name)
        if kind is None:
            return []
        totals[kind] = totals.get(kind, 0.0) + share
    return [
        f"{kind} has a share of {total:.0%}, published mixes have {low:.0%} to {high:.0%}"
        for kind, total in totals.items()
        for low, high in [PUBLISHED_SHARES[kind]]
        if not low - 1e-9 <= total <= high + 1e-9
    ]


def _check_sizes(sizes: Mapping[str, float]) -> None:
    if not sizes:
        raise UserError("there is no source to weigh; give the tokens of at least one")
    for name, size in sizes.items():
        if isinstance(size, bool) or not isinstance(size, (int, float)) or not math.isfinite(size) or size <= 0:
            raise UserError(f"source {name!r} has {size!r} tokens; allowed are finite numbers above 0")

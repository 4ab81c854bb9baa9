"""What a card says of training text that comes back word for word, and of averaged weights; both only if measured."""

from collections.abc import Mapping
from typing import Any


def memorisation_text(facts: Mapping[str, Any]) -> str:
    """Sums up the memorisation probe and the averages of a run.

    Args:
        facts (`Mapping[str, Any]`): Content of `facts.json`.

    Returns:
        `str`: Sentences; empty where neither was made.
    """
    parts = []
    for stage in facts.get("stages", {}).values():
        found = stage.get("memorisation", {})
        for model, groups in found.get("rates", {}).items():
            rates = ", ".join(
                f"{rate['rate']:.1%} of {rate['passages']} passages read {name}" for name, rate in groups.items()
            )
            parts.append(f"Training text given back word for word by {model}: {rates} ({found['convention']}).")
    for name, found in facts.get("averages", {}).items():
        parts.append(f"{name} is the mean of the weights of {len(found['members'])} checkpoints.")
    return " ".join(parts)

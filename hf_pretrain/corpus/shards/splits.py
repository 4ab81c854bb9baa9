"""Train or validation, by a stable hash of the document's id.

A document stays in its split when others come or go, and near-duplicates cannot fall into different splits because the
split is made after deduplication. A source with few documents still gives a few, so that each has a validation set.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

from hf_pretrain.utils.errors import UserError


@dataclass
class ValidationConfig:
    """Settings of the validation split.

    Args:
        fraction (`float`, *optional*, defaults to 0.03): Share of each source's documents.
        min_documents (`int`, *optional*, defaults to 2): Fewest documents of a source, as long as that is at most a
            quarter of it.
        seed (`int`, *optional*, defaults to 0): Seed of the hash.
    """

    fraction: float = 0.03
    min_documents: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.fraction < 0.5:
            raise UserError(f"validation.fraction = {self.fraction}; 0 up to (not including) 0.5 is allowed.")
        if self.min_documents < 0:
            raise UserError(f"validation.min_documents = {self.min_documents}; 0 or more is allowed.")


def stable_fraction(identifier: str, salt: str = "") -> float:
    """A number in [0, 1) that depends on an id alone.

    Args:
        identifier (`str`): The id.
        salt (`str`, *optional*, defaults to `""`): Makes another, independent number.

    Returns:
        `float`: Uniform over ids.
    """
    digest = hashlib.blake2b(f"{salt}\x00{identifier}".encode("utf-8", "replace"), digest_size=8).digest()
    return int.from_bytes(digest, "big") / 2**64


def validation_mask(ids: Sequence[str], config: ValidationConfig) -> list[bool]:
    """Chooses the validation documents of one source.

    Args:
        ids (`Sequence[str]`): Ids of all its documents.
        config (`ValidationConfig`): The setting.

    Returns:
        `list[bool]`: Whether each is for validation.
    """
    values = [stable_fraction(identifier, f"split:{config.seed}") for identifier in ids]
    mask = [value < config.fraction for value in values]
    wanted = min(config.min_documents, len(ids) // 4) if config.fraction > 0 else 0
    if sum(mask) < wanted:
        for index in sorted(range(len(ids)), key=lambda i: (values[i], ids[i]))[:wanted]:
            mask[index] = True
    return mask

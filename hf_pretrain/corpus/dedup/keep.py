"""Who stays when documents say the same: a rule that reads the documents and never their order in the files.

By default the most trusted source wins, then the higher quality, the longer text, the newer date, the smaller id; a
hash of the text settles what is left, so that shuffled input and another number of tasks keep the same documents.
"""

import hashlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from datatrove.data import Document

from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.naming import unknown_name_message


CRITERIA = ("source", "quality", "length", "newest", "oldest", "id")


@dataclass
class KeepPolicy:
    """Order of preference between copies.

    Args:
        order (`list[str]`, *optional*): Criteria, the weightiest first, of `source` (place in the list of sources),
            `quality` (higher wins), `length` (longer wins), `newest`, `oldest` and `id` (smaller wins).
        quality_field (`str`, *optional*, defaults to `"quality"`): Metadata field with a number.
        date_field (`str`, *optional*, defaults to `"date"`): Metadata field with an ISO 8601 date or time. A document
            without the field loses against one that has it.
    """

    order: list[str] = field(default_factory=lambda: ["source", "quality", "length", "newest", "id"])
    quality_field: str = "quality"
    date_field: str = "date"

    def __post_init__(self) -> None:
        for name in self.order:
            if name not in CRITERIA:
                raise UserError(f"dedup.keep.order: {unknown_name_message('criterion', name, CRITERIA)}")
        if len(set(self.order)) != len(self.order):
            raise UserError(f"dedup.keep.order = {self.order}; name each criterion once.")


@dataclass(frozen=True)
class KeepFacts:
    """What the rule looks at in one document.

    Args:
        source (`str`): Its source.
        quality (`float`): Its quality, minus infinity when unknown.
        length (`int`): Characters of its text.
        date (`float`): Seconds since 1970, NaN when unknown.
        id (`str`): Its id.
        tie (`int`): 64 bits of the hash of its text.
    """

    source: str
    quality: float
    length: int
    date: float
    id: str
    tie: int


def keep_facts(document: Document, policy: KeepPolicy) -> KeepFacts:
    """Reads from a document what decides whether it stays.

    Args:
        document (`Document`): A document.
        policy (`KeepPolicy`): Names of the metadata fields.

    Returns:
        `KeepFacts`: The facts.
    """
    quality = document.metadata.get(policy.quality_field)
    known = isinstance(quality, int | float) and not isinstance(quality, bool) and not math.isnan(quality)
    return KeepFacts(
        str(document.metadata.get("source", "")),
        float(quality) if known else -math.inf,
        len(document.text),
        _seconds(document.metadata.get(policy.date_field)),
        str(document.id),
        int.from_bytes(
            hashlib.blake2b(document.text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little"
        ),
    )


def _seconds(value: Any) -> float:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            return math.nan
    if not isinstance(value, datetime):
        return math.nan
    return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()


class KeepOrder:
    """Sorts documents, those that are to stay first.

    Args:
        policy (`KeepPolicy`): The rule.
        source_order (`Sequence[str]`): Source names, most trusted first; others come last, by name.
    """

    def __init__(self, policy: KeepPolicy, source_order: Sequence[str]) -> None:
        self.policy = policy
        self._rank = {name: place for place, name in enumerate(source_order)}

    def key(self, facts: KeepFacts) -> tuple:
        """Sort key of a document.

        Args:
            facts (`KeepFacts`): Its facts.

        Returns:
            `tuple`: Smaller stays.
        """
        return (*(part for name in self.policy.order for part in self._part(name, facts)), facts.id, facts.tie)

    def _part(self, name: str, facts: KeepFacts) -> tuple:
        if name == "source":
            return self._rank.get(facts.source, len(self._rank)), facts.source
        if name == "quality":
            return (-facts.quality,)
        if name == "length":
            return (-facts.length,)
        if name == "id":
            return (facts.id,)
        unknown = math.isnan(facts.date)
        return unknown, 0.0 if unknown else (-facts.date if name == "newest" else facts.date)

    def sort(self, facts: Iterable[KeepFacts]) -> list[int]:
        """Sorts documents.

        Args:
            facts (`Iterable[KeepFacts]`): Facts of all documents.

        Returns:
            `list[int]`: Document indices, best first.
        """
        keys = [self.key(item) for item in facts]
        return sorted(range(len(keys)), key=keys.__getitem__)

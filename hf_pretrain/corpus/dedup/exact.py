"""Equal texts, and the order that says which copy survives.

Two texts are equal when they agree after Unicode composition (NFC) and with every run of white space folded to one
space; case, punctuation and numbers count. The key is 128 bits of BLAKE2b.
"""

import hashlib
import unicodedata
from collections.abc import Sequence


def text_key(text: str) -> bytes:
    """The identity of a text.

    Args:
        text (`str`): A text.

    Returns:
        `bytes`: 16 bytes; empty for a text of white space alone.
    """
    folded = " ".join((text if text.isascii() else unicodedata.normalize("NFC", text)).split())
    if not folded:
        return b""
    return hashlib.blake2b(folded.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def survivor_order(
    sources: Sequence[str], lengths: Sequence[int], ids: Sequence[str], source_order: Sequence[str]
) -> list[int]:
    """Sorts documents by who is to stay: source order first, then the longest, then the id.

    Args:
        sources (`Sequence[str]`): Source of each document.
        lengths (`Sequence[int]`): Length of each document, in any unit.
        ids (`Sequence[str]`): Id of each document.
        source_order (`Sequence[str]`): Source names, most trusted first; sources not named come last, by name.

    Returns:
        `list[int]`: Document indices, best first. It does not depend on the order of the input, but for documents that
        agree in all three.
    """
    rank = {name: position for position, name in enumerate(source_order)}
    last = len(rank)
    return sorted(range(len(ids)), key=lambda i: (rank.get(sources[i], last), sources[i], -lengths[i], ids[i]))


def find_exact_duplicates(texts: Sequence[str], order: Sequence[int]) -> dict[int, int]:
    """Finds texts that repeat a better placed one. Blank texts are nobody's copies.

    Args:
        texts (`Sequence[str]`): The texts.
        order (`Sequence[int]`): Document indices, best first.

    Returns:
        `dict[int, int]`: For each removed document, the one that is kept in its place.
    """
    kept: dict[bytes, int] = {}
    removed: dict[int, int] = {}
    for index in order:
        key = text_key(texts[index])
        if not key:
            continue
        if key in kept:
            removed[index] = kept[key]
        else:
            kept[key] = index
    return removed

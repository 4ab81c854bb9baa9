"""The index of benchmark items, and the search of a text for them.

Items are word sequences (see `word_hashes`: NFKC, entities resolved, invisible characters, case and punctuation gone).
Each n-gram of an item is stored with its item and position, unless it consists of numbers and single letters alone. A
text's n-grams are looked up by a bitmap, then by binary search, then measured by `matching`. Items shorter than an
n-gram are found as whole sequences.
"""

import functools
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from hf_pretrain.corpus.contamination.matching import measure_overlap
from hf_pretrain.corpus.word_hashes import WordHashes, hash_words, ngram_hashes
from hf_pretrain.utils.atomic import atomic_directory, read_json, write_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint


_BITMAP_BITS = 22
_NORMALIZATION = "unescape+nfkc+lower+words/2"


@dataclass(frozen=True)
class ContaminationSettings:
    """What counts as contamination.

    Args:
        ngram_size (`int`, *optional*, defaults to 8): Words in an n-gram of the index.
        min_run (`int`, *optional*, defaults to 13): Equal words in a row that make an item contaminated.
        min_coverage (`float`, *optional*, defaults to 0.5): Share of an item's words in shared n-grams that makes it
            so.
        coverage_min_words (`int`, *optional*, defaults to 20): Shorter items are judged by a run or as a whole, not by
            coverage.
        min_item_words (`int`, *optional*, defaults to 4): Shorter items cannot be checked; they are counted.
    """

    ngram_size: int = 8
    min_run: int = 13
    min_coverage: float = 0.5
    coverage_min_words: int = 20
    min_item_words: int = 4

    def __post_init__(self) -> None:
        if not 2 <= self.ngram_size <= 32:
            raise UserError(f"contamination.ngram_size = {self.ngram_size}; 2 to 32 is allowed.")
        if self.min_run < self.ngram_size:
            raise UserError(
                f"contamination.min_run = {self.min_run}; it must be at least ngram_size = {self.ngram_size}."
            )
        if not 0.0 < self.min_coverage <= 1.0:
            raise UserError(f"contamination.min_coverage = {self.min_coverage}; above 0 and up to 1 is allowed.")
        if self.min_item_words < 1:
            raise UserError(f"contamination.min_item_words = {self.min_item_words}; at least 1 is needed.")


@dataclass(frozen=True)
class BenchmarkItem:
    """One text of a benchmark.

    Args:
        benchmark (`str`): Name of the benchmark.
        item_id (`str`): Id of the item inside it.
        field (`str`): Which field of the item the text is from.
        text (`str`): The text.
        revision (`str`, *optional*): Revision of the benchmark.
        published (`str`, *optional*): Its date of publication, ISO.
    """

    benchmark: str
    item_id: str
    field: str
    text: str
    revision: str | None = None
    published: str | None = None


@dataclass(frozen=True)
class Match:
    """One benchmark item found in a text.

    Args:
        benchmark (`str`): Name of the benchmark.
        item_id (`str`): Id of the item.
        field (`str`): Field of the item.
        longest_run (`int`): Equal words in a row.
        coverage (`float`): Share of the item's words found.
        item_words (`int`): Words in the item.
        start (`int`): First word of the match in the text.
        stop (`int`): Word after its last.
    """

    benchmark: str
    item_id: str
    field: str
    longest_run: int
    coverage: float
    item_words: int
    start: int
    stop: int


class ContaminationIndex:
    """Finds benchmark items in texts; build one with [`ContaminationIndex.build`] or [`ContaminationIndex.load`].

    Args:
        settings (`ContaminationSettings`): What counts as contamination.
        items (`list[dict]`): For each item: benchmark, item_id, field, revision, published, words, checked.
        arrays (`dict[str, np.ndarray]`): `keys` (sorted n-gram hashes), `items` and `positions` of each, `short_keys`,
            `short_items`, `short_sizes` of the items shorter than an n-gram.
    """

    def __init__(
        self, settings: ContaminationSettings, items: list[dict[str, object]], arrays: dict[str, np.ndarray]
    ) -> None:
        self.settings = settings
        self.items = items
        self._arrays = arrays
        self._keys, self._posting_starts = np.unique(arrays["keys"], return_index=True)
        self._posting_stops = np.append(self._posting_starts[1:], len(arrays["keys"]))
        self._bitmap = np.zeros(1 << _BITMAP_BITS, bool)
        self._bitmap[self._slots(self._keys)] = True
        self._short: dict[int, dict[int, list[int]]] = {}
        for key, item, size in zip(arrays["short_keys"], arrays["short_items"], arrays["short_sizes"], strict=True):
            self._short.setdefault(int(size), {}).setdefault(int(key), []).append(int(item))

    @classmethod
    def build(
        cls, items: Iterable[BenchmarkItem], settings: ContaminationSettings | None = None
    ) -> "ContaminationIndex":
        """Builds an index.

        Args:
            items (`Iterable[BenchmarkItem]`): Texts of benchmarks.
            settings (`ContaminationSettings`, *optional*): What counts as contamination.

        Returns:
            `ContaminationIndex`: The index.

        Raises:
            UserError: If no item can be checked: an empty index would call everything clean.
        """
        settings = settings or ContaminationSettings()
        given = list(items)
        words = _words([item.text for item in given])
        size = settings.ngram_size
        records: list[dict[str, object]] = []
        keys, owners, positions = [], [], []
        short_keys, short_items, short_sizes = [], [], []
        for index, item in enumerate(given):
            start, stop = words.bounds(index)
            count = stop - start
            weak = words.weak[start:stop]
            checked = count >= settings.min_item_words and not weak.all()
            if checked and count < size:
                short_keys.append(int(ngram_hashes(words.of(index), count)[0]))
                short_items.append(index)
                short_sizes.append(count)
            elif checked:
                useful = _with_letters(weak, size)
                keys.append(ngram_hashes(words.of(index), size)[useful])
                positions.append(useful)
                owners.append(np.full(len(useful), index, np.int64))
                checked = len(useful) > 0
            record = {key: value for key, value in asdict(item).items() if key != "text"}
            records.append(record | {"words": count, "checked": checked})
        if not any(record["checked"] for record in records):
            raise UserError(
                f"contamination: none of {len(given)} benchmark items can be checked, all would pass as clean; "
                "name a benchmark with text, or set `contamination: {enabled: false}`."
            )
        all_keys = np.concatenate(keys) if keys else np.empty(0, np.uint64)
        order = np.argsort(all_keys, kind="stable")
        arrays = {
            "keys": all_keys[order],
            "items": (np.concatenate(owners) if owners else np.empty(0, np.int64))[order],
            "positions": (np.concatenate(positions) if positions else np.empty(0, np.int64))[order],
            "short_keys": np.array(short_keys, np.uint64),
            "short_items": np.array(short_items, np.int64),
            "short_sizes": np.array(short_sizes, np.int64),
        }
        return cls(settings, records, arrays)

    @property
    def fingerprint(self) -> str:
        """16 digits of settings, normalisation and items."""
        return fingerprint([asdict(self.settings), _NORMALIZATION, self.items, len(self._keys), self._checksum()])

    def _checksum(self) -> str:
        total = np.bitwise_xor.reduce(self._arrays["keys"], initial=np.uint64(0))
        return f"{int(total):016x}"

    def save(self, folder: str | Path) -> None:
        """Writes the index.

        Args:
            folder (`str` or `Path`): The folder to make; `index.npz` and `index.json` lie in it.
        """
        with atomic_directory(folder) as staging:
            np.savez(staging / "index.npz", **self._arrays)
            write_json(
                staging / "index.json",
                {
                    "schema": 1,
                    "normalization": _NORMALIZATION,
                    "settings": asdict(self.settings),
                    "fingerprint": self.fingerprint,
                    "items": self.items,
                },
            )

    @classmethod
    def load(cls, folder: str | Path, settings: ContaminationSettings | None = None) -> "ContaminationIndex":
        """Reads an index and makes sure that it searches as asked.

        Args:
            folder (`str` or `Path`): Folder of a saved index.
            settings (`ContaminationSettings`, *optional*): Settings it must have.

        Returns:
            `ContaminationIndex`: The index.

        Raises:
            UserError: If there is no index, it is damaged or empty, or its settings or normalisation differ.
        """
        folder = Path(folder)
        try:
            header = read_json(folder / "index.json")
            with np.load(folder / "index.npz", allow_pickle=False) as data:
                arrays = {name: data[name] for name in data.files}
        except (FileNotFoundError, NotADirectoryError) as error:
            raise UserError(
                f"contamination index = {folder}; there is none: build it with the corpus stage."
            ) from error
        except (ValueError, EOFError, zipfile.BadZipFile) as error:
            raise UserError(
                f"contamination index = {folder}; it is damaged ({error}): build it again with the corpus stage."
            ) from error
        stored = ContaminationSettings(**header["settings"])
        if header["normalization"] != _NORMALIZATION or (settings is not None and stored != settings):
            raise UserError(
                f"contamination index = {folder}; it was made with {header['settings']} ({header['normalization']}), "
                f"asked for {asdict(settings or stored)} ({_NORMALIZATION}): build it again."
            )
        if not len(arrays["keys"]) and not len(arrays["short_keys"]):
            raise UserError(f"contamination index = {folder}; it is empty, everything would pass as clean.")
        return cls(stored, header["items"], arrays)

    def match_text(self, text: str) -> list[Match]:
        """Finds the benchmark items that a text contains.

        Args:
            text (`str`): Any text: a document, a message.

        Returns:
            `list[Match]`: Contaminated items, the longest run first.
        """
        return self.match_texts([text])[0]

    def match_texts(self, texts: Sequence[str]) -> list[list[Match]]:
        """Finds the benchmark items of several texts at once.

        Args:
            texts (`Sequence[str]`): The texts.

        Returns:
            `list[list[Match]]`: For each text what `match_text` returns.
        """
        words = _words(texts)
        suspects = self._suspects(words)
        return [self._match_words(words.of(index)) if index in suspects else [] for index in range(len(words))]

    def _suspects(self, words: WordHashes) -> set[int]:
        """Texts with any n-gram of the index, found for the whole batch at once; most texts have none.

        An n-gram that runs over the end of a text makes a suspect too many, never one too few.
        """
        grams = ngram_hashes(words.hashes, self.settings.ngram_size)
        hits = np.flatnonzero(self._bitmap[self._slots(grams)])
        places = [hits[_members(self._keys, grams[hits])]]
        for size, table in self._short.items():
            keys = np.sort(np.fromiter(table, np.uint64, len(table)))
            places.append(np.flatnonzero(_members(keys, ngram_hashes(words.hashes, size))))
        return set(np.searchsorted(words.ends, np.concatenate(places), side="right").tolist())

    @staticmethod
    def _slots(keys: np.ndarray) -> np.ndarray:
        return (keys >> np.uint64(64 - _BITMAP_BITS)).astype(np.int64)

    def _match_words(self, words: np.ndarray) -> list[Match]:
        matches = self._match_ngrams(words) + self._match_short(words)
        return sorted(matches, key=lambda match: (-match.longest_run, match.benchmark, match.item_id, match.field))

    def _match_ngrams(self, words: np.ndarray) -> list[Match]:
        size = self.settings.ngram_size
        grams = ngram_hashes(words, size)
        hits = np.flatnonzero(self._bitmap[self._slots(grams)])
        if not len(hits) or not len(self._keys):
            return []
        found = np.searchsorted(self._keys, grams[hits])
        found[found == len(self._keys)] = 0
        same = self._keys[found] == grams[hits]
        hits, found = hits[same], found[same]
        if not len(hits):
            return []
        # One row a (text position, posting): n-grams that many items share expand to many rows.
        counts = self._posting_stops[found] - self._posting_starts[found]
        rows = np.repeat(self._posting_starts[found], counts) + _ranges(counts)
        owners, item_positions = self._arrays["items"][rows], self._arrays["positions"][rows]
        text_positions = np.repeat(hits, counts)
        order = np.argsort(owners, kind="stable")
        edges = np.flatnonzero(np.diff(owners[order])) + 1
        matches = []
        for group in np.split(order, edges):
            match = self._judge(int(owners[group[0]]), text_positions[group], item_positions[group])
            if match is not None:
                matches.append(match)
        return matches

    def _judge(self, item: int, text_positions: np.ndarray, item_positions: np.ndarray) -> Match | None:
        settings, count = self.settings, int(self.items[item]["words"])
        possible = int(self._longest_possible[item])
        if len(text_positions) + settings.ngram_size - 1 < min(settings.min_run, possible) and (
            len(text_positions) * settings.ngram_size < settings.min_coverage * count
        ):
            return None  # too few shared n-grams for any of the rules
        overlap = measure_overlap(text_positions, item_positions, settings.ngram_size, count)
        by_run = overlap.longest_run >= settings.min_run
        by_coverage = count >= settings.coverage_min_words and overlap.coverage >= settings.min_coverage
        whole = count < settings.coverage_min_words and overlap.longest_run >= possible
        if not (by_run or by_coverage or whole):
            return None
        if by_run or whole:
            start, stop = overlap.start, overlap.start + overlap.longest_run
        else:
            start, stop = overlap.first, overlap.stop
        return self._match(item, overlap.longest_run, overlap.coverage, start, stop)

    @functools.cached_property
    def _longest_possible(self) -> np.ndarray:
        """For each item the longest run that any text can reach: n-grams of numbers are not in the index."""
        possible = np.zeros(len(self.items), np.int64)
        owners, positions = self._arrays["items"], self._arrays["positions"]
        order = np.lexsort((positions, owners))
        for group in np.split(order, np.flatnonzero(np.diff(owners[order])) + 1) if len(order) else []:
            item = int(owners[group[0]])
            words = int(self.items[item]["words"])
            overlap = measure_overlap(positions[group], positions[group], self.settings.ngram_size, words)
            possible[item] = overlap.longest_run
        return possible

    def _match_short(self, words: np.ndarray) -> list[Match]:
        matches = []
        for size, table in self._short.items():
            grams = ngram_hashes(words, size)
            for position in np.flatnonzero(np.isin(grams, np.fromiter(table, np.uint64, len(table)))):
                for item in table.get(int(grams[position]), ()):
                    matches.append(self._match(item, size, 1.0, int(position), int(position) + size))
        best: dict[tuple[str, str, str], Match] = {}
        for match in matches:
            best.setdefault((match.benchmark, match.item_id, match.field), match)
        return list(best.values())

    def _match(self, item: int, run: int, coverage: float, start: int, stop: int) -> Match:
        record = self.items[item]
        return Match(
            benchmark=str(record["benchmark"]),
            item_id=str(record["item_id"]),
            field=str(record["field"]),
            longest_run=run,
            coverage=round(coverage, 4),
            item_words=int(record["words"]),
            start=start,
            stop=stop,
        )


def _words(texts: Sequence[str]) -> WordHashes:
    return hash_words(texts, unescape=True)


def _with_letters(weak: np.ndarray, size: int) -> np.ndarray:
    """Positions of the n-grams in which not every word is a number or a single letter."""
    sums = np.concatenate([[0], np.cumsum(weak)])
    return np.flatnonzero(sums[size:] - sums[:-size] < size)


def _members(keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Whether each value is among sorted keys."""
    if not len(keys):
        return np.zeros(len(values), bool)
    return keys[np.minimum(np.searchsorted(keys, values), len(keys) - 1)] == values


def _ranges(counts: np.ndarray) -> np.ndarray:
    """`[0..c0), [0..c1), ...` in one array."""
    ends = np.cumsum(counts)
    return np.arange(ends[-1]) - np.repeat(ends - counts, counts)

"""A text classifier as a folder: weights, a card with what it was trained on and how good it is, and their hashes.

Two kinds of weights: fastText's own file, and hashed words and word pairs with one coefficient each (safetensors),
which numpy alone can score. Nothing is unpickled, and every file must have the SHA-256 that the card gives, so a
retrained model is never taken for the old one: there is no cache by path. A score goes through three steps: the
model's logit, less what is owed to the text's length alone, calibrated to a probability (Platt).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from hf_pretrain.corpus.word_hashes import hash_words, ngram_hashes
from hf_pretrain.utils.atomic import atomic_directory, read_json, sha256_file, write_json, write_text
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.optional import require


if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


SCHEMA = 1
BACKENDS = ("auto", "fasttext", "hashing")
NUM_QUANTILES = 1001
_SELF_TEST = "The quick brown fox jumps over the lazy dog, 42 times; \u00c9t\u00e9, \u4f60\u597d."
_LIMIT = 30.0  # a logit beyond this is a probability of 0 or 1


class TextClassifier:
    """
    Scores texts between 0 and 1.

    Args:
        backend (`str`):
            `"fasttext"` or `"hashing"`.
        logits (`Callable[[Sequence[str]], np.ndarray]`):
            Scores of prepared texts, in log odds.
        card (`dict`):
            What [`train_classifier`] found out; see there.
    """

    def __init__(self, backend: str, logits: Callable[[Sequence[str]], np.ndarray], card: dict[str, Any]) -> None:
        self.backend, self.card, self._logits = backend, card, logits

    @property
    def content_hash(self) -> str:
        """Digits of everything that scores depend on."""
        return self.card["content_hash"]

    @property
    def max_chars(self) -> int:
        """Characters of a text that are looked at."""
        return self.card["settings"]["max_chars"]

    def raw_logits(self, texts: Sequence[str]) -> np.ndarray:
        """
        The model's own scores, before length and calibration.

        Args:
            texts (`Sequence[str]`): Texts.

        Returns:
            `np.ndarray`: log odds, `float64`, shape `[len(texts)]`.
        """
        return np.clip(self._logits([prepare(text, self.max_chars) for text in texts]), -_LIMIT, _LIMIT)

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """
        Probabilities that texts belong to the positives.

        Args:
            texts (`Sequence[str]`): Texts.

        Returns:
            `np.ndarray`: `float64` in [0, 1], shape `[len(texts)]`.
        """
        if not len(texts):
            return np.empty(0)
        length, calibration = self.card["length"], self.card["calibration"]
        logits = debias(self.raw_logits(texts), log_lengths(texts, self.max_chars), length["slope"], length["mean"])
        return sigmoid(calibration["scale"] * logits + calibration["shift"])

    def threshold(self, keep_fraction: float) -> float:
        """
        The score that a share of the negatives seen in training's held-out part reaches.

        Args:
            keep_fraction (`float`): Share to keep, in (0, 1].

        Returns:
            `float`: keep what scores this or more.
        """
        if not 0 < keep_fraction <= 1:
            raise UserError(f"keep_fraction = {keep_fraction!r}; allowed is above 0 up to 1.")
        quantiles = np.asarray(self.card["quantiles"])
        return float(np.interp(1 - keep_fraction, np.linspace(0, 1, len(quantiles)), quantiles))

    def percentile(self, scores: np.ndarray) -> np.ndarray:
        """
        Ranks of scores among those of the held-out negatives.

        Args:
            scores (`np.ndarray`): Scores.

        Returns:
            `np.ndarray`: share of the negatives below, in [0, 1].
        """
        quantiles = np.asarray(self.card["quantiles"])
        return np.searchsorted(quantiles, scores, side="left") / len(quantiles)


def prepare(text: str, max_chars: int) -> str:
    """
    What a model sees of a text: the first characters, in one line, without fastText's label mark.

    Args:
        text (`str`): The text.
        max_chars (`int`): Characters.

    Returns:
        `str`: the line.
    """
    line = " ".join(text[:max_chars].split()).lower().replace("__label__", "__label ")
    return line.encode("utf-8", "replace").decode("utf-8")


def log_lengths(texts: Sequence[str], max_chars: int) -> np.ndarray:
    """
    Logarithms of the lengths that a model sees.

    Args:
        texts (`Sequence[str]`): Texts.
        max_chars (`int`): Characters looked at.

    Returns:
        `np.ndarray`: natural logarithms of characters, `float64`.
    """
    return np.array([math.log(max(min(len(text), max_chars), 1)) for text in texts])


def debias(logits: np.ndarray, lengths: np.ndarray, slope: float, mean: float) -> np.ndarray:
    """
    Takes off what texts owe to their length.

    Args:
        logits (`np.ndarray`): Scores in log odds.
        lengths (`np.ndarray`): Logarithms of lengths.
        slope (`float`): Log odds a unit of log length.
        mean (`float`): The length at which nothing changes.

    Returns:
        `np.ndarray`: scores in log odds.
    """
    return logits - slope * (lengths - mean)


def sigmoid(logits: np.ndarray) -> np.ndarray:
    """
    Log odds to probabilities.

    Args:
        logits (`np.ndarray`): Log odds.

    Returns:
        `np.ndarray`: probabilities.
    """
    return 1 / (1 + np.exp(-np.clip(logits, -_LIMIT, _LIMIT)))


def hashed_features(texts: Sequence[str], num_features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Words and word pairs of texts as rows of a sparse matrix: places and values, each row of length one.

    Args:
        texts (`Sequence[str]`): Prepared texts.
        num_features (`int`): Columns.

    Returns:
        `tuple[np.ndarray, np.ndarray, np.ndarray]`: columns (`int64`), values (`float64`) and row bounds (`int64`,
        one more than texts), as scipy's `csr_matrix` takes them.
    """
    words = hash_words(texts, strip_accents=False)
    columns, values, bounds = [], [], [0]
    for index in range(len(texts)):
        own = words.of(index)
        grams = np.concatenate([own, ngram_hashes(own, 2)])
        places, counts = np.unique(grams % np.uint64(num_features), return_counts=True)
        weights = 1 + np.log(counts)  # a word said often says little more than said once
        columns.append(places.astype(np.int64))
        values.append(weights / math.sqrt(float(weights @ weights)) if len(weights) else weights)
        bounds.append(bounds[-1] + len(places))
    return np.concatenate(columns), np.concatenate(values), np.array(bounds)


def hashing_logits(coefficients: np.ndarray, intercept: float) -> Callable[[Sequence[str]], np.ndarray]:
    """
    Scores by hashed words.

    Args:
        coefficients (`np.ndarray`): One a column.
        intercept (`float`): Added to each score.

    Returns:
        `Callable`: from prepared texts to log odds.
    """
    weights = coefficients.astype(np.float64)

    def logits(texts: Sequence[str]) -> np.ndarray:
        columns, values, bounds = hashed_features(texts, len(weights))
        sums = np.concatenate([[0.0], np.cumsum(weights[columns] * values)])
        return sums[bounds[1:]] - sums[bounds[:-1]] + intercept

    return logits


def fasttext_logits(model: Any) -> Callable[[Sequence[str]], np.ndarray]:
    """
    Scores by a fastText model with the labels `__label__1` and `__label__0`.

    Args:
        model (`Any`): The model.

    Returns:
        `Callable`: from prepared texts to log odds.
    """

    def logits(texts: Sequence[str]) -> np.ndarray:
        found = np.empty(len(texts))
        for index, text in enumerate(texts):
            # The method beneath `predict`, whose conversion to an array numpy 2 refuses.
            odds = {label: share for share, label in model.f.predict(text + "\n", 2, 0.0, "strict")}
            share = min(max(odds.get("__label__1", 0.0), 1e-9), 1 - 1e-9)
            found[index] = math.log(share / (1 - share))
        return found

    return logits


def self_test() -> str:
    """
    Digits of the features of a fixed sentence: they change with the definition of a word.

    Returns:
        `str`: 16 hexadecimal digits.
    """
    columns, values, _ = hashed_features([prepare(_SELF_TEST, 1000)], 1 << 32)
    return fingerprint([columns.tolist(), [round(value, 9) for value in values.tolist()]])


def save_classifier(
    folder: str | Path, card: dict[str, Any], coefficients: np.ndarray | None = None, fasttext_model: Any = None
) -> Path:
    """
    Writes a classifier: `card.json`, `README.md`, and `model.safetensors` or `model.bin`.

    Args:
        folder (`str` or `Path`): The folder; replaced when it exists.
        card (`dict`): The card; hashes are added.
        coefficients (`np.ndarray`, *optional*): Weights of the hashing kind.
        fasttext_model (`Any`, *optional*): A fastText model.

    Returns:
        `Path`: the folder.
    """
    with atomic_directory(Path(folder)) as staging:
        if coefficients is not None:
            name = "model.safetensors"
            save_file({"coefficients": coefficients.astype(np.float32)}, staging / name)
        else:
            name = "model.bin"
            fasttext_model.save_model(str(staging / name))
        card = {**card, "schema": SCHEMA, "files": {name: sha256_file(staging / name)}}
        card["content_hash"] = fingerprint({key: value for key, value in card.items() if key != "content_hash"})
        write_json(staging / "card.json", card)
        write_text(staging / "README.md", _readme(card))
    return Path(folder)


def load_classifier(folder: str | Path) -> TextClassifier:
    """
    Reads a classifier and checks it against its card.

    Args:
        folder (`str` or `Path`): Folder that [`save_classifier`] wrote.

    Returns:
        `TextClassifier`: the classifier.

    Raises:
        UserError: If a file is missing or changed, or words are hashed otherwise now.
    """
    folder = Path(folder)
    card = _read_card(folder)
    if len(card["files"]) != 1:
        raise UserError(f"classifier {folder}: card.json names {len(card['files'])} files; one is needed.")
    ((name, digits),) = card["files"].items()
    file = folder / name
    if name not in ("model.safetensors", "model.bin") or not file.is_file() or sha256_file(file) != digits:
        raise UserError(f"classifier {folder}: {name} is missing or is not the one its card describes; train again.")
    if name == "model.bin":
        fasttext = require("fasttext", "quality", "fastText classifiers")
        return TextClassifier("fasttext", fasttext_logits(fasttext.load_model(str(file))), card)
    if card["self_test"] != self_test():
        raise UserError(f"classifier {folder}: it was trained with another definition of words; train again.")
    try:
        weights = load_file(file)["coefficients"]
    except (SafetensorError, KeyError) as error:
        raise UserError(f"classifier {folder}: {name} cannot be read ({error}); train again.") from error
    return TextClassifier("hashing", hashing_logits(weights, card["intercept"]), card)


def classifier_hash(folder: str | Path) -> str:
    """
    The content hash of a classifier on disk, for the fingerprint of a step that uses it.

    Args:
        folder (`str` or `Path`): Its folder.

    Returns:
        `str`: digits.
    """
    return _read_card(Path(folder))["content_hash"]


def _read_card(folder: Path) -> dict[str, Any]:
    try:
        card = read_json(folder / "card.json")
    except (OSError, ValueError) as error:
        raise UserError(f"classifier {folder}: card.json cannot be read ({error}); train one first.") from error
    needed = {"schema", "files", "content_hash", "settings", "length", "calibration", "quantiles", "self_test"}
    if not isinstance(card, dict) or card.get("schema") != SCHEMA or not needed <= set(card):
        raise UserError(f"classifier {folder}: card.json is not of schema {SCHEMA}; train again.")
    digits = fingerprint({key: value for key, value in card.items() if key != "content_hash"})
    if digits != card["content_hash"]:
        raise UserError(f"classifier {folder}: card.json was changed after training; train again.")
    return card


def _readme(card: dict[str, Any]) -> str:
    metrics, counts = card["metrics"], card["counts"]
    lines = [
        f"# Text classifier: {card['kind']}",
        "",
        f"Backend {card['backend']}; trained on {counts['train_positives']} positive and {counts['train_negatives']} "
        f"negative texts, measured on {counts['held_out_positives']} and {counts['held_out_negatives']} others.",
        "",
        "| held out | value |",
        "|---|---:|",
        *(f"| {name} | {value:.4f} |" for name, value in metrics.items()),
        "",
        "A score is the probability of the positives where both are equally frequent. It says whether a text "
        "resembles those it was trained on, and nothing about its truth.",
        "",
    ]
    return "\n".join(lines)

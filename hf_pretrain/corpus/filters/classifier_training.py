"""Trains a text classifier: good texts against others, with everything that must be known before it is used.

Equal texts are used once and never lie on both sides of the split. Half of the held-out part fits calibration and the
correction for length, the other half measures: area under the curve, Brier score, expected calibration error, the
correlation with length. Both classes are cut to the same distribution of lengths before training, or the classifier
would learn that long texts are good ones. DCLM (arXiv 2406.11794) and GPT-3 (2005.14165) filter the web in this way.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from hf_pretrain.corpus.config_checks import at_least, between, choice
from hf_pretrain.corpus.filters.classifier import (
    BACKENDS,
    NUM_QUANTILES,
    TextClassifier,
    debias,
    fasttext_logits,
    hashed_features,
    hashing_logits,
    load_classifier,
    log_lengths,
    prepare,
    save_classifier,
    self_test,
    sigmoid,
)
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.optional import is_available, require


if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence


logger = logging.getLogger(__name__)
MIN_TEXTS = 20


@dataclass(frozen=True)
class ClassifierTraining:
    """
    How a classifier is trained.

    Args:
        backend (`str`, *optional*, defaults to `"auto"`):
            `"fasttext"`, `"hashing"` (scikit-learn fits it, numpy scores), or `"auto"`: fastText where it is
            installed.
        max_chars (`int`, *optional*, defaults to 5000):
            Characters of a text that are looked at.
        held_out (`float`, *optional*, defaults to 0.2):
            Share of the texts that is not trained on.
        length_debias (`bool`, *optional*, defaults to `True`):
            Cut both classes to one distribution of lengths, and correct scores for length.
        epochs (`int`, *optional*, defaults to 5):
            Passes over the texts (fastText).
        num_features (`int`, *optional*, defaults to 262144):
            Columns of the hashed features; buckets of word pairs in fastText.
        regularization (`float`, *optional*, defaults to 10.0):
            Inverse strength `C` of the logistic regression (hashing).
        seed (`int`, *optional*, defaults to 0):
            Chooses the held-out texts, the cuts and fastText's start.
    """

    backend: Literal["auto", "fasttext", "hashing"] = "auto"
    max_chars: int = 5000
    held_out: float = 0.2
    length_debias: bool = True
    epochs: int = 5
    num_features: int = 1 << 18
    regularization: float = 10.0
    seed: int = 0

    def __post_init__(self) -> None:
        choice("training.backend", self.backend, BACKENDS)
        at_least("training.max_chars", self.max_chars, 100)
        between("training.held_out", self.held_out, 0.05, 0.5)
        at_least("training.epochs", self.epochs, 1)
        at_least("training.num_features", self.num_features, 1024)
        at_least("training.regularization", self.regularization, 1e-6)


def train_quality_classifier(
    positives: Iterable[str],
    negatives: Iterable[str],
    folder: str | Path,
    settings: ClassifierTraining | None = None,
) -> TextClassifier:
    """
    Trains a classifier of quality: reference texts (encyclopedias, books, chosen pages) against random web pages.

    Args:
        positives (`Iterable[str]`): Reference texts.
        negatives (`Iterable[str]`): A random sample of what is to be filtered.
        folder (`str` or `Path`): Where it is stored.
        settings (`ClassifierTraining`, *optional*): How.

    Returns:
        `TextClassifier`: the classifier, read back from the folder; `card["metrics"]` says how good it is.

    Raises:
        UserError: If a class has too few different texts.
    """
    return train_classifier(positives, negatives, folder, settings, "quality")


def train_classifier(
    positives: Iterable[str],
    negatives: Iterable[str],
    folder: str | Path,
    settings: ClassifierTraining | None = None,
    kind: str = "quality",
) -> TextClassifier:
    """
    Trains a classifier of any two kinds of text.

    Args:
        positives (`Iterable[str]`): Texts that should score high.
        negatives (`Iterable[str]`): Texts that should score low.
        folder (`str` or `Path`): Where it is stored.
        settings (`ClassifierTraining`, *optional*): How.
        kind (`str`, *optional*, defaults to `"quality"`): What it says about a text, e.g. `"toxicity"`.

    Returns:
        `TextClassifier`: the classifier. Its card has `kind`, `backend`, `settings`, `counts`, `metrics` (`auc`,
        `brier`, `calibration_error`, `length_correlation_before` and `_after`), `calibration`, `length`, `quantiles`
        (of scores of held-out negatives) and `training_data` (digits of the texts).

    Raises:
        UserError: If a class has too few different texts.
    """
    settings = settings or ClassifierTraining()
    backend = _backend(settings.backend)
    good, bad = _different(positives), _different(negatives)
    good -= bad  # a text that is both says nothing
    for name, texts in (("positives", good), ("negatives", bad)):
        if len(texts) < MIN_TEXTS:
            raise UserError(f"{name}: {len(texts)} different texts; at least {MIN_TEXTS} are needed to train on.")
    split = {label: _split(texts, settings) for label, texts in ((1, good), (0, bad))}
    texts = [*split[1][0], *split[0][0]]
    labels = np.array([1] * len(split[1][0]) + [0] * len(split[0][0]))
    if settings.length_debias:
        texts = _cut_alike(texts, labels, settings)
    lines = [prepare(text, settings.max_chars) for text in texts]
    fit = _fit_fasttext if backend == "fasttext" else _fit_hashing
    logits, stored, extra = fit(lines, labels, settings)

    held = [*split[1][1], *split[0][1]]
    truth = np.array([1] * len(split[1][1]) + [0] * len(split[0][1]))
    raw = np.clip(logits([prepare(text, settings.max_chars) for text in held]), -30, 30)
    lengths = log_lengths(held, settings.max_chars)
    fitted = np.zeros(len(held), bool)
    for label in (0, 1):  # every second text of each class fits, the others measure
        fitted[np.flatnonzero(truth == label)[::2]] = True
    slope = _slope_within(raw[fitted], lengths[fitted], truth[fitted]) if settings.length_debias else 0.0
    mean = float(lengths[fitted].mean())
    corrected = debias(raw, lengths, slope, mean)
    scale, shift = platt(corrected[fitted], truth[fitted])
    scores = sigmoid(scale * corrected + shift)
    test = ~fitted
    card: dict[str, Any] = {
        "kind": kind,
        "backend": backend,
        "settings": asdict(settings),
        "counts": {
            "train_positives": len(split[1][0]),
            "train_negatives": len(split[0][0]),
            "held_out_positives": len(split[1][1]),
            "held_out_negatives": len(split[0][1]),
        },
        "training_data": fingerprint([sorted(good), sorted(bad)]),
        "calibration": {"scale": scale, "shift": shift},
        "length": {"slope": slope, "mean": mean},
        "metrics": {
            "auc": auc(scores[test], truth[test]),
            "brier": float(np.mean((scores[test] - truth[test]) ** 2)),
            "calibration_error": calibration_error(scores[test], truth[test]),
            "length_correlation_before": _correlation_within(raw[test], lengths[test], truth[test]),
            "length_correlation_after": _correlation_within(corrected[test], lengths[test], truth[test]),
        },
        "quantiles": np.quantile(scores[truth == 0], np.linspace(0, 1, NUM_QUANTILES)).tolist(),
        "self_test": self_test(),
        **extra,
    }
    save_classifier(folder, card, **stored)
    logger.info("%s classifier (%s): held-out AUC %.3f", kind, backend, card["metrics"]["auc"])
    return load_classifier(folder)


def auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """
    Area under the ROC curve: how often a positive scores above a negative, ties counting half.

    Args:
        scores (`np.ndarray`): Scores.
        labels (`np.ndarray`): 1 or 0.

    Returns:
        `float`: in [0, 1].
    """
    _, inverse, counts = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]
    positives = int(labels.sum())
    pairs = positives * (len(labels) - positives)
    return float((ranks[labels == 1].sum() - positives * (positives + 1) / 2) / pairs)


def calibration_error(scores: np.ndarray, labels: np.ndarray, bins: int = 10) -> float:
    """
    Expected calibration error: the mean distance between what scores promise and how often it is so, over bins of
    equal width.

    Args:
        scores (`np.ndarray`): Probabilities.
        labels (`np.ndarray`): 1 or 0.
        bins (`int`, *optional*, defaults to 10): Bins.

    Returns:
        `float`: in [0, 1].
    """
    places = np.minimum((scores * bins).astype(int), bins - 1)
    error = 0.0
    for place in np.unique(places):
        inside = places == place
        error += inside.mean() * abs(scores[inside].mean() - labels[inside].mean())
    return float(error)


def platt(logits: np.ndarray, labels: np.ndarray, steps: int = 50) -> tuple[float, float]:
    """
    Platt's calibration: `sigmoid(scale * logit + shift)`, both classes weighing the same, by Newton's method on
    smoothed targets.

    Args:
        logits (`np.ndarray`): Log odds.
        labels (`np.ndarray`): 1 or 0.
        steps (`int`, *optional*, defaults to 50): Most steps.

    Returns:
        `tuple[float, float]`: scale (positive) and shift.
    """
    positives = int(labels.sum())
    negatives = len(labels) - positives
    targets = np.where(labels == 1, (positives + 1) / (positives + 2), 1 / (negatives + 2))
    weights = np.where(labels == 1, 0.5 / positives, 0.5 / negatives)
    design = np.stack([logits, np.ones_like(logits)], 1)
    solution = np.zeros(2)
    for _ in range(steps):
        guess = sigmoid(design @ solution)
        gradient = design.T @ (weights * (guess - targets)) + 1e-6 * solution
        curvature = (design * (weights * guess * (1 - guess))[:, None]).T @ design + 1e-6 * np.eye(2)
        step = np.linalg.solve(curvature, gradient)
        solution -= step * min(1.0, 5.0 / (np.abs(step).max() + 1e-12))
        if np.abs(step).max() < 1e-8:
            break
    # A slope below zero would turn the order around: then the model knows nothing, and no calibration helps.
    return max(float(solution[0]), 1e-3), float(solution[1])


def _backend(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    found = "fasttext" if is_available("fasttext") else "hashing"
    logger.info("classifier backend: %s%s", found, "" if found == "fasttext" else " (fastText is not installed)")
    return found


def _different(texts: Iterable[str]) -> set[str]:
    return {text for text in texts if text.strip()}


def _split(texts: set[str], settings: ClassifierTraining) -> tuple[list[str], list[str]]:
    """Training and held-out texts, in an order that depends on the texts alone."""
    ordered = sorted(texts, key=lambda text: (fingerprint([settings.seed, text]), text))
    held = max(int(len(ordered) * settings.held_out), 4)
    return ordered[held:], ordered[:held]


def _cut_alike(texts: list[str], labels: np.ndarray, settings: ClassifierTraining) -> list[str]:
    """Cuts the class with the longer texts so that quantile for quantile both have the shorter one's lengths."""
    lengths = np.array([min(len(text), settings.max_chars) for text in texts])
    cut = list(texts)
    grid = np.linspace(0, 1, 201)
    shorter = np.minimum(*(np.quantile(lengths[labels == label], grid) for label in (0, 1)))
    for label in (0, 1):
        places = np.flatnonzero(labels == label)
        ranks = np.argsort(np.argsort(lengths[places], kind="stable"), kind="stable") / max(len(places) - 1, 1)
        for place, limit in zip(places, np.interp(ranks, grid, shorter), strict=True):
            cut[place] = texts[place][: max(int(limit), 50)]
    return cut


def _slope_within(values: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> float:
    """
    Slope on length: the smaller of the two classes' own slopes, zero where they disagree.

    A slope over both classes would take off what the classes really differ in; one class's slope alone would be
    carried to lengths that it has never seen.
    """
    slopes = []
    for label in (0, 1):
        x = lengths[labels == label] - lengths[labels == label].mean()
        spread = float(x @ x)
        slopes.append(float(x @ values[labels == label]) / spread if spread > 1e-9 else 0.0)
    return min(slopes, key=abs) if slopes[0] * slopes[1] > 0 else 0.0


def _correlation_within(values: np.ndarray, lengths: np.ndarray, labels: np.ndarray) -> float:
    x, y = _within(lengths, labels), _within(values, labels)
    spread = float(np.sqrt((x @ x) * (y @ y)))
    return float(x @ y) / spread if spread > 1e-9 else 0.0


def _within(values: np.ndarray, labels: np.ndarray) -> np.ndarray:
    centred = values.astype(float)
    for label in (0, 1):
        centred[labels == label] -= centred[labels == label].mean()
    return centred


def _fit_hashing(
    lines: list[str], labels: np.ndarray, settings: ClassifierTraining
) -> tuple[Callable[[Sequence[str]], np.ndarray], dict[str, Any], dict[str, Any]]:
    linear = require("sklearn.linear_model", "quality", "training classifiers")
    sparse = require("scipy.sparse", "corpus", "training classifiers")
    columns, values, bounds = hashed_features(lines, settings.num_features)
    matrix = sparse.csr_matrix((values, columns, bounds), shape=(len(lines), settings.num_features))
    model = linear.LogisticRegression(C=settings.regularization, class_weight="balanced", max_iter=300)
    model.fit(matrix, labels)
    weights, intercept = model.coef_[0].astype(np.float32), float(model.intercept_[0])
    return hashing_logits(weights, intercept), {"coefficients": weights}, {"intercept": intercept}


def _fit_fasttext(
    lines: list[str], labels: np.ndarray, settings: ClassifierTraining
) -> tuple[Callable[[Sequence[str]], np.ndarray], dict[str, Any], dict[str, Any]]:
    fasttext = require("fasttext", "quality", "fastText classifiers")
    # The smaller class is repeated, for fastText knows no weights of classes.
    order = np.random.default_rng(settings.seed)
    places = [np.flatnonzero(labels == label) for label in (0, 1)]
    most = max(map(len, places))
    drawn = order.permutation(np.concatenate([np.resize(place, most) for place in places]))
    with tempfile.TemporaryDirectory(prefix="hf_pretrain_fasttext_") as scratch:
        file = Path(scratch) / "train.txt"
        with open(file, "w", encoding="utf-8") as stream:
            stream.writelines(f"__label__{labels[place]} {lines[place]}\n" for place in drawn)
        try:
            model = fasttext.train_supervised(
                str(file),
                lr=0.1,
                dim=64,
                epoch=settings.epochs,
                wordNgrams=2,
                minCount=2,
                bucket=settings.num_features,
                thread=1,  # several threads write the same weights, and no two runs agree
                seed=settings.seed,
                verbose=0,
            )
        except RuntimeError as error:
            raise UserError(
                f"training.backend = 'fasttext': fastText failed ({error}); builds before 0.11 read memory they never "
                "wrote: `pip install fasttext-community`, or use backend 'hashing'."
            ) from error
    return fasttext_logits(model), {"fasttext_model": model}, {}

"""Text classifiers: what they learn, what is known about them, how they are stored, and the rules that use them."""

import json
import random

import numpy as np
import pytest
from datatrove.data import Document
from safetensors.numpy import load_file, save_file

from hf_pretrain.corpus.filters.classifier import (
    classifier_hash,
    hashed_features,
    hashing_logits,
    load_classifier,
    prepare,
)
from hf_pretrain.corpus.filters.classifier_filter import ClassifierFilter, pareto_keep_probability, uniform_of
from hf_pretrain.corpus.filters.classifier_training import (
    ClassifierTraining,
    auc,
    calibration_error,
    platt,
    train_classifier,
    train_quality_classifier,
)
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.optional import is_available


GOOD = "history river mountain language century empire treaty science theory species climate poem".split()
BAD = "click buy cheap offer subscribe discount cart login cookie sale winner casino".split()
SHARED = "the of and in a is was for with on by at from this that page word day year people".split()
BACKENDS = ["hashing", *(["fasttext"] if is_available("fasttext") else [])]

pytest.importorskip("sklearn")


def make_texts(own: list[str], number: int, seed: int, words: tuple[int, int] = (40, 80)) -> list[str]:
    chooser = random.Random(seed)
    return [" ".join(chooser.choices(own + SHARED * 2, k=chooser.randint(*words))) for _ in range(number)]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("classifiers")
    found = {}
    for backend in BACKENDS:
        settings = ClassifierTraining(backend=backend, num_features=1 << 14, epochs=20)
        train_quality_classifier(make_texts(GOOD, 120, 0), make_texts(BAD, 120, 1), root / backend, settings)
        found[backend] = root / backend
    return found


@pytest.mark.parametrize("backend", BACKENDS)
def test_unseen_texts_are_told_apart_and_scores_are_probabilities(folders, backend):
    model = load_classifier(folders[backend])
    scores = model.score([*make_texts(GOOD, 50, 2), *make_texts(BAD, 50, 3)])
    assert auc(scores, np.repeat([1, 0], 50)) > 0.99
    assert scores.min() >= 0 and scores.max() <= 1
    metrics = model.card["metrics"]
    assert metrics["auc"] > 0.99 and metrics["brier"] < 0.1 and metrics["calibration_error"] < 0.2
    assert model.card["backend"] == backend
    assert "| auc |" in (folders[backend] / "README.md").read_text()


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_texts_give_the_same_classifier_in_any_order(folders, backend, tmp_path):
    settings = ClassifierTraining(backend=backend, num_features=1 << 14, epochs=20)
    good, bad = make_texts(GOOD, 120, 0), make_texts(BAD, 120, 1)
    again = train_quality_classifier(good[::-1] + good[:5], bad[::-1], tmp_path / "again", settings)
    assert again.content_hash == classifier_hash(folders[backend])


def test_retraining_to_the_same_folder_is_seen(folders, tmp_path):
    folder = tmp_path / "model"
    settings = ClassifierTraining(backend="hashing", num_features=1 << 12)
    first = train_quality_classifier(make_texts(GOOD, 40, 4), make_texts(BAD, 40, 5), folder, settings)
    text = [" ".join(GOOD)]
    before = first.score(text)[0]
    second = train_quality_classifier(make_texts(BAD, 40, 4), make_texts(GOOD, 40, 5), folder, settings)
    assert load_classifier(folder).score(text)[0] == second.score(text)[0] < 0.5 < before
    assert classifier_hash(folder) == second.content_hash != first.content_hash


def test_a_changed_file_or_card_is_an_error(folders, tmp_path):
    import shutil

    folder = tmp_path / "copy"
    shutil.copytree(folders["hashing"], folder)
    weights = load_file(folder / "model.safetensors")["coefficients"]
    save_file({"coefficients": weights * 2}, folder / "model.safetensors")
    with pytest.raises(UserError, match="not the one its card describes"):
        load_classifier(folder)
    card = json.loads((folder / "card.json").read_text())
    card["calibration"]["scale"] = 99
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(UserError, match="changed after training"):
        load_classifier(folder)
    with pytest.raises(UserError, match="train one first"):
        load_classifier(tmp_path / "none")
    (folder / "card.json").write_text("[]")
    with pytest.raises(UserError, match="schema"):
        load_classifier(folder)


def test_length_alone_does_not_make_quality(tmp_path):
    # In training the good texts are the long ones; afterwards it is the other way round.
    good, bad = GOOD[:2] + SHARED * 4, BAD[:2] + SHARED * 4
    fresh = [*make_texts(good, 100, 8, (20, 60)), *make_texts(bad, 100, 9, (150, 300))]
    scores = {}
    for debias in (False, True):
        settings = ClassifierTraining(backend="hashing", num_features=1 << 12, length_debias=debias)
        longer, shorter = make_texts(good, 200, 6, (150, 300)), make_texts(bad, 200, 7, (20, 60))
        model = train_classifier(longer, shorter, tmp_path / str(debias), settings)
        scores[debias] = auc(model.score(fresh), np.repeat([1, 0], 100))
    assert scores[False] < 0.2
    assert scores[True] > 0.8


def test_threshold_keeps_the_share_of_negatives(folders):
    model = load_classifier(folders["hashing"])
    quantiles = np.array(model.card["quantiles"])
    assert model.threshold(1.0) == quantiles[0]
    assert model.threshold(0.25) == pytest.approx(quantiles[750])
    assert list(model.percentile(np.array([-1.0, 2.0]))) == [0.0, 1.0]
    with pytest.raises(UserError, match="keep_fraction = 0"):
        model.threshold(0)


def test_metrics_are_what_they_say():
    assert auc(np.array([0.1, 0.4, 0.35, 0.8]), np.array([0, 0, 1, 1])) == 0.75
    assert auc(np.array([0.5, 0.5]), np.array([0, 1])) == 0.5
    assert calibration_error(np.array([0.95, 0.95, 0.05, 0.05]), np.array([1, 1, 0, 0])) == pytest.approx(0.05)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=4000)
    labels = (rng.random(4000) < 1 / (1 + np.exp(-(2 * logits + 0)))).astype(int)
    scale, shift = platt(logits, labels)
    assert scale == pytest.approx(2, abs=0.2) and shift == pytest.approx(0, abs=0.15)


def test_hashed_rows_have_length_one_and_empty_texts_have_none():
    columns, values, bounds = hashed_features(["a cat sat on a mat", "", "x"], 64)
    assert bounds.tolist()[1] == bounds.tolist()[2] < bounds.tolist()[3]
    assert float((values[: bounds[1]] ** 2).sum()) == pytest.approx(1)
    assert hashing_logits(np.ones(64), 0.5)([""]).tolist() == [0.5]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("text", ["", "\ud800 lone", "\u202ertl \u05d0", "x" * 100_000, "__label__1 __label__0\n\n"])
def test_odd_texts_get_a_score(folders, backend, text):
    (score,) = load_classifier(folders[backend]).score([text])
    assert 0 <= score <= 1
    assert "\n" not in prepare(text, 1000) and "__label__" not in prepare(text, 1000)


# The numbers of GPT-3's rule for alpha 9, and of the Pile for 3.
@pytest.mark.parametrize(
    ("alpha", "score", "share"),
    [(9, 0, 0.001953), (9, 0.1, 0.003099), (9, 0.5, 0.026012), (9, 0.8, 0.193807), (9, 0.9, 0.424098), (9, 1, 1)]
    + [(3, 0, 0.125), (3, 0.5, 0.296296), (3, 0.9, 0.751315)],
)
def test_pareto_rule(alpha, score, share):
    assert pareto_keep_probability(score, alpha) == pytest.approx(share, abs=1e-6)
    kept = np.mean([uniform_of(f"doc{number}") < pareto_keep_probability(score, alpha) for number in range(4000)])
    assert kept == pytest.approx(share, abs=0.025)
    lomax = np.random.default_rng(0).pareto(alpha, 20000) > 1 - score
    assert lomax.mean() == pytest.approx(share, abs=0.015)


def run(folders, **settings):
    texts = [*make_texts(GOOD, 20, 10), *make_texts(BAD, 20, 11)]
    documents = [Document(text, str(number), metadata={"domain": "web"}) for number, text in enumerate(texts)]
    step = ClassifierFilter(list(folders.values())[: settings.pop("number", 1)], **settings)
    return step, list(step(iter(documents)))


def test_rules_keep_the_good_and_leave_reasons(folders):
    step, kept = run(folders, rule="threshold", keep_fraction=0.05)
    assert {int(doc.id) for doc in kept} >= set(range(20)) and len(kept) < 26
    assert step.stats["dropped_quality_threshold"].total == 40 - len(kept)
    assert kept[0].metadata["quality_bucket"] == 19 and kept[0].metadata["quality_score"] > 0.5
    step, kept = run(folders, rule="bucket", min_bucket=18)
    assert {int(doc.id) for doc in kept} >= set(range(20)) and len(kept) < 30
    step, kept = run(folders)
    assert len(kept) == 40
    assert len({doc.metadata["quality_bucket"] for doc in kept[20:]}) > 5
    step, kept = run(folders, rule="threshold", keep="low", keep_fraction=0.9, name="toxicity")
    assert len(kept) < 22 and all(int(doc.id) >= 20 for doc in kept)
    assert step.stats["dropped_toxicity_threshold"].total > 17
    step, kept = run(folders, rule="threshold", domains=["books"])
    assert len(kept) == 40


def test_pareto_does_not_depend_on_order_or_batches(folders):
    _, kept = run(folders, rule="pareto", alpha=3)
    _, again = run(folders, rule="pareto", alpha=3, batch_size=7)
    assert [doc.id for doc in kept] == [doc.id for doc in again]
    _, other = run(folders, rule="pareto", alpha=3, seed=1)
    assert [doc.id for doc in kept] != [doc.id for doc in other]


@pytest.mark.skipif(len(BACKENDS) < 2, reason="fastText is not installed")
def test_an_ensemble_takes_the_highest_rank(folders):
    _, kept = run(folders, number=2)
    singles = [run({name: folder})[1] for name, folder in folders.items()]
    for doc, first, second in zip(kept, *singles, strict=True):
        assert doc.metadata["quality_rank"] == max(first.metadata["quality_rank"], second.metadata["quality_rank"])
        assert len(doc.metadata["quality_scores"]) == 2
    _, some = run(folders, number=2, rule="threshold", keep_fraction=0.1)
    assert {int(doc.id) for doc in some} >= set(range(20)) and len(some) < 30


def test_a_block_travels_to_a_worker(folders):
    import pickle

    for folder in folders.values():
        step = ClassifierFilter([folder])
        copy = pickle.loads(pickle.dumps(step))
        document = Document(" ".join(GOOD), "id")
        assert copy.filter(document) is True and document.metadata["quality_score"] > 0.5


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "best"}, "quality.rule"),
        ({"keep_fraction": 0}, "quality.keep_fraction"),
        ({"min_bucket": 20}, "quality.min_bucket"),
        ({"keep": "all"}, "quality.keep"),
    ],
)
def test_wrong_settings(folders, changes, message):
    with pytest.raises(UserError, match=message):
        ClassifierFilter([folders["hashing"]], **changes)
    with pytest.raises(UserError, match="training.backend"):
        ClassifierTraining(backend="svm")
    with pytest.raises(UserError, match="at least 20"):
        train_classifier(["a"] * 50, make_texts(BAD, 40, 0), "nowhere")

"""The filters on real data with known answers: languages, mail with labels, technical pages, plain prose.

Needs a corpus folder with `pretrain/*.jsonl.gz` (rows `{"id", "text", "metadata"}`): `multilingual` with declared
languages of which a third is wrong, `noisy` with mail labelled spam and ham in two collections, `techdocs`, `books`,
`encyclopedic`. Prints Markdown; no text of any document is printed.

    OMP_NUM_THREADS=1 python tests/benchmarks/corpus_filters_reality.py --corpus FOLDER [--quick]
"""

import argparse
import gzip
import json
import os
import random
import tempfile
import time
from collections import Counter
from pathlib import Path


os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
from datatrove.data import Document  # noqa: E402

from hf_pretrain.corpus.config_ingest import LanguageConfig  # noqa: E402
from hf_pretrain.corpus.filters.classifier_training import (  # noqa: E402
    ClassifierTraining,
    auc,
    calibration_error,
    train_classifier,
    train_quality_classifier,
)
from hf_pretrain.corpus.filters.ngrams import hash_pieces, joined_grams  # noqa: E402
from hf_pretrain.corpus.filters.pii import PIIFormatter  # noqa: E402
from hf_pretrain.corpus.filters.toxicity import ToxicityFilter  # noqa: E402
from hf_pretrain.corpus.ingest.language import LanguageStep  # noqa: E402
from hf_pretrain.utils.optional import is_available  # noqa: E402


def rows_of(folder: Path, part: str) -> list[dict]:
    """All rows of one part, in the order of their ids."""
    with gzip.open(folder / "pretrain" / f"{part}.jsonl.gz", "rt", encoding="utf-8") as stream:
        return sorted((json.loads(line) for line in stream), key=lambda row: row["id"])


def sample(rows: list[dict], number: int, seed: int = 3) -> list[dict]:
    """Some rows, always the same."""
    return random.Random(seed).sample(rows, min(number, len(rows)))


def languages(folder: Path, quick: bool) -> None:
    """How many manual pages that say to be in another language are English."""
    rows = [row for row in rows_of(folder, "multilingual") if row["id"].startswith("gnome/")]
    rows = sample(rows, 1000) if quick else rows
    step = LanguageStep(LanguageConfig())
    documents = [Document(row["text"], row["id"], metadata={"language": row["metadata"]["lang"]}) for row in rows]
    begin = time.process_time()
    found = Counter()
    for document in step(iter(documents)):
        metadata = document.metadata
        english = metadata["language"] == "en"
        found["English" if english else "another" if "language_declared" in metadata else "as declared"] += 1
    seconds = time.process_time() - begin
    print("\n## Languages of manual pages that are declared not to be English\n")
    print("| detected | pages | share |\n|---|---:|---:|")
    for name, count in found.most_common():
        print(f"| {name} | {count:,} | {count / len(rows):.1%} |")
    print(f"\n{len(rows):,} pages, {len(rows) / seconds:,.0f} a second.")


def unseen(texts: list[str], known: list[str]) -> list[str]:
    """Texts less than a tenth of whose 8-grams of words occur in others."""
    seen: set[int] = set()
    for text in known:
        hashes, powers, _ = hash_pieces(text.split())
        for _, grams in joined_grams(hashes, powers, [8]):
            seen.update(grams.tolist())
    kept = []
    for text in texts:
        hashes, powers, _ = hash_pieces(text.split())
        grams = [gram for _, found in joined_grams(hashes, powers, [8]) for gram in found.tolist()]
        if grams and sum(gram in seen for gram in grams) < 0.1 * len(grams):
            kept.append(text)
    return kept


def classifiers(folder: Path, quick: bool) -> None:
    """Trained on the first collections of mail, measured on the second, near copies left out; and on references."""
    mail = [row for row in rows_of(folder, "noisy") if row["id"].startswith("mail/")]
    parts = {}
    for label in ("ham", "spam"):
        old = [row["text"] for row in mail if row["metadata"]["label"] == label and "-1/" in row["id"]]
        new = [row["text"] for row in mail if row["metadata"]["label"] == label and "-2/" in row["id"]]
        parts[label] = (old, new)
    known = parts["ham"][0] + parts["spam"][0]
    fresh = {label: unseen(new, known) for label, (_, new) in parts.items()}
    reference = [row["text"] for row in sample(rows_of(folder, "encyclopedic"), 2000)]
    pages = [row["text"] for row in sample(rows_of(folder, "web"), 2000)]
    print("\n## Classifiers on texts they never saw\n")
    print("| task | backend | trained on | measured on | AUC | calibration error | docs/s |")
    print("|---|---|---:|---:|---:|---:|---:|")
    backends = ["hashing", *(["fasttext"] if is_available("fasttext") else [])]
    with tempfile.TemporaryDirectory() as scratch:
        for backend in backends:
            settings = ClassifierTraining(backend=backend, epochs=5 if quick else 25)
            model = train_classifier(parts["ham"][0], parts["spam"][0], f"{scratch}/mail", settings, "ham")
            texts = fresh["ham"] + fresh["spam"]
            truth = np.repeat([1, 0], [len(fresh["ham"]), len(fresh["spam"])])
            report("ham, second collection", model, texts, truth)
        for backend in backends:
            settings = ClassifierTraining(backend=backend, epochs=5)
            half = len(reference) // 2, len(pages) // 2
            model = train_quality_classifier(reference[: half[0]], pages[: half[1]], f"{scratch}/wiki", settings)
            texts = reference[half[0] :] + pages[half[1] :]
            truth = np.repeat([1, 0], [len(reference) - half[0], len(pages) - half[1]])
            report("encyclopedia against web", model, texts, truth)


def report(task: str, model, texts: list[str], truth: np.ndarray) -> None:
    """One line of the table."""
    begin = time.process_time()
    scores = model.score(texts)
    speed = len(texts) / (time.process_time() - begin)
    counts = model.card["counts"]
    trained = counts["train_positives"] + counts["train_negatives"]
    error = calibration_error(scores, truth)
    sizes, quality = f"{trained:,} | {len(texts):,}", f"{auc(scores, truth):.4f} | {error:.3f}"
    print(f"| {task} | {model.backend} | {sizes} | {quality} | {speed:,.0f} |")


def personal_data(folder: Path, quick: bool) -> None:
    """What is found in technical pages, where there is little, and in mail, where there is much."""
    step = PIIFormatter()
    print("\n## Personal data found\n")
    print("| texts | documents | characters | found, by type | docs/s |")
    print("|---|---:|---:|---|---:|")
    technical = [row for part in ("techdocs", "web") for row in rows_of(folder, part)]
    mail = [row for row in rows_of(folder, "noisy") if row["id"].startswith("mail/")]
    for name, rows in (("technical pages", sample(technical, 1000)), ("mail", sample(mail, 1000))):
        rows = rows[:100] if quick else rows
        found = Counter()
        begin = time.process_time()
        for row in rows:
            found.update(step.mask(row["text"])[1])
        seconds = time.process_time() - begin
        listed = ", ".join(f"{kind} {count}" for kind, count in sorted(found.items()))
        size = sum(len(row["text"]) for row in rows)
        print(f"| {name} | {len(rows):,} | {size:,} | {listed} | {len(rows) / seconds:,.0f} |")


def toxicity(folder: Path, quick: bool) -> None:
    """How much plain text the lexicon marks, and how much more a rule of presence would."""
    step = ToxicityFilter("tag")
    print("\n## Toxicity lexicon on plain text\n")
    print("| texts | documents | with a listed word | marked (density) | share marked | docs/s |")
    print("|---|---:|---:|---:|---:|---:|")
    for part in ("encyclopedic", "books", "techdocs", "howto", "web", "noisy", "multilingual"):
        rows = sample(rows_of(folder, part), 200 if quick else 2000)
        hit = marked = 0
        begin = time.process_time()
        for row in rows:
            document = Document(row["text"], row["id"], metadata={"language": row["metadata"].get("lang")})
            step.filter(document)
            hit += "toxicity_hits" in document.metadata
            marked += "toxic" in document.metadata
        speed = len(rows) / (time.process_time() - begin)
        print(f"| {part} | {len(rows):,} | {hit:,} | {marked:,} | {marked / len(rows):.2%} | {speed:,.0f} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--corpus", type=Path, required=True, help="folder with pretrain/*.jsonl.gz")
    parser.add_argument("--quick", action="store_true", help="fewer documents")
    options = parser.parse_args()
    for part in (languages, classifiers, personal_data, toxicity):
        part(options.corpus, options.quick)


if __name__ == "__main__":
    main()

"""The filter rules against datatrove's own blocks: the same documents, the same words, one thread, one run.

Texts: docstrings and reference topics of the standard library and of what is installed, or a corpus folder's
`pretrain/*.jsonl.gz`. Each pair takes turns over the documents several times and the best turn of each counts; that
decisions and reasons are equal is asserted, for ratios between filters that decide differently would say nothing. With
spaCy installed a second table has datatrove's blocks as they come, on spaCy's words.

    OMP_NUM_THREADS=1 python tests/benchmarks/corpus_filters.py [--quick] [--corpus FOLDER]
"""

import argparse
import gzip
import importlib.util
import inspect
import itertools
import json
import os
import pkgutil
import pydoc_data.topics
import sys
import time
from pathlib import Path


os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from datatrove.data import Document  # noqa: E402
from datatrove.pipeline.filters.c4_filters import C4QualityFilter  # noqa: E402
from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter  # noqa: E402
from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter  # noqa: E402
from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter  # noqa: E402

from hf_pretrain.corpus.filters.gopher_quality import QualityFilter  # noqa: E402
from hf_pretrain.corpus.filters.repetition import RepetitionFilter  # noqa: E402
from hf_pretrain.corpus.filters.web_rules import C4Filter, FineWebFilter  # noqa: E402
from hf_pretrain.corpus.filters.words import FastWordTokenizer  # noqa: E402


def own_texts() -> list[str]:
    """Prose and code of the standard library."""
    texts = list(pydoc_data.topics.topics.values())
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in ("antigravity", "this", "typing", "idlelib", "turtledemo"):
            continue
        try:
            module = pkgutil.resolve_name(name)
        except (ImportError, AttributeError):
            continue
        texts.append(inspect.getdoc(module) or "")
        for item in vars(module).values():
            if inspect.isclass(item) and item.__module__ == name:
                members = [getattr(item, member, None) for member in vars(item)]
                texts.append("\n\n".join(filter(None, map(inspect.getdoc, [item, *filter(callable, members)]))))
    return [text for text in dict.fromkeys(texts) if len(text) > 200]


def corpus_texts(folder: Path, number: int) -> list[str]:
    """The first documents of every part of a corpus folder, in turn."""
    files = sorted((folder / "pretrain").glob("*.jsonl.gz"))
    texts = []
    for file in files:
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            rows = itertools.islice(stream, number // len(files))
            texts += [json.loads(line)["text"] for line in rows]
    return [text for text in texts if text.strip()]


def run(steps, texts: list[str]) -> tuple[float, list]:
    """Seconds for all texts through some filters, a text dropped by one not being shown to the next, and verdicts."""
    documents = [Document(text, str(number)) for number, text in enumerate(texts)]
    verdicts = []
    begin = time.process_time()
    for document in documents:
        for step in steps:
            verdict = step.filter(document)
            if verdict is not True:
                break
        verdicts.append(verdict)
    return time.process_time() - begin, verdicts


def compare(stock, ours, texts: list[str], rounds: int, equal: bool = True) -> tuple[float, float, int]:
    """Best seconds of each, and the number of equal verdicts."""
    best = [float("inf"), float("inf")]
    for _ in range(rounds):
        results = [run(steps, texts) for steps in (stock, ours)]
        best = [min(old, seconds) for old, (seconds, _) in zip(best, results, strict=True)]
    same = sum(a == b for a, b in zip(results[0][1], results[1][1], strict=True))
    if equal and same != len(texts):
        raise AssertionError(f"{len(texts) - same} of {len(texts)} verdicts differ")
    return best[0], best[1], same


def stock_steps(language) -> dict[str, list]:
    """datatrove's blocks."""
    same = {"language": language}
    quality, repetition = GopherQualityFilter(**same), GopherRepetitionFilter(**same)
    return {
        "Gopher quality": [quality],
        "Gopher repetition": [repetition],
        "Gopher repetition + quality": [repetition, quality],
        "C4 (all rules)": [C4QualityFilter(**same)],
        "C4 (as in FineWeb)": [C4QualityFilter(filter_no_terminal_punct=False, **same)],
        "FineWeb": [FineWebQualityFilter(**same)],
    }


def own_steps(language) -> dict[str, list]:
    """Ours, with the settings of datatrove's."""
    same = {"language": language}
    quality = QualityFilter(casefold_stop_words=False, **same)
    repetition = RepetitionFilter(top_ngram_min_count=1, **same)
    return {
        "Gopher quality": [quality],
        "Gopher repetition": [repetition],
        "Gopher repetition + quality": [repetition, quality],
        "C4 (all rules)": [C4Filter(**same)],
        "C4 (as in FineWeb)": [C4Filter(filter_no_terminal_punct=False, **same)],
        "FineWeb": [FineWebFilter(**same)],
    }


def table(stock: dict, ours: dict, texts: list[str], rounds: int, equal: bool) -> None:
    """Prints one Markdown table."""
    print("| rules | datatrove docs/s | ours docs/s | ratio | equal decisions and reasons |")
    print("|---|---:|---:|---:|---:|")
    for name in stock:
        theirs, mine, same = compare(stock[name], ours[name], texts, rounds, equal)
        speeds = f"{len(texts) / theirs:,.0f} | {len(texts) / mine:,.0f} | {theirs / mine:.1f}"
        print(f"| {name} | {speeds} | {same / len(texts):.1%} |")


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few documents, one round")
    parser.add_argument("--corpus", type=Path, help="folder with pretrain/*.jsonl.gz instead of the standard library")
    options = parser.parse_args()
    texts = corpus_texts(options.corpus, 3000) if options.corpus else own_texts()
    if options.quick:
        texts = texts[::10]
    characters = sum(map(len, texts))
    print(f"{len(texts):,} documents, {characters / len(texts):,.0f} characters on average; words: regex\n")
    # Both sides get the tokenizer that remembers its last text, so neither splits a text twice.
    table(
        stock_steps(FastWordTokenizer()),
        own_steps(FastWordTokenizer()),
        texts,
        1 if options.quick else 3,
        True,
    )
    if importlib.util.find_spec("spacy") is not None:
        few = texts[:: max(len(texts) // 300, 1)]
        print(f"\n{len(few)} documents, datatrove on spaCy's words:\n")
        table(stock_steps("en"), own_steps(FastWordTokenizer()), few, 1, False)


if __name__ == "__main__":
    main()

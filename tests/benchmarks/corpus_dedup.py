"""Deduplication against datatrove's own blocks and other libraries: speed, memory, quality. One Markdown report.

Same documents, same words (datatrove gets a compiled-pattern tokenizer instead of spaCy), one thread, one run. Real
text is the standard library's documentation and source, or a corpus folder's `pretrain/*.jsonl.gz`, with which the
known duplicates and the growth of memory are measured too. datasketch and rensa are rows where they are installed.

    OMP_NUM_THREADS=1 python tests/benchmarks/corpus_dedup.py [--quick] [--corpus FOLDER]
"""

import argparse
import contextlib
import csv
import gzip
import importlib.util
import inspect
import io
import json
import os
import pkgutil
import pydoc_data.topics
import random
import resource
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path


os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np  # noqa: E402
import xxhash  # noqa: E402
from datatrove.data import Document  # noqa: E402
from datatrove.pipeline.dedup.minhash import (  # noqa: E402
    MinhashConfig as StockConfig,
)
from datatrove.pipeline.dedup.minhash import (
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.utils.hashing import HashConfig  # noqa: E402
from datatrove.utils.logging import logger as datatrove_logger  # noqa: E402

from hf_pretrain.corpus.dedup.bloom import BloomFilter, NgramConfig, seen_documents  # noqa: E402
from hf_pretrain.corpus.dedup.exact import find_exact_duplicates  # noqa: E402
from hf_pretrain.corpus.dedup.keep import KeepPolicy  # noqa: E402
from hf_pretrain.corpus.dedup.methods import DedupMethod, Minhash, Simhash  # noqa: E402
from hf_pretrain.corpus.dedup.minhash import MinhashConfig, collision_probability  # noqa: E402
from hf_pretrain.corpus.dedup.pairs import read_pairs  # noqa: E402
from hf_pretrain.corpus.dedup.shingles import jaccard, shingle_arrays, shingle_set  # noqa: E402
from hf_pretrain.corpus.dedup.simhash import SimhashConfig, hamming, simhashes  # noqa: E402
from hf_pretrain.corpus.dedup.stages import (  # noqa: E402
    DedupBuckets,
    DedupClusters,
    DedupFeatures,
    DedupFilter,
    DedupSignatures,
)
from hf_pretrain.corpus.dedup.steps import MemoryDeduplication  # noqa: E402
from hf_pretrain.corpus.filters.words import FastWordTokenizer  # noqa: E402


THRESHOLD = 0.8


def own_texts() -> list[str]:
    """Prose and code of the standard library."""
    texts = list(pydoc_data.topics.topics.values())
    for name in sorted(sys.stdlib_module_names):
        if name.startswith("_") or name in ("antigravity", "this", "idlelib", "turtledemo"):
            continue
        with contextlib.suppress(ImportError, AttributeError, OSError, TypeError):
            module = pkgutil.resolve_name(name)
            source = inspect.getsource(module)
            texts += [source[start : start + 4000] for start in range(0, len(source), 4000)]
    return [text for text in dict.fromkeys(texts) if len(text) > 300]


def corpus_documents(folder: Path) -> Iterator[tuple[str, str]]:
    """Ids and texts of a corpus folder."""
    for file in sorted((folder / "pretrain").glob("*.jsonl.gz")):
        with gzip.open(file, "rt", encoding="utf-8") as stream:
            for line in stream:
                row = json.loads(line)
                yield row["id"], row["text"]


def edited(text: str, rate: float, rng: random.Random) -> str:
    """A copy with some words replaced, dropped or doubled."""
    words = []
    for word in text.split(" "):
        if rng.random() >= rate:
            words.append(word)
        elif rng.random() < 0.5:
            words.append("".join(rng.choices("abcdefghij", k=6)))
        elif rng.random() < 0.5:
            words += [word, word]
    return " ".join(words)


def documents_of(texts: Iterable[str]) -> list[Document]:
    """Fresh documents, for blocks write on them."""
    return [Document(text, f"{index:07d}", metadata={"source": "web"}) for index, text in enumerate(texts)]


def seconds(work: Callable[[], object]) -> float:
    """Processor time of a call."""
    begin = time.process_time()
    work()
    return time.process_time() - begin


class Stock:
    """datatrove's four stages with our words."""

    def __init__(self, folder: Path) -> None:
        self.config = StockConfig(hash_config=HashConfig(precision=64))
        self.folder = folder

    def signatures(self, texts: list[str]) -> None:
        block = MinhashDedupSignature(str(self.folder / "s"), self.config, language=FastWordTokenizer())
        # xxhash 4 takes bytes alone; datatrove 0.10 gives it text.
        block._hash_func = lambda text: xxhash.xxh64_intdigest(text.encode("utf-8", "surrogatepass"))
        block.run(iter(documents_of(texts)))

    def buckets(self) -> None:
        block = MinhashDedupBuckets(str(self.folder / "s"), str(self.folder / "b"), config=self.config)
        for rank in range(self.config.num_buckets):
            block.run(None, rank, self.config.num_buckets)

    def clusters(self) -> None:
        MinhashDedupCluster(
            str(self.folder / "b"), str(self.folder / "c"), config=self.config, save_cluster_id=True
        ).run(None)

    def survivors(self, texts: list[str]) -> set[int]:
        block = MinhashDedupFilter(str(self.folder / "c"))
        return {int(item.id) for item in block.run(iter(documents_of(texts)))}

    def edges(self) -> set[tuple[int, int]]:
        """Pairs proposed by the bucket stage."""
        pairs = set()
        for file in (self.folder / "b").glob("*.dups"):
            data = file.read_bytes()
            for _, first, _, second in struct.iter_unpack("<4I", data):
                pairs.add((min(first, second), max(first, second)))
        return pairs


class Ours:
    """The same stages of this package."""

    def __init__(self, folder: Path, method: DedupMethod) -> None:
        self.folder, self.method, self.policy = folder, method, KeepPolicy()

    def signatures(self, texts: list[str]) -> None:
        DedupSignatures(self.folder, self.method, self.policy).run(iter(documents_of(texts)))

    def buckets(self) -> None:
        DedupBuckets(self.folder, self.method, self.policy).run()

    def features(self, texts: list[str]) -> None:
        DedupFeatures(self.folder, self.method, self.policy).run(iter(documents_of(texts)))

    def clusters(self) -> None:
        DedupClusters(self.folder, self.method, self.policy).run()

    def survivors(self, texts: list[str]) -> set[int]:
        block = DedupFilter(self.folder, self.method, self.policy)
        return {int(item.id) for item in block.run(iter(documents_of(texts)))}


def speed_table(texts: list[str], folder: Path) -> list[str]:
    """Stage by stage against datatrove."""
    rng = random.Random(0)
    both = texts + [edited(text, 0.01, rng) for text in texts]
    stock, ours = Stock(folder / "stock"), Ours(folder / "ours", Minhash(MinhashConfig()))
    ours.method.keys(both[:50])  # tables and caches
    rows = []
    times = [(seconds(lambda: stock.signatures(both)), seconds(lambda: ours.signatures(both)), 8, "signatures")]
    times.append((seconds(stock.buckets), seconds(ours.buckets), 10, "buckets"))
    again = seconds(lambda: ours.features(both))
    times.append((seconds(stock.clusters), seconds(ours.clusters), 10, "clusters (ours verifies)"))
    for theirs, mine, goal, name in times:
        rows.append(
            f"| {name} | {len(both) / theirs:,.0f} | {len(both) / mine:,.0f} | {theirs / mine:.1f} | >= {goal} |"
        )
    rows.append(f"| features of candidates (second pass) | - | {len(both) / again:,.0f} | - | - |")
    head = ["| stage | datatrove, documents/s | ours | ratio | asked |", "|---|---|---|---|---|"]
    return [f"{len(both)} documents, {sum(map(len, both)) / 1e6:.1f} MB, processor time.", "", *head, *rows]


def score(found: set[tuple[int, int]], truth: set[tuple[int, int]]) -> str:
    """Precision, recall, F1."""
    right = len(found & truth)
    precision, recall = right / max(len(found), 1), right / max(len(truth), 1)
    f1 = 2 * precision * recall / max(precision + recall, 1e-9)
    return f"{precision:.3f} | {recall:.3f} | {f1:.3f}"


def quality_table(texts: list[str], folder: Path) -> list[str]:
    """Which edited copies are found, and what else."""
    rng = random.Random(1)
    texts = rng.sample(texts, min(1000, len(texts)))
    count = len(texts)
    both = texts + [edited(text, rng.uniform(0.003, 0.08), rng) for text in texts]
    sets = [shingle_set(text) for text in both]
    truth = {(i, i + count) for i in range(count) if jaccard(sets[i], sets[i + count]) >= THRESHOLD}
    rows = []

    def row(name: str, work: Callable[[], set[tuple[int, int]]]) -> None:
        begin = time.process_time()
        found = work()
        took = time.process_time() - begin
        # A pair of two originals is no edited copy; it counts as wrong unless it really is alike.
        found = {
            pair
            for pair in found
            if pair in truth or pair[1] - pair[0] == count or jaccard(sets[pair[0]], sets[pair[1]]) < THRESHOLD
        }
        rows.append(f"| {name} | {len(both) / took:,.0f} | {score(found, truth)} |")

    def stock() -> set[tuple[int, int]]:
        run = Stock(folder / "quality")
        run.signatures(both)
        run.buckets()
        return run.edges()

    def method(chosen: DedupMethod) -> set[tuple[int, int]]:
        block = MemoryDeduplication(chosen, ["web"], folder / "pairs.parquet")
        list(block.run(iter(documents_of(both))))
        rows = read_pairs(folder / "pairs.parquet")
        return {tuple(sorted((int(item["kept"]), int(item["removed"])))) for item in rows}

    row("datatrove 14 x 8", stock)
    words = FastWordTokenizer()

    def grams(text: str) -> set[str]:
        tokens = [token.lower() for token in words.word_tokenize(text)]
        return {" ".join(tokens[start : start + 5]) for start in range(max(len(tokens) - 4, 1))}

    if importlib.util.find_spec("datasketch"):

        def datasketch() -> set[tuple[int, int]]:
            from datasketch import MinHash, MinHashLSH

            index, found = MinHashLSH(params=(14, 8), num_perm=112), set()
            for number, text in enumerate(both):
                item = MinHash(112)
                item.update_batch([gram.encode() for gram in grams(text)])
                found |= {(other, number) for other in index.query(item)}
                index.insert(number, item)
            return found

        row("datasketch 14 x 8", datasketch)
    if importlib.util.find_spec("rensa"):

        def rensa() -> set[tuple[int, int]]:
            from rensa import RMinHash, RMinHashLSH

            index, found = RMinHashLSH(threshold=THRESHOLD, num_perm=112, num_bands=14), set()
            for number, text in enumerate(both):
                item = RMinHash(112, 42)
                item.update(list(grams(text)))
                found |= {(other, number) for other in index.query(item)}
                index.insert(number, item)
            return found

        row("rensa 14 bands of 112", rensa)
    row("ours 14 x 8, verified", lambda: method(Minhash(MinhashConfig())))
    asked = MinhashConfig(recall=0.999, keep_rate=0.9)
    bands = f"{asked.num_buckets} x {asked.hashes_per_bucket}"
    row(f"ours, recall .999 asked ({bands}), verified", lambda: method(Minhash(asked)))
    row("ours SimHash <= 6 bits, verified", lambda: method(Simhash(SimhashConfig())))
    hashes = simhashes(sets)
    near = {
        (i, i + count) for i in range(count) if hamming(hashes[i : i + 1], hashes[i + count : i + count + 1])[0] <= 6
    }
    head = ["| tool | documents/s | precision | recall | F1 |", "|---|---|---|---|---|"]
    note = f"{count} documents and an edited copy of each; {len(truth)} pairs have Jaccard >= {THRESHOLD}; "
    note += f"asked: F1 >= .97. SimHash alone has {len(near & truth)} of them within 6 bits."
    return [note, "", *head, *rows]


def child(code: str) -> dict[str, float]:
    """Runs a piece of code in a process of its own and reads the JSON it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def memory_rows(texts: list[str], corpus: Path | None, folder: Path) -> list[str]:
    """Peak memory of one long document, and of the stages as a corpus grows."""
    result = child(
        "import json, random, tracemalloc\n"
        "from hf_pretrain.corpus.dedup.methods import Minhash\n"
        "from hf_pretrain.corpus.dedup.minhash import MinhashConfig\n"
        "method = Minhash(MinhashConfig())\n"
        "rng = random.Random(0)\n"
        "text = ' '.join(rng.choices([f'word{i}' for i in range(30000)], k=500_000))\n"
        "method.keys([text[:100_000]])\n"
        "tracemalloc.start(); method.keys([text])\n"
        "print(json.dumps({'mib': tracemalloc.get_traced_memory()[1] / 2**20}))"
    )
    rows = [f"* Extra memory to sign one document of 500,000 words: {result['mib']:.0f} MiB (asked: < 64)."]
    if corpus is None:
        return rows
    peaks = []
    for share in (0.1, 1.0):
        begin = time.time()
        result = child(
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r})\n"
            f"import corpus_dedup as bench; bench.grow({str(corpus)!r}, {share}, {str(folder / str(share))!r})"
        )
        peaks.append(result)
        rows.append(
            f"* {result['documents']:,.0f} documents, {result['mb']:.0f} MB through all stages: peak memory "
            f"{result['mib']:.0f} MiB, {result['removed']:,.0f} removed, {time.time() - begin:.0f} s."
        )
    return rows


def grow(corpus: str, share: float, folder: str) -> None:
    """All stages over every tenth document or all of a corpus, read from disk each time; prints peak memory."""
    step = round(1 / share)
    totals = {"documents": 0, "mb": 0.0}

    def read() -> Iterator[Document]:
        totals.update(documents=0, mb=0.0)
        for number, (name, text) in enumerate(corpus_documents(Path(corpus))):
            if number % step == 0:
                totals["documents"] += 1
                totals["mb"] += len(text) / 1e6
                yield Document(text, name, metadata={"source": "web"})

    method, policy, limit = Minhash(MinhashConfig()), KeepPolicy(), 20_000_000
    DedupSignatures(folder, method, policy).run(read())
    DedupBuckets(folder, method, policy, memory_bytes=limit).run()
    DedupFeatures(folder, method, policy).run(read())
    DedupClusters(folder, method, policy, memory_bytes=limit).run()
    left = sum(1 for _ in DedupFilter(folder, method, policy).run(read()))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"mib": peak, "removed": totals["documents"] - left, **totals}))


def known_duplicates(corpus: Path) -> list[str]:
    """Duplicates that the maker of the corpus left in, and two spellings of one play."""
    ids, texts = zip(*corpus_documents(corpus), strict=True)
    removed = find_exact_duplicates(texts, range(len(texts)))
    found = {ids[index] for index in removed}
    with open(corpus / "exact_duplicates.tsv", encoding="utf-8") as stream:
        known = {row["duplicate"] for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE)}
    present = known & set(ids)
    wrong = sum(" ".join(texts[index].split()) != " ".join(texts[kept].split()) for index, kept in removed.items())
    place = {name: index for index, name in enumerate(ids)}
    plays = [
        (name, name.removesuffix("_f")) for name in ids if name.endswith("_f") and name.removesuffix("_f") in place
    ]
    alike = [jaccard(shingle_set(texts[place[a]]), shingle_set(texts[place[b]])) for a, b in plays]
    return [
        f"* Known exact duplicates: {len(found & present)} of {len(present)} found; {len(found - present)} more "
        f"documents removed, {wrong} of all removed differ from their kept copy in more than white space.",
        f"* Folio and modern spelling of one play: {len(plays)} pairs, Jaccard at most {max(alike, default=0):.3f}; "
        f"{sum(value >= THRESHOLD for value in alike)} would be merged.",
    ]


def recall_curve(corpus: Path) -> list[str]:
    """Page pairs of two editions: what is proposed, against the formula, and what is proved."""
    with gzip.open(corpus / "dedup" / "pairs.jsonl.gz", "rt", encoding="utf-8") as stream:
        pairs = [json.loads(line) for line in stream]
    true = [jaccard(shingle_set(row["a"]), shingle_set(row["b"])) for row in pairs]
    shingles = [shingle_arrays([row["a"], row["b"]]) for row in pairs]
    seeds = 20
    proposed = np.zeros(len(pairs))
    for seed in range(seeds):
        method = Minhash(MinhashConfig(seed=seed))
        for index, (a, b) in enumerate(shingles):
            first, second = method.keys_of_shingles([a, b])
            proposed[index] += (first == second).any() / seeds
    simple = np.array([hamming(*np.split(simhashes([np.unique(a), np.unique(b)]), 2))[0] <= 6 for a, b in shingles])
    rows = []
    for low, high in [(0, 0.3), (0.3, 0.5), (0.5, 0.6), (0.6, 0.7), (0.7, 0.8), (0.8, 0.9), (0.9, 0.95), (0.95, 1.01)]:
        chosen = [index for index, value in enumerate(true) if low <= value < high]
        if chosen:
            theory = np.mean([collision_probability(true[index], 14, 8) for index in chosen])
            verified = np.mean([proposed[index] * (true[index] >= THRESHOLD) for index in chosen])
            rows.append(
                f"| {low:.2f} to {min(high, 1):.2f} | {len(chosen)} | {theory:.3f} | {proposed[chosen].mean():.3f} | "
                f"{simple[chosen].mean():.3f} | {verified:.3f} |"
            )
    gap = float(np.mean([abs(row["jaccard5"] - value) for row, value in zip(pairs, true, strict=True)]))
    head = [
        "| Jaccard | pairs | MinHash, theory | MinHash, 20 seeds | SimHash <= 6 bits | removed |",
        "|---" * 6 + "|",
    ]
    return [f"{len(pairs)} page pairs; stated and measured Jaccard differ by {gap:.3f} on average.", "", *head, *rows]


def bloom_row() -> str:
    """False positives of the filter at design load."""
    rng = np.random.default_rng(0)
    bloom = BloomFilter(1_000_000, 0.01)
    bloom.add(rng.integers(0, 2**63, 1_000_000, dtype=np.uint64))
    rate = bloom.test(rng.integers(0, 2**63, 1_000_000, dtype=np.uint64)).mean()
    texts = [" ".join(rng.choice(5000, 100).astype(str)) for _ in range(1000)]
    config = NgramConfig(expected_ngrams=88_000)
    fresh = BloomFilter(config.expected_ngrams, config.false_positive_rate)
    dropped = sum(share >= config.threshold for share in seen_documents(texts, fresh, config))
    return (
        f"* Bloom filter at design load: {100 * rate:.2f} % of strange n-grams taken for seen (asked: 1 %), "
        f"{dropped} of 1,000 distinct documents dropped."
    )


def main() -> None:
    """Prints the report."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer documents")
    parser.add_argument("--corpus", type=Path, help="folder with pretrain/*.jsonl.gz")
    given = parser.parse_args()
    datatrove_logger.remove()
    if given.corpus is None:
        texts = own_texts()
    else:
        texts = [text for number, (_, text) in enumerate(corpus_documents(given.corpus)) if number % 5 == 0]
        texts = [text for text in dict.fromkeys(texts) if 300 < len(text) < 50_000]
    texts = random.Random(0).sample(texts, min(len(texts), 300 if given.quick else 2000))
    out = io.StringIO()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        parts = [
            ("Speed", lambda: speed_table(texts, folder)),
            ("Quality", lambda: quality_table(texts, folder)),
            ("Memory", lambda: [*memory_rows(texts, None if given.quick else given.corpus, folder), bloom_row()]),
        ]
        if given.corpus is not None:
            parts.append(("Known duplicates", lambda: known_duplicates(given.corpus)))
            parts.append(("Two editions of one manual", lambda: recall_curve(given.corpus)))
        for title, work in parts:
            print(f"### {title}\n", *work(), "", sep="\n", file=out)
    print(out.getvalue())


if __name__ == "__main__":
    main()

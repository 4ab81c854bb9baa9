"""Extraction of HTML, and the whole way from a raw WARC to tokens, against datatrove's own blocks.

One run, one thread. Pages: every n-th record of a corpus folder's `web/*.warc.gz`, else the reference topics of the
standard library as pages. Each way reads the same WARC. The stock way is the FineWeb recipe of datatrove's examples
(URL filter, trafilatura, language, Gopher repetition and quality, C4, FineWeb, MinHash, personal data, tokens) with
spaCy's words where spaCy is installed, else with datatrove's blocks on regex words, which are far faster; the table
says which. Ours is `build_corpus` with the same steps, and exact deduplication and the account of every document
besides. Both get the same tokenizer.

    OMP_NUM_THREADS=1 python tests/benchmarks/corpus_extraction.py [--quick] [--corpus FOLDER] [--pages N]
"""

import argparse
import contextlib
import gzip
import importlib.util
import io
import os
import pydoc_data.topics
import re
import sys
import tempfile
import time
from pathlib import Path


os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

from datatrove.data import Document  # noqa: E402
from datatrove.executor.local import LocalPipelineExecutor  # noqa: E402
from datatrove.pipeline.dedup.minhash import (  # noqa: E402
    MinhashConfig,
    MinhashDedupBuckets,
    MinhashDedupCluster,
    MinhashDedupFilter,
    MinhashDedupSignature,
)
from datatrove.pipeline.extractors import Trafilatura  # noqa: E402
from datatrove.pipeline.filters import (  # noqa: E402
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
    URLFilter,
)
from datatrove.pipeline.formatters import PIIFormatter  # noqa: E402
from datatrove.pipeline.readers import JsonlReader, WarcReader  # noqa: E402
from datatrove.pipeline.tokens import DocumentTokenizer  # noqa: E402
from datatrove.pipeline.writers.jsonl import JsonlWriter  # noqa: E402
from datatrove.utils.hashing import HashConfig  # noqa: E402
from datatrove.utils.logging import logger as datatrove_logger  # noqa: E402
from tldextract import TLDExtract  # noqa: E402

from hf_pretrain.corpus.config import CorpusConfig  # noqa: E402
from hf_pretrain.corpus.config_ingest import ExtractionConfig, LanguageConfig, SourceConfig, UrlConfig  # noqa: E402
from hf_pretrain.corpus.filters.words import FastWordTokenizer  # noqa: E402
from hf_pretrain.corpus.ingest.extraction import build_extractor  # noqa: E402
from hf_pretrain.corpus.ingest.language import LanguageStep  # noqa: E402
from hf_pretrain.corpus.ingest.pages import Page, render_page, topic_html, write_warc  # noqa: E402
from hf_pretrain.corpus.ingest.sources import build_reader  # noqa: E402
from hf_pretrain.corpus.ingest.urls import OfflineUrlFilter  # noqa: E402
from hf_pretrain.corpus.pipeline import build_corpus  # noqa: E402
from hf_pretrain.corpus.shards.tokenizer import TokenizerConfig, save_tokenizer, train_tokenizer  # noqa: E402


def own_pages() -> list[Page]:
    """Reference topics as pages."""
    return [
        Page(f"https://docs.example.org/{name}", render_page(name, topic_html(text), "en", "PSF-2.0", "Reference"))
        for name, text in sorted(pydoc_data.topics.topics.items())
    ]


def corpus_pages(folder: Path, number: int) -> list[Page]:
    """Every n-th page of the WARC files of a folder."""
    files = sorted((folder / "web").glob("*.warc.gz"))
    sources = [SourceConfig(name="web", kind="warc", path=str(file)) for file in files]
    documents = [document for source in sources for document in build_reader(source)()]
    step = max(len(documents) // number, 1)
    return [Page(document.metadata["url"], document.text) for document in documents[::step]]


def identification_table(folder: Path) -> None:
    """Pages of each crawl that our reader finds, with and without the payload type that archivers may leave out."""
    print("| crawl | records | pages | pages where no record names its payload type |")
    print("|---|---:|---:|---:|")
    for file in sorted((folder / "web").glob("*.warc.gz")):
        with tempfile.TemporaryDirectory() as scratch:
            plain = Path(scratch) / file.name.removesuffix(".gz")
            data = gzip.decompress(file.read_bytes())
            plain.write_bytes(re.sub(rb"(?m)^WARC-Identified-Payload-Type: [^\r\n]*\r\n", b"", data))
            counts = []
            for path in (file, plain):
                reader = build_reader(SourceConfig(name="web", kind="warc", path=str(path)))
                counts.append(sum(1 for _ in reader()))
        print(f"| {file.name} | {reader.stats['records'].total:,} | {counts[0]:,} | {counts[1]:,} |")
    print()


def timed(work) -> tuple[float, object]:
    """Seconds on the clock (datatrove extracts in a process of its own, whose CPU time is not ours), and a result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def extraction_table(pages: list[Page]) -> None:
    """Pages a second of every extractor."""
    size = sum(len(page.body.encode()) for page in pages)
    makers = {
        "datatrove Trafilatura (stock)": lambda: Trafilatura(favour_precision=True, timeout=60, deduplicate=False),
        "ours, trafilatura": lambda: build_extractor(ExtractionConfig(extractor="trafilatura", cpu_seconds=60)),
        "ours, resiliparse": lambda: build_extractor(ExtractionConfig()),
    }
    results = {}
    for name, make in makers.items():
        build_extractor(ExtractionConfig()).extract("<p>imports are no part of it</p>")
        step = make()
        list(step.run([Document(pages[0].body, "warm")]))
        documents = [Document(page.body, str(number)) for number, page in enumerate(pages)]
        results[name] = timed(lambda step=step, documents=documents: list(step.run(documents)))
    slowest = results["datatrove Trafilatura (stock)"][0]
    print(f"{len(pages):,} pages, {size / 1e6:.1f} MB of HTML\n")
    print("| extractor | pages/s | MB/s | pages with text | characters | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    for name, (seconds, kept) in results.items():
        characters = sum(len(document.text) for document in kept)
        speed = f"{len(pages) / seconds:,.0f} | {size / 1e6 / seconds:.2f}"
        print(f"| {name} | {speed} | {len(kept):,} | {characters:,} | {slowest / seconds:.1f} |")


def stock_pipeline(warc: Path, folder: Path, tokenizer: Path, words) -> int:
    """The FineWeb recipe; returns the documents that are left."""
    urls = URLFilter()
    urls.tldextractor = TLDExtract(cache_dir=None, suffix_list_urls=())  # its own asks the network
    first = [
        WarcReader(str(warc.parent), glob_pattern=warc.name, default_metadata={"dump": "bench"}),
        urls,
        Trafilatura(favour_precision=True, timeout=60),
        LanguageStep(LanguageConfig(keep=["en"])),
        GopherRepetitionFilter(language=words),
        GopherQualityFilter(language=words),
        C4QualityFilter(filter_no_terminal_punct=False, language=words),
        FineWebQualityFilter(language=words),
        JsonlWriter(str(folder / "base"), compression=None),
    ]
    # xxhash, datatrove's default, no longer takes text in the version that is current; FineWeb took SHA-1.
    minhash = MinhashConfig(hash_config=HashConfig(precision=64, hash_fc="sha1"))
    second = [
        [
            JsonlReader(str(folder / "base")),
            MinhashDedupSignature(output_folder=str(folder / "signatures"), config=minhash, language=words),
        ],
        [
            MinhashDedupBuckets(
                input_folder=str(folder / "signatures"), output_folder=str(folder / "buckets"), config=minhash
            )
        ],
        [
            MinhashDedupCluster(
                input_folder=str(folder / "buckets"), output_folder=str(folder / "removed"), config=minhash
            )
        ],
        [
            JsonlReader(str(folder / "base")),
            MinhashDedupFilter(input_folder=str(folder / "removed")),
            PIIFormatter(),
            JsonlWriter(str(folder / "final"), compression=None),
        ],
        [
            JsonlReader(str(folder / "final")),
            DocumentTokenizer(
                output_folder=str(folder / "tokens"), tokenizer_name_or_path=str(tokenizer), eos_token="<|endoftext|>"
            ),
        ],
    ]
    for number, pipeline in enumerate([first, *second]):
        tasks = minhash.num_buckets if isinstance(pipeline[0], MinhashDedupBuckets) else 1
        LocalPipelineExecutor(pipeline, tasks=tasks, workers=1, logging_dir=str(folder / "logs" / str(number))).run()
    return sum(1 for file in (folder / "final").glob("*.jsonl") for _ in open(file, "rb"))


def own_pipeline(warc: Path, folder: Path, tokenizer: Path) -> int:
    """`build_corpus` with the same steps."""
    config = CorpusConfig.from_mapping(
        {
            "sources": [{"name": "web", "kind": "warc", "path": str(warc)}],
            "urls": {"enabled": True},
            "language": {"keep": ["en"]},
            "contamination": {"enabled": False},
            "tokenizer": {"path": str(tokenizer.parent)},
        }
    )
    with contextlib.redirect_stderr(io.StringIO()):
        return build_corpus(config, folder)["totals"]["documents"]


def pipeline_table(pages: list[Page], folder: Path) -> None:
    """Seconds from the WARC to tokens."""
    warc = folder / "web.warc.gz"
    size = write_warc(warc, pages, "benchmark")["bytes"]
    tokenizer = folder / "tokenizer"
    texts = [(str(number), text) for number, text in enumerate(pydoc_data.topics.topics.values())]
    save_tokenizer(train_tokenizer(texts, TokenizerConfig(vocab_size=2048)), tokenizer)
    spacy = importlib.util.find_spec("spacy") is not None
    words = "en" if spacy else FastWordTokenizer()
    # The lists are unpacked into a cache at their first use; neither side pays for that.
    OfflineUrlFilter(UrlConfig(enabled=True)).download_data()
    URLFilter().download_data()
    model = tokenizer / "tokenizer.json"
    theirs, kept = timed(lambda: stock_pipeline(warc, folder / "stock", model, words))
    mine, left = timed(lambda: own_pipeline(warc, folder / "own", model))
    print(f"\nRaw WARC to tokens, {len(pages):,} pages, {size / 1e6:.1f} MB of HTML\n")
    print("| way | words | seconds | pages/s | documents left | ratio |")
    print("|---|---|---:|---:|---:|---:|")
    for name, word, seconds, documents in (
        ("datatrove, FineWeb recipe", "spaCy" if spacy else "regex", theirs, kept),
        ("ours", "regex", mine, left),
    ):
        speed = f"{seconds:.1f} | {len(pages) / seconds:.1f}"
        print(f"| {name} | {word} | {speed} | {documents:,} | {theirs / seconds:.1f} |")


def main(argv: list[str] | None = None) -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="few pages")
    parser.add_argument("--corpus", type=Path, help="folder with web/*.warc.gz")
    parser.add_argument("--pages", type=int, default=1000, help="pages of the corpus folder")
    options = parser.parse_args(argv)
    datatrove_logger.remove()
    number = 60 if options.quick else options.pages
    pages = corpus_pages(options.corpus, number) if options.corpus else own_pages()
    if options.quick:
        pages = pages[:: max(len(pages) // 60, 1)]
    if options.corpus:
        identification_table(options.corpus)
    extraction_table(pages)
    with tempfile.TemporaryDirectory() as folder:
        pipeline_table(pages, Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])

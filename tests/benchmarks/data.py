"""Data order on one thread: samples a second, resume far into a run, time and memory of the schedule.

Prints Markdown tables. `--quick` takes smaller corpora and fewer samples. What each line does is said in it: the bare
copy makes ids alone; the loop of equal work makes ids, labels and positions one row after the other, as one would
write it over mapped files. Run it alone on a machine: `OMP_NUM_THREADS=1 python tests/benchmarks/data.py`.
"""

import argparse
import json
import os
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path

import datasets
import numpy as np
import torch
from accelerate import skip_first_batches
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, default_data_collator

from hf_pretrain.data.collator import PretrainDataCollator
from hf_pretrain.data.mixture import MixtureDataset
from hf_pretrain.data.schedule import MixtureSchedule
from hf_pretrain.data.token_source import TokenSource


LENGTH, BATCH, SOURCES = 2048, 16, 10
NAMES = [f"source{number}" for number in range(SOURCES)]
WEIGHTS = {name: 1.0 + number for number, name in enumerate(NAMES)}


def write_source(folder: Path, tokens: int, seed: int | None) -> Path:
    """A source of one shard with documents of 700 tokens on average; without a seed a sparse one, all zeros."""
    folder.mkdir(parents=True)
    path = folder / "00000.ds"
    if seed is None:
        with open(path, "wb") as stream:
            os.truncate(stream.fileno(), 2 * tokens)
        ends = np.linspace(tokens // 1000, tokens, 1000).astype("<u8")
    else:
        random = np.random.default_rng(seed)
        ends = np.cumsum(random.geometric(1 / 700, size=tokens // 300))
        ends = np.append(ends[ends < tokens], tokens).astype("<u8")
        ids = random.integers(1, 50_000, tokens, dtype=np.uint16)
        ids[ends.astype(np.int64) - 1] = 0
        ids.tofile(path)
    ends.tofile(f"{path}.index")
    sizes = {"num_tokens": tokens, "num_documents": len(ends)}
    files = [{"name": path.name, **sizes, "sha256": "0" * 64}]
    description = {"schema": 1, "name": folder.name, "token_size": 2, "vocab_size": 50_000, "eos_token_id": 0}
    (folder / "source.json").write_text(json.dumps({**description, **sizes, "files": files}))
    return folder


def mixture(folders: list[Path], samples: int) -> MixtureDataset:
    sources = [TokenSource.open(folder) for folder in folders]
    schedule = MixtureSchedule.from_weights(WEIGHTS, samples)
    return MixtureDataset(sources, schedule, LENGTH, max_epochs=float("inf"))


def best(run: Callable[[int], None], samples: int, repeats: int = 3) -> float:
    """Samples a second, the best of some repeats: the first one also brings the files into memory."""
    seconds = []
    for _ in range(repeats):
        begin = time.perf_counter()
        run(samples)
        seconds.append(time.perf_counter() - begin)
    return samples / min(seconds)


def bare_copy(maps: list[np.ndarray], places: list[tuple[int, int]]) -> Iterator[dict[str, torch.Tensor]]:
    for first in range(0, len(places), BATCH):
        ids = np.empty((BATCH, LENGTH), dtype=np.int64)
        for row, (source, window) in enumerate(places[first : first + BATCH]):
            ids[row] = maps[source][window * LENGTH : (window + 1) * LENGTH]
        yield {"input_ids": torch.from_numpy(ids)}


def equal_work(
    maps: list[np.ndarray], ends: list[np.ndarray], places: list[tuple[int, int]]
) -> Iterator[dict[str, torch.Tensor]]:
    counting = np.arange(LENGTH)
    for first in range(0, len(places), BATCH):
        rows = []
        for source, window in places[first : first + BATCH]:
            start, stop = window * LENGTH, (window + 1) * LENGTH
            ids = maps[source][start:stop].astype(np.int64)
            low, high = np.searchsorted(ends[source], np.array([start, stop], dtype=np.uint64))
            starts = (ends[source][low:high] - np.uint64(start)).astype(np.int64)
            labels, positions = ids.copy(), np.empty(LENGTH, dtype=np.int64)
            labels[starts] = -100
            edges = [0, *starts.tolist(), LENGTH]
            for begin, end in zip(edges[:-1], edges[1:], strict=True):
                positions[begin:end] = counting[: end - begin]
            rows.append((ids, labels, positions))
        ids, labels, positions = (torch.from_numpy(np.stack(column)) for column in zip(*rows, strict=True))
        yield {"input_ids": ids, "labels": labels, "position_ids": positions}


def exhaust(batches: Iterator) -> None:
    for _ in batches:
        pass


def interleaved(folders: list[Path], cache: Path, streaming: bool) -> "datasets.Dataset":
    """The same tokens, cut into rows, in Arrow files; mixed by `interleave_datasets`."""
    parts = []
    for folder in folders:
        saved = cache / folder.name
        if not saved.exists():
            tokens = np.fromfile(folder / "00000.ds", dtype="<u2")
            rows = tokens[: len(tokens) // LENGTH * LENGTH].reshape(-1, LENGTH).astype(np.int32)
            datasets.Dataset.from_dict({"input_ids": list(rows)}).save_to_disk(str(saved))
        part = datasets.load_from_disk(str(saved))
        parts.append(part.to_iterable_dataset() if streaming else part)
    total = sum(WEIGHTS.values())
    shares = [WEIGHTS[name] / total for name in NAMES]
    mixed = datasets.interleave_datasets(parts, shares, seed=0, stopping_strategy="all_exhausted")
    return mixed.with_format("torch")


def rows_to_batches(rows: Iterator, samples: int) -> Iterator[dict[str, torch.Tensor]]:
    """Stacks rows, with labels and positions made for the whole batch: none of them knows of documents."""
    batch = []
    for _, row in zip(range(samples), rows, strict=False):
        batch.append(row["input_ids"])
        if len(batch) == BATCH:
            ids = torch.stack(batch).long()
            yield {"input_ids": ids, "labels": ids.clone(), "position_ids": torch.arange(LENGTH).repeat(BATCH, 1)}
            batch = []


def throughput(folders: list[Path], cache: Path, samples: int) -> None:
    dataset = mixture(folders, samples)
    collate = PretrainDataCollator()
    places = [(source, window) for source, _, window in map(dataset.locate, range(samples))]
    maps = [np.memmap(folder / "00000.ds", dtype="<u2", mode="r").view(np.ndarray) for folder in folders]
    ends = [np.fromfile(folder / "00000.ds.index", dtype="<u8") for folder in folders]

    def fetch(count: int) -> None:
        for first in range(0, count, BATCH):
            collate(dataset.__getitems__(range(first, first + BATCH)))

    for ours, other in zip(
        (collate(dataset.__getitems__(range(BATCH))),), equal_work(maps, ends, places), strict=False
    ):
        assert all(ours[key].equal(other[key]) for key in other), "the loop of equal work makes other batches"
    loader = DataLoader(dataset, batch_size=BATCH, collate_fn=collate, sampler=range(samples))
    slow = max(samples // 8, BATCH)
    lines = [
        (
            "bare copy of mapped windows: ids only, no labels, no documents",
            best(lambda _: exhaust(bare_copy(maps, places)), samples),
        ),
        (
            "loop of equal work over mapped files: ids, labels, positions",
            best(lambda _: exhaust(equal_work(maps, ends, places)), samples),
        ),
        ("`MixtureDataset` and `PretrainDataCollator`", best(fetch, samples)),
        ("the same through a `DataLoader`, no workers", best(lambda _: exhaust(loader), samples)),
    ]
    for name, streaming in (("map-style", False), ("streaming", True)):
        mixed = interleaved(folders, cache, streaming)
        rate = best(lambda count, mixed=mixed: exhaust(rows_to_batches(iter(mixed), count)), slow)
        lines.append((f"`interleave_datasets`, {name}: ids, whole-row labels and positions", rate))
    ours = lines[2][1]
    print(f"| {LENGTH} tokens x {BATCH}, {SOURCES} sources | samples/s | ours is |\n|---|---|---|")
    for name, rate in lines:
        print(f"| {name} | {rate:,.0f} | {ours / rate:.2f}x |")


def resume(folders: list[Path], cache: Path, samples: int, skipped: int) -> None:
    begin = time.perf_counter()
    dataset = mixture(folders, samples + BATCH)
    PretrainDataCollator()(dataset.__getitems__(range(samples, samples + BATCH)))
    own = time.perf_counter() - begin
    config = LlamaConfig(vocab_size=8, hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1)
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=samples // BATCH, per_device_train_batch_size=BATCH, use_cpu=True, report_to="none"
        )
        stream = interleaved(folders, cache, streaming=True)
        trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=stream, data_collator=default_data_collator)
        begin = time.perf_counter()
        # What `Trainer.train(resume_from_checkpoint=...)` does before its first step.
        next(iter(skip_first_batches(trainer.get_train_dataloader(), skipped // BATCH)))
        stock = (time.perf_counter() - begin) * samples / skipped
    print(f"\n| first batch at sample {samples:,} | s | |\n|---|---|---|")
    print(f"| `MixtureDataset`, files opened and schedule built anew | {own:.4f} | |")
    print(
        f"| stock `Trainer` over an `IterableDataset` ({skipped:,} samples skipped, times {samples / skipped:g}) "
        f"| {stock:.1f} | {stock / own:,.0f} times ours |"
    )


def schedule_cost(samples: int) -> None:
    begin = time.perf_counter()
    schedule = MixtureSchedule.from_weights(WEIGHTS, samples)
    schedule.locate(samples - 1)
    seconds = time.perf_counter() - begin
    print(f"\n| schedule of {samples:,} samples, {SOURCES} sources | built in s | memory MB |\n|---|---|---|")
    tracemalloc.start()
    kept = MixtureSchedule.from_weights(WEIGHTS, samples)
    kept.locate(samples - 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    print(f"| one phase | {seconds:.5f} | {peak / 1e6:.3f} |")
    phases = {
        "phases": [
            {"name": "stable", "weights": WEIGHTS, "fraction": 0.8},
            {"name": "anneal", "weights": {NAMES[0]: 1.0, NAMES[1]: 1.0}, "ramp_fraction": 0.5},
        ]
    }
    begin = time.perf_counter()
    MixtureSchedule.from_config(phases, samples, LENGTH).locate(samples - 1)
    print(f"| two phases with a ramp | {time.perf_counter() - begin:.5f} | |")


def memory(root: Path, quick: bool) -> None:
    print(f"\n| corpus of {SOURCES} sources, tokens | memory of sources, schedule and 200 batches, MB |\n|---|---|")
    for tokens in (10**8, 10**10, 10**12):
        folders = [write_source(root / f"sparse{tokens}" / name, tokens // SOURCES, None) for name in NAMES]
        tracemalloc.start()
        dataset = mixture(folders, tokens // LENGTH)
        step = max(len(dataset) // (20 if quick else 200), BATCH)
        for first in range(0, len(dataset) - BATCH, step):
            dataset.__getitems__(range(first, first + BATCH))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        print(f"| {tokens:.0e} | {peak / 1e6:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="smaller corpora and fewer samples")
    quick = parser.parse_args().quick
    torch.set_num_threads(1)
    datasets.disable_progress_bars()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        tokens = 1_000_000 if quick else 8_000_000
        folders = [write_source(root / name, tokens, seed) for seed, name in enumerate(NAMES)]
        throughput(folders, root / "arrow", 2_048 if quick else 32_000)
        resume(folders, root / "arrow", 10**6, 3_200 if quick else 100_000)
        schedule_cost(10**9)
        memory(root, quick)


if __name__ == "__main__":
    main()

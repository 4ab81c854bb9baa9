"""Runs one deduplication over shards: the stages of `dedup.stages`, one pipeline after the other."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

from datatrove.pipeline.base import PipelineStep

from hf_pretrain.corpus.dedup.config import DedupStep
from hf_pretrain.corpus.dedup.keep import KeepPolicy
from hf_pretrain.corpus.dedup.stages import DedupBuckets, DedupClusters, DedupFeatures, DedupFilter, DedupSignatures
from hf_pretrain.corpus.stage import run_pipeline


def prepare_staged(
    step: DedupStep,
    folder: Path,
    reader: Callable[[], PipelineStep],
    policy: KeepPolicy,
    source_order: list[str],
    tasks: int,
    workers: int,
    memory_bytes: int,
    total: int | None = None,
) -> PipelineStep:
    """Runs the stages before the last and makes the block of the last.

    Args:
        step (`DedupStep`): What to do.
        folder (`Path`): Folder of the step; `work/` and `pairs.parquet` are made in it.
        reader (`Callable`): Makes the reader of the documents, the same one in every stage.
        policy (`KeepPolicy`): Who stays.
        source_order (`list[str]`): Source names, most trusted first.
        tasks (`int`): Shares of the input; the last stage must run with as many.
        workers (`int`): Processes.
        memory_bytes (`int`): Memory of the bucket and cluster stages.
        total (`int`, *optional*): Documents, for the time left.

    Returns:
        `PipelineStep`: The filter, to be run after the same reader.
    """
    work, method, index = folder / "work", step.method, list(step.index) or None
    share = max(memory_bytes // max(workers, 1), 1)
    stages: list[tuple[str, list[PipelineStep], int]] = [
        ("signatures", [reader(), DedupSignatures(work, method, policy)], tasks),
        ("buckets", [DedupBuckets(work, method, policy, index, share)], min(workers, method.num_keys)),
        ("features", [reader(), DedupFeatures(work, method, policy, index)], tasks),
        ("clusters", [DedupClusters(work, method, policy, source_order, index, memory_bytes)], 1),
    ]
    for number, (name, blocks, count) in enumerate(stages, 1):
        counted = total if len(blocks) > 1 else None
        run_pipeline(blocks, work / "logs" / f"{number}_{name}", count, workers, f"{step.name}: {name}", counted)
    shutil.copyfile(work / "clusters" / "pairs.parquet", folder / "pairs.parquet")
    return DedupFilter(work, method, policy, index)


def remove_work(folder: str | os.PathLike) -> None:
    """Removes what the stages left for each other, once the survivors are written.

    Args:
        folder (`str` or `os.PathLike`): Folder of the step.
    """
    shutil.rmtree(Path(folder) / "work", ignore_errors=True)

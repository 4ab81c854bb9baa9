"""One step of the corpus work: a folder that is complete or absent, with a manifest and a fingerprint in its name.

`steps/04_exact-<fingerprint>/` holds what the step made and `manifest.json`. The fingerprint covers the step's
settings and the fingerprints of what it reads, so a changed setting makes another folder for this step and for those
after it, and an unchanged one is found done. While a step runs its folder is called `....partial`; tasks that
datatrove finished there are not repeated after an interrupt, and nothing is ever taken from a folder of another
fingerprint.
"""

import contextlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import multiprocess
from datatrove.data import DocumentsPipeline
from datatrove.executor.local import LocalPipelineExecutor
from datatrove.pipeline.base import PipelineStep
from datatrove.utils.logging import logger as datatrove_logger
from datatrove.utils.logging import setup_default_logger
from datatrove.utils.stats import PipelineStats

from hf_pretrain import __version__
from hf_pretrain.utils.atomic import read_json
from hf_pretrain.utils.errors import UserError
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.manifest import StepManifest
from hf_pretrain.utils.progress import Progress, format_duration


logger = logging.getLogger(__name__)

# Raised when the meaning of a step's output changes, so that old folders are not taken for new ones.
FORMAT_VERSION = 1


@dataclass(frozen=True)
class StepResult:
    """A finished step.

    Args:
        name (`str`): Name of the step, e.g. `"exact"`.
        folder (`Path`): Its folder.
        fingerprint (`str`): Digits of its settings and inputs.
        seconds (`float`): Working time, whenever it was done.
        details (`dict`): What its work returned.
        reused (`bool`): Whether it was found done.
    """

    name: str
    folder: Path
    fingerprint: str
    seconds: float
    details: dict[str, Any]
    reused: bool


class StepRunner:
    """Runs the steps of one corpus folder in order.

    Args:
        root (`Path`): The corpus folder; steps lie in `root/steps`.
    """

    def __init__(self, root: str | os.PathLike) -> None:
        self.root = Path(root)
        self.steps_dir = self.root / "steps"
        self.results: list[StepResult] = []

    def run(self, name: str, settings: Any, inputs: list[Any], work: Callable[[Path], dict[str, Any]]) -> StepResult:
        """Does a step, or finds it done.

        Args:
            name (`str`): Name of the step.
            settings (`Any`): All settings that its output depends on; plain data or dataclasses.
            inputs (`list`): What it reads: results of earlier steps, or listings of files.
            work (`Callable`): Does the work in the folder it is given; returns plain JSON data to keep.

        Returns:
            `StepResult`: The finished step.
        """
        sources = [item.fingerprint if isinstance(item, StepResult) else item for item in inputs]
        digits = fingerprint([__version__, FORMAT_VERSION, name, settings, sources])
        folder = self.steps_dir / f"{len(self.results) + 1:02d}_{name}-{digits}"
        manifest = StepManifest.load(folder / "manifest.json")
        if manifest is not None and manifest.is_done(digits):
            logger.info("%s: done before", name)
            result = StepResult(name, folder, digits, manifest.seconds, manifest.details, True)
        else:
            result = self._work(name, folder, digits, sources, work)
        self.results.append(result)
        return result

    def _work(
        self, name: str, folder: Path, digits: str, sources: list[Any], work: Callable[[Path], dict[str, Any]]
    ) -> StepResult:
        partial = folder.with_name(folder.name + ".partial")
        if folder.exists():  # a folder without a manifest that says "done" was not made by us
            shutil.rmtree(folder)
        partial.mkdir(parents=True, exist_ok=True)
        manifest = StepManifest.load(partial / "manifest.json")
        if manifest is None or manifest.fingerprint != digits:
            manifest = StepManifest(partial / "manifest.json", digits)
        manifest.start()
        begin = time.monotonic()
        try:
            details = work(partial)
        except BaseException:
            manifest.seconds += time.monotonic() - begin
            with contextlib.suppress(OSError):  # a full disk must not hide the first error
                manifest.save()
            raise
        _sync_files(partial)
        manifest.finish(time.monotonic() - begin, inputs=sources, **details)
        os.replace(partial, folder)
        logger.debug("%s: %s", name, format_duration(manifest.seconds))
        return StepResult(name, folder, digits, manifest.seconds, manifest.details, False)

    def remove_superseded(self) -> list[str]:
        """Removes the folders of steps that are no longer part of the corpus.

        Returns:
            `list[str]`: Names of the folders removed.
        """
        current = {result.folder.name for result in self.results}
        old = [path for path in self.steps_dir.iterdir() if path.is_dir() and path.name not in current]
        for path in old:
            shutil.rmtree(path)
        return sorted(path.name for path in old)


def _sync_files(folder: Path) -> None:
    for file in folder.rglob("*"):
        if file.is_file():
            with open(file, "rb") as stream:
                os.fsync(stream.fileno())


@contextlib.contextmanager
def corpus_lock(root: str | os.PathLike) -> Iterator[None]:
    """Keeps a second process out of a corpus folder; the lock goes with the process, however it ends.

    Args:
        root (`str` or `os.PathLike`): The corpus folder.

    Raises:
        UserError: If another process builds there.
    """
    folder = Path(root)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / ".corpus.lock", "w") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows has no flock; there the user keeps order
            pass
        except BlockingIOError as error:
            raise UserError(f"corpus folder = {folder}; another process builds it: wait for it or stop it.") from error
        yield


@dataclass
class PipelineOutcome:
    """What a pipeline left behind, over all its tasks.

    Args:
        stats (`list[dict]`): datatrove's statistics, one entry a block.
        tallies (`list[dict]`): Rows of the blocks that count, see `funnel.Counted`.
    """

    stats: list[dict[str, Any]] = field(default_factory=list)
    tallies: list[dict[str, Any]] = field(default_factory=list)


def run_pipeline(
    pipeline: list[PipelineStep],
    logging_dir: Path,
    tasks: int = 1,
    workers: int = 1,
    label: str = "documents",
    total: int | None = None,
) -> PipelineOutcome:
    """Runs datatrove blocks over all tasks and merges what they report.

    Args:
        pipeline (`list[PipelineStep]`): The blocks, a reader first.
        logging_dir (`Path`): Where logs, completions, statistics and tallies go. It belongs to one configuration
            alone.
        tasks (`int`, *optional*, defaults to 1): Shares of the input files.
        workers (`int`, *optional*, defaults to 1): Processes; 1 works in this one.
        label (`str`, *optional*): What the progress line says.
        total (`int`, *optional*): Documents expected, for the time left.

    Returns:
        `PipelineOutcome`: Statistics and tallies of all tasks, those finished before an interrupt included.
    """
    with Progress(label, total) as progress, _quiet_datatrove():
        workers = min(workers, tasks)
        tap = ProgressTap(progress if workers == 1 else None)
        executor = StageExecutor(
            pipeline=[pipeline[0], tap, *pipeline[1:]], tasks=tasks, workers=workers, logging_dir=str(logging_dir)
        )
        executor.progress = progress if workers > 1 else None
        executor.run()
    return merge_outcome(logging_dir)


def merge_outcome(logging_dir: Path) -> PipelineOutcome:
    """Merges what every task left; datatrove's own `stats.json` forgets the tasks before an interrupt.

    Args:
        logging_dir (`Path`): Logging folder of a pipeline.

    Returns:
        `PipelineOutcome`: Statistics and tallies.
    """
    merged = PipelineStats()
    for file in sorted((logging_dir / "stats").glob("*.json")):
        merged = merged + PipelineStats.from_json(read_json(file))
    stats = [{"block": item.name, "stats": item.to_dict()["stats"]} for item in merged.stats]
    tallies = [row for file in sorted((logging_dir / "tallies").glob("*.json")) for row in read_json(file)]
    return PipelineOutcome(stats, tallies)


class ProgressTap(PipelineStep):
    """Counts the documents that pass, on a progress line or for the process that shows one.

    Args:
        progress (`Progress`, *optional*): The line; `None` in a worker process.
    """

    name = "Progress"
    type = "TAP"

    def __init__(self, progress: Progress | None) -> None:
        super().__init__()
        self.progress = progress

    def __deepcopy__(self, memo: dict) -> "ProgressTap":
        # datatrove copies the pipeline for every task; the line on the terminal is one.
        return ProgressTap(self.progress)

    def run(self, data: DocumentsPipeline, rank: int = 0, world_size: int = 1) -> DocumentsPipeline:
        """Passes documents on.

        Args:
            data (`DocumentsPipeline`): Documents.
            rank (`int`, *optional*, defaults to 0): Task number.
            world_size (`int`, *optional*, defaults to 1): Number of tasks.

        Yields:
            `Document`: Every document.
        """
        for document in data:
            yield document
            self.stat_update("documents")
            if self.progress is not None:
                self.progress.update()


class StageExecutor(LocalPipelineExecutor):
    """datatrove's local executor without its manager process, and without tracebacks on the terminal.

    A mistake of the user travels through unchanged; any other error is written to the task's log file.
    """

    progress: Progress | None = None

    def run(self) -> PipelineStats:
        """Runs the tasks that are not complete.

        Returns:
            `PipelineStats`: Statistics of the tasks run now; use [`merge_outcome`] for all.
        """
        ranks = self.get_incomplete_ranks(range(self.tasks))
        stats = PipelineStats()
        if self.workers == 1:
            pipeline = self.pipeline
            for rank in ranks:
                self.pipeline = deepcopy(pipeline)
                stats = stats + self._run_for_rank(rank)
            self.pipeline = pipeline
            return stats
        progress, self.progress = self.progress, None  # an open terminal does not travel to the workers
        context = multiprocess.get_context(self.start_method)
        if self.start_method == "forkserver":
            # Imported once in the server, not once in every worker of every step.
            context.set_forkserver_preload(["hf_pretrain.corpus.pipeline"])
        with context.Pool(self.workers) as pool:
            for done in _results(pool, pool.imap_unordered(self._run_for_rank, ranks)):
                stats = stats + done
                if progress is not None:
                    progress.update(done.stats[1]["documents"].total)
        return stats

    def _run_for_rank(self, rank: int, local_rank: int = 0, node_rank: int = -1) -> PipelineStats:
        if self.is_rank_completed(rank):
            return PipelineStats()
        self._set_distributed_environment(node_rank)
        logfile = self.logging_dir.open(f"logs/task_{rank:05d}.log", "w")
        datatrove_logger.remove()
        # `catch` would print a traceback for every line that a full disk refuses.
        datatrove_logger.add(logfile, level="INFO", colorize=False, catch=False)
        try:
            data = None
            for block in self.pipeline:
                data = block(data, rank, self.world_size)
            for _ in data or ():
                pass
            stats = PipelineStats(self.pipeline)
            with self.logging_dir.open(f"stats/{rank:05d}.json", "w") as stream:
                stats.save_to_disk(stream)
            self.mark_rank_as_completed(rank)
            return stats
        except UserError:
            raise
        except Exception as error:
            datatrove_logger.exception(error)
            raise
        finally:
            datatrove_logger.remove()
            logfile.close()


def _results(pool: Any, results: Any) -> Iterator[PipelineStats]:
    """What the tasks return. A pool replaces a worker that was killed and waits for its lost task for ever; here a
    worker that was not there at the start is an error."""
    first = {worker.pid for worker in pool._pool}
    while True:
        try:
            yield results.next(timeout=1.0)
        except StopIteration:
            return
        except multiprocess.TimeoutError:
            if {worker.pid for worker in pool._pool} != first:
                raise UserError(
                    "a worker process was killed, perhaps because memory ran out; set fewer workers and "
                    "run the same command again: tasks that are done are kept."
                ) from None


@contextlib.contextmanager
def _quiet_datatrove() -> Iterator[None]:
    datatrove_logger.remove()
    try:
        yield
    finally:
        datatrove_logger.remove()
        setup_default_logger()

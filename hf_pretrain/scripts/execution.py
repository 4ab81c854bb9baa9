"""Running one stage: is it done, may it start, what to say when it fails.

A stage's folder holds `stage.json`. The stage is done when the file says so for the same fingerprint, which covers the
stage's configuration, the fingerprints of the stages it builds on, its input files and this package's version. A
stage that was interrupted goes on in its folder; one whose fingerprint changed starts anew, and its old folder is kept
as `<name>.previous` until the next change.
"""

import argparse
import contextlib
import errno
import importlib
import logging
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

from hf_pretrain import __version__
from hf_pretrain.scripts.recipe import STAGE_MODULES, StageSpec, load_stage
from hf_pretrain.utils.atomic import read_json, write_json
from hf_pretrain.utils.errors import Interrupted, TrainingStopped, UserError, one_line
from hf_pretrain.utils.facts import Facts
from hf_pretrain.utils.fingerprint import fingerprint
from hf_pretrain.utils.manifest import StepManifest
from hf_pretrain.utils.memory import peak_memory_bytes
from hf_pretrain.utils.optional import MissingPackageError


logger = logging.getLogger(__name__)

# Writers in Rust and C++ report the system's words or their own, not the system's number. The second is torch's zip
# writer, which finds fewer bytes in the file than it wrote.
_DISK_FULL_WORDS = (
    "No space left on device",
    "Disk quota exceeded",
    "PytorchStreamWriter failed writing",
    ". unexpected pos ",
)
_WORKER_DIED = "a data loader worker was killed, mostly for want of memory"
_DISK_FULL = "the disk is full; free some space and run the same command again: it goes on where it stopped."


def is_main_process() -> bool:
    """Whether this process writes: the only one, or the first of a distributed launch.

    Returns:
        `bool`: True for rank 0.
    """
    return int(os.environ.get("RANK", "0")) == 0


def stage_module(spec: StageSpec) -> ModuleType:
    """Imports the script of a stage.

    Args:
        spec (`StageSpec`): The stage.

    Returns:
        `ModuleType`: A module with `check`, `run` and, where it reads files of the user, `inputs`.
    """
    return importlib.import_module(STAGE_MODULES[spec.kind])


# Keys of a stage that change nothing of what it makes: another value goes on where the stage is.
WITHOUT_EFFECT = ("max_runtime", "async_save")


def stage_fingerprint(spec: StageSpec) -> str:
    """Fingerprints a stage: its configuration and everything it builds on.

    Args:
        spec (`StageSpec`): The stage. The stages it builds on must have their manifests.

    Returns:
        `str`: 16 hexadecimal digits.
    """
    upstream = {}
    for name in spec.dependencies():
        manifest = StepManifest.load(spec.run_dir / name / "stage.json")
        upstream[name] = manifest.fingerprint if manifest else None
    find_inputs = getattr(stage_module(spec), "inputs", None)
    files = []
    for path in sorted(find_inputs(spec)) if find_inputs else []:
        state = Path(path).stat()
        files.append([str(path), state.st_size, state.st_mtime_ns])
    config = {key: value for key, value in spec.config.items() if key not in WITHOUT_EFFECT}
    return fingerprint([__version__, spec.kind, config, upstream, files])


def execute_stage(spec: StageSpec, run: Callable[[StageSpec], None], go_on: bool = False) -> None:
    """Runs a stage in its folder and keeps the manifest.

    Args:
        spec (`StageSpec`): The stage.
        run (`Callable`): Does the work.
        go_on (`bool`, *optional*, defaults to `False`): Keep the folder of a stage whose file changed, so that its
            work goes on from where it is.

    Raises:
        UserError: If a stage it builds on is missing, or the run folder belongs to another recipe.
    """
    digits = stage_fingerprint(spec)
    if is_main_process():
        for name in spec.dependencies():
            manifest = StepManifest.load(spec.run_dir / name / "stage.json")
            if manifest is None or manifest.status != "done":
                raise UserError(
                    f"{spec.name} builds on {name}, which is not done in {spec.run_dir}; "
                    f"run `hf-pretrain run {spec.path.parent}` or that stage first."
                )
        claim_run_folder(spec)
        manifest = StepManifest.load(spec.stage_dir / "stage.json")
        if manifest is not None and manifest.fingerprint != digits:
            if not go_on:
                retire_stage(spec)
            manifest = None
        _make_folder(spec.stage_dir, "the stage's folder")
        manifest = (manifest or StepManifest(spec.stage_dir / "stage.json", digits)).start()
    begin = time.monotonic()
    run(spec)
    if is_main_process():
        manifest.finish(time.monotonic() - begin)
        facts = Facts(spec.run_dir)
        facts.annotate_stage(spec.name, seconds=round(manifest.seconds, 3), fingerprint=digits)
        recorded = facts.load()
        # What the stages took that lie in the folder now, whenever they ran; without the push, whose card says it.
        stages = [stage for stage in recorded["stages"].values() if stage.get("kind") != "push"]
        facts.record(
            "run",
            {
                "seconds": round(sum(stage.get("seconds", 0.0) for stage in stages), 1),
                "peak_memory_bytes": max(
                    recorded.get("run", {}).get("peak_memory_bytes", 0), peak_memory_bytes(include_children=True) or 0
                ),
            },
        )


def retire_stage(spec: StageSpec) -> None:
    """Moves a stage's folder aside, so that the stage starts anew and nothing is lost yet.

    Args:
        spec (`StageSpec`): The stage.
    """
    if not spec.stage_dir.exists():
        return
    previous = spec.run_dir / f"{spec.name}.previous"
    shutil.rmtree(previous, ignore_errors=True)
    os.replace(spec.stage_dir, previous)
    logger.info("%s starts anew; its old folder is kept as %s", spec.name, previous)


def claim_run_folder(spec: StageSpec) -> None:
    """Notes in the run folder which recipe it belongs to, and refuses another's.

    Args:
        spec (`StageSpec`): A stage of the recipe.

    Raises:
        UserError: If the folder was made by another recipe, holds other things, or its records cannot be read.
    """
    record = spec.run_dir / "recipe.json"
    Facts(spec.run_dir).load()  # a file that cannot be read is found before the work, not when it is recorded
    if record.exists():
        try:
            owner = read_json(record)["name"]
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                f"{record} is damaged, so nobody knows whose run this is; give another folder with --run-dir, or "
                f'mend it: {{"name": "{spec.recipe_name}"}}.'
            ) from error
        if owner != spec.recipe_name:
            raise UserError(
                f"run_dir = {spec.run_dir}; it holds a run of the recipe '{owner}', not of '{spec.recipe_name}': "
                "give another folder with --run-dir, or remove it."
            )
        return
    if spec.run_dir.is_dir() and any(item for item in spec.run_dir.iterdir() if not item.name.startswith(".")):
        raise UserError(
            f"run_dir = {spec.run_dir}; it is not empty and was not made by a recipe: give another with --run-dir."
        )
    write_json(record, {"name": spec.recipe_name, "version": __version__})
    Facts(spec.run_dir).record("recipe", {"name": spec.recipe_name, "stages": spec.recipe_stages})


def _make_folder(path: Path, what: str) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError, FileNotFoundError) as error:
        raise UserError(
            f"{what} = {path}; no folder can be made there ({error.strerror}: {error.filename}): give another with "
            "--run-dir, or remove what is in its way."
        ) from error


@contextlib.contextmanager
def run_folder_lock(run_dir: Path) -> Iterator[None]:
    """Keeps a second process out of a run folder.

    Args:
        run_dir (`Path`): The run folder.

    Raises:
        UserError: If another process works there.
    """
    if not is_main_process():
        yield
        return
    _make_folder(run_dir, "run_dir")
    with open(run_dir / ".lock", "w") as stream:
        try:
            import fcntl

            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows has no flock; there the user keeps order.
            pass
        except BlockingIOError as error:
            raise UserError(f"run_dir = {run_dir}; another process works in it: wait for it or stop it.") from error
        yield


def prepare_process(quiet: bool = False) -> None:
    """Sets what must be set before torch is imported, and the form of the log.

    Args:
        quiet (`bool`, *optional*, defaults to `False`): Show warnings and errors alone.
    """
    # Spinning OpenMP threads beside any other load cost a factor of four on small machines.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if quiet:
        os.environ["HF_PRETRAIN_QUIET"] = "1"
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    # What one process warns of, all do.
    level = logging.ERROR if not is_main_process() else logging.WARNING if quiet else logging.INFO
    logging.getLogger("hf_pretrain").setLevel(level)


def guarded(work: Callable[[], int | None]) -> int:
    """Runs a command and turns the user's mistakes and interrupts into one line and an exit code.

    Args:
        work (`Callable`): The command; its result is the exit code, `None` for success.

    Returns:
        `int`: 0 for success, 2 for a mistake the user can mend, 3 for a training that stopped itself with good
        checkpoints, 128 + signal after an interrupt.
    """

    def on_terminate(number: int, frame: object) -> None:
        raise Interrupted(number)

    try:
        previous = signal.signal(signal.SIGTERM, on_terminate)
    except ValueError:  # Not the main thread: signals are somebody else's.
        previous = None
    try:
        return work() or 0
    except (UserError, MissingPackageError) as error:
        return _fail(one_line(error))
    except TrainingStopped as stop:
        print(f"stopped: {one_line(stop)}", file=sys.stderr)
        return 3
    except Interrupted as stop:
        print(f"\n{one_line(stop)}: run the same command again to go on.", file=sys.stderr)
        return 128 + stop.signal_number
    except KeyboardInterrupt:
        print("\ninterrupted: run the same command again to go on.", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # The reader of our output went away (`| head`); there is nobody to tell.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        message = _environment_problem(error)
        if message is None:
            raise
        return _fail(message)
    finally:
        if previous is not None:
            signal.signal(signal.SIGTERM, previous)


def _fail(message: str) -> int:
    print(f"error: {message}", file=sys.stderr)
    return 2


def _environment_problem(error: BaseException | None) -> str | None:
    """Names a full disk or a folder that cannot be written, wherever it stands in the chain of causes."""
    while error is not None:
        if isinstance(error, OSError):
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                return _DISK_FULL
            if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
                return (
                    f"{error.filename or 'a file'}: {error.strerror}; mend its permissions or choose another folder."
                )
            if error.errno in (errno.ENAMETOOLONG, errno.ELOOP):
                return f"{error.filename}: {error.strerror}; choose another folder."
        if any(words in str(error) for words in _DISK_FULL_WORDS):
            return _DISK_FULL
        if "DataLoader worker" in str(error):
            return f"{_WORKER_DIED}: lower dataloader_num_workers, and run the same command again: it goes on."
        error = error.__cause__ or error.__context__
    return None


def stage_main(
    kind: str,
    run: Callable[[StageSpec], None],
    argv: list[str] | None = None,
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None,
    instead: Callable[[StageSpec, argparse.Namespace], bool] | None = None,
) -> int:
    """The command line of a single stage.

    Args:
        kind (`str`): What the stage file must be.
        run (`Callable`): Does the work.
        argv (`list[str]`, *optional*): Arguments; those of the process by default.
        add_arguments (`Callable`, *optional*): Adds a verb's own options.
        instead (`Callable`, *optional*): Does what these options ask for beside the stage, and tells whether they
            asked for anything.

    Returns:
        `int`: The exit code.
    """
    parser = argparse.ArgumentParser(prog=f"hf-pretrain {kind}", description=f"Run one {kind} stage of a recipe.")
    parser.add_argument("--config", required=True, metavar="FILE", help="the stage's YAML file")
    parser.add_argument("--run-dir", metavar="FOLDER", help="run folder, instead of the file's run_dir")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a key of the file")
    parser.add_argument("--check", action="store_true", help="validate the file and stop")
    parser.add_argument("--force", action="store_true", help="run a stage again that is done and unchanged")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    if add_arguments is not None:
        add_arguments(parser)
    arguments = parser.parse_args(argv)
    prepare_process(arguments.quiet)

    def work() -> None:
        spec = load_stage(arguments.config, arguments.run_dir, arguments.set)
        if spec.kind != kind:
            raise UserError(f"{spec.path} is a {spec.kind} stage; use `hf-pretrain {spec.kind}`.")
        stage_module(spec).check(spec)
        if arguments.check:
            print(f"{spec.path}: valid")
            return
        if instead is not None and instead(spec, arguments):
            return
        manifest = StepManifest.load(spec.stage_dir / "stage.json")
        # Read by every process of a launch; none of them writes to a stage that is done.
        done = manifest is not None and manifest.is_done(stage_fingerprint(spec))
        if done and not arguments.force:
            if is_main_process():
                print(f"{spec.name} is done and unchanged in {spec.run_dir}; --force runs it again.")
            return
        with run_folder_lock(spec.run_dir):
            if done and is_main_process():
                retire_stage(spec)
            execute_stage(spec, run, getattr(arguments, "go_on", False))

    return guarded(work)

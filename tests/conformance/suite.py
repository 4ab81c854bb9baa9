"""Fetches transformers' own test suite for the installed version and makes it importable; none of it is committed.

The mixins are in the source distribution on the package registry. pip downloads it and compares it with the hash noted
here; only the test files at the top of `tests/` are unpacked, with limits. The modules they import that the archive
leaves out are replaced by one-line files that point at `stand_ins.py`.
"""

import hashlib
import importlib.util
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path


# The archive of each version this was run with. Another version is refused until its hash is noted.
SHA256 = {"5.24.0": "906cb8c3cb2123575e263962586a4d21a979ce97feeb95fe6aaf66fe6ae88bf3"}

PACKAGE = "transformers_suite"
MIXINS = (
    "test_modeling_common.py",
    "test_training_mixin.py",
    "test_memory_cleanup_mixin.py",
    "test_tensor_parallel_mixin.py",
    "test_expert_parallel_mixin.py",
    "test_fsdp_mixin.py",
)
# What the mixins import and the archive lacks.
REPLACED = ("exporters/test_export.py", "generation/test_utils.py", "distributed_testing_utils.py")

MAX_ARCHIVE_BYTES = 64 * 2**20
MAX_FILE_BYTES = 2**20
MAX_MEMBERS = 20_000


class SuiteUnavailable(Exception):
    """The registry cannot be reached: the suite is skipped, with this reason."""


def download(version: str, folder: Path) -> Path:
    """The source distribution, by pip, compared with the noted hash.

    Args:
        version (`str`): Version of transformers.
        folder (`Path`): Where to keep the archive.

    Returns:
        `Path`: The archive.

    Raises:
        SuiteUnavailable: If pip cannot get it.
        ValueError: If there is no hash for the version, or the archive has another.
    """
    if version not in SHA256:
        raise ValueError(f"transformers = {version}; the suite is known for {', '.join(SHA256)}: note the new hash.")
    archive = folder / f"transformers-{version}.tar.gz"
    if not archive.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as partial:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", "transformers"]
            if importlib.util.find_spec("setuptools") is not None:
                command.append("--no-build-isolation")  # pip asks the archive for its metadata; nothing is built
            command += ["--dest", partial, f"transformers=={version}"]
            answer = subprocess.run(command, capture_output=True, text=True, timeout=600)
            if answer.returncode != 0:
                lines = answer.stderr.strip().splitlines() or ["no message"]
                raise SuiteUnavailable(f"pip cannot download transformers {version}: {lines[-1]}")
            os.replace(Path(partial) / archive.name, archive)
    if archive.stat().st_size > MAX_ARCHIVE_BYTES:
        raise ValueError(f"{archive.name} has {archive.stat().st_size} bytes; at most {MAX_ARCHIVE_BYTES} are read.")
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != SHA256[version]:
        raise ValueError(f"{archive.name} has the hash {found}, not {SHA256[version]}: delete it and try again.")
    return archive


def unpack(archive: Path, folder: Path) -> None:
    """Writes the mixins of the archive, and the files that stand in for what it lacks, as a package.

    Args:
        archive (`Path`): A `.tar.gz`.
        folder (`Path`): The package's folder.

    Raises:
        ValueError: If the archive has too many or too large members, or lacks a mixin.
    """
    folder.mkdir(parents=True, exist_ok=True)
    missing = set(MIXINS)
    with tarfile.open(archive, "r:gz") as members:
        for number, member in enumerate(members):
            if number >= MAX_MEMBERS:
                raise ValueError(f"{archive.name} has more than {MAX_MEMBERS} members.")
            parts = member.name.split("/")
            if len(parts) != 3 or parts[1] != "tests" or parts[2] not in missing or not member.isfile():
                continue
            if member.size > MAX_FILE_BYTES:
                raise ValueError(f"{member.name} has {member.size} bytes; at most {MAX_FILE_BYTES} are read.")
            missing.discard(parts[2])
            _write(folder / parts[2], members.extractfile(member).read())
            if not missing:
                break
    if missing:
        raise ValueError(f"{archive.name} lacks {', '.join(sorted(missing))}.")
    for name in REPLACED:
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        _write(path, b"from stand_ins import *\n")
    for directory in {folder, *((folder / name).parent for name in REPLACED)}:
        (directory / "__init__.py").touch()


def _write(path: Path, content: bytes) -> None:
    """Whole or not at all: workers of one run may all write it while others read."""
    partial = path.with_name(f"{path.name}.{os.getpid()}")
    partial.write_bytes(content)
    os.replace(partial, path)


def prepare(version: str, cache: Path) -> None:
    """Makes the package `transformers_suite` importable, in this process and in those it starts.

    Args:
        version (`str`): Version of transformers.
        cache (`Path`): Where archive and package are kept.
    """
    root = cache / f"transformers-{version}-suite"
    unpack(download(version, cache), root / PACKAGE)
    here = str(Path(__file__).parent)
    for entry in (str(root), here):
        if entry not in sys.path:
            sys.path.insert(0, entry)
    paths = [here, str(root), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)  # for the processes it spawns

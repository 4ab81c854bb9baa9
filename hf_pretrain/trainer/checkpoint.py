"""Checkpoints that are complete or absent, and the search for the newest complete one.

A checkpoint is written into a hidden folder beside its place. When all files are there, a manifest with their sizes
and SHA-256 digests is written last, everything is flushed to disk, and one rename publishes it. A crash, a kill or a
full disk leaves at most a hidden folder that the next save removes. Nothing older is deleted before the new one is
whole.
"""

import logging
import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import read_json, sha256_file, write_json
from hf_pretrain.utils.errors import UserError


logger = logging.getLogger(__name__)

MANIFEST_FILE = "checkpoint_manifest.json"
SCHEMA = 1
_NAME = re.compile(r"^checkpoint-(\d+)$")


def checkpoint_step(path: str | Path) -> int | None:
    """Reads the step from a checkpoint's name.

    Args:
        path (`str` or `Path`): A folder.

    Returns:
        `int`: The step, or `None` if the folder is not named like a checkpoint.
    """
    match = _NAME.match(Path(path).name)
    return int(match.group(1)) if match else None


def list_checkpoints(folder: str | Path) -> list[Path]:
    """Lists a folder's checkpoints, complete or not.

    Args:
        folder (`str` or `Path`): Where checkpoints lie.

    Returns:
        `list[Path]`: In the order of their steps, whatever their times or names sort like.
    """
    folder = Path(folder)
    found = [item for item in folder.iterdir() if checkpoint_step(item) is not None] if folder.is_dir() else []
    return sorted((item for item in found if item.is_dir()), key=lambda item: checkpoint_step(item) or 0)


def staging_folder(path: str | Path) -> Path:
    """Names the hidden folder in which a checkpoint is written, the same on every process.

    Args:
        path (`str` or `Path`): Where the checkpoint will lie.

    Returns:
        `Path`: The folder beside it.
    """
    path = Path(path)
    return path.parent / f".{path.name}.tmp"


def publish_checkpoint(path: str | Path, run_id: str, **extra: Any) -> None:
    """Completes a checkpoint written to its staging folder: manifest, flush, rename.

    Args:
        path (`str` or `Path`): Where the checkpoint is to lie. An older one of that name is replaced.
        run_id (`str`): Which run wrote it; only checkpoints of the same run are ever rotated away.
        **extra: More entries of the manifest, plain JSON data.
    """
    path, staging = Path(path), staging_folder(path)
    files = []
    for file in sorted(item for item in staging.rglob("*") if item.is_file() and item.name != MANIFEST_FILE):
        with open(file, "rb") as stream:
            os.fsync(stream.fileno())
        name = file.relative_to(staging).as_posix()
        files.append({"name": name, "size": file.stat().st_size, "sha256": sha256_file(file)})
    manifest = {"schema": SCHEMA, "step": checkpoint_step(path), "run_id": run_id, **extra, "files": files}
    write_json(staging / MANIFEST_FILE, manifest)
    # A file's content is on disk now; its name is only when the folder that lists it is.
    for folder in [*(item for item in staging.rglob("*") if item.is_dir()), staging]:
        _flush_folder(folder)
    retired = path.parent / f".{path.name}.old"
    shutil.rmtree(retired, ignore_errors=True)
    if path.exists():
        os.replace(path, retired)
    os.replace(staging, path)
    shutil.rmtree(retired, ignore_errors=True)
    _flush_folder(path.parent)


def _flush_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def discard_staging(folder: str | Path) -> None:
    """Removes what interrupted saves left behind.

    Args:
        folder (`str` or `Path`): Where checkpoints lie.
    """
    for leftover in Path(folder).glob(".checkpoint-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)
    for leftover in Path(folder).glob(".checkpoint-*.old"):
        # A crash between the two renames: the old one is still whole, so it goes back.
        place = leftover.parent / leftover.name[1 : -len(".old")]
        if place.exists():
            shutil.rmtree(leftover, ignore_errors=True)
        else:
            os.replace(leftover, place)


def read_manifest(path: str | Path) -> dict[str, Any] | None:
    """Reads a checkpoint's manifest.

    Args:
        path (`str` or `Path`): The checkpoint.

    Returns:
        `dict`: The manifest, or `None` if there is none that can be read.
    """
    try:
        manifest = read_json(Path(path) / MANIFEST_FILE)
    except (OSError, ValueError):
        return None
    return manifest if isinstance(manifest, dict) and manifest.get("schema") == SCHEMA else None


def why_incomplete(path: str | Path, hashes: bool = True) -> str | None:
    """Says what is wrong with a checkpoint.

    Args:
        path (`str` or `Path`): The checkpoint.
        hashes (`bool`, *optional*, defaults to `True`): Whether contents are compared as well as sizes.

    Returns:
        `str`: The first fault found, or `None` if the checkpoint is complete.
    """
    path = Path(path)
    manifest = read_manifest(path)
    if manifest is None:
        return f"{MANIFEST_FILE} is missing or unreadable"
    for entry in manifest["files"]:
        file = path / entry["name"]
        if not file.is_file():
            return f"{entry['name']} is missing"
        if file.stat().st_size != entry["size"]:
            return f"{entry['name']} has {file.stat().st_size} bytes instead of {entry['size']}"
        if hashes and sha256_file(file) != entry["sha256"]:
            return f"the content of {entry['name']} changed"
    return None


def latest_complete_checkpoint(folder: str | Path, hashes: bool = True) -> Path | None:
    """Finds the newest checkpoint that is whole, walking back over those that are not and saying so.

    Args:
        folder (`str` or `Path`): Where checkpoints lie.
        hashes (`bool`, *optional*, defaults to `True`): Whether contents are compared as well as sizes.

    Returns:
        `Path`: The checkpoint, or `None` if there is no complete one.
    """
    for path in reversed(list_checkpoints(folder)):
        fault = why_incomplete(path, hashes)
        if fault is None:
            return path
        logger.warning("Skipping %s: %s", path, fault)
    return None


def rotate_checkpoints(
    folder: str | Path, run_id: str, keep: int | None, protected: Iterable[str | Path | None]
) -> None:
    """Deletes a run's oldest checkpoints, by step.

    Args:
        folder (`str` or `Path`): Where checkpoints lie.
        run_id (`str`): The run; checkpoints of other runs are not touched.
        keep (`int`, *optional*): How many to keep; without it all.
        protected (`Iterable[str | Path | None]`): Checkpoints that stay, whatever their age.
    """
    if keep is None or keep <= 0:
        return
    stays = {Path(item).resolve() for item in protected if item is not None}
    own = [path for path in list_checkpoints(folder) if (read_manifest(path) or {}).get("run_id") == run_id]
    for path in own[:-keep]:
        if path.resolve() not in stays:
            shutil.rmtree(path, ignore_errors=True)


def check_free_space(folder: str | Path, needed: int) -> None:
    """Makes sure that a checkpoint fits beside the one it replaces.

    Args:
        folder (`str` or `Path`): Where checkpoints will lie.
        needed (`int`): Estimated bytes of all checkpoints that exist at the same time.

    Raises:
        UserError: If the disk has less room.
    """
    place = Path(folder)
    while not place.exists():
        place = place.parent
    free = shutil.disk_usage(place).free
    if free < needed:
        raise UserError(
            f"output_dir = {folder}; {free / 1e9:.2f} GB are free, checkpoints need about "
            f"{needed / 1e9:.2f} GB: free some "
            "space, lower save_total_limit, or set save_strategy: 'no'"
        )

"""The checkpoint to go on from: the latest one that is whole.

A run that was killed while writing leaves a folder with the highest number and half of its files; resuming from it
fails or, worse, half works. A folder counts when its trainer state, which is written after weights and optimizer, can
be read and names the folder's step, and weights and optimizer are there.
"""

import json
import re
from pathlib import Path


_NAME = re.compile(r"^checkpoint-(\d+)$")


def is_complete(folder: str | Path) -> bool:
    """Judges one checkpoint.

    Args:
        folder (`str` or `Path`): A folder named `checkpoint-N`.

    Returns:
        `bool`: Whether training can go on from it.
    """
    folder = Path(folder)
    match = _NAME.match(folder.name)
    try:
        state = json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    weights = list(folder.glob("*.safetensors"))
    needed = [*weights, folder / "optimizer.pt", folder / "scheduler.pt"]
    whole = bool(weights) and all(path.is_file() and path.stat().st_size > 0 for path in needed)
    return whole and match is not None and state.get("global_step") == int(match.group(1))


def latest_checkpoint(folder: str | Path) -> Path | None:
    """Finds the checkpoint to resume from.

    Args:
        folder (`str` or `Path`): The folder of checkpoints; it may be missing.

    Returns:
        `Path` or `None`: The complete checkpoint with the highest step.
    """
    folder = Path(folder)
    found = [path for path in folder.iterdir() if _NAME.match(path.name)] if folder.is_dir() else []
    found.sort(key=lambda path: int(_NAME.match(path.name).group(1)), reverse=True)
    return next((path for path in found if is_complete(path)), None)

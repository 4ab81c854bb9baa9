"""Where downloads are kept between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """The folder for things that any run may share.

    Returns:
        `Path`: `$HF_PRETRAIN_CACHE` where set, else `~/.cache/hf_pretrain`. It may not exist yet.
    """
    given = os.environ.get("HF_PRETRAIN_CACHE")
    return Path(given).expanduser() if given else Path.home() / ".cache" / "hf_pretrain"

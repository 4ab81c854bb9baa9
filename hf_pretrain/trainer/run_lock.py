"""One writer a folder: a training run holds its folder, so that no second process mixes its files into it.

The lock belongs to the process and ends with it, however it ends; data loader workers do not inherit it.
"""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from hf_pretrain.utils.errors import UserError


LOCK_FILE = ".writer.lock"


def make_folder(folder: str | Path) -> None:
    """Makes a run's folder.

    Args:
        folder (`str` or `Path`): Where checkpoints lie.

    Raises:
        UserError: If it cannot be made.
    """
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _not_writable(folder, error) from error


def _not_writable(folder: str | Path, error: OSError) -> UserError:
    return UserError(
        f"output_dir = {folder}; nothing can be written there ({error.strerror}): mend its permissions, or choose "
        "another folder"
    )


@contextlib.contextmanager
def hold_folder(folder: str | Path, is_writer: bool = True) -> Iterator[None]:
    """Keeps other processes from training in a folder.

    Args:
        folder (`str` or `Path`): Where checkpoints lie; made if missing.
        is_writer (`bool`, *optional*, defaults to `True`): Whether this process writes there; others hold nothing.

    Raises:
        UserError: If another process trains there, or nothing can be written.
    """
    if not is_writer:
        yield
        return
    make_folder(folder)
    try:
        stream = open(Path(folder) / LOCK_FILE, "w", encoding="utf-8")
    except OSError as error:
        raise _not_writable(folder, error) from error
    with stream:
        try:
            import fcntl

            fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # Windows: one writer is the rule there.
            pass
        except BlockingIOError as error:
            raise UserError(
                f"output_dir = {folder}; another process trains in it: wait for it, stop it, or choose another folder"
            ) from error
        except OSError:  # a file system without locks
            pass
        yield

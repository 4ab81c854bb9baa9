"""A bound on the CPU time of Python code; unlike one on wall-clock time it does not depend on what else runs."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


class CpuTimeout(BaseException):
    """The time is up. No `Exception`, for parsers catch those and go on."""


@contextlib.contextmanager
def cpu_limit(seconds: float) -> Iterator[None]:
    """
    Raise [`CpuTimeout`] in the block once this process has worked so long.

    Only a main thread can be interrupted so; datatrove's tasks run in main threads of their own processes. In another
    thread, or on a system without such timers, there is no limit.

    Args:
        seconds (`float`): CPU time in user mode.

    Returns:
        `Iterator[None]`: a context.
    """
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        raise CpuTimeout

    before = signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)

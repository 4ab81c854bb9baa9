"""Progress of long work: one updating line on a terminal, plain lines in a log, nothing when quiet.

Rates are over the whole work so far, which is what the time left should be judged by. `HF_PRETRAIN_QUIET=1` silences
everything.
"""

import os
import sys
import time
from types import TracebackType
from typing import TextIO


def is_quiet() -> bool:
    """Whether the user asked for silence.

    Returns:
        `bool`: True when `HF_PRETRAIN_QUIET` is set to anything but `0`.
    """
    return os.environ.get("HF_PRETRAIN_QUIET", "0") not in ("", "0")


def format_duration(seconds: float) -> str:
    """Writes a duration as people read it.

    Args:
        seconds (`float`): A duration.

    Returns:
        `str`: `4.2s`, `3:07` or `2:05:09`.
    """
    if seconds < 10:
        return f"{max(seconds, 0):.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    hours, rest = divmod(whole, 3600)
    return f"{hours}:{rest // 60:02d}:{rest % 60:02d}" if hours else f"{rest // 60}:{rest % 60:02d}"


def format_count(value: float) -> str:
    """Writes a count shortly.

    Args:
        value (`float`): A count or rate.

    Returns:
        `str`: `734`, `12.3k`, `4.56M`, `1.20B`.
    """
    for limit, suffix, digits in ((1e9, "B", 2), (1e6, "M", 2), (1e4, "k", 1)):
        if abs(value) >= limit:
            return f"{value / (1e3 if suffix == 'k' else limit):.{digits}f}{suffix}"
    return f"{value:.0f}" if value == int(value) or abs(value) >= 100 else f"{value:.1f}"


class Progress:
    """Reports how far a loop has come.

    Args:
        label (`str`): What is being done.
        total (`float`, *optional*): How many units there are; without it only the rate is shown.
        unit (`str`, *optional*, defaults to `"docs"`): Name of a unit.
        quiet (`bool`, *optional*): Overrides `HF_PRETRAIN_QUIET`.
        stream (`TextIO`, *optional*, defaults to standard error): Where to write.
        every (`float`, *optional*, defaults to 5.0): Seconds between two lines in a log.
    """

    def __init__(
        self,
        label: str,
        total: float | None = None,
        unit: str = "docs",
        quiet: bool | None = None,
        stream: TextIO | None = None,
        every: float = 5.0,
    ) -> None:
        self.label, self.total, self.unit, self.every = label, total, unit, every
        self.quiet = is_quiet() if quiet is None else quiet
        self.stream = stream or sys.stderr
        self.count = 0.0
        self._terminal = bool(getattr(self.stream, "isatty", lambda: False)())
        self._start = self._last = time.monotonic()
        self._width = 0

    def __enter__(self) -> "Progress":
        self._start = self._last = time.monotonic()
        return self

    def update(self, amount: float = 1.0, note: str = "") -> None:
        """Counts finished units and shows the state when it is time to.

        Args:
            amount (`float`, *optional*, defaults to 1.0): Units finished since the last call.
            note (`str`, *optional*): Something to show beside the counts.
        """
        self.count += amount
        now = time.monotonic()
        if not self.quiet and now - self._last >= (0.2 if self._terminal else self.every):
            self._last = now
            self._show(self.line(now, note), final=False)

    def line(self, now: float | None = None, note: str = "") -> str:
        """The state in one line.

        Args:
            now (`float`, *optional*): A reading of `time.monotonic()`.
            note (`str`, *optional*): Something to show beside the counts.

        Returns:
            `str`: Label, counts, rate, and the time left where a total is known.
        """
        elapsed = max((time.monotonic() if now is None else now) - self._start, 1e-9)
        rate = self.count / elapsed
        done = format_count(self.count)
        if self.total:
            done += f"/{format_count(self.total)} ({min(self.count / self.total, 1.0):.0%})"
        text = f"{self.label}: {done} {self.unit}, {format_count(rate)} {self.unit}/s"
        if self.total and rate > 0 and self.count < self.total:
            text += f", {format_duration((self.total - self.count) / rate)} left"
        return f"{text} | {note}" if note else text

    def _show(self, text: str, final: bool) -> None:
        if self._terminal:
            padding = " " * max(self._width - len(text), 0)
            self._width = len(text)
            self.stream.write(f"\r{text}{padding}" + ("\n" if final else ""))
        else:
            self.stream.write(text + "\n")
        self.stream.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.quiet or (kind is not None and self.count == 0):
            return
        elapsed = time.monotonic() - self._start
        state = "" if kind is None else " (stopped)"
        self._show(
            f"{self.label}: {format_count(self.count)} {self.unit} in {format_duration(elapsed)}{state}", final=True
        )

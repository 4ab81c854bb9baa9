"""The record of a step: which configuration it ran with, and whether it was finished.

A step is a folder with a manifest. It is `running` from its first moment and `done` when everything in it is complete;
a done step with the same fingerprint is not run again, anything else is. The manifest is written last, so a crash
leaves a step that is seen as unfinished.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hf_pretrain.utils.atomic import read_json, write_json


@dataclass
class StepManifest:
    """State of one step's folder.

    Args:
        path (`Path`): The manifest file.
        fingerprint (`str`): Digits of configuration and inputs.
        status (`str`, *optional*, defaults to `"new"`): `new`, `running` or `done`.
        started (`float`, *optional*, defaults to 0.0): Unix time of the first start.
        seconds (`float`, *optional*, defaults to 0.0): Working time, summed over restarts.
        details (`dict`, *optional*): Whatever the step wants to keep: row counts, statistics, outputs.
    """

    path: Path
    fingerprint: str
    status: str = "new"
    started: float = 0.0
    seconds: float = 0.0
    details: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def load(cls, path: str | Path) -> "StepManifest | None":
        """Reads a manifest.

        Args:
            path (`str` or `Path`): The manifest file.

        Returns:
            `StepManifest` or `None`: `None` when there is none, or when it is not a readable manifest.
        """
        path = Path(path)
        try:
            data = read_json(path)
            return cls(
                path,
                str(data["fingerprint"]),
                str(data["status"]),
                float(data.get("started", 0.0)),
                float(data.get("seconds", 0.0)),
                dict(data.get("details", {})),
            )
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (ValueError, KeyError, TypeError):
            # Half a manifest cannot be written by us; one edited by hand counts as none, and the step runs again.
            return None

    def is_done(self, fingerprint: str) -> bool:
        """Tells whether the step is finished for this fingerprint.

        Args:
            fingerprint (`str`): Digits of the configuration asked for.

        Returns:
            `bool`: Whether nothing is left to do.
        """
        return self.status == "done" and self.fingerprint == fingerprint

    def start(self) -> "StepManifest":
        """Marks the step as running.

        Returns:
            `StepManifest`: Itself.
        """
        self.status = "running"
        self.started = self.started or time.time()
        self.save()
        return self

    def finish(self, seconds: float, **details: Any) -> "StepManifest":
        """Marks the step as done.

        Args:
            seconds (`float`): Working time of this start; added to what earlier starts took.
            details (`Any`): Plain JSON data to keep.

        Returns:
            `StepManifest`: Itself.
        """
        self.status = "done"
        self.seconds += seconds
        self.details.update(details)
        self.save()
        return self

    def save(self) -> None:
        """Writes the manifest atomically."""
        write_json(
            self.path,
            {
                "fingerprint": self.fingerprint,
                "status": self.status,
                "started": self.started,
                "seconds": self.seconds,
                "details": self.details,
            },
        )

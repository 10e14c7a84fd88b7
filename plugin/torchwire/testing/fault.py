"""One fault that was injected, and the logs of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torchwire.testing import message_types

_SUFFIX = ".jsonl"


@dataclass(frozen=True)
class Fault:
    """What was done to one message, or to one attempt to connect.

    time: seconds since 1970, by the clock of `worker`, which injected it.
    revision: of the plan: 0 for the one from the options, then one more with each set_plan().
    rule, action, phase: which rule, what it did, and where in the call's life.
    from_, to: the caller and the callee, also for a fault in the response; in phase connect who dials whom.
    message: type of the request by name; "" in phase connect.
    call_id: as drawn by the caller; 0 in phase connect.
    occurrence: its number, from 1, among the messages with the same caller, callee, type and phase.
    seconds: how long, for a delay, reorder, pause and partition.
    byte: which byte of the frame was changed, for a corrupt.
    """

    time: float
    worker: str
    revision: int
    rule: str
    action: str
    phase: str
    from_: str
    to: str
    message: str
    call_id: int
    occurrence: int
    seconds: float
    byte: int | None

    @classmethod
    def from_entry(cls, entry: Mapping[str, Any]) -> Fault:
        """The fault for an entry of the extension's log, or for a line of a log file."""
        fields = {("from_" if key == "from" else key): value for key, value in entry.items()}
        fields["message"] = message_types.name_of(entry["message"])
        fields["seconds"] = float(entry["seconds"])
        fields["byte"] = entry["byte"] if entry["action"] == "corrupt" else None
        return cls(**fields)

    def __str__(self) -> str:
        what = f"{self.message} {self.call_id:#x}" if self.message else "connection"
        details = f", {self.seconds:.6g} s" if self.seconds else ""
        details += f", byte {self.byte}" if self.byte is not None else ""
        return (
            f"{self.time:.6f} {self.worker}: {self.action} ({self.rule}, revision {self.revision}) "
            f"{self.phase} of {what} #{self.occurrence} {self.from_} -> {self.to}{details}"
        )


def path_in(folder: str | os.PathLike[str], worker: str) -> Path:
    """The file in which the faults of a worker are logged."""
    return Path(folder) / f"{worker}{_SUFFIX}"


def read_logs(folder: str | os.PathLike[str]) -> list[Fault]:
    """The faults of all workers that log into the folder, by time; also of those that were killed.

    Clocks of different hosts differ, and so does what they say of the order. Workers append to what is there, so use a
    folder for each run. Raises OSError when the folder cannot be read, and ValueError for what is no log.
    """
    paths = sorted(path for path in Path(folder).iterdir() if path.suffix == _SUFFIX)
    return sorted((fault for path in paths for fault in _read(path)), key=lambda fault: fault.time)


def _read(path: Path) -> Iterator[Fault]:
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(keepends=True), start=1):
        if not line.endswith("\n"):
            return  # is being written
        try:
            yield Fault.from_entry(json.loads(line))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{path}, line {number}: not a fault: {error}") from None

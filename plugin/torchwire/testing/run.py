"""What came of a function that several workers ran."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchwire.testing.fault import Fault


@dataclass(frozen=True)
class WorkerFailure:
    """Why a worker did not return, or did not end, as it should.

    type_name: of the exception; ProcessEnded for a process that was killed or ended by itself, and StillRunning for one
        that was killed because the time was up.
    message: of the exception.
    traceback: from there; of StillRunning the stacks of all its threads. Default: none.
    """

    type_name: str
    message: str
    traceback: str = ""

    def __str__(self) -> str:
        return f"{self.type_name}: {self.message}"


@dataclass(frozen=True)
class Run:
    """What came of run_workers().

    results: what the function returned, for each worker where it did.
    errors: for each worker where it did not, or where the start or the end of RPC failed.
    exit_codes: of all processes, as multiprocessing has them: negative for a signal.
    log: the faults that all workers injected, by time; also those that were killed.
    seconds: how long it all took.
    """

    results: dict[str, Any]
    errors: dict[str, WorkerFailure]
    exit_codes: dict[str, int]
    log: list[Fault]
    seconds: float

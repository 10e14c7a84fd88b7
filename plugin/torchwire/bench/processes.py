"""Other processes, seen from outside: stopped, continued, killed, and what they use. Linux's /proc."""

from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import time
from collections.abc import Iterable

_PR_SET_PDEATHSIG = 1
_STOP_LIMIT = 5.0  # seconds


def die_with_parent() -> None:
    """Has this process killed when its parent ends; a stopped process would not notice it."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def with_descendants(pids: Iterable[int]) -> list[int]:
    """These processes and all that they have started, as far as they are alive."""
    found = list(pids)
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (fields := _stat(int(entry))):
            children.setdefault(int(fields[1]), []).append(int(entry))
    for pid in found:  # which grows
        found += children.get(pid, [])
    return found


def stop(pids: Iterable[int]) -> None:
    """Returns when none of them runs any more."""
    pids = list(pids)
    send(pids, signal.SIGSTOP)
    end = time.monotonic() + _STOP_LIMIT
    for pid in pids:
        while (fields := _stat(pid)) and fields[0] not in "TtZX" and time.monotonic() < end:
            time.sleep(0.0002)


def send(pids: Iterable[int], number: signal.Signals) -> None:
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass  # it has ended, as whoever waits for it will see


def cpu_time(pids: Iterable[int]) -> int:
    """Nanoseconds of CPU that they have used, with all their threads, up to now."""
    # As clock_getcpuclockid(3) makes the clock of another process, which Python does not offer.
    return sum(time.clock_gettime_ns((~pid << 3) | 2) for pid in pids)


def threads(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/task"))


def open_files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def private_memory(pid: int) -> int:
    """Bytes in memory that no other process shares: not the libraries, nor what it got by being forked."""
    lines = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))


def _stat(pid: int) -> list[str] | None:
    """State, parent and so on, as in proc(5); None if the process is gone."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return text.rpartition(")")[2].split()  # the name, which comes before, may have anything in it

"""One worker's part in a trace: what it notes while the trace is on, and hands over at its end."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

from torchwire._C import TorchwireAgent


class Owner(NamedTuple):
    """Whose a trace is: what no other trace has, in words, and the rank of the worker, -1 for the whole group.

    The keys of one worker's traces sort by when they began.
    """

    key: str
    name: str
    rank: int


# Of a trace that lasts as long as the group.
REQUESTED = Owner("requested", "the environment variable TORCHWIRE_TRACE", -1)
# In the questions of earlier versions there is none, and they find no trace of another worker under way.
UNKNOWN = Owner("", "another worker", -2)


@dataclass(frozen=True)
class _Trace:
    """The one that is on here."""

    agent: TorchwireAgent
    owner: Owner
    begun: float  # in seconds since 1970


_on: _Trace | None = None
# Keys of traces that have ended here before they began: a worker that was cut off is told of both late, and takes up
# questions on several threads.
_ended: deque[str] = deque(maxlen=64)
_lock = threading.Lock()


def start(agent: TorchwireAgent, capacity: int, owner: Owner) -> Owner | None:
    """From now on the agent notes so many events at most. A trace whose owner is still there, and has not begun another
    one since, goes on instead; its owner is returned. Thread-safe."""
    global _on
    with _lock:
        if owner.key in _ended:
            return None
        if _on is not None and _on.agent is agent:
            if _on.owner == owner:
                return None
            if _is_there(agent, _on.owner.rank) and not _follows(agent, owner, _on.owner):
                return _on.owner
        _on = _Trace(agent, owner, time.time())
        agent.start_trace(capacity)
        return None


def _follows(agent: TorchwireAgent, owner: Owner, former: Owner) -> bool:
    """Whether it is the same, other worker's, which begins a trace only when its former one has ended."""
    own = agent.get_worker_info().id
    return (
        owner.rank == former.rank and owner.rank not in (REQUESTED.rank, UNKNOWN.rank, own) and owner.key > former.key
    )


def _is_there(agent: TorchwireAgent, rank: int) -> bool:
    if rank in (REQUESTED.rank, agent.get_worker_info().id):
        return True
    return any(peer["id"] == rank and peer["state"] not in ("dead", "left") for peer in agent.peers())


def take(agent: TorchwireAgent, key: str) -> dict[str, Any]:
    """Ends the trace with that key. All times are in seconds of time.monotonic().

    events: of calls, see trace_file.Event. notes: see trace_notes.Note. lost: how many of both there was no room for.
    functions: kind and name of each function by its number in events. faults: those injected meanwhile: when, what, and
    a sentence.

    Raises RuntimeError when that is not the one that is on.
    """
    global _on
    with _lock:
        on = _on
        if on is None or on.agent is not agent or on.owner.key != key:
            if key not in (REQUESTED.key, UNKNOWN.key):  # which are not of one trace alone
                _ended.append(key)
            raise RuntimeError("it has no part in this trace" + (f", but in one of {on.owner.name}" if on else ""))
        _on = None
        events, notes, lost = agent.stop_trace()
    functions = {each["id"]: (each["kind"], each["function"]) for each in agent.function_metrics()}
    return {"events": events, "notes": notes, "lost": lost, "functions": functions, "faults": _injected_since(on.begun)}


def _injected_since(begun: float) -> list[tuple[float, str, str]]:
    """Those of the fault injection's log, where this process has it."""
    control: Any = sys.modules.get("torchwire.testing.control")
    if control is None:
        return []
    try:
        faults = control.fault_log()
    except RuntimeError:  # of an agent without fault injection
        return []
    ahead = time.time() - time.monotonic()
    return [(fault.time - ahead, fault.action, str(fault)) for fault in faults if fault.time >= begun]

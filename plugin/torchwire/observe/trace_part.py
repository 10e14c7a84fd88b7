"""One worker's part in a trace: what it notes while the trace is on, and hands over at its end."""

from __future__ import annotations

import sys
import time
from typing import Any

from torchwire._C import TorchwireAgent

_begun = float("inf")  # when the trace was started here, in seconds since 1970


def start(agent: TorchwireAgent, capacity: int) -> None:
    """From now on the agent notes so many events at most."""
    global _begun
    _begun = time.time()
    agent.start_trace(capacity)


def take(agent: TorchwireAgent) -> dict[str, Any]:
    """Ends it. All times are in seconds of time.monotonic().

    events: of calls, see trace_file.Event. notes: see trace_notes.Note. lost: how many of both there was no room for.
    functions: kind and name of each function by its number in events. faults: those injected meanwhile: when, what, and
    a sentence.
    """
    events, notes, lost = agent.stop_trace()
    functions = {each["id"]: (each["kind"], each["function"]) for each in agent.function_metrics()}
    return {"events": events, "notes": notes, "lost": lost, "functions": functions, "faults": _injected_faults()}


def _injected_faults() -> list[tuple[float, str, str]]:
    """Those of the fault injection's log, where this process has it."""
    control: Any = sys.modules.get("torchwire.testing.control")
    if control is None:
        return []
    try:
        faults = control.fault_log()
    except RuntimeError:  # of an agent without fault injection
        return []
    ahead = time.time() - time.monotonic()
    return [(fault.time - ahead, fault.action, str(fault)) for fault in faults if fault.time >= _begun]

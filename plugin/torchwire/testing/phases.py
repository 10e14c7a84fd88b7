"""Which fault can be injected at which point of a call: the table of backend/faults/plan.h, for error messages.

    caller                                       callee
 request ──▶ request goes out ═══ mid_tensor ═══▶ in_flight: it has arrived and is about to be served
                                                    │
 (the call ends) ◀═══ mid_tensor ═══ response goes out ◀── response

Phase "connect" is before all of that: a link is being made.
"""

from __future__ import annotations

PHASES = ("connect", "request", "in_flight", "response", "mid_tensor")

_WHOLE_FRAME = ("request", "in_flight", "response")
_ANYWHERE = (*_WHOLE_FRAME, "mid_tensor")

# A partition is not a matter of messages, and so has no phase.
PHASES_OF: dict[str, tuple[str, ...]] = {
    "drop": _ANYWHERE,
    "fail": _WHOLE_FRAME,
    "delay": _ANYWHERE,
    "duplicate": _WHOLE_FRAME,
    "reorder": _WHOLE_FRAME,
    "corrupt": _ANYWHERE,
    "close": _ANYWHERE,
    "refuse": ("connect",),
    "pause": _ANYWHERE,
    "kill": _ANYWHERE,
    "partition": (),
}

TIMED = ("delay", "reorder", "pause", "partition")
NEEDS_TIME = ("delay", "pause", "partition")  # a reorder has a default

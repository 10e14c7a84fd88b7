"""The RRefs of this worker, for people who look for one that does not go away."""

from __future__ import annotations

from typing import Any

from torchwire.current_agent import agent_for
from torchwire.records import RRefInfo

_PATIENCE = 2.0  # seconds that peers have to say which forks they hold


def rrefs() -> list[RRefInfo]:
    """One `torchwire.RRefInfo` for each RRef that this worker owns and others hold, or that it holds of another owner.

    Raises RuntimeError when RPC is not initialized or runs on another backend. Thread-safe.
    """
    return [_finished(rref) for rref in agent_for("rrefs").rrefs(_PATIENCE)]


def _finished(rref: dict[str, Any]) -> RRefInfo:
    holders = sorted({holder for holder in rref["forks"].values() if holder is not None})
    first = {key: rref[key] for key in ("role", "id", "owner", "type")}
    return RRefInfo({**first, "holders": holders, **{key: rref[key] for key in rref if key not in first}})

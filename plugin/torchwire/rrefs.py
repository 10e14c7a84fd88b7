"""The RRefs of this worker, for people who look for one that does not go away."""

from __future__ import annotations

from typing import Any

from torchwire.current_agent import agent_for

_PATIENCE = 2.0  # seconds that peers have to say which forks they hold


def rrefs() -> list[dict[str, Any]]:
    """One dict for each RRef that this worker owns and others hold, and for each that it holds of another owner.

    role: "owner" or "user".
    id: the RRef's id, as PyTorch prints it; the same on all workers.
    owner: the owner's name.
    type: the value's type as TorchScript names it; None while the function that makes the value has not returned.
    holders: names of the workers that hold the RRef. Of an owner: those that its forks are on. Where the owner has
        handed a fork out itself, it asks all peers; a fork that is still on its way, or whose holder does not answer
        within two seconds, has no name here. Of a user: this worker.
    forks: the ids of the forks, each with its holder's name or None.
    age: seconds since it was made, or else since torchwire first noticed it: at the latest when it is listed. RRefs
        that came with a call, and those that TorchScript makes, are noticed when they are listed.
    state: of an owner "confirmed" when its value is there, of a user when the owner knows of it; else "pending".
    creation_site: where the program made it, innermost frame first, if its creator has `record_creation_site` on;
        else None. Only the owner and the creator know.

    Raises RuntimeError when RPC is not initialized or runs on another backend. Thread-safe.
    """
    return [_finished(rref) for rref in agent_for("rrefs").rrefs(_PATIENCE)]


def _finished(rref: dict[str, Any]) -> dict[str, Any]:
    holders = sorted({holder for holder in rref["forks"].values() if holder is not None})
    first = {key: rref[key] for key in ("role", "id", "owner", "type")}
    return {**first, "holders": holders, **{key: rref[key] for key in rref if key not in first}}

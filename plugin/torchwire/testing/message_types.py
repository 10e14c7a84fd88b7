"""The messages that a rule can name: requests, by the names that PyTorch and torchwire give them, and groups of them.

A response has no name here: a rule about responses names the request and has phase="response".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torchwire._C import FAULT_MESSAGE_TYPES
from torchwire.suggestion import did_you_mean

# torchwire's engine sends GRADIENTS where PyTorch's sends this.
ALIASES = {"BACKWARD_AUTOGRAD_REQ": "GRADIENTS"}

# Name -> number on the wire.
TYPES: dict[str, int] = {name: number for name, number in FAULT_MESSAGE_TYPES.items() if name not in ALIASES}

_FETCHES = ("SCRIPT_RREF_FETCH_CALL", "PYTHON_RREF_FETCH_CALL")
_CALLS = (
    "SCRIPT_CALL",
    "PYTHON_CALL",
    "SCRIPT_REMOTE_CALL",
    "PYTHON_REMOTE_CALL",
    "FORWARD_AUTOGRAD_REQ",
    "RUN_WITH_PROFILING_REQ",
    "RREF_BACKWARD_REQ",
)

GROUPS: dict[str, tuple[str, ...]] = {
    "call": _CALLS,  # runs something of the user's
    "fetch": _FETCHES,  # gets the value of an RRef
    "control": tuple(name for name in TYPES if name not in _CALLS + _FETCHES),  # housekeeping
}

_ACKNOWLEDGED = "RREF_USER_DELETE, RREF_FORK_REQUEST, RREF_CHILD_ACCEPT, CREATION_SITE or CREATION_FAILED"
_REQUESTS_OF_RESPONSES = {
    "SCRIPT_RET": "SCRIPT_CALL",
    "PYTHON_RET": "PYTHON_CALL",
    "REMOTE_RET": "SCRIPT_REMOTE_CALL or PYTHON_REMOTE_CALL",
    "SCRIPT_RREF_FETCH_RET": "SCRIPT_RREF_FETCH_CALL",
    "PYTHON_RREF_FETCH_RET": "PYTHON_RREF_FETCH_CALL",
    "RREF_ACK": _ACKNOWLEDGED,
    "FORWARD_AUTOGRAD_RESP": "FORWARD_AUTOGRAD_REQ",
    "BACKWARD_AUTOGRAD_RESP": "GRADIENTS",
    "CLEANUP_AUTOGRAD_CONTEXT_RESP": "CLEANUP_AUTOGRAD_CONTEXT_REQ",
    "RUN_WITH_PROFILING_RESP": "RUN_WITH_PROFILING_REQ",
    "RREF_BACKWARD_RESP": "RREF_BACKWARD_REQ",
    "GRADIENTS_DONE": "GRADIENTS",
    "DISCOVERED": "DISCOVER",
    "RESUMED": "RESUME",
    "PASS_ENDED": "END_PASS",
    "HOLDERS_REPLY": "HOLDERS_REQUEST",
    "STORE_REPLY": "STORE_REQUEST",
    "WHEREABOUTS_REPLY": "WHEREABOUTS",
    "OBSERVED": "OBSERVE",
    "NOTED": "the request that it answers",
    "EXCEPTION": "the request that it answers",
}

_NAMES = {number: name for name, number in TYPES.items()}


def check_name(where: str, name: Any) -> str:
    """Returns the name of a message type or group, an alias by what it stands for.

    Raises TypeError and ValueError, which begin with `where`, for anything else.
    """
    if not isinstance(name, str):
        raise TypeError(f"{where} must hold names of message types, got {name!r} ({type(name).__name__})")
    name = ALIASES.get(name, name)
    if name in TYPES or name in GROUPS:
        return name
    # How PyTorch's faulty backend says it.
    problem = f"{where}: No mapping to rpc::MessageType exists for {name}"
    if name in _REQUESTS_OF_RESPONSES:
        raise ValueError(
            f'{problem}: it is a response; name the request, {_REQUESTS_OF_RESPONSES[name]}, and phase="response"'
        )
    known = [*TYPES, *ALIASES, *GROUPS]
    suggestion = did_you_mean(name, known) or did_you_mean(name.upper(), known) or did_you_mean(name.lower(), known)
    raise ValueError(f"{problem}{suggestion}; known are {', '.join(known)}")


def numbers(names: Sequence[str]) -> list[int]:
    """The numbers of message types and of those in groups, each once."""
    single = (type_name for name in names for type_name in GROUPS.get(name, (name,)))
    return list(dict.fromkeys(TYPES[name] for name in single))


def name_of(number: int) -> str:
    """The name of a message type in a log: "" for what is no call's message, and a number that has no name as it is."""
    return _NAMES.get(number, f"{number:#x}" if number else "")

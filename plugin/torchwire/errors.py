"""Why a call has failed, where that was not the code of its callee: see docs/errors.md.

All are RuntimeErrors whose texts are those that PyTorch's own backend has, or begin as those do.
"""

from __future__ import annotations

from typing import Literal

Executed = Literal["no", "unknown", "yes"]


class RpcError(RuntimeError):
    """A call has failed.

    worker: the name of whom the call was to; None where that is not known. Where a handler has made the call and let
        the error pass, that is not the worker that the handler runs on.
    executed: whether that call has run. "no": its request has not been sent, and never will be; it can safely be made
        again. "unknown": its request may have reached the worker. "yes": it has run, and only its answer is missing.
    """

    worker: str | None = None
    executed: Executed = "unknown"

    def __init__(self, message: str = "", worker: str | None = None, executed: Executed = "unknown") -> None:
        super().__init__(message)
        self.worker = worker
        self.executed = executed


class WorkerDied(RpcError):
    """The worker's process is known to have ended, or the group has declared it dead since it was not to be heard."""


class WorkerUnreachable(RpcError):
    """No link to the worker could be made, or the link has broken, or one of the two is not in the group any more."""


class CallTimedOut(RpcError):
    """The call was not answered within its time-out."""


class Overloaded(CallTimedOut):
    """The call's time-out passed before there was room to send its request: see the option max_bytes_in_flight."""


class CallCancelled(RpcError):
    """The program has given the call up."""

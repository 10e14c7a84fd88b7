"""Calls that nobody waits for any more: by hand, by the clock, and what their callees know of it."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Generator
from typing import Any

import torch

from torchwire import _C
from torchwire.current_agent import current_agent

logger = logging.getLogger(__name__)


def cancel(future: torch.futures.Future[Any]) -> bool:
    """Gives a call up: its future fails with torchwire.CallCancelled, and its callee is told.

    The callee does not begin to run the function, if it has not yet; else the function can ask
    `torchwire.current_call().cancelled`, and its result is dropped.

    Thread-safe.

    Args:
        future: What rpc.rpc_async has returned. Not that of an RRef's creation, of a call by an RRef's proxy
            (`rref.rpc_async()`) or of one that the legacy profiler records.

    Returns:
        Whether the call has ended by this: False when it had ended before.

    Raises:
        ValueError: It is another future.
    """
    return _C.cancel_call(future)


@contextlib.contextmanager
def deadline(seconds: float) -> Generator[None]:
    """Calls that this thread makes in the block end at the latest `seconds` after it was entered.

    A call whose own time-out is shorter keeps it. One that has not been answered by then fails with
    torchwire.CallTimedOut, also where it is waited for after the block, and its callee is told as by cancel(). In a
    block within another the earlier deadline holds. A callee with the option `inherit_deadline` ends the calls that
    its function makes in turn by then, too.

    Raises TypeError when `seconds` is no number.
    """
    own = time.monotonic() + seconds
    outer = _C.set_deadline(own)
    if outer is not None and outer < own:
        _C.set_deadline(outer)
    try:
        yield
    finally:
        _C.set_deadline(outer)


class CurrentCall:
    """The call that a function runs for. It may be handed to other threads, and outlives the call.

    Made by current_call(); `served` is what the extension knows of it.
    """

    def __init__(self, served: _C.WatchedCall) -> None:
        self._served = served

    @property
    def cancelled(self) -> bool:
        """Whether the caller has given it up, or is gone. Thread-safe."""
        return self._served.is_cancelled

    def add_cancel_callback(self, callback: Callable[[], Any]) -> None:
        """Has `callback()` called, once, when the caller gives the call up or is gone; never if it is answered before.

        For functions that have returned a future (`rpc.functions.async_execution`), which is not failed for them: it
        may be others' too, as that of a batch. docs/errors.md has an example that fails one.

        It runs on a thread of torchwire's that also runs callbacks of futures, or at once, on the calling thread, if
        that has happened. What it raises is logged. Thread-safe. Raises TypeError for what cannot be called.
        """
        if not callable(callback):
            raise TypeError(f"the callback must be callable, got {type(callback).__name__}")

        def run() -> None:
            try:
                callback()
            except Exception:
                logger.exception("a callback of a cancelled call failed: %r", callback)

        if not self._served.add_cancel_callback(run):
            run()

    @property
    def caller(self) -> str | None:
        """The caller's name; None outside of a call, or when the caller has left."""
        agent = current_agent()
        names = {worker.id: worker.name for worker in agent.get_worker_infos()} if agent is not None else {}
        return names.get(self._served.caller)


def current_call() -> CurrentCall:
    """The call that the calling thread serves. Outside of one: a call without a caller, that is never cancelled."""
    return CurrentCall(_C.watch_served_call())

"""`rpc.shutdown()` in several threads at once: the first does it, the others wait for it.

Without this they would all gather the group and count its calls; PyTorch's own agent then fails in one thread or hangs.

`rpc.shutdown` cannot be replaced by name, because programs hold it since before init_rpc: atexit.register(rpc.shutdown)
does. But it is only a check that RPC is initialized, around the function proper, which it finds in a closure cell. What
is in the cell is replaced.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import functools
import os
import sys
import threading
import time
from collections.abc import Callable

from torch.distributed.rpc.constants import DEFAULT_SHUTDOWN_TIMEOUT

from torchwire import _C
from torchwire.current_agent import current_agent
from torchwire.replaced import API, Replacements

SHUTDOWN = f"{API}.shutdown.__wrapped__"

# A shutdown that waits for other workers looks about once a second whether its agent is still there.
_EXIT_PATIENCE = 5.0  # seconds
# Until another look whether this process is still the one that waits.
_SLICE = 0.2  # seconds
# To print a traceback takes milliseconds; a thread that goes on after a failed shutdown costs the exit this much.
_PRINTING_PATIENCE = 1.0  # seconds


class _Shutdown:
    """One that has begun; `outcome` completes when it ends."""

    def __init__(self) -> None:
        self.thread = threading.current_thread()
        self.outcome: concurrent.futures.Future[None] = concurrent.futures.Future()

    def is_elsewhere(self) -> bool:
        return self.thread.ident != threading.get_ident()


class _Turns:
    """Lets one shutdown of the current agent run at a time. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.running: _Shutdown | None = None
        self.latest: _Shutdown | None = None  # whether or not it still runs

    def begin(self) -> tuple[_Shutdown, bool]:
        """The shutdown that runs, and whether it has begun just now and is the caller's to carry out."""
        with self._lock:
            if self.running is not None:
                return self.running, False
            self.running = self.latest = _Shutdown()
            return self.running, True

    def carry_out(self, mine: _Shutdown, function: Callable[[], None]) -> None:
        try:
            function()
        except BaseException as error:
            self.running = None
            mine.outcome.set_exception(error)
            raise
        self.running = None
        mine.outcome.set_result(None)


class _Circumstances(threading.local):
    is_graceful = True
    before: BaseException | None = None


_turns = _Turns()
_here = _Circumstances()


def install(replaced: Replacements) -> None:
    """Makes rpc.shutdown() wait for one that runs in another thread, until `replaced` is undone."""
    global _turns
    _turns = _Turns()  # a forked child must not wait for what ran in its parent
    replaced.replace(SHUTDOWN, lambda original: _in_turn(original, _turns))


def runs_elsewhere() -> bool:
    """Tells whether another thread is in rpc.shutdown()."""
    running = _turns.running
    return running is not None and running.is_elsewhere()


def circumstances() -> tuple[bool, BaseException | None]:
    """Whether the shutdown that this thread is in is graceful, and what was being raised when it was called."""
    return _here.is_graceful, _here.before


def await_running() -> None:
    """Waits a while for a shutdown that another thread is in. Its agent should be shut down by now, which ends it.

    What such an end raises, Python prints. A daemon thread that is stopped amid that, because the process exits, holds
    stderr, and Python aborts: so the thread that failed is awaited, too.
    """
    latest = _turns.latest
    if latest is None or not latest.is_elsewhere():
        return
    concurrent.futures.wait([latest.outcome], timeout=_EXIT_PATIENCE)
    if latest.outcome.done() and latest.outcome.exception() is not None:
        with contextlib.suppress(AssertionError, RuntimeError):  # a thread that Python has not started
            latest.thread.join(_PRINTING_PATIENCE)


def _in_turn(original: Callable[..., None], turns: _Turns) -> Callable[..., None]:
    @functools.wraps(original)
    def shutdown(graceful: bool = True, timeout: float = DEFAULT_SHUTDOWN_TIMEOUT) -> None:
        outer = _here.is_graceful, _here.before  # of a shutdown that a signal's handler interrupts
        _here.is_graceful, _here.before = graceful, sys.exc_info()[1]
        try:
            take_turn(graceful, timeout)
        finally:
            _here.is_graceful, _here.before = outer

    def take_turn(graceful: bool, timeout: float) -> None:
        if graceful:
            _expect_not_awaited()
        running, is_mine = turns.begin()
        if is_mine:
            turns.carry_out(running, lambda: original(graceful, timeout))
        elif graceful and running.is_elsewhere():
            _await(running, timeout)
        else:  # a thread that does not want to wait, or a signal's handler inside the shutdown that runs
            original(graceful=False)

    return shutdown


def _expect_not_awaited() -> None:
    agent = current_agent()
    is_served = _C.watch_served_call().caller >= 0
    if is_served and agent is not None and (agent.is_static_group or runs_elsewhere()):
        raise RuntimeError(
            "rpc.shutdown() waits for functions that have been called by RPC, and so for this one, which calls it: "
            "call it when that has returned"
        )


def _await(running: _Shutdown, timeout: float) -> None:
    process, end = os.getpid(), time.monotonic() + timeout if timeout else None
    while not running.outcome.done():
        concurrent.futures.wait([running.outcome], timeout=_SLICE)
        if os.getpid() != process:  # a handler of a signal has forked it, without the thread
            return
        if end is not None and time.monotonic() >= end and not running.outcome.done():
            raise RuntimeError(f"rpc.shutdown() has not ended within {timeout} s in the thread that began it")
    error = running.outcome.exception()
    if error is not None:
        raise RuntimeError(f"rpc.shutdown() has failed in the thread that began it: {error}") from error

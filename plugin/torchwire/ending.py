"""How this process ends, in words for its peers, whose calls and shutdown fail for that reason.

What ends a process is seen in several places: an uncaught exception of the main program in what Python keeps of it,
one of a child of multiprocessing while its finalizers run, and what sys.exit() raises when it is dropped, for which
sys.exit is replaced. Nothing of the exception is kept but a line of text.

Peers that fail for that reason may end, too. Whoever has started them all, such as torch.multiprocessing.spawn, shows
what the first has raised, and ends the others. So a process that ends by an error waits until those are gone that have
said before that they end.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import select
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from torchwire import interrupts
from torchwire._C import TorchwireAgent
from torchwire.printable import encodable, text_of
from torchwire.replaced import for_good

_MAX_TEXT = 400  # characters


class Ending(NamedTuple):
    """How a process ends, or leaves."""

    reason: str  # as in "it ended by ValueError: on purpose"
    failed: bool = False


_SILENT = Ending("its main program ended without rpc.shutdown()")

_noted: Ending | None = None
_awaited: set[int] = set()  # processes of peers that have ended before this one


def install() -> None:
    """Sees what sys.exit() raises from now on. May be called again."""
    for_good("sys.exit", _noting)


def note_exception() -> None:
    """To be called while a child of multiprocessing ends: what is being raised is what ends it."""
    global _noted
    error = sys.exc_info()[1]
    _noted = Ending("its function returned without rpc.shutdown()") if error is None else _of(error)


def of_this_process() -> Ending:
    """How this process ends, which has begun to."""
    return _noted or _of_main_program()


def of_shutdown(is_graceful: bool, before: BaseException | None) -> Ending | None:
    """Why the agent is shut down, where not for all workers having come.

    To be called in the shutdown. before: what was being raised when it began.
    """
    error = sys.exc_info()[1]
    if is_graceful:
        if error is None or error is before:
            return None
        return Ending(f"its rpc.shutdown() failed: {describe(error)}", True)
    reason = "it called rpc.shutdown(graceful=False)"
    return Ending(reason if error is None else f"{reason} while handling {describe(error)}", error is not None)


def of_start(error: BaseException) -> Ending:
    """Why the agent is shut down that init_rpc has started."""
    return Ending(f"its init_rpc failed: {describe(error)}", True)


def explain(agent: TorchwireAgent, ending: Ending, process_ends: bool) -> None:
    """Has the agent's goodbye say so. Notes whose end came before."""
    _awaited.update(agent.ending_processes())
    agent.explain_leave(encodable(ending.reason), process_ends)


def await_earlier(patience: float) -> None:
    """Waits until the processes on this host are gone that had said that they end before this one did."""
    end = time.monotonic() + patience
    for process in _awaited:
        with contextlib.suppress(OSError, AttributeError):  # it is gone, or this system cannot tell
            descriptor = os.pidfd_open(process)
            try:
                poll = select.poll()
                poll.register(descriptor, select.POLLIN)
                poll.poll(max(0.0, end - time.monotonic()) * 1000)
            finally:
                os.close(descriptor)


def describe(error: BaseException) -> str:
    """The error's type and text, as Python prints them, in short."""
    name = type(error).__qualname__
    if type(error).__module__ not in ("builtins", "__main__", "__mp_main__"):
        name = f"{type(error).__module__}.{name}"
    text = text_of(error)[:_MAX_TEXT]
    return f"{name}: {text}" if text else name


def _of(error: BaseException) -> Ending:
    if not isinstance(error, SystemExit):
        return Ending(f"it ended by {describe(error)}", True)
    cause = _cause_of(error)
    return _of_exit(error.code, None if cause is None else describe(cause))


def _cause_of(error: SystemExit) -> BaseException | None:
    """The error that it was raised for; not what the program had caught as a signal's handler interrupted it."""
    context = None if error.__suppress_context__ else error.__context__
    handler = None if context is None else interrupts.running_handler()
    if context is not None and handler is not None:
        return context if interrupts.has_passed(context, handler) else None
    return None if interrupts.is_interrupt(error) else context


def _of_exit(code: Any, cause: str | None) -> Ending:
    failed = code not in (None, 0)
    call = f"sys.exit({'' if code is None else text_of(code, repr)[:_MAX_TEXT]})"
    if failed and cause is not None:
        return Ending(f"it ended by {cause} ({call})", True)
    return Ending(f"it ended with {call}", failed)


def _of_main_program() -> Ending:
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    trace = None if error is None else error.__traceback__
    # At a prompt, errors do not end the program; nor do those that somebody prints who was called by others.
    is_last = trace is not None and trace.tb_frame.f_back is None and not hasattr(sys, "ps1")
    return _of(error) if error is not None and is_last else _SILENT


class _Departure:
    """Belongs to an exception that sys.exit() has raised, and goes with it.

    Python drops the one that ends the main program when none of its functions runs any more.
    """

    def __init__(self, ending: Ending) -> None:
        self._ending = ending

    def __reduce__(self) -> tuple[type[str], tuple[()]]:
        return str, ()  # with an exception that is pickled goes nothing

    def __del__(self) -> None:
        global _noted
        frame = inspect.currentframe()
        is_last = frame is not None and frame.f_back is None
        if is_last and threading.current_thread() is threading.main_thread():
            _noted = _noted or self._ending  # a child of multiprocessing has ended before it exits


def _noting(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)  # also under its module's name, by which it is pickled
    def exit(*status: Any) -> Any:
        try:
            original(*status)
        except SystemExit as error:
            if threading.current_thread() is threading.main_thread():
                error.__dict__["_torchwire_departure"] = _Departure(_of(error))
            raise

    return exit

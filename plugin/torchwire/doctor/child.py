"""Functions that run in a process of their own, so that one that hangs or crashes does not harm the caller."""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import multiprocessing.resource_tracker
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from typing import Any

from torchwire.bench import processes

_fork_server = multiprocessing.get_context("forkserver")
_context: BaseContext = _fork_server
_PRELOADED = ["torch", "torch.distributed.rpc", "torchwire", "torchwire.doctor.measurement"]


class ChildError(Exception):
    """The function raised, took too long, or its process ended; the text says which, in one line."""


class Child:
    """A process that runs function(*arguments), which must be at the top of a module. Not thread-safe.

    What the function and the C++ side write goes to a file, and from there its last line into the error of a process
    that has crashed. Raises ChildError where no process can be started.
    """

    def __init__(self, function: Callable[..., Any], *arguments: Any) -> None:
        self._output = tempfile.NamedTemporaryFile(mode="r", errors="replace", prefix="torchwire-doctor-")
        self._answer, theirs = _context.Pipe(duplex=False)
        # BaseContext's stub has no Process, though each context has.
        self._process: BaseProcess = getattr(_context, "Process")(  # noqa: B009
            target=_serve, args=(theirs, self._output.name, function, arguments), daemon=True
        )
        try:
            self._process.start()
        except (OSError, EOFError) as error:  # EOFError: the fork server is gone
            raise ChildError(f"no process could be started: {error or type(error).__name__}") from None
        finally:
            theirs.close()

    def result(self, limit: float) -> Any:
        """What the function returns; the process has ended then. Raises ChildError, after `limit` seconds at most."""
        try:
            if not self._answer.poll(limit):
                raise ChildError(f"no result within {limit:g} s")
            kind, value = self._answer.recv()
        except (EOFError, OSError):
            raise ChildError(self._end()) from None
        finally:
            self.close()
        if kind == "error":
            raise ChildError(value)
        return value

    def close(self) -> None:
        """Ends the process, whatever it does. May be called again."""
        self._process.kill()
        self._process.join()
        self._answer.close()
        self._output.close()

    def _end(self) -> str:
        self._process.join()
        code = self._process.exitcode or 0
        how = f"was ended by signal {signal.Signals(-code).name}" if code < 0 else f"ended with status {code}"
        last = next((text for text in reversed(self._output.read().splitlines()) if text.strip()), "")
        return f"its process {how}" + (f": {last}" if last else "")


def run(function: Callable[..., Any], *arguments: Any, limit: float) -> Any:
    """What the function returns. Raises ChildError, after `limit` seconds at most."""
    return Child(function, *arguments).result(limit)


def wait_until(condition: Callable[[], bool], limit: float) -> bool:
    """Asks again and again, for what nothing announces; False if it takes longer than `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def prepare() -> None:
    """Starts to import, in the background, what children need."""
    _fork_server.set_forkserver_preload(_PRELOADED)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        multiprocessing.resource_tracker.ensure_running()  # else the fork server starts it, which unblocks SIGINT
        # The fork server inherits it, and children from there: Ctrl-C is for the caller, which ends them.
        signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
        multiprocessing.forkserver.ensure_running()
    except OSError:  # no more processes, or none of the Unix sockets by which it is asked: the checks will say it
        fork_children()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def fork_children() -> None:
    """Children are forks of this process from now on: where new ones cannot be asked for, or can import nothing."""
    global _context
    _context = multiprocessing.get_context("fork")


def _serve(answer: Connection, output: str, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    processes.die_with_parent()  # the fork server, which ends with the caller
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # not inherited by a fork of the caller
    try:
        _redirect_output(output)
    except FileNotFoundError:  # the caller was interrupted before it knew of this process
        os._exit(0)
    try:
        outcome = "value", function(*arguments)
    except BaseException as error:
        outcome = "error", _first_line(error)
    answer.send(outcome)
    os._exit(0)  # what still runs is not worth waiting for


def _first_line(error: BaseException) -> str:
    """PyTorch's errors append a stack trace, and those of a remote function the traceback from there."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return text or type(error).__name__


def _redirect_output(path: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)

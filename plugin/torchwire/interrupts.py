"""What handlers of signals raise, as opposed to what objects of other workers do."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import inspect
import opcode
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType, TracebackType
from typing import Any, cast

_RAISE = opcode.opmap["RAISE_VARARGS"]


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal of this process has raised it, rather than an object of another worker, as far as can be told.

    A signal's handler runs on the main thread alone, and is given the frame that it interrupts, which calls it.
    Python's own for Ctrl-C has no frame: what it raises comes from between two instructions, and not from one that
    raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    last, running = None, _with_callers(sys._getframe().f_back)
    for last in _entries(error.__traceback__):
        if last.tb_frame not in running and _is_of_handler(last.tb_frame):
            return True
    if not isinstance(error, KeyboardInterrupt) or not _has_pythons_handler():
        return False
    return last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def running_handler() -> FrameType | None:
    """The frame of a signal's handler that runs on this thread; None where there is none, or it has been replaced."""
    codes = {_code_of(signal.getsignal(number)) for number in signal.valid_signals()}
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        # Only of these are f_locals read: see _with_callers(). The program may call such a function itself, too.
        if frame.f_code in codes and _is_of_handler(frame):
            return frame
        frame = frame.f_back
    return None


def has_passed(error: BaseException, frame: FrameType) -> bool:
    """Whether the error was raised in the frame, or came up to it."""
    return any(entry.tb_frame is frame for entry in _entries(error.__traceback__))


def _code_of(handler: Any) -> Any:
    """None: it is none of Python's."""
    method = getattr(handler, "__func__", handler)
    return getattr(method, "__code__", None) or getattr(type(handler).__call__, "__code__", None)


def _with_callers(frame: FrameType | None) -> set[FrameType]:
    """Frames whose f_locals are not to be read: up to Python 3.12 one keeps them, also what its function drops later.

    Not those of this module, which hold the set: nothing but the garbage collector would end that cycle.
    """
    frames = set[FrameType]()
    while frame is not None:
        frames.add(frame)
        frame = frame.f_back
    return frames


def _is_of_handler(frame: FrameType) -> bool:
    caller, code = frame.f_back, frame.f_code
    if caller is None:
        return False
    has_rest = bool(code.co_flags & inspect.CO_VARARGS)
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + has_rest]
    for argument in (frame.f_locals.get(name) for name in names):
        values = cast("tuple[Any, ...]", argument) if type(argument) is tuple else (argument,)
        if any(value is caller for value in values):
            return True
    return False


def _has_pythons_handler() -> bool:
    return any(signal.getsignal(number) is signal.default_int_handler for number in signal.valid_signals())


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next

"""What handlers of signals raise, as opposed to what objects of other workers do."""

from __future__ import annotations

import opcode
import signal
import threading
from collections.abc import Iterator
from types import CodeType, TracebackType

_RAISE = opcode.opmap["RAISE_VARARGS"]


def is_interrupt(error: BaseException) -> bool:
    """Whether a signal of this process has raised it, rather than an object of another worker, as far as can be told.

    A signal's handler runs on the main thread alone. Python's own for Ctrl-C has no frame: what it raises comes from
    between two instructions, and not from one that raises.
    """
    if threading.current_thread() is not threading.main_thread():
        return False
    last = None
    handlers = _handlers()
    for last in _entries(error.__traceback__):
        if last.tb_frame.f_code in handlers:
            return True
    if not isinstance(error, KeyboardInterrupt) or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return False
    return last is None or last.tb_frame.f_code.co_code[last.tb_lasti] != _RAISE


def _handlers() -> set[CodeType]:
    handlers = [signal.getsignal(number) for number in signal.valid_signals()]
    functions = [getattr(handler, "func", handler) for handler in handlers]  # asyncio's is a functools.partial
    codes = [getattr(getattr(function, "__func__", function), "__code__", None) for function in functions]
    return {code for code in codes if code is not None}


def _entries(entry: TracebackType | None) -> Iterator[TracebackType]:
    while entry is not None:
        yield entry
        entry = entry.tb_next

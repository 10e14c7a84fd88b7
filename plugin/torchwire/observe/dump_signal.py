"""SIGUSR2 has a worker write what dump() writes, whatever its main thread does.

Python runs handlers of signals on its main thread, which is often the one that hangs. So two handlers in C take the
signal: faulthandler's writes the stacks of all threads to standard error at once, even where a thread holds the global
interpreter lock for ever; and one of torchwire's wakes a thread, which writes the calls as soon as it gets that lock.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import signal

from torchwire import _C
from torchwire.current_agent import current_agent
from torchwire.observe import background
from torchwire.observe.dump import text_of

_logger = logging.getLogger(__name__)

_STDERR = 2

_installed = False


def install() -> None:
    """Has SIGUSR2 handled from now on, unless the program handles it, or ignores it. May be called again."""
    global _installed
    if _installed or signal.getsignal(signal.SIGUSR2) is not signal.SIG_DFL:
        return
    reading, writing = os.pipe()
    background.start(_write_dumps, reading)
    os.set_blocking(writing, False)  # a handler must not wait for the thread
    _C.write_on_signal(signal.SIGUSR2, writing)
    faulthandler.register(signal.SIGUSR2, _STDERR, all_threads=True, chain=True)
    _installed = True


def uninstall() -> None:
    """Has SIGUSR2 do what it does by default, if install() has changed that. In a forked child, which has no thread
    that writes, and whose pipe leads to the parent's."""
    global _installed
    if _installed:
        faulthandler.unregister(signal.SIGUSR2)
        signal.signal(signal.SIGUSR2, signal.SIG_DFL)
        _installed = False


def _write_dumps(reading: int) -> None:
    while os.read(reading, 4096):
        try:
            _write_dump()
        except Exception:  # no worker any more, or standard error is closed
            _logger.warning("SIGUSR2: the calls under way cannot be written", exc_info=True)


def _write_dump() -> None:
    agent = current_agent()
    text = "torchwire: RPC is not running in this process\n" if agent is None else text_of(agent, with_threads=False)
    os.write(_STDERR, text.encode())

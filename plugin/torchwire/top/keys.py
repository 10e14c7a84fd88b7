"""Keys that are pressed while the table is shown."""

from __future__ import annotations

import contextlib
import os
import re
import select
import sys
import time
from collections.abc import Callable, Generator

from torchwire.top.screen import is_terminal

END = "end"
DOWN = "down"
UP = "up"

_KEY = re.compile(rb"\x1b[\[O][0-9;]*[A-Za-z~]|[^\x1b]")
_BEGIN_OF_KEY = re.compile(rb"\x1b([\[O][0-9;]*)?\Z")
_NAMED = {"\x1b[A": UP, "\x1bOA": UP, "k": UP, "\x1b[B": DOWN, "\x1bOB": DOWN, "j": DOWN, "q": END}

Wait = Callable[[float], "list[str]"]  # for so many seconds, or until keys are pressed, which it returns


@contextlib.contextmanager
def pressed() -> Generator[Wait, None, None]:
    """What waits for keys of standard input. Where that is no terminal, there are none."""
    import termios
    import tty

    if not is_terminal(sys.stdin):
        yield lambda seconds: time.sleep(seconds) or []
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield of_terminal(terminal)
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def of_terminal(terminal: int) -> Wait:
    """What waits for keys of a file descriptor, whose end counts as END."""
    unfinished = b""

    def wait(seconds: float) -> list[str]:
        nonlocal unfinished
        if not select.select([terminal], [], [], seconds)[0]:
            return []
        typed = os.read(terminal, 4096)  # not sys.stdin, whose buffer select() does not see
        if not typed:
            return [END]
        typed = unfinished + typed
        begin = _BEGIN_OF_KEY.search(typed)
        unfinished = begin[0] if begin else b""
        finished = typed.removesuffix(unfinished)
        return [_name_of(key[0].decode(errors="replace")) for key in _KEY.finditer(finished)]

    return wait


def _name_of(key: str) -> str:
    return _NAMED.get(key, key)

"""Threads of Python's that sleep until an observer asks."""

from __future__ import annotations

import _thread
from collections.abc import Callable
from typing import Any


def start(function: Callable[..., Any], *arguments: Any) -> None:
    """Runs it on a daemon thread without a name.

    threading.Thread.start() waits until the thread runs, which takes 0.1 to 0.2 ms of init_rpc.

    Raises RuntimeError where this process can start no more threads.
    """
    _thread.start_new_thread(function, arguments)

"""Stacks of Python's threads, in text."""

from __future__ import annotations

import sys
import traceback

_INNERMOST = 12  # frames; what runs a handler is below them


def stack_of(thread: int) -> str:
    """The innermost frames of the thread with this `threading.get_ident()`; empty where it runs no Python."""
    # Documented, in spite of its name.
    frame = sys._current_frames().get(thread)  # pyright: ignore[reportPrivateUsage]
    if frame is None:
        return ""
    return "".join(traceback.format_stack(frame)[-_INNERMOST:]).rstrip()

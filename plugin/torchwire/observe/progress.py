"""How far the end of a trace is, for who waits for it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable
from typing import Any

_SILENT = 1.0  # seconds before anything is said
_EVERY = 1.0  # second between two lines


class Progress:
    """Says on standard error, once it has taken longer than a second, what is done and what is waited for.

    As a bar where that is a terminal and rich is installed; else as a line each second in which something has changed.
    Thread-safe.
    """

    def __init__(self, workers: Iterable[str]) -> None:
        self._waiting = dict.fromkeys(workers)
        self._count = len(self._waiting)
        self._events = 0
        self._written: tuple[int, int] | None = None
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._show, name="torchwire_trace", daemon=True)

    def __enter__(self) -> Progress:
        self._thread.start()
        return self

    def __exit__(self, *_raised: object) -> None:
        self._over.set()
        self._thread.join()

    def handed_in(self, worker: str, answer: Any) -> None:
        """A worker has answered: with its events, or why it has none."""
        with self._lock:
            self._waiting.pop(worker, None)
            self._events += len(answer.get("events", ()))

    def wrote(self, done: int, total: int) -> None:
        """So many events are in the file."""
        with self._lock:
            self._written = done, total

    def _state(self) -> tuple[str, int, int]:
        """In words, and how much of how much is done."""
        with self._lock:
            if self._written and not self._waiting:
                done, total = self._written
                return f"{done:,} of {total:,} events are written", done, total
            done = self._count - len(self._waiting)
            text = f"{done} of {self._count} workers have handed in {self._events:,} events"
            if self._waiting:
                few = [repr(name) for name in list(self._waiting)[:3]]
                text += f"; waiting for {', '.join(few)}" + (" and others" if len(self._waiting) > len(few) else "")
            return text, done, self._count

    def _show(self) -> None:
        if self._over.wait(_SILENT):
            return
        bar = _bar()
        said = ""
        try:
            while True:
                text, done, total = self._state()
                if bar:
                    bar.update(bar.task_ids[0], description=text, completed=done, total=total)
                elif text != said:
                    print(f"torchwire trace: {text}", file=sys.stderr, flush=True)
                    said = text
                if self._over.wait(_EVERY):
                    return
        except (OSError, ValueError):  # standard error is closed: the file is written all the same
            pass
        finally:
            if bar:
                bar.stop()


def _bar() -> Any:
    """None where there is none."""
    if not sys.stderr.isatty():
        return None
    try:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
    except ImportError:
        return None
    columns = TextColumn("torchwire trace: {task.description}"), BarColumn(), TimeElapsedColumn()
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    bar.add_task("")
    bar.start()
    return bar

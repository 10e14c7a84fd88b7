"""The command line `python -m torchwire top`."""

from __future__ import annotations

import argparse
import contextlib
import json
import select
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, TextIO

from torchwire import option_checks
from torchwire._C import TorchwireAgent
from torchwire.top import screen, sources
from torchwire.top.arguments import FAILED, add_store, exit_status, name_filter, remote_group
from torchwire.top.rates import SORTABLE, Row, row_of
from torchwire.top.sources import Answer, Source

_PROGRAM = "python -m torchwire top"
_WIDE = 1000  # characters, where it is no terminal
_FIRST_LOOKS = 0.5  # seconds between the two looks that a first table needs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the torchwire workers of this host that are yours, or all of one group: calls per second out and in, "
        "their latency, what is under way, bytes, and more, per second since the last look. Exit status: 0, 1 where "
        "there is nothing to show, 2 for bad usage."
    )
    whose = parser.add_mutually_exclusive_group()
    add_store(parser, whose)
    whose.add_argument(
        "--group", type=int, metavar="PID", help="show all workers of this process's group, on other hosts, too"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default 1)")
    parser.add_argument("--sort", choices=SORTABLE, default="rank", help="column to sort by (default rank)")
    parser.add_argument("--reverse", action="store_true", help="the largest first")
    parser.add_argument("--filter", default="", metavar="REGEX", help="show only workers whose name matches")
    parser.add_argument("--once", action="store_true", help="show one table and end")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each look instead of a table")
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    return exit_status(_PROGRAM, lambda: _show(command))


def _show(command: argparse.Namespace) -> int:
    view = _View(command)
    return view.live() if _is_terminal(sys.stdout) and not (command.json or command.once) else view.print()


class _View:
    """The rows of one look after another, filtered and sorted."""

    def __init__(self, command: argparse.Namespace) -> None:
        """Raises ValueError for arguments that make no sense, RuntimeError when there is no such group."""
        option_checks.interval("--interval", command.interval)
        self._filter = name_filter(command)
        self._command = command
        self._remote = remote_group(command)
        self._source = self._source_of(command)
        self._last: dict[str, Answer] = {}
        self._sort: str = command.sort
        self._reverse: bool = command.reverse

    def _source_of(self, command: argparse.Namespace) -> Source:
        if self._remote is not None:
            return sources.of_remote(self._remote)
        return sources.of_this_host if command.group is None else sources.of_group(command.group)

    def rows(self) -> list[Row]:
        """Looks, and compares with the last time. Raises RuntimeError when nobody can be asked."""
        answers = self._source()
        rows = [row_of(answer, self._last.get(answer.key), TorchwireAgent.histogram_bounds) for answer in answers]
        self._last = {answer.key: answer for answer in answers}
        matching = [row for row in rows if self._filter.search(row.worker)]
        return sorted(matching, key=lambda row: getattr(row, self._sort), reverse=self._reverse)

    def print(self) -> int:
        """One look, or one after another, until it is interrupted."""
        self.rows()
        time.sleep(_FIRST_LOOKS)
        while True:
            rows = self.rows()
            if self._command.json:
                line = {"time": time.time(), "workers": [row.as_dict() for row in rows]}
                print(json.dumps(line), flush=True)
            elif rows:
                console = _console()
                width = console.width if console.is_terminal else None
                console.print(screen.table(rows, self._title(rows), width, keys=False))
            if not rows and (self._command.once or not self._command.json):
                print(f"{_PROGRAM}: {self._nobody()}", file=sys.stderr)
            if self._command.once:
                return 0 if self._is_seen(rows) else FAILED
            time.sleep(self._command.interval)

    def live(self) -> int:
        """On the whole screen, until q is pressed."""
        console = _console()
        from rich.live import Live

        self.rows()
        with _keys() as keys, Live(console=console, screen=True, auto_refresh=False) as shown:
            while True:
                rows = self.rows()
                shown.update(screen.table(rows, self._title(rows), console.width, keys=True), refresh=True)
                key = keys(self._command.interval)
                if key == "q":
                    return 0
                if key == "s":
                    self._sort = SORTABLE[(SORTABLE.index(self._sort) + 1) % len(SORTABLE)]
                if key == "r":
                    self._reverse = not self._reverse

    def _title(self, rows: Sequence[Row]) -> str:
        order = f"{self._sort}{', reversed' if self._reverse else ''}"
        count = f"{len(rows)} worker{'' if len(rows) == 1 else 's'}"
        title = f"torchwire: {count} of {self._whose()}, by {order}, {time.strftime('%H:%M:%S')}"
        old = self._remote is not None and self._remote.store_problem
        return f"{title}; the store has gone, so workers that come are not seen" if old else title

    def _whose(self) -> str:
        if self._remote is not None:
            return f"the group in the store at {self._command.store}"
        return "this host" if self._command.group is None else f"the group of process {self._command.group}"

    def _is_seen(self, rows: Sequence[Row]) -> bool:
        """Over the network, a group of which nobody answers is none that is shown."""
        return any(not row.problem for row in rows) if self._remote is not None else bool(rows)

    def _nobody(self) -> str:
        if self._command.store is not None or self._command.group is not None:
            return f"no worker of {self._whose()} matches --filter {self._command.filter!r}"
        return (
            "no torchwire worker of this user runs on this host and matches; workers with status_socket=False are not "
            "seen, nor are those in containers with a folder for temporary files of their own"
        )


def _is_terminal(stream: TextIO | None) -> bool:
    """None is one that was closed before Python started."""
    return stream is not None and stream.isatty()


def _console() -> Any:
    try:
        from rich.console import Console
    except ImportError:
        raise RuntimeError("the table needs rich, which is not installed: pip install rich; or use --json") from None
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


@contextlib.contextmanager
def _keys() -> Generator[Callable[[float], str], None, None]:
    """A function that waits so many seconds for a key, and returns it, or ""."""
    import termios
    import tty

    if not _is_terminal(sys.stdin):
        yield lambda seconds: time.sleep(seconds) or ""
        return
    before = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)

    def wait(seconds: float) -> str:
        return sys.stdin.read(1) if select.select([sys.stdin], [], [], seconds)[0] else ""

    try:
        yield wait
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)

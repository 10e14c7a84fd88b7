"""The rows of one look after another, filtered and sorted."""

from __future__ import annotations

import argparse
import time

from torchwire import option_checks
from torchwire._C import TorchwireAgent
from torchwire.top import sources
from torchwire.top.arguments import name_filter, remote_group
from torchwire.top.rates import NAMES, SORTABLE, Row, row_of
from torchwire.top.sources import Answer, Source


class View:
    """What the command's arguments ask for."""

    def __init__(self, command: argparse.Namespace) -> None:
        """Raises ValueError for arguments that make no sense, RuntimeError when there is no such group."""
        self.interval = option_checks.interval("--interval", command.interval)
        self._filter = name_filter(command)
        self._command = command
        self._remote = remote_group(command)
        self._source = self._source_of(command)
        self._last: dict[str, Answer] = {}
        self._rows: list[Row] = []
        self._time = ""
        self._sort: str = command.sort
        self._reverse: bool = command.reverse

    def _source_of(self, command: argparse.Namespace) -> Source:
        if self._remote is not None:
            return sources.of_remote(self._remote)
        return sources.of_this_host if command.group is None else sources.of_group(command.group)

    def look(self) -> None:
        """Asks, and compares with the last time. Raises RuntimeError when nobody can be asked."""
        answers = self._source()
        rows = [row_of(answer, self._last.get(answer.key), TorchwireAgent.histogram_bounds) for answer in answers]
        self._last = {answer.key: answer for answer in answers}
        self._rows = [row for row in rows if self._filter.search(row.worker)]
        self._time = time.strftime("%H:%M:%S")

    def rows(self) -> list[Row]:
        """Of the last look: names in their order, of numbers the largest first, or the other way round."""
        largest_first = (self._sort not in NAMES) != self._reverse
        return sorted(self._rows, key=lambda row: getattr(row, self._sort), reverse=largest_first)

    def sort_by_next(self) -> None:
        """By the column after the one that the rows are sorted by."""
        self._sort = SORTABLE[(SORTABLE.index(self._sort) + 1) % len(SORTABLE)]

    def reverse(self) -> None:
        """Turns the order round."""
        self._reverse = not self._reverse

    def title(self) -> str:
        order = f"{self._sort}{', reversed' if self._reverse else ''}"
        count = f"{len(self._rows)} worker{'' if len(self._rows) == 1 else 's'}"
        title = f"torchwire: {count} of {self._whose()}, by {order}, {self._time}"
        old = self._remote is not None and self._remote.store_problem
        return f"{title}; the store has gone, so workers that come are not seen" if old else title

    def is_anybody_seen(self) -> bool:
        """Over the network, a group of which nobody answers is none that is shown."""
        return any(not row.problem for row in self._rows) if self._remote is not None else bool(self._rows)

    def nobody(self) -> str:
        """Why there may be no rows."""
        if self._command.store is not None or self._command.group is not None:
            return f"no worker of {self._whose()} matches --filter {self._command.filter!r}"
        return (
            "no torchwire worker of this user runs on this host and matches; workers with status_socket=False are not "
            "seen, nor are those in containers with a folder for temporary files of their own"
        )

    def _whose(self) -> str:
        if self._remote is not None:
            return f"the group in the store at {self._command.store}"
        return "this host" if self._command.group is None else f"the group of process {self._command.group}"

"""As much of the table as fits on the whole screen."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from torchwire.top import screen
from torchwire.top.rates import Row

_KEYS = "q quit   s sort   r reverse   up/down scroll"
_FIXED_LINES = 3  # the title, the columns' names and the keys


class Page:
    """The rows from the one with index `first` on, or from an earlier one where those would not fill the screen.

    first: the index of that row among those without a problem.
    """

    def __init__(self, rows: Sequence[Row], title: str, width: int, height: int, first: int = 0) -> None:
        self._title = title
        self._width = width
        well = [row for row in rows if not row.problem]
        space = max(1, height - _FIXED_LINES)
        room = max(space // 3, space - len(well))
        self._problems = _problem_lines([row for row in rows if row.problem], width, room)
        space = max(1, space - len(self._problems))
        shown = len(well) if len(well) <= space else max(1, space - 1)
        self.first = max(0, min(first, len(well) - shown))
        self._rows = well[self.first : self.first + shown]
        self._more = _more(self.first, len(well) - self.first - shown)

    def renderable(self) -> Any:
        """For rich."""
        from rich.console import Group
        from rich.text import Text

        def line(text: str, **options: Any) -> Text:
            return Text(text, no_wrap=True, overflow="ellipsis", **options)

        return Group(
            line(self._title, justify="center", style="italic"),
            *(line(problem, style="red") for problem in self._problems),
            screen.table(self._rows, None, self._width, expand=True),
            *([line(self._more, style="bold")] if self._more else []),
            line(_KEYS, justify="center", style="dim italic"),
        )


def _problem_lines(rows: Sequence[Row], width: int, room: int) -> list[str]:
    """As many of the problems as fit into so many lines, and how many do not."""
    wrapped = [textwrap.wrap(screen.problem_text(row), max(1, width)) for row in rows]
    if sum(map(len, wrapped)) <= room:
        return [line for lines in wrapped for line in lines]
    shown: list[str] = []
    for index, lines in enumerate(wrapped):
        if len(shown) + len(lines) > room - 1:
            return [*shown, f"{len(rows) - index} more that say nothing; --filter REGEX chooses"]
        shown += lines
    return shown


def _more(above: int, below: int) -> str:
    parts = [f"{count} more {where}" for count, where in ((above, "above"), (below, "below")) if count]
    return ", ".join(parts)

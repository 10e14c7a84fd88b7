"""The table as it is shown."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TextIO

from torchwire.printable import printable
from torchwire.top.rates import Row

_WIDE = 1000  # characters, where it is no terminal


def is_terminal(stream: TextIO | None) -> bool:
    """None is one that was closed before Python started."""
    return stream is not None and stream.isatty()


def console() -> Any:
    """A rich console on standard output. Raises RuntimeError where there is no rich."""
    try:
        from rich.console import Console
    except ImportError:
        raise RuntimeError("the table needs rich, which is not installed: pip install rich; or use --json") from None
    console = Console()
    return console if console.is_terminal else Console(width=_WIDE)


def print_table(rows: Sequence[Row], title: str) -> None:
    """All of it, below those that say nothing."""
    where = console()
    from rich.text import Text

    for row in rows:
        if row.problem:
            where.print(Text(problem_text(row), style="red"))
    well = [row for row in rows if not row.problem]
    where.print(table(well, title, where.width if where.is_terminal else None))


def problem_text(row: Row) -> str:
    return printable(f"{row.worker} {row.problem}")


def table(rows: Sequence[Row], title: str | None, width: int | None, expand: bool = False) -> Any:
    """A rich renderable of the rows, with the most important columns that fit into `width` characters; None: all."""
    from rich.table import Table

    columns = _fitting([_Column(*column) for column in _COLUMNS], rows, width)
    shown = Table(title=title, expand=expand, box=None, header_style="reverse")
    for column in columns:
        shown.add_column(column.name, justify="left" if column.is_text else "right", no_wrap=True)
    for row in rows:
        cells = [_escaped(column.text(row)) for column in columns]
        shown.add_row(*cells, style="yellow" if row.peers_lost or row.failures else "")
    return shown


class _Column(NamedTuple):
    name: str
    importance: int  # the least goes first
    is_text: bool
    text: Callable[[Row], str]


_COLUMNS: tuple[tuple[str, int, bool, Callable[[Row], str]], ...] = (
    ("WORKER", 18, True, lambda row: row.worker),
    ("RANK", 4, False, lambda row: str(row.rank)),
    ("PID", 2, False, lambda row: str(row.pid)),
    ("OUT/s", 17, False, lambda row: f"{row.calls_out:.0f}"),
    ("IN/s", 16, False, lambda row: f"{row.calls_in:.0f}"),
    ("FAIL/s", 9, False, lambda row: f"{row.failures:.0f}"),
    ("ERR/s", 8, False, lambda row: f"{row.errors:.0f}"),
    ("P50", 15, False, lambda row: time_text(row.p50)),
    ("P99", 14, False, lambda row: time_text(row.p99)),
    ("FLIGHT", 13, False, lambda row: str(row.in_flight)),
    ("ACTIVE", 12, False, lambda row: str(row.active)),
    ("SENT", 11, False, lambda row: size_text(row.bytes_out) + "/s"),
    ("RECV", 10, False, lambda row: size_text(row.bytes_in) + "/s"),
    ("VIA", 5, True, lambda row: row.transports),
    ("PEERS", 6, False, lambda row: f"{row.peers}-{row.peers_lost}" if row.peers_lost else str(row.peers)),
    ("RREFS", 3, False, lambda row: str(row.rrefs)),
    ("CTX", 1, False, lambda row: str(row.contexts)),
    ("MEM", 7, False, lambda row: size_text(row.memory)),
)


def _fitting(columns: list[_Column], rows: Sequence[Row], width: int | None) -> list[_Column]:
    def widest(column: _Column) -> int:
        cells = (len(column.text(row)) for row in rows)
        return 2 + max(len(column.name), *cells, 0)  # and a space on either side

    while width is not None and len(columns) > 1 and sum(map(widest, columns)) > width:
        columns = [column for column in columns if column is not min(columns, key=lambda each: each.importance)]
    return columns


def time_text(seconds: float) -> str:
    """With three digits or so; "-" for nothing."""
    if seconds == 0:
        return "-"
    for unit, scale in (("us", 1e6), ("ms", 1e3)):
        if seconds * scale < 1000:
            return f"{seconds * scale:.3g}{unit}"
    return f"{seconds:.3g}s"


def size_text(size: float) -> str:
    """In units of 1,024 bytes each."""
    for unit in ("B", "K", "M", "G"):
        if size < 1000:
            return f"{size:.3g}{unit}"
        size /= 1024
    return f"{size:.3g}T"


def _escaped(text: str) -> str:
    from rich.markup import escape

    return escape(printable(text))

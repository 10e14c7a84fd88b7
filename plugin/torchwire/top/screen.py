"""The table as it is shown."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from torchwire.top.rates import Row

_KEYS = "q quit   s sort   r reverse"


def table(rows: Sequence[Row], title: str, keys: bool) -> Any:
    """A rich renderable of the rows."""
    from rich.table import Table

    shown = Table(title=title, caption=_KEYS if keys else None, expand=keys, box=None, header_style="reverse")
    for name, side in _COLUMNS:
        shown.add_column(name, justify=side, no_wrap=True)
    for row in rows:
        if row.problem:
            shown.add_row(row.worker, f"[red]{_escaped(row.problem)}[/red]")
        else:
            shown.add_row(*_cells(row), style="yellow" if row.peers_lost or row.failures else "")
    return shown


_COLUMNS: Sequence[tuple[str, Literal["left", "right"]]] = (
    ("WORKER", "left"), ("RANK", "right"), ("PID", "right"), ("OUT/s", "right"), ("IN/s", "right"), ("FAIL/s", "right"),
    ("P50", "right"), ("P99", "right"), ("FLIGHT", "right"), ("ACTIVE", "right"), ("SENT", "right"), ("RECV", "right"),
    ("VIA", "left"), ("PEERS", "right"), ("RREFS", "right"), ("CTX", "right"), ("MEM", "right"),
)  # fmt: skip


def _cells(row: Row) -> list[str]:
    lost = f"-{row.peers_lost}" if row.peers_lost else ""
    return [
        _escaped(row.worker), str(row.rank), str(row.pid), f"{row.calls_out:.0f}", f"{row.calls_in:.0f}",
        f"{row.failures:.0f}", time_text(row.p50), time_text(row.p99), str(row.in_flight), str(row.active),
        size_text(row.bytes_out) + "/s", size_text(row.bytes_in) + "/s", row.transports, f"{row.peers}{lost}",
        str(row.rrefs), str(row.contexts), size_text(row.memory),
    ]  # fmt: skip


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

    return escape(text)

"""One line of a report: what is measured, in which unit, and how it is written for people."""

from __future__ import annotations

from typing import NamedTuple


class Case(NamedTuple):
    """Something whose cost is measured on several contestants."""

    workload: str  # latency, rate, echo, ...
    name: str  # what of it
    unit: str = "time"  # time, rate, bandwidth, share, count or bytes, see text()
    size: int = 0  # for the bandwidth: bytes that a sample carries

    def text(self, cost: float) -> str:
        """The cost as people read it. Costs of a time, a rate and a bandwidth are nanoseconds."""
        if self.unit == "rate":
            return f"{1e9 / cost:,.0f}/s"
        if self.unit == "bandwidth":
            return f"{duration(cost)}, {bandwidth(self.size / cost)}"
        if self.unit == "share":
            return f"{100 * cost:.2f} %"
        if self.unit == "count":
            return f"{cost:.3g}"
        if self.unit == "bytes":
            return f"{cost / (1 << 20):.1f} MiB"
        return duration(cost)

    def is_time(self) -> bool:
        return self.unit in ("time", "bandwidth")


def duration(nanoseconds: float) -> str:
    """Three digits and a unit."""
    for limit, unit in ((1e6, "µs"), (1e9, "ms")):
        if nanoseconds < limit * 0.9995:
            return f"{_three_digits(nanoseconds / (limit / 1e3))} {unit}"
    return f"{_three_digits(nanoseconds / 1e9)} s"


def bandwidth(bytes_per_nanosecond: float) -> str:
    if bytes_per_nanosecond < 0.1:
        return f"{_three_digits(1e3 * bytes_per_nanosecond)} MB/s"
    return f"{_three_digits(bytes_per_nanosecond)} GB/s"


def size_text(size: int) -> str:
    """64 B, 16 KiB, 1 MiB: in whole numbers."""
    for shift, unit in ((20, "MiB"), (10, "KiB")):
        if size >= 1 << shift:
            return f"{size >> shift} {unit}"
    return f"{size} B"


def _three_digits(number: float) -> str:
    decimals = 2 if number < 9.995 else 1 if number < 99.95 else 0
    return f"{number:.{decimals}f}"

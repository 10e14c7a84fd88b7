"""A picture of what a run has measured. Needs matplotlib."""

from __future__ import annotations

import math
import pathlib
from typing import Any

from torchwire.bench.case import bandwidth, size_text
from torchwire.bench.contestant import CONTESTANTS
from torchwire.bench.record import Record
from torchwire.bench.workload import title_of

_COLUMNS = 2
_PANEL_WIDTH = 9.0  # inches
_INCHES_PER_BAR = 0.16
_LEAST_HEIGHT = 2.0
_HEIGHT_OF_LINES = 5.0
_DOTS_PER_INCH = 110
_MOST_ON_ONE_SCALE = 20.0  # the longest bar in relation to the shortest
_AXES = {
    "rate": "calls per second",
    "share": "share of a core",
    "count": "count",
    "bytes": "bytes",
    "time": "microseconds, p50",
}


def draw(record: Record, path: pathlib.Path) -> None:
    """Writes a PNG with a panel for each workload. Raises ImportError without matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    panels = [(workload, unit) for workload in record.workloads() for unit in _units(record, workload)]
    sizes = [_height(record, *panel) for panel in panels] or [_LEAST_HEIGHT]
    heights = [max(sizes[first : first + _COLUMNS]) for first in range(0, len(sizes), _COLUMNS)]
    figure: Any
    axes: Any
    figure, axes = pyplot.subplots(
        len(heights),
        _COLUMNS,
        figsize=(_COLUMNS * _PANEL_WIDTH, sum(heights)),
        height_ratios=heights,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(panels) :]:
        axis.axis("off")
    for axis, (workload, unit) in zip(axes.flat, panels):
        axis.set_title(title_of(workload))
        (_draw_lines if unit == "bandwidth" else _draw_bars)(axis, record, workload, unit)
    figure.legend(handles=_legend(record), loc="outside upper center", ncols=6)
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    pyplot.close(figure)


def _units(record: Record, workload: str) -> list[str]:
    return list(dict.fromkeys(case.unit for case in record.cases(workload)))


def _height(record: Record, workload: str, unit: str) -> float:
    """Inches."""
    if unit == "bandwidth":
        return _HEIGHT_OF_LINES
    bars = sum(len(record.batches[case]) + 1 for case in record.cases(workload) if case.unit == unit)
    return max(bars * _INCHES_PER_BAR, _LEAST_HEIGHT)


def _contestants(record: Record) -> list[str]:
    """All that were measured; those of the table first, so that their colors stay."""
    measured = {name for batches in record.batches.values() for name in batches}
    known = [contestant.name for contestant in CONTESTANTS]
    return known + sorted(measured - set(known))


def _color(index: int) -> Any:
    from matplotlib import colormaps

    return colormaps["tab20"](index % 20)


def _legend(record: Record) -> list[Any]:
    from matplotlib.patches import Patch

    measured = {name for batches in record.batches.values() for name in batches}
    names = _contestants(record)
    return [Patch(color=_color(names.index(name)), label=name) for name in names if name in measured]


def _draw_lines(axis: Any, record: Record, workload: str, unit: str) -> None:
    """Bandwidth over size, both logarithmic."""
    cases = [case for case in record.cases(workload) if case.unit == unit]
    for index, name in enumerate(_contestants(record)):
        points = [
            (case.size // 2, case.size / record.summaries(case)[name].p50)
            for case in cases
            if name in record.batches[case]
        ]
        if points:
            axis.plot(*zip(*points), marker="o", markersize=3, color=_color(index))
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.xaxis.set_major_formatter(_size_label)
    axis.yaxis.set_major_formatter(_speed_label)
    axis.grid(alpha=0.3)


def _size_label(size: float, _position: int) -> str:
    return size_text(int(size))


def _speed_label(speed: float, _position: int) -> str:
    return bandwidth(speed)


def _draw_bars(axis: Any, record: Record, workload: str, unit: str) -> None:
    """A bar for each contestant in each case."""
    names = _contestants(record)
    position = 0.0
    ticks: list[float] = []
    labels: list[str] = []
    values: list[float] = []
    for case in (case for case in record.cases(workload) if case.unit == unit):
        first = position
        for name, summary in record.summaries(case).items():
            value = 1e9 / summary.p50 if unit == "rate" else summary.p50 / 1e3 if unit == "time" else summary.p50
            axis.barh(position, value, height=0.9, color=_color(names.index(name)))
            axis.text(value, position, f" {case.text(summary.p50)}", va="center", fontsize=6)
            values.append(value)
            position += 1
        ticks.append((first + position - 1) / 2)
        labels.append(case.name)
        position += 1
    axis.set_yticks(ticks, labels, fontsize="small")
    axis.invert_yaxis()
    _scale(axis, values)
    axis.margins(x=0.15)
    axis.set_xlabel(_AXES[unit])


def _scale(axis: Any, values: list[float]) -> None:
    """Logarithmic, from a power of ten on, where the longest bar would otherwise hide the others."""
    least = min(values)
    if least > 0 and max(values) / least > _MOST_ON_ONE_SCALE:
        axis.set_xscale("log")
        axis.set_xlim(10 ** math.floor(math.log10(least)), 2 * max(values))

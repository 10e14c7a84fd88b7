"""Draws the plots of docs/performance.md and README.md from docs/plots/stock.csv, as SVG. Needs matplotlib.

    python tools/site/plots.py

The figures are those of the table in docs/performance.md; whoever measures anew changes both, which test_docs_code.py
compares. Ratios are each round's, so they are not quotients of the medians beside them.
"""

from __future__ import annotations

import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot

FOLDER = Path(__file__).parents[2] / "docs" / "plots"
COLORS = {"torchwire": "#3f51b5", "torchwire_wire_tcp": "#9fa8da", "stock": "#9e9e9e", "stock_uv": "#cfcfcf"}
LABELS = {
    "stock": "PyTorch, shared memory",
    "torchwire": "torchwire, shared memory",
    "stock_uv": "PyTorch, TCP",
    "torchwire_wire_tcp": "torchwire, TCP",
}


def read_rows() -> list[dict[str, str]]:
    with open(FOLDER / "stock.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def draw_calls(rows: list[dict[str, str]]) -> None:
    """The time of each call, PyTorch's default being 1."""
    rows = [row for row in rows if row["torchwire_ratio"] and row["unit"] == "us"]
    figure, axis = pyplot.subplots(figsize=(8, 0.36 * len(rows) + 1.2), layout="constrained")
    for place, name in [(-0.2, "torchwire"), (0.2, "torchwire_wire_tcp")]:
        values = [float(row[f"{name}_ratio"]) for row in rows]
        bars = axis.barh([i + place for i in range(len(rows))], values, 0.38, color=COLORS[name], label=LABELS[name])
        axis.bar_label(bars, fmt="%.2f", padding=2, fontsize=8)
    axis.axvline(1, color=COLORS["stock"], label=LABELS["stock"])
    axis.set_yticks(range(len(rows)), [row["what"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("time in relation to PyTorch's own backend; less is better")
    figure.legend(loc="outside upper center", ncols=3, fontsize=8)
    save(figure, "calls.svg")


def draw_rates(rows: list[dict[str, str]]) -> None:
    """Calls a second, of one thread with many under way and of many threads."""
    rows = [row for row in rows if row["unit"] == "/s"]
    figure, axis = pyplot.subplots(figsize=(8, 2.6), layout="constrained")
    for place, name in enumerate(LABELS):
        bars = axis.barh(
            [i + (place - 1.5) * 0.2 for i in range(len(rows))],
            [float(row[name]) for row in rows],
            0.19,
            color=COLORS[name],
            label=LABELS[name],
        )
        axis.bar_label(bars, fmt="{:,.0f}", padding=2, fontsize=8)
    axis.set_yticks(range(len(rows)), [row["what"] for row in rows])
    axis.invert_yaxis()
    axis.set_xlabel("calls a second; more is better")
    axis.margins(x=0.12)
    figure.legend(loc="outside upper center", ncols=4, fontsize=8)
    save(figure, "rates.svg")


def save(figure: pyplot.Figure, name: str) -> None:
    for axis in figure.axes:
        axis.spines[["top", "right"]].set_visible(False)
    # No date and no random ids: the same figures make the same file.
    figure.savefig(FOLDER / name, metadata={"Date": None})
    pyplot.close(figure)


if __name__ == "__main__":
    matplotlib.rcParams["svg.hashsalt"] = "torchwire"
    draw_calls(read_rows())
    draw_rates(read_rows())

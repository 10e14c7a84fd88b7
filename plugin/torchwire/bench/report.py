"""What a run has measured, for people (Markdown) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torchwire.bench.batch import Summary
from torchwire.bench.case import Case, duration
from torchwire.bench.contestant import REFERENCE, Contestant
from torchwire.bench.record import Record
from torchwire.bench.workload import title_of

FORMAT = 1  # of the JSON; to be raised when what is there changes its meaning

_NONE = "–"


def as_json(record: Record, machine: Mapping[str, str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Costs are in the unit of their case: nanoseconds for a time, a rate and a bandwidth."""
    return {
        "format": FORMAT,
        "machine": dict(machine),
        "contestants": {
            one.name: {"description": one.description, "version": one.version()} for one in record.contestants
        },
        "settings": dict(settings),
        "reference": REFERENCE,
        "interrupted": record.is_interrupted,
        "absent": record.absent,
        "errors": [{"contestant": name, "error": error} for name, error in record.errors],
        "results": [
            {
                **case._asdict(),
                "contestant": name,
                **summary._asdict(),
                "rounds": {str(number): batch.median() for number, batch in record.batches[case][name].items()},
            }
            for case in record.batches
            for name, summary in record.summaries(case).items()
        ],
    }


def as_markdown(record: Record, machine: Mapping[str, str], settings: Mapping[str, Any]) -> str:
    lines = ["# torchwire bench", ""]
    lines += _table(["machine", ""], [[name, value] for name, value in machine.items()])
    lines += ["", *_table(["contestant", ""], [[one.name, _description(one)] for one in record.contestants])]
    lines += ["", *_explanation(settings)]
    if record.is_interrupted:
        lines += ["", "**Interrupted: this is what was measured until then.**"]
    for title, rows in (("Failed", record.errors), ("Not measured", record.absent.items())):
        if rows:
            lines += ["", f"## {title}", "", *(f"- {name}: {reason}" for name, reason in rows)]
    for workload in record.workloads():
        lines += ["", f"## {title_of(workload)}", "", *_workload(record, workload)]
    return "\n".join(lines) + "\n"


def _explanation(settings: Mapping[str, Any]) -> Iterator[str]:
    yield f"{settings['rounds']} rounds, in which each contestant has turns of {1e3 * settings['seconds']:.0f} ms and"
    yield f"is stopped in between; {settings['wall_seconds']:.0f} s in all. *Ratio*: the cost in relation to that of"
    yield f"`{REFERENCE}` in the same run, the median of the rounds; below 1 is better. *CPU*: what all processes of a"
    yield "group use for one call."


def _description(contestant: Contestant) -> str:
    version = contestant.version()
    return f"{contestant.description} ({contestant.package} {version})" if version else contestant.description


def _workload(record: Record, workload: str) -> list[str]:
    cases = record.cases(workload)
    has_cpu = any(summary.cpu is not None for case in cases for summary in record.summaries(case).values())
    header = ["", "", "p50", "p99", "ratio"] + ["CPU"] * has_cpu
    rows: list[list[str]] = []
    for case in cases:
        for name, summary in record.summaries(case).items():
            rows.append([case.name, name, *_figures(case, summary)][: len(header)])
    return _table(header, rows)


def _figures(case: Case, summary: Summary) -> list[str]:
    return [
        case.text(summary.p50),
        duration(summary.p99) if case.is_time() else _NONE,
        _NONE if summary.ratio is None else f"{summary.ratio:.2f}",
        _NONE if summary.cpu is None else duration(summary.cpu),
    ]


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(line)} |" for line in lines]

"""The command line `python -m torchwire bench`."""

from __future__ import annotations

import argparse
import contextlib
import json
import pathlib
import sys
import time
from collections.abc import Generator
from typing import Any

from torchwire.bench import group, machine, plot, report
from torchwire.bench.contestant import CONTESTANTS, Contestant, named
from torchwire.bench.record import Record
from torchwire.bench.schedule import Progress, Schedule
from torchwire.bench.step import FULL, QUICK, Scope, Step
from torchwire.bench.workload import WORKLOADS, steps_of

_PROGRAM = "python -m torchwire bench"
_FAILED = 1
BAD_USAGE = 2
_INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measures torchwire beside stock PyTorch, raw TensorPipe pipes and, as far as they are installed, others; "
        "writes a report, a JSON file and a picture."
    )
    parser.add_argument("--quick", action="store_true", help="less of everything, in under a minute")
    parser.add_argument("--only", metavar="WORKLOAD,...", help=f"of {', '.join(WORKLOADS)}")
    names = ", ".join(contestant.name for contestant in CONTESTANTS)
    parser.add_argument(
        "--contestants",
        metavar="NAME,...",
        help=f"of {names}; also stock, torchwire or pipe on another transport, as in torchwire/uv",
    )
    parser.add_argument(
        "--rounds", type=int, help=f"how often it is whose turn (default {FULL.rounds}, --quick {QUICK.rounds})"
    )
    parser.add_argument(
        "--output",
        metavar="FOLDER",
        type=pathlib.Path,
        default=pathlib.Path("torchwire-bench"),
        help="where report.md, results.json and plot.png are written (default: %(default)s)",
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Runs the benchmark and returns the exit status: 0, 1 if a contestant failed, 2 for bad arguments."""
    try:
        scope = scope_of(command)
        steps = steps_of(words(command.only) or WORKLOADS, scope)
        contestants = named(words(command.contestants) or [contestant.name for contestant in CONTESTANTS])
        make_folder(command.output)
    except ValueError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return BAD_USAGE
    host = machine.describe()
    start = time.monotonic()
    record = measure(steps, contestants, scope)
    settings = {**scope._asdict(), "quick": command.quick, "wall_seconds": round(time.monotonic() - start, 1)}
    write(record, host, settings, command.output)
    return status_of(record)


def status_of(record: Record) -> int:
    """What the process returns."""
    if record.is_interrupted:
        return _INTERRUPTED
    return _FAILED if record.errors else 0


def measure(steps: list[Step], contestants: list[Contestant], scope: Scope) -> Record:
    """All that can be measured of this; with Ctrl-C, what was measured until then."""
    record = Record()
    for contestant in contestants:
        if reason := contestant.why_absent():
            record.leave_out(contestant, reason)
        else:
            record.contestants.append(contestant)
    schedule = Schedule(steps, record.contestants, scope, record)
    try:
        group.start_fork_server()
        with progress_bar(schedule.turns()) as progress:
            schedule.run(progress)
    except KeyboardInterrupt:
        record.is_interrupted = True
    return record


def write(record: Record, host: dict[str, str], settings: dict[str, Any], folder: pathlib.Path) -> None:
    """The report, which is printed too, the JSON, and the picture where matplotlib is installed."""
    text = report.as_markdown(record, host, settings)
    (folder / "report.md").write_text(text)
    (folder / "results.json").write_text(json.dumps(report.as_json(record, host, settings), indent=1) + "\n")
    print(text)
    written = "report.md, results.json"
    try:
        plot.draw(record, folder / "plot.png")
        written += ", plot.png"
    except ImportError:
        written += "; no picture, since matplotlib is not installed"
    print(f"in {folder}: {written}")


def scope_of(command: argparse.Namespace) -> Scope:
    """As --quick and --rounds say. Raises ValueError."""
    scope = QUICK if command.quick else FULL
    if command.rounds is None:
        return scope
    if command.rounds < 1:
        raise ValueError(f"--rounds is {command.rounds}; it has to be at least 1")
    return scope._replace(rounds=command.rounds)


def make_folder(path: pathlib.Path) -> None:
    """For what is written. Raises ValueError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--output {path} cannot be made: {error.strerror}") from None


def words(text: str | None) -> list[str]:
    """Of a list with commas, without repetitions."""
    return list(dict.fromkeys(word.strip() for word in text.split(",") if word.strip())) if text else []


@contextlib.contextmanager
def progress_bar(turns: int) -> Generator[Progress]:
    """What shows each turn, on a terminal, where tqdm is installed."""
    try:
        from tqdm import tqdm
    except ImportError:
        yield lambda _: None
        return
    with tqdm(total=turns, unit="turn", disable=None, leave=False) as bar:

        def progress(what: str) -> None:
            bar.set_description(what, refresh=False)
            bar.update()

        yield progress

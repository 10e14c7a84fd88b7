"""The command line `python -m torchwire bench-devices`."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
import time
from collections.abc import Sequence

import torch

from torchwire import device_report
from torchwire.bench import command, device_member, device_steps, group, machine
from torchwire.bench.contestant import REFERENCE, Contestant
from torchwire.bench.device_steps import Direction
from torchwire.bench.record import Record
from torchwire.bench.schedule import Schedule
from torchwire.bench.step import FULL, QUICK, Scope

_PROGRAM = "python -m torchwire bench-devices"
_SIZE = re.compile(r"(\d+)\s*(B|KiB|MiB)?")
_SHIFTS = {None: 0, "B": 0, "KiB": 10, "MiB": 20}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Measures echoes of tensors on devices, on torchwire beside stock PyTorch: on one device, between two, and "
        "between a device and the CPU. Writes a report, a JSON file and a picture. Without a device it says so."
    )
    add = parser.add_argument
    add("--device", metavar="TYPE", default="cuda", help="cuda (default), cpu, or what --prepare loads")
    add("--prepare", metavar="MODULE:FUNCTION", default="", help="what loads an accelerator of PyTorch's PrivateUse1")
    sizes = ",".join(str(size) for size in device_steps.SIZES)
    add("--sizes", metavar="SIZE,...", default=sizes, help="bytes, or as in 64KiB or 1MiB (default %(default)s)")
    add(
        "--channels",
        metavar="NAME,...",
        help="torchwire is measured with each of these for what is in the host's memory, too (default: none)",
    )
    add("--quick", action="store_true", help=f"{QUICK.rounds} rounds of {1e3 * QUICK.seconds:.0f} ms each")
    add("--rounds", type=int, help=f"how often it is whose turn (default {FULL.rounds}, --quick {QUICK.rounds})")
    add("--seconds", type=float, help=f"that a turn measures (default {FULL.seconds}, --quick {QUICK.seconds})")
    add(
        "--output",
        metavar="FOLDER",
        type=pathlib.Path,
        default=pathlib.Path("torchwire-bench-devices"),
        help="where report.md, results.json and plot.png are written (default: %(default)s)",
    )
    parser.set_defaults(carry_out=carry_out)


def carry_out(given: argparse.Namespace) -> int:
    """Runs the benchmark and returns the exit status: 0, also where there is no device; 1 if a contestant failed, 2 for
    bad arguments."""
    try:
        scope = _scope(given)
        sizes = sizes_of(given.sizes)
        channels = command.words(given.channels) if given.channels else []
        device_member.load(given.prepare)
        count = _count(given.device)
        if count == 0:
            print(f"nothing was measured: there is no {given.device} device here")
            return 0
        command.make_folder(given.output)
    except (ValueError, ImportError, AttributeError) as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return command.BAD_USAGE
    host = {**machine.describe(), **device_report.rows(), "measured on": _devices_in_words(given.device, count)}
    start = time.monotonic()
    ways = device_steps.directions(given.device, count)
    record = measure(ways, channels, sizes, scope, given)
    settings = {**scope._asdict(), "sizes": sizes, "wall_seconds": round(time.monotonic() - start, 1)}
    command.write(record, host, settings, given.output)
    return command.status_of(record)


def measure(
    ways: Sequence[Direction], channels: Sequence[str], sizes: Sequence[int], scope: Scope, given: argparse.Namespace
) -> Record:
    """One direction after the other, since each has other device maps; within one, all contestants in turn."""
    record = Record()
    with_stock = given.device == "cuda"
    schedules: list[Schedule] = []
    for way in ways:
        contestants = device_steps.contestants(way, channels, given.prepare, with_stock)
        schedules.append(Schedule(device_steps.steps(way, sizes, scope), contestants, scope, record))
        record.contestants = list({one.name: one for one in [*record.contestants, *contestants]}.values())
    if not with_stock:
        stock = Contestant(REFERENCE, "", frozenset())
        record.leave_out(stock, f"`{given.device}` is no CUDA device; `python -m torchwire bench` compares the CPU's")
    if given.device != "cpu" and len(ways) < len(device_steps.directions(given.device, 2)):
        record.leave_out(Contestant("to another device", "", frozenset()), "needs two devices, and one is here")
    try:
        group.start_fork_server()
        with command.progress_bar(sum(schedule.turns() for schedule in schedules)) as progress:
            for schedule in schedules:
                schedule.run(progress)
    except KeyboardInterrupt:
        record.is_interrupted = True
    return record


def sizes_of(text: str) -> list[int]:
    """The numbers of bytes in a list such as "4,64KiB,1MiB". Raises ValueError."""
    sizes: list[int] = []
    for word in command.words(text):
        match = _SIZE.fullmatch(word)
        if match is None or int(match[1]) == 0:
            raise ValueError(f"--sizes: {word!r} is no size; write a number of bytes, or one such as 64KiB or 1MiB")
        sizes.append(int(match[1]) << _SHIFTS[match[2]])
    if not sizes:
        raise ValueError("--sizes names none")
    return sizes


def _scope(given: argparse.Namespace) -> Scope:
    scope = command.scope_of(given)
    if given.seconds is None:
        return scope
    if given.seconds < 0:
        raise ValueError(f"--seconds is {given.seconds}; it has to be at least 0")
    return scope._replace(seconds=given.seconds)


def _count(kind: str) -> int:
    """How many devices of this type there are. Raises ValueError for a type that this torch does not know here."""
    if kind == "cpu":
        return 1
    if kind == "cuda":
        return torch.cuda.device_count()
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type != kind:
        raise ValueError(f"--device {kind}: there is no such accelerator here; --prepare names what loads one")
    return torch.accelerator.device_count()


def _devices_in_words(kind: str, count: int) -> str:
    if kind == "cpu":
        return "the CPU"
    if kind != "cuda":
        return f"{count} devices of {kind}"
    # In this process only; those that are measured come from the fork server.
    return ", ".join(str(torch.cuda.get_device_name(index)) for index in range(count))

"""The command line `python -m torchwire dump`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from torchwire.observe import status_socket
from torchwire.observe.parallel import of_each
from torchwire.printable import printable
from torchwire.top import sources
from torchwire.top.arguments import FAILED, add_store, exit_status, name_filter, remote_group

_PROGRAM = "python -m torchwire dump"
_PATIENCE = 10.0  # seconds: a worker asks those that it has called, which have four

_Ask = Callable[[], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Prints what torchwire.dump() writes of the torchwire workers of this host that are yours, or of all of one "
        "group: their calls that are under way, where each is, and the stacks of their threads. Exit status: 0, 1 if "
        "a worker does not answer or there is none, 2 for bad usage."
    )
    add_store(parser, parser)
    parser.add_argument("--filter", default="", metavar="REGEX", help="ask only workers whose name matches")
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    return exit_status(_PROGRAM, lambda: _print(_asked(command)))


def _asked(command: argparse.Namespace) -> list[tuple[str, _Ask]]:
    """Whom to ask, by what it is called, and how. Raises ValueError and RuntimeError as remote_group()."""
    wanted = name_filter(command)
    group = remote_group(command)
    if group is not None:
        return [
            (f"worker {worker.name!r} (rank {worker.rank})", partial(group.ask, worker, "dump", _PATIENCE))
            for worker in group.workers()
            if wanted.search(worker.name)
        ]
    return [
        (answer.name, partial(sources.ask, status_socket.folder() / answer.key, {"ask": "dump"}, _PATIENCE))
        for answer in sources.of_this_host()
        if wanted.search(answer.name)
    ]


def _print(asked: Sequence[tuple[str, _Ask]]) -> int:
    if not asked:
        raise RuntimeError("there is no such worker; `python -m torchwire top` with the same options shows all")
    status = 0
    for text in of_each(_text, asked):
        if text is None:
            status = FAILED
        else:
            print(printable(text))
    return status


def _text(asked: tuple[str, _Ask]) -> str | None:
    name, ask = asked
    try:
        return ask()["text"]
    except RuntimeError as error:
        print(printable(f"{_PROGRAM}: {name} {error}"), file=sys.stderr)
        return None

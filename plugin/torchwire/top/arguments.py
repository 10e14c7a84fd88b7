"""What the commands that ask a running group have in common: whom they ask, and how they end."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable

from torchwire import group_secret
from torchwire.doctor.reachability import place_of
from torchwire.observe.remote_group import RemoteGroup
from torchwire.printable import printable

FAILED = 1
BAD_USAGE = 2


def add_store(parser: argparse.ArgumentParser, whose: argparse._ActionsContainer) -> None:  # pyright: ignore[reportPrivateUsage]
    """Those by which a running group is found."""
    whose.add_argument(
        "--store",
        metavar="HOST:PORT",
        help="show all workers of the group that has met in this TCP store; none of them has to be on this host",
    )
    parser.add_argument(
        "--secret-file",
        "--secret",
        dest="secret_file",
        metavar="FILE",
        help="with --store: that group's secret, if its workers have one of their own (default: TORCHWIRE_SECRET_FILE)",
    )


def remote_group(command: argparse.Namespace) -> RemoteGroup | None:
    """The group in the store that the command names; None where it names none.

    Raises ValueError for bad usage, RuntimeError when there is no such group or it may not be asked.
    """
    if command.store is None:
        if command.secret_file is not None:
            raise ValueError("--secret-file goes with --store only: on this host it is the user that counts")
        return None
    place = place_of(command.store.removeprefix("tcp://"), "--store")
    return RemoteGroup(place, lambda: group_secret.of(None, command.secret_file))


def name_filter(command: argparse.Namespace) -> re.Pattern[str]:
    """What matches the names that --filter asks for. Raises ValueError."""
    try:
        return re.compile(command.filter)
    except re.error as error:
        raise ValueError(f"--filter {command.filter!r} is not a regular expression: {error}") from None


def exit_status(program: str, run: Callable[[], int]) -> int:
    """What `run` returns; where it raises, that is a sentence on standard error and a status."""
    try:
        return run()
    except ValueError as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
        return BAD_USAGE
    except RuntimeError as error:
        print(f"{program}: {printable(str(error))}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 0

"""The command line `python -m torchwire top`."""

from __future__ import annotations

import argparse
import json
import sys
import time

from torchwire.top import live, screen
from torchwire.top.arguments import FAILED, add_store, exit_status
from torchwire.top.rates import SORTABLE
from torchwire.top.view import View

_PROGRAM = "python -m torchwire top"
_FIRST_LOOKS = 0.5  # seconds between the two looks that a first table needs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Shows the torchwire workers of this host that are yours, or all of one group: calls per second out and in, "
        "their latency, what is under way, bytes, and more, per second since the last look. Exit status: 0, 1 where "
        "there is nothing to show, 2 for bad usage."
    )
    whose = parser.add_mutually_exclusive_group()
    add_store(parser, whose)
    whose.add_argument(
        "--group", type=int, metavar="PID", help="show all workers of this process's group, on other hosts, too"
    )
    parser.add_argument("--interval", type=float, default=1.0, metavar="SECONDS", help="between looks (default 1)")
    parser.add_argument(
        "--sort", choices=SORTABLE, default="rank", help="column to sort by, numbers from the largest (default rank)"
    )
    parser.add_argument("--reverse", action="store_true", help="turn the order round")
    parser.add_argument("--filter", default="", metavar="REGEX", help="show only workers whose name matches")
    parser.add_argument("--once", action="store_true", help="show one table and end")
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each look instead of a table")
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    return exit_status(_PROGRAM, lambda: _show(command))


def _show(command: argparse.Namespace) -> int:
    view = View(command)
    if screen.is_terminal(sys.stdout) and not (command.json or command.once):
        return live.show(view)
    return _print(view, command.json, command.once)


def _print(view: View, as_json: bool, once: bool) -> int:
    """One look, or one after another, until it is interrupted."""
    view.look()
    time.sleep(_FIRST_LOOKS)
    while True:
        view.look()
        rows = view.rows()
        if as_json:
            print(json.dumps({"time": time.time(), "workers": [row.as_dict() for row in rows]}), flush=True)
        elif rows:
            screen.print_table(rows, view.title())
        if not rows and (once or not as_json):
            print(f"{_PROGRAM}: {view.nobody()}", file=sys.stderr)
        if once:
            return 0 if view.is_anybody_seen() else FAILED
        time.sleep(view.interval)

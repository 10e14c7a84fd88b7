"""The command line's arguments, which are read also where torchwire cannot be imported."""

from __future__ import annotations

import argparse

PROGRAM = "python -m torchwire doctor"
SERVE = "serve"
DEFAULT_WORKERS = 8


def add(parser: argparse.ArgumentParser) -> None:
    """All of them; what carries the command out is left to the caller."""
    parser.usage = f"{PROGRAM} [-h] [serve | HOST:PORT] [option ...]"
    parser.description = (
        "Checks what torchwire needs of this machine, or, with a server on another one, measures calls between them. "
        "Exit status: 0 if nothing failed, 1 if a check failed, 2 for bad usage."
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="serve | HOST:PORT",
        help="wait for other machines, or measure with the one that does; without it this machine is checked",
    )
    parser.add_argument("--secret-file", metavar="FILE", help="the group's secret, as the option secret_file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    machine = parser.add_argument_group("this machine")
    machine.add_argument(
        "--init-method", metavar="URL", help="check this store: tcp://HOST:PORT, file://PATH or env://"
    )
    machine.add_argument(
        "--workers", type=int, metavar="N", help=f"of the group that is to run here (default {DEFAULT_WORKERS})"
    )
    serve = parser.add_argument_group(SERVE)
    serve.add_argument("--host", help="address to listen on (default: that of the first interface that is up)")
    serve.add_argument("--port", type=int, help="TCP port to listen on (default: any)")
    serve.add_argument("--once", action="store_true", default=None, help="end after one client")

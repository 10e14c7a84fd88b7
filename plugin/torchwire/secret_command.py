"""The command `python -m torchwire secret`: makes the file that holds a group's secret, and changes it."""

from __future__ import annotations

import argparse
import os
import secrets as randomness
import sys

from torchwire import group_secret

_MODE = 0o600
_SHORTEST_END = 4  # characters


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Makes a file with a random secret, for this user alone. To change the secret of a group that runs: --add on "
        "all hosts, then --use on all, then --drop, with some seconds in between, in which the workers look at it."
    )
    parser.add_argument("file", help="what secret_file or TORCHWIRE_SECRET_FILE names")
    change = parser.add_mutually_exclusive_group()
    change.add_argument(
        "--add",
        metavar="-",
        nargs="?",
        const="",
        help="accept a further secret: a new one, which is printed, or with - the one that standard input has",
    )
    change.add_argument("--use", metavar="END", help="use the secret that ends so; accept the others")
    change.add_argument("--drop", metavar="END", help="accept the secret no more that ends so")
    parser.set_defaults(carry_out=_carry_out)


def _carry_out(command: argparse.Namespace) -> int:
    try:
        _change(command)
    except (OSError, ValueError) as error:
        print(f"python -m torchwire secret: {error}", file=sys.stderr)
        return 1
    return 0


def _change(command: argparse.Namespace) -> None:
    path = os.path.realpath(command.file)
    if command.add is None and command.use is None and command.drop is None:
        _write(path, [randomness.token_hex(32).encode()])
        return
    owner = os.stat(path).st_uid
    if owner != os.geteuid():  # who could read it no more
        raise ValueError(f"the file {path!r} belongs to the user with id {owner}: run this as that user")
    held = group_secret.in_file(path, f"the file {path!r}")
    if command.add is not None:
        added = _added(command.add)
        held = held if added in held else [*held, added]
    elif command.use is not None:
        used = _ending_with(held, command.use)
        held = [used, *(one for one in held if one != used)]
    else:
        dropped = _ending_with(held, command.drop)
        if dropped == held[0]:
            raise ValueError("that secret is the one that is used: --use another one first, on all hosts")
        held.remove(dropped)
    _replace(path, held)


def _added(way: str) -> bytes:
    if way not in ("", "-"):
        raise ValueError("a secret on the command line could be read by other users: write --add -")
    if way == "-":
        return sys.stdin.buffer.readline().strip()
    made = randomness.token_hex(32)
    print(made)
    return made.encode()


def _ending_with(held: list[bytes], end: str) -> bytes:
    found = [one for one in held if one.endswith(end.encode())]
    if len(end) < _SHORTEST_END or len(found) != 1:
        raise ValueError(f"name one of the {len(held)} secrets by its last characters, {_SHORTEST_END} at least")
    return found[0]


def _replace(path: str, held: list[bytes]) -> None:
    """At once: a worker that looks sees the one or the other. Nobody but its owner may read the file from then on."""
    beside = f"{path}.new-{os.getpid()}"
    try:
        _write(beside, held)
        if group_secret.in_file(beside, "the new file") != held:
            raise ValueError("a secret in a file of several is a line without blanks at its ends")
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def _write(path: str, held: list[bytes]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
        file.write(group_secret.content_for(held))

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
        if os.path.exists(path):
            raise ValueError(f"there is a file {path!r} already: --add adds a secret to it")
        _write(path, [randomness.token_hex(32).encode()])
        return
    owner = os.stat(path).st_uid
    if owner != os.geteuid():  # who could read it no more
        raise ValueError(f"the file {path!r} belongs to the user with id {owner}: run this as that user")
    held = group_secret.in_file(path, f"the file {path!r}")
    made = randomness.token_hex(32) if command.add == "" else ""
    if command.add is not None:
        added = made.encode() or _told(command.add)
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
    if made:
        print(made)


def _told(way: str) -> bytes:
    if way != "-":
        raise ValueError("a secret on the command line could be read by other users: write --add -")
    told = sys.stdin.buffer.readline().strip()
    if not told:
        raise ValueError("standard input has no secret: --add - reads a line")
    return told


def _ending_with(held: list[bytes], end: str) -> bytes:
    found = [one for one in held if one.endswith(end.encode())]
    if len(end) < _SHORTEST_END or len(found) != 1:
        raise ValueError(f"name one of the {len(held)} secrets by its last characters, {_SHORTEST_END} at least")
    return found[0]


def _replace(path: str, held: list[bytes]) -> None:
    """At once: a worker that looks sees the one or the other. Who may read the file stays as it is."""
    beside = f"{path}.new-{os.getpid()}"
    before = os.stat(path)
    try:
        _write(beside, held)
        os.chown(beside, -1, before.st_gid)
        os.chmod(beside, before.st_mode & 0o777)
        if group_secret.in_file(beside, "the new file") != held:
            raise ValueError("a secret in a file of several is a line without blanks at its ends")
        os.replace(beside, path)
    finally:
        if os.path.exists(beside):
            os.unlink(beside)


def _write(path: str, held: list[bytes]) -> None:
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
        file.write(group_secret.content_for(held))

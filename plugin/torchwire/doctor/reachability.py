"""Connecting to a TCP port of another machine."""

from __future__ import annotations

import errno
import re
import socket
from typing import NamedTuple

from torchwire import option_checks

_LIMIT = 3.0  # seconds for each address that a name has
_NO_WAY = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.EACCES, errno.EINVAL, errno.ENETDOWN, errno.EADDRNOTAVAIL)
_NO_NAME = "cannot be the name of a host, which has 1 to 63 characters between dots"
_CORRECT_NAME = "correct the name, or give the address in its place"
_PARTS = re.compile(r"\[?(?P<host>.+?)\]?:(?P<port>[0-9]+)")


class Place(NamedTuple):
    """A host, by name or address, and a TCP port."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Problem(NamedTuple):
    """Why a place cannot be reached, and what helps."""

    found: str
    remedy: str


def place_of(text: str, argument: str = "HOST:PORT") -> Place:
    """The place that 'host:port' or '[v6]:port' names. Raises ValueError, with the argument's name."""
    checked = option_checks.advertise_address(argument, text)
    match = _PARTS.fullmatch(checked or "")
    if match is None:
        raise ValueError(f"{argument}: {text!r} names no port; write 'host:port' or '[v6]:port'")
    check_host(argument, match["host"])
    return Place(match["host"], int(match["port"]))


def check_host(argument: str, host: str) -> None:
    """Raises ValueError, with the argument's name, for what Python would not look up."""
    try:
        host.encode("idna")  # as the socket module does
    except UnicodeError:
        raise ValueError(f"{argument}: {host!r} {_NO_NAME}; {_CORRECT_NAME}") from None


def problem_with(place: Place, listener: str) -> Problem | None:
    """Why nobody answers there, in some seconds; `listener` is what should listen there."""
    try:
        with socket.create_connection(place, _LIMIT):
            return None
    except socket.gaierror as error:
        return Problem(f"the name {place.host!r} leads nowhere: {error.strerror}", _CORRECT_NAME)
    except UnicodeError:
        return Problem(f"{place.host!r} {_NO_NAME}", _CORRECT_NAME)
    except TimeoutError:
        return Problem(
            f"{place} does not answer within {_LIMIT:g} s",
            "let this TCP port through all firewalls between the two, or correct the address",
        )
    except OSError as error:
        return _problem(place, listener, error)


def route_to(place: Place) -> str | None:
    """This machine's address on the way there, which a worker announces whose store is there; None without a way."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_DGRAM)
    except socket.gaierror:
        return None
    for family, kind, _, _, address in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.connect(address)  # sends nothing
            except OSError:
                continue
            return probe.getsockname()[0]
    return None


def _problem(place: Place, listener: str, error: OSError) -> Problem:
    if error.errno == errno.ECONNREFUSED:
        return Problem(f"nobody listens at {place}", f"start {listener} there, or correct the address")
    if error.errno in _NO_WAY:
        return Problem(
            f"there is no way to {place}: {error.strerror}",
            f"bring up the interface and the route to it: ip route get {place.host} shows which",
        )
    return Problem(f"no connection to {place}: {error.strerror or error}", "correct the address, or mend the network")

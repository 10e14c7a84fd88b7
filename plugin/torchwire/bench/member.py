"""What a process of a group is on its contestant."""

from __future__ import annotations

import pathlib
import pickle
from collections.abc import Callable
from typing import Any, NamedTuple

from torchwire.bench import functions
from torchwire.bench.sampling import Call


class Place(NamedTuple):
    """Where a member is: its number among those of its group, and the folder where they find each other."""

    rank: int
    size: int
    folder: pathlib.Path


class Member:
    """One process's part in a group. Member 0 calls; member 1 is the one that is called where one is enough.

    Calls may be made on several threads where the contestant offers it; all else is for the main thread.
    """

    def __init__(self, place: Place, **options: Any) -> None:
        """Opens nothing yet. The options are those of the contestant."""
        self.place = place
        self.options = options

    def join(self) -> None:
        """Gets in touch with the others; returns when calls can be made."""

    def leave(self) -> None:
        """The others leave at the same time."""

    def begin(self, name: str, peer: int = 1) -> Callable[[], Call]:
        """What starts a call of the function that has this name in `functions`, and returns what waits for it."""
        raise NotImplementedError

    def call(self, name: str) -> Call:
        """What makes such a call to member 1 and returns the result."""
        raise NotImplementedError

    def echo(self, size: int) -> Call:
        """What sends so many bytes there and back."""
        raise NotImplementedError


class MessageMember(Member):
    """On something that carries bytes: calls are pickled here.

    A message that is no pickle comes back as it is, for the echo.
    """

    def send(self, message: bytes) -> Callable[[], bytes]:
        """Sends a request; the result waits for the response. Responses come in the order of requests."""
        raise NotImplementedError

    def exchange(self, message: bytes) -> bytes:
        """Sends a request and returns the response."""
        return self.send(message)()

    def begin(self, name: str, peer: int = 1) -> Callable[[], Call]:
        call = functions.call_of(name)

        def start() -> Call:
            wait = self.send(pickle.dumps(call))
            return lambda: pickle.loads(wait())

        return start

    def call(self, name: str) -> Call:
        call = functions.call_of(name)
        return lambda: pickle.loads(self.exchange(pickle.dumps(call)))

    def echo(self, size: int) -> Call:
        message = bytes(size)
        return lambda: self.exchange(message)


_FIRST_OF_PICKLE = b"\x80"


def answer(message: bytes) -> bytes:
    """The response to what a MessageMember sends."""
    if message[:1] != _FIRST_OF_PICKLE:
        return message
    function, arguments = pickle.loads(message)
    return pickle.dumps(function(*arguments))

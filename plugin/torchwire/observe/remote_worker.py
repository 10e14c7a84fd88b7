"""Asking a worker over the network, without being a member of its group (backend/wire/observation.h).

The observer proves on a connection of its own that it knows the group's secret, and so does the worker; then the worker
sends one answer and closes.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Any

from torchwire import _C
from torchwire.doctor.reachability import Place, place_of
from torchwire.observe import answer_shape

_SCHEME = "wire_tcp://"
_HEAD = struct.Struct("<BQ")  # how it went, length of the text
_LONGEST_ANSWER = 1 << 28  # bytes


class NotLetInError(RuntimeError):
    """The worker does not take who asks for an observer of its group."""


def ask(access: _C.GroupAccess, address: str, question: str, patience: float, *, encrypts: bool = True) -> Any:
    """What the worker at `address`, as it is on the group's list, answers within so many seconds.

    `encrypts`: whether it lets connections be encrypted, as the list says, too. Then one to another host has to be.

    Raises RuntimeError when it does not, with words that its name can stand before.
    """
    if not address.startswith(_SCHEME):
        transport = address.partition("://")[0]
        raise RuntimeError(
            f"cannot be asked from here: it listens on {transport} alone; run this on its host, without --store"
        )
    numeric = address.removeprefix(_SCHEME)
    place = place_of(numeric)
    asking = _Asking(place, patience)
    try:
        asking.connect()
        sealing = "off" if not encrypts else "if wanted" if asking.is_within_host() else "wanted"
        return _read(asking, _C.ObserverHandshake(access, numeric, question, sealing), question)
    except TimeoutError:
        raise RuntimeError(f"does not answer within {patience:g} s: {asking.stuck}") from None
    except (ConnectionResetError, BrokenPipeError, EOFError):
        raise RuntimeError(f"has closed the connection to {place}: it shuts down, or has just ended") from None
    except ConnectionRefusedError:
        raise RuntimeError(
            f"has ended, or {place} is another machine's address from here: nobody listens there"
        ) from None
    except OSError as error:
        raise RuntimeError(f"cannot be reached at {place}: {error.strerror or error}") from None
    finally:
        asking.close()


class _Asking:
    """A connection, and the time that is left for all that is said on it."""

    def __init__(self, place: Place, patience: float) -> None:
        self._place = place
        self._deadline = time.monotonic() + patience
        self._socket: socket.socket | None = None
        self._opener: _C.AnswerOpener | None = None  # once the connection is sealed
        self._opened = bytearray()
        self.stuck = f"a firewall, or a broken network, is in the way to {place}, or the machine is down"

    def connect(self) -> None:
        self._socket = socket.create_connection(self._place, self._left())

    def is_within_host(self) -> bool:
        """As both ends of a connection tell (backend/transport/encryption.h)."""
        connection = self._connected()
        return connection.getsockname()[0] == connection.getpeername()[0]

    def say(self, words: bytes) -> None:
        connection = self._connected()
        connection.sendall(words)

    def hear(self, size: int) -> bytes:
        """So many bytes of what the worker says. Raises EOFError at the end, TimeoutError when time is over."""
        if self._opener is None:
            return self._receive(size)
        while len(self._opened) < size:
            header = self._receive(_C.RECORD_HEADER_SIZE)
            self._opened += self._opener.open(header + self._receive(self._opener.rest_of(header)))
        heard = bytes(self._opened[:size])
        del self._opened[:size]
        return heard

    def open_with(self, opener: _C.AnswerOpener | None) -> None:
        """What comes from now on is sealed, unless `opener` is None."""
        self._opener = opener

    def _receive(self, size: int) -> bytes:
        connection = self._connected()
        heard = bytearray()
        while len(heard) < size:
            connection.settimeout(self._left())
            part = connection.recv(min(size - len(heard), 1 << 20))
            if not part:
                raise EOFError
            heard += part
        return bytes(heard)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()

    def _connected(self) -> socket.socket:
        assert self._socket is not None
        return self._socket

    def _left(self) -> float:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left


def _read(asking: _Asking, handshake: _C.ObserverHandshake, question: str) -> Any:
    """Raises OSError, EOFError, and RuntimeError where the worker refuses or answers an error."""
    asking.stuck = "it is stopped, or the network drops what is sent"
    _prove(asking, handshake)
    asking.stuck = "a thread holds Python's global lock, or the machine is overloaded"
    failed, length = _HEAD.unpack(asking.hear(_HEAD.size))
    if length > _LONGEST_ANSWER:
        raise RuntimeError(f"answers with {length} bytes, more than any worker has to say")
    text = asking.hear(length).decode(errors="replace")
    if failed:
        raise RuntimeError(text.partition("\n")[0])
    return answer_shape.read(question, text)


def _prove(asking: _Asking, handshake: _C.ObserverHandshake) -> None:
    try:
        asking.say(handshake.greet())
        asking.say(handshake.answer_challenge(asking.hear(_C.CHALLENGE_SIZE)))
        asking.open_with(handshake.judge(asking.hear(_C.AUTH_RESULT_SIZE)))
    except RuntimeError as error:
        raise NotLetInError(f"does not let in observers: {error}") from None

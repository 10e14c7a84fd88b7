"""`doctor serve`: the side of a pair that waits for others."""

from __future__ import annotations

import socket
from collections.abc import Callable

from torchwire.doctor import child, interfaces, measurement, pair
from torchwire.doctor.measurement import Meeting
from torchwire.doctor.reachability import Place
from torchwire.torch_parts import TCPStore

_FOREVER = float("inf")


class Server:
    """Hosts a store, in which clients ask to be served, one after the other. Used by one thread."""

    def __init__(self, host: str | None, port: int, secret_file: str | None, say: Callable[[str], None]) -> None:
        """Listens. `say` is told of each client. Raises OSError where the address is not to be had."""
        address = host or interfaces.own_address()
        listening = _listen(address, port)
        self.place = Place(address, listening.getsockname()[1])
        self._secret_file = secret_file
        self._say = say
        self._served = 0
        # It listens on this address alone; PyTorch would have it listen on all.
        self._store = TCPStore(
            address, self.place.port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach()
        )
        self._store.set(pair.CARD, pair.own_card().encode())

    def serve_one(self) -> bool:
        """Waits for a client, serves it, and returns whether it got all that it asked for."""
        client = self._served + 1
        child.wait_until(lambda: self._clients() >= client, _FOREVER)
        self._served = client
        self._store.set(pair.TURN, str(client))
        step = 0
        try:
            while (way := self._next_way(client, step)) is not None:
                if step == len(pair.ALL_WAYS):
                    raise child.ChildError(f"it asks for more than the {step} measurements that there are")
                meeting = Meeting(self.place, client, step, way, self._secret_file)
                child.run(measurement.serve, meeting, limit=pair.MEMBER_LIMIT)
                step += 1
        except child.ChildError as error:
            self._say(f"client {client}: {error}")
            return False
        self._say(f"client {client}: {step} measurements")
        return True

    def _clients(self) -> int:
        try:
            # Changes nothing. With get() it would be waited for, and add() ends the connection where it is no number.
            return int(self._store.compare_set(pair.CLIENTS, "0", "0"))
        except ValueError:  # not of a client's
            self._store.set(pair.CLIENTS, str(self._served))
            return self._served

    def _next_way(self, client: int, step: int) -> pair.Way | None:
        """Raises ChildError if the client does not ask for any, or not for one that is known here."""
        key = pair.step_key(client, step)
        if not child.wait_until(lambda: pair.has(self._store, key), pair.SILENCE):
            raise child.ChildError(f"it has said nothing for {pair.SILENCE:g} s")
        try:
            return pair.decode_way(self._store.get(key))
        except (ValueError, TypeError, RecursionError):  # the last for JSON that is nested too deep
            raise child.ChildError(
                "it asks for what this version does not know: install the same torchwire on both machines"
            ) from None


def _listen(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)

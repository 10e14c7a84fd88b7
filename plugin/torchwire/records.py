"""What torchwire tells of a worker: dicts, whose entries are attributes, too."""

from __future__ import annotations

from typing import Any


class Record(dict[str, Any]):
    """A dict whose entries are attributes, too. A subclass names them, so that type checkers know them."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}") from None


class PeerInfo(Record):
    """A peer as this worker knows it, with what its link is made of and how it fares. Made by `torchwire.peers()`.

    name, id, address: of the peer. id: its rank.
    state: of the link: "idle" until there is something to send, then "dialing", "greeting" and "connected"; "resuming"
        while a broken connection is made again; "disconnecting", "left" or "dead" at its end.
    transport, channel: by which the link goes, or the last one went; "" as long as there has been none.
    encryption: the cipher by which the transport encrypts, such as "AES-256-GCM"; "" where it does not.
    calls: requests sent to it. frames_sent, frames_received: requests and responses.
    bytes_sent, bytes_received: of those, in bytes. links_lost: how often the link broke.
    carried: bytes_sent and bytes_received by what has carried them first, a list with a dict for each pair of transport
        and channel: transport, channel, bytes_sent, bytes_received.
    """

    __slots__ = ()

    name: str
    id: int
    address: str
    state: str
    transport: str
    channel: str
    encryption: str
    calls: int
    frames_sent: int
    frames_received: int
    bytes_sent: int
    bytes_received: int
    links_lost: int
    carried: list[dict[str, Any]]


class RRefInfo(Record):
    """An RRef that this worker owns and others hold, or that it holds of another owner. Made by `torchwire.rrefs()`.

    role: "owner" or "user".
    id: the RRef's id, as PyTorch prints it; the same on all workers.
    owner: the owner's name.
    type: the value's type as TorchScript names it; None while the function that makes the value has not returned.
    holders: names of the workers that hold the RRef. Of an owner: those that its forks are on. Where the owner has
        handed a fork out itself, it asks all peers; a fork that is still on its way, or whose holder does not answer
        within two seconds, has no name here. Of a user: this worker.
    forks: the ids of the forks, each with its holder's name or None.
    age: seconds since it was made, or else since torchwire first noticed it: at the latest when it is listed. RRefs
        that came with a call, and those that TorchScript makes, are noticed when they are listed.
    state: of an owner "confirmed" when its value is there, of a user when the owner knows of it; else "pending".
    creation_site: where the program made it, innermost frame first, if its creator has `record_creation_site` on;
        else None. Only the owner and the creator know.
    """

    __slots__ = ()

    role: str
    id: str
    owner: str
    type: str | None
    holders: list[str]
    forks: dict[str, str | None]
    age: float
    state: str
    creation_site: str | None


class AutogradContextInfo(Record):
    """A distributed autograd context that is open on this worker. Made by `torchwire.autograd_contexts()`.

    id: as `with dist_autograd.context() as id` gives it.
    creator: name of the worker that opened it, or its rank where that worker has left.
    known_workers: names of the workers with which this one has exchanged calls in it.
    send_functions, recv_functions, gradients: how many it has here.
    age: seconds since it was first seen here; None where libtorch alone has opened it.
    calls: how many of its calls run here just now. released: it has been released, and waits for these.
    backward: the backward pass that runs here, in a few words, or None.
    """

    __slots__ = ()

    id: int
    creator: str | int
    known_workers: list[str | int]
    send_functions: int
    recv_functions: int
    gradients: int
    age: float | None
    calls: int
    released: bool
    backward: str | None

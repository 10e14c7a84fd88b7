"""What the two sides of a pair agree on: the keys in the server's store, and by which ways calls are measured."""

from __future__ import annotations

import json
import os
import platform
from typing import NamedTuple

import torch

from torchwire import __version__
from torchwire.torch_parts import Store

MEMBER_LIMIT = 20.0  # seconds for the processes of one measurement
SILENCE = 6.0  # seconds without a sign of a client, after which the server goes on to the next one
TURN_LIMIT = 60.0  # seconds for which a client waits for those before it

CARD = "doctor/card"
CLIENTS = "doctor/clients"  # counts them, from 1 on
TURN = "doctor/turn"  # the number of the client that is being served


def step_key(client: int, step: int) -> str:
    """Where a client asks for a measurement; the value is the way."""
    return f"doctor/{client}/{step}"


def measured_key(client: int, step: int) -> str:
    """Set when the client's worker needs the server's no more."""
    return f"doctor/{client}/{step}/measured"


def group_prefix(client: int, step: int) -> str:
    """Below which the two workers of a measurement meet."""
    return f"doctor/group/{client}/{step}"


class Way(NamedTuple):
    """A transport, and the channel of large tensors; empty for what workers take by themselves."""

    transport: str = ""
    channel: str = ""

    def encode(self) -> str:
        return json.dumps(self)


def decode_way(text: bytes) -> Way | None:
    """None where the client has said that it is done. Raises ValueError, TypeError or RecursionError for nonsense.

    A client chooses among the ways that are measured: by another one it could have a worker that lets strangers in.
    """
    value = json.loads(text)
    if not value:
        return None
    way = Way(*value)
    if way not in ALL_WAYS:
        raise ValueError(f"{way} is not measured")
    return way


DONE = json.dumps(None)
DEFAULT_WAY = Way()
ON_ONE_HOST = (Way("wire_shm", "cma"), Way("wire_shm", "basic"))
BY_NETWORK = (Way("wire_tcp", "basic"), Way("wire_tcp", "mpt_wire_tcp"))
ALL_WAYS = (DEFAULT_WAY, *ON_ONE_HOST, *BY_NETWORK)


class Card(NamedTuple):
    """What each side says of itself before they form a group."""

    torchwire: str
    torch: str
    name: str  # of the machine
    host: str  # equal where wire_shm may be used between the two

    def encode(self) -> str:
        return json.dumps(self)


def own_card() -> Card:
    return Card(__version__, str(torch.__version__), platform.node(), _host())


def decode_card(text: bytes) -> Card:
    """Raises ValueError, TypeError or RecursionError where it is none."""
    values = json.loads(text)
    if not all(isinstance(value, str) for value in values):
        raise TypeError("a card is four texts")
    return Card(*values)


def has(store: Store, key: str) -> bool:
    return store.check([key])


def _host() -> str:
    """As wire_shm tells which processes share a host: kernel, namespaces and user."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        return " ".join([boot, os.readlink("/proc/self/ns/net"), os.readlink("/proc/self/ns/user"), str(os.geteuid())])
    except OSError:
        return ""  # then wire_shm is not to be had either

"""The group of two that measures calls. All of this runs in children."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc

import torchwire
from torchwire import torch_parts
from torchwire.bench.batch import percentile
from torchwire.bench.sampling import Pace, latency
from torchwire.doctor import child, pair, store_check
from torchwire.doctor.pair import Way
from torchwire.doctor.reachability import Place
from torchwire.torch_parts import PrefixStore

SERVER, CLIENT = "doctor_server", "doctor_client"

_CALL_LIMIT = 8.0  # seconds
_PACE = Pace(seconds=0.3, at_least=20, warm_ups=20)
_LARGE_PACE = Pace(seconds=0.5, at_least=3, warm_ups=1)
_LARGEST = 64 << 20  # bytes
_FIRST = 1 << 20
_LONGEST = 0.5  # seconds for one large tensor, more or less
_SCHEME = "torchwire-doctor"


class Measurement(NamedTuple):
    """What the client has seen. Times in seconds."""

    transport: str
    channel: str
    encryption: str  # the cipher; empty: not encrypted
    p50: float
    p99: float
    bytes_per_second: float
    size: int  # bytes of the tensors with which that was measured


class Meeting(NamedTuple):
    """Where the two workers of a measurement meet, and how they talk."""

    place: Place  # of the server's store
    client: int
    step: int
    way: Way
    secret_file: str | None


def serve(meeting: Meeting) -> None:
    """The server's worker, until the client's has measured."""
    _join(meeting, SERVER, 0)
    # A shutdown calls the other worker. Where that fails, this one would end before the other knows why its calls fail.
    store = store_check.client(meeting.place)
    child.wait_until(lambda: pair.has(store, pair.measured_key(meeting.client, meeting.step)), pair.MEMBER_LIMIT)
    rpc.shutdown()


def measure(meeting: Meeting) -> Measurement:
    """The client's worker. Asks the server for its own first."""
    store = store_check.client(meeting.place)
    store.set(pair.step_key(meeting.client, meeting.step), meeting.way.encode())
    _join(meeting, CLIENT, 1)
    try:
        measurement = _measure_calls()
    finally:
        store.set(pair.measured_key(meeting.client, meeting.step), "")
    rpc.shutdown()
    return measurement


def _measure_calls() -> Measurement:
    _call_first()
    small = _seconds(lambda: torch_parts.rpc_sync(SERVER, _nothing), _PACE)
    size = _size_of_tensors()
    large = _seconds(_sending(size), _LARGE_PACE)
    way = torchwire.explain(SERVER)
    return Measurement(
        way.transport,
        way.channel,
        way.encryption,
        percentile(small, 50),
        percentile(small, 99),
        size / statistics.median(large),
        size,
    )


def _join(meeting: Meeting, name: str, rank: int) -> None:
    store = PrefixStore(pair.group_prefix(meeting.client, meeting.step), store_check.client(meeting.place))
    torch_parts.register_rendezvous_handler(_SCHEME, lambda *_, **__: iter([(store, rank, 2)]))
    options = torchwire.TorchwireRpcBackendOptions(
        init_method=f"{_SCHEME}://",
        rpc_timeout=_CALL_LIMIT,
        secret_file=meeting.secret_file,
        _transports=[meeting.way.transport] if meeting.way.transport else None,
        _channels=[meeting.way.channel] if meeting.way.channel else None,
    )
    torch_parts.init_rpc(
        name, backend=rpc.BackendType["TORCHWIRE"], rank=rank, world_size=2, rpc_backend_options=options
    )


def _call_first() -> None:
    """Raises RuntimeError where the workers cannot connect, with the address that the client's has tried."""
    try:
        torch_parts.rpc_sync(SERVER, _nothing)
    except torchwire.CallTimedOut:
        address = next((peer["address"] for peer in torchwire.peers()), "its address")
        raise RuntimeError(
            f"the worker there, at {address}, has not answered a call within {_CALL_LIMIT:g} s"
        ) from None


def _nothing() -> None:
    pass


def _take(_: torch.Tensor) -> None:
    pass


def _sending(size: int) -> Callable[[], Any]:
    tensor = torch.ones(size, dtype=torch.uint8)
    return lambda: torch_parts.rpc_sync(SERVER, _take, args=(tensor,))


def _size_of_tensors() -> int:
    """As large as a slow network allows, in powers of two."""
    one = statistics.median(_seconds(_sending(_FIRST), Pace(seconds=0.0, at_least=3, warm_ups=1)))
    size = _FIRST
    while size < _LARGEST and one * (2 * size / _FIRST) <= _LONGEST:
        size *= 2
    return size


def _seconds(call: Callable[[], Any], pace: Pace) -> list[float]:
    """Of each call, the shortest first."""
    return sorted(nanoseconds / 1e9 for nanoseconds in latency(call, pace).samples)

"""Echoes of tensors on devices: which ways they take, and who is measured on each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torchwire.bench.call_steps import echo_step
from torchwire.bench.contestant import ECHO, REFERENCE, Contestant
from torchwire.bench.step import Scope, Step

_KIB, _MIB = 1 << 10, 1 << 20

SIZES = (4, 4 * _KIB, 64 * _KIB, _MIB, 16 * _MIB, 64 * _MIB, 256 * _MIB)  # bytes

_MEMBER = "device_member:DeviceMember"


class Direction(NamedTuple):
    """The way of an echo's tensor: from worker 0's `source` to worker 1's `target`, and back."""

    name: str  # as the report has it
    source: str
    target: str


def directions(kind: str, count: int) -> list[Direction]:
    """Those on a machine with `count` devices of this kind; of the CPU, which has no others, there is one."""
    if kind == "cpu":
        return [Direction("on the CPU", "cpu", "cpu")]
    one, other = f"{kind}:0", f"{kind}:1"
    between = [Direction("to another device", one, other)] if count > 1 else []
    return [
        Direction("on one device", one, one),
        *between,
        Direction("from the CPU to a device", "cpu", one),
        Direction("from a device to the CPU", one, "cpu"),
    ]


def contestants(direction: Direction, channels: Sequence[str], prepare: str, with_stock: bool) -> list[Contestant]:
    """Stock, torchwire as it is by default, by way of the host where there may be another, and with each of these
    channels for what is in the host's memory."""
    way = {"source": direction.source, "target": direction.target, "prepare": prepare}
    found = [_contestant(REFERENCE, "PyTorch's own backend", backend="TENSORPIPE", **way)] if with_stock else []
    found.append(_contestant("torchwire", "torchwire with default options", backend="TORCHWIRE", **way))
    if with_stock and "cpu" not in (direction.source, direction.target):
        options = {"backend": "TORCHWIRE", "_device_paths": ["host"]}
        found.append(_contestant("torchwire/host", "torchwire, by way of the host's memory", **options, **way))
    for channel in channels:
        options = {"backend": "TORCHWIRE", "_channels": list(dict.fromkeys([channel, "basic"]))}
        found.append(_contestant(f"torchwire/{channel}", f"torchwire on the channel {channel}", **options, **way))
    return found


def steps(direction: Direction, sizes: Sequence[int], scope: Scope) -> list[Step]:
    """An echo of each size, in bytes."""
    return [echo_step(size, scope, direction.name) for size in sizes]


def _contestant(name: str, description: str, **options: Any) -> Contestant:
    return Contestant(name, description, frozenset({ECHO}), _MEMBER, options)

"""What each group does in its turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from torchwire.bench.batch import Batch
from torchwire.bench.case import Case
from torchwire.bench.sampling import Pace


class Scope(NamedTuple):
    """How much is measured."""

    rounds: int
    seconds: float  # that a turn measures, where it is not for a number of samples
    idle_seconds: float
    sizes: tuple[int, ...]  # bytes of an echo
    peers: tuple[int, ...]
    start_ups: tuple[int, ...]  # workers
    start_up_rounds: int  # at most


_KIB, _MIB = 1 << 10, 1 << 20

QUICK = Scope(
    rounds=3,
    seconds=0.02,
    idle_seconds=0.2,
    sizes=(64, 64 * _KIB, _MIB, 64 * _MIB),
    peers=(1, 4),
    start_ups=(2, 8),
    start_up_rounds=1,
)

FULL = Scope(
    rounds=20,
    seconds=0.1,
    idle_seconds=1.0,
    sizes=(64, _KIB, 16 * _KIB, 64 * _KIB, 256 * _KIB, _MIB, 4 * _MIB, 16 * _MIB, 64 * _MIB),
    peers=(1, 2, 4, 8),
    start_ups=(2, 8, 32),
    start_up_rounds=3,
)


class Step(NamedTuple):
    """What each group does in its turn. `run` is given a group that runs, and how long to take."""

    cases: tuple[Case, ...]  # of which `run` returns a batch each
    needs: str  # what the contestant has to offer
    run: Callable[[Any, Pace], list[Batch]]
    size: int = 2  # workers of the group
    is_fresh: bool = False  # whether the group is a new one, whose workers have not joined yet
    most_rounds: int = 1 << 30

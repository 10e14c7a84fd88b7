"""Workers that fail or end in init_rpc before they have an agent: those that wait for them raise at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from typing import Any

from torchwire import _C, ending
from torchwire.torch_parts import Store

_RANKS = range(-(2**31), 2**31)  # that can be told of, whether or not a worker can have them
_WORLD_SIZES = range(1, 2**31)


def announce(store: Store, name: Any, rank: Any, world_size: Any) -> None:
    """Has the workers of a static group see it if this process ends before its worker has joined."""
    if _can_be_told_of(rank, world_size):
        _C.announce_start(store, str(name), rank, world_size)


@contextlib.contextmanager
def told_to_group(store: Store, name: Any, rank: Any, world_size: Any) -> Generator[None]:
    """Tells the workers of a static group what the body raises, by their store."""
    process = os.getpid()
    try:
        yield
    except BaseException as error:
        # A process that a handler of a signal has forked meanwhile is no worker.
        if _can_be_told_of(rank, world_size) and process == os.getpid():
            text = str(error) if isinstance(error, Exception) else ""
            _C.tell_of_failed_start(store, str(name), rank, world_size, text or ending.describe(error))
        raise


def _can_be_told_of(rank: Any, world_size: Any) -> bool:
    return isinstance(rank, int) and rank in _RANKS and isinstance(world_size, int) and world_size in _WORLD_SIZES

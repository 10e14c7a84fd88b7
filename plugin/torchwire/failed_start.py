"""Workers that fail in init_rpc before they have an agent: those that wait for them raise at once, and say why."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import Any

from torchwire import _C
from torchwire.torch_parts import Store

_RANKS = range(-(2**31), 2**31)  # that can be told of, whether or not a worker can have them
_WORLD_SIZES = range(1, 2**31)


@contextlib.contextmanager
def told_to_group(store: Store, name: Any, rank: Any, world_size: Any) -> Generator[None]:
    """Tells the workers of a static group what the body raises, by their store."""
    try:
        yield
    except BaseException as error:
        if isinstance(rank, int) and rank in _RANKS and isinstance(world_size, int) and world_size in _WORLD_SIZES:
            _C.tell_of_failed_start(store, str(name), rank, world_size, str(error) or type(error).__name__)
        raise

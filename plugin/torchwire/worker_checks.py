"""Checks of a worker's place in the group: the store, name, rank and world size that its agent starts with."""

from __future__ import annotations

import numbers
import re
from typing import Any

from torchwire.torch_parts import Store

_MAX_NAME_LENGTH = 127
_HIGHEST_RANK = 32767  # PyTorch's worker ids have 16 bits, one of them the sign
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_:-]")


def check_store(store: Any, name: Any) -> None:
    """Raises TypeError unless `store` is one that PyTorch's rendezvous makes."""
    if not isinstance(store, Store):
        raise TypeError(f"init_rpc, worker {name!r}: store must be a c10d store, got {type(store).__name__}")


def check_name(name: Any) -> str:
    """Returns `name`; raises TypeError or ValueError unless it is 1 to 127 letters, digits, '_', ':' and '-'."""
    if not isinstance(name, str):
        raise TypeError(f"init_rpc: name must be text, got {name!r} ({type(name).__name__})")
    if not name:
        raise ValueError("init_rpc: name is empty; give each worker a name of its own, such as 'worker0'")
    if len(name) > _MAX_NAME_LENGTH:
        raise ValueError(
            f"init_rpc: name {name[:20]!r}... has {len(name)} characters; use fewer than {_MAX_NAME_LENGTH + 1}"
        )
    forbidden = _FORBIDDEN.search(name)
    if forbidden:
        raise ValueError(
            f"init_rpc: name {name!r} contains {forbidden[0]!r}; use only ASCII letters and digits, '_', ':' and '-'"
        )
    return str.__str__(name)  # of a subclass, which may have a __str__ of its own


def check_world_size(world_size: Any, name: str) -> int | None:
    """Returns the number of workers (None: dynamic group); raises TypeError or ValueError unless it is 1 or more."""
    if world_size is None:
        return None
    size = _integer(world_size, "world_size", name)
    if size < 1:
        raise ValueError(
            f"init_rpc, worker {name!r}: world_size must be at least 1, got {size}; "
            "leave it out for a group that workers join and leave"
        )
    if size > _HIGHEST_RANK + 1:
        raise ValueError(f"init_rpc, worker {name!r}: world_size is {size}; the most is {_HIGHEST_RANK + 1} workers")
    return size


def check_rank(rank: Any, name: str) -> int:
    """Returns `rank`; raises TypeError or ValueError unless it is an integer that a worker can have.

    That it is below the world size is checked with the group, so that the workers that wait for it hear of it too.
    """
    result = _integer(rank, "rank", name)
    if result < 0:
        raise ValueError(f"init_rpc, worker {name!r}: rank must be 0 or more, got {result}; pass rank=... to init_rpc")
    if result > _HIGHEST_RANK:
        raise ValueError(
            f"init_rpc, worker {name!r}: rank is {result}; the highest that PyTorch can represent is {_HIGHEST_RANK}"
        )
    return result


def _integer(value: Any, argument: str, name: str) -> int:
    if isinstance(value, numbers.Integral):
        return int(value)
    raise TypeError(f"init_rpc, worker {name!r}: {argument} must be an integer, got {value!r} ({type(value).__name__})")

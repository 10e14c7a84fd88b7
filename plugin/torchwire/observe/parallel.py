"""Asking many workers at the same time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

_AT_A_TIME = 32

_Asked = TypeVar("_Asked")
_Answer = TypeVar("_Answer")


def of_each(ask: Callable[[_Asked], _Answer], whom: Collection[_Asked]) -> Iterator[_Answer]:
    """What `ask` returns or raises for each, in their order, as it comes. Begins when the first is looked for; `ask` is
    called on other threads, 32 at most."""
    if whom:
        with ThreadPoolExecutor(min(_AT_A_TIME, len(whom))) as pool:
            yield from pool.map(ask, whom)

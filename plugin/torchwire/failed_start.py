"""Workers that fail or end in init_rpc before they have an agent: those that wait for them raise at once."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torchwire import _C, ending
from torchwire.torch_parts import Store

_RANKS = range(-(2**31), 2**31)  # that can be told of, whether or not a worker can have them
_WORLD_SIZES = range(1, 2**31)


@dataclass
class Start:
    """Of a worker, of whatever arguments.

    As a context manager it tells the workers of a static group what the body raises, by their store, unless the agent
    does.
    """

    store: Store
    name: Any
    rank: Any
    world_size: Any
    agent: _C.TorchwireAgent | None = None
    store_thread: _C.StoreThread = field(default_factory=_C.StoreThread)
    _process: int = field(default_factory=os.getpid)

    def announce(self) -> None:
        """Has the workers of a static group see it if this process ends before its worker has joined."""
        if self._can_be_told_of():
            _C.announce_start(self.store, str(self.name), self.rank, self.world_size, self.store_thread)

    def expect_own_process(self) -> None:
        """Raises RuntimeError in a process that a handler of a signal has forked meanwhile."""
        if self._process != os.getpid():
            raise RuntimeError(
                f"this process was forked from worker '{self.name}' in init_rpc; call init_rpc in it, or use spawn"
            )

    def __enter__(self) -> Start:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None or not self._can_be_told_of() or self._process != os.getpid():
            return
        if self.agent is None or not self.agent.has_begun_to_start:
            text = str(error) if isinstance(error, Exception) else ""
            reason = text or ending.describe(error)
            _C.tell_of_failed_start(self.store, str(self.name), self.rank, self.world_size, reason, self.store_thread)

    def _can_be_told_of(self) -> bool:
        ranked = isinstance(self.rank, int) and self.rank in _RANKS
        return ranked and isinstance(self.world_size, int) and self.world_size in _WORLD_SIZES

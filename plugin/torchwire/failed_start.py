"""Workers that fail or end in init_rpc before they have an agent: those that wait for them raise at once.

They read why in the store. Where the process of rank 0 hosts it, which may end by that error, its init_rpc raises only
once all others have raised, or after a while; at once if a signal's handler has ended it. Each counts itself in the
store when it does.

A function of torch.distributed.rpc is replaced once, when torchwire is imported, and for good: what PyTorch objects to
before it asks a backend for an agent is to be told, too.
"""

# The function of PyTorch's that is replaced here is private, and has no types.
# pyright: reportPrivateUsage=false, reportPrivateImportUsage=false, reportUnknownMemberType=false

from __future__ import annotations

import contextlib
import functools
import numbers
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torchwire import _C, ending
from torchwire.backend_type import is_torchwires
from torchwire.printable import encodable, text_of
from torchwire.rendezvous import innermost, within
from torchwire.replaced import for_good
from torchwire.torch_parts import Store, TCPStore, rendezvous_uses_agent_store

_RANKS = range(-(2**31), 2**31)  # that can be told of, whether or not a worker can have them
_WORLD_SIZES = range(1, 2**31)

# A counter of the workers whose init_rpc raises, and which need the store no more; below the group's prefix.
_RAISING = "torchwire/startup_raising"
_COUNTING_PATIENCE = 2.0  # seconds: the program waits for it, to see its error
_HOSTING_PATIENCE = 5.0
_LOOK_INTERVAL = 0.01

_running: list[Start] = []
_refuses = False


def install() -> None:
    """Replaces the function. Not thread-safe."""
    for_good("torch.distributed.rpc._validate_rpc_args", _telling)


def _telling(original: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(original)
    def validate(backend: Any, store: Any, name: Any, rank: Any, world_size: Any, rpc_backend_options: Any) -> None:
        can_be_told = is_torchwires(backend) and isinstance(store, Store)
        with Start(store, name, rank, world_size) if can_be_told else contextlib.nullcontext():
            original(backend, store, name, rank, world_size, rpc_backend_options)

    return validate


def refuse_on_threads() -> None:
    """To be called as the program begins to end: no daemon thread is to start an agent any more."""
    global _refuses
    _refuses = True


def interrupt_running(patience: float) -> None:
    """Ends the starts that daemon threads are in as the program ends. Waits for each, as many seconds at most."""
    for start in list(_running):
        start.interrupt(patience)


@dataclass(eq=False)
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
    group_runs: bool = False
    store_thread: _C.StoreThread = field(default_factory=_C.StoreThread)
    _process: int = field(default_factory=os.getpid)
    _is_over: threading.Event = field(default_factory=threading.Event)
    _is_interrupted: bool = False
    _has_left: bool = False  # the store, or nearly so: it waits for nobody any more

    def announce(self) -> None:
        """Has the workers of a static group see it if this process ends before its worker has joined."""
        if self._can_be_told_of():
            _C.announce_start(self.store, self._shown_name(), int(self.rank), int(self.world_size), self.store_thread)

    def interrupt(self, patience: float) -> None:
        """Makes init_rpc stop, in its own thread, and waits for that where there is an agent already."""
        self._is_interrupted = True
        if self.agent is not None and self._process == os.getpid():
            end = time.monotonic() + patience
            self.agent.interrupt_start(patience)
            self._is_over.wait(max(0.0, end - time.monotonic()))

    def expect_wanted(self) -> None:
        """Raises RuntimeError in a process that a handler of a signal has forked meanwhile, and as the program ends."""
        if self._is_unwanted():
            raise RuntimeError("init_rpc was interrupted: the main program has ended")
        if self._process != os.getpid():
            raise RuntimeError(
                f"this process was forked from worker '{self._shown_name()}' in init_rpc; call init_rpc in it, or use "
                f"spawn"
            )

    def _is_unwanted(self) -> bool:
        return self._is_interrupted or (_refuses and threading.current_thread() is not threading.main_thread())

    def __enter__(self) -> Start:
        _running.append(self)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            self._end(error)
        finally:
            _running.remove(self)
            self._is_over.set()
        if error is not None and self._is_unwanted():
            # A daemon thread that Python ends while it prints what it has raised holds stderr, and Python aborts.
            threading.Event().wait()

    def _end(self, error: BaseException | None) -> None:
        if error is None or not self._can_be_told_of() or self._process != os.getpid():
            return
        if self.agent is None or not self.agent.has_begun_to_start:
            self._tell(error)
        if self._process != os.getpid():
            return  # a handler of a signal has forked it meanwhile: the connection to the store is the parent's
        if not self.group_runs and _is_hosted_by_first(self.store):
            self._leave_store(waits=isinstance(error, Exception))

    def _tell(self, error: BaseException) -> None:
        text = text_of(error) if isinstance(error, Exception) else ""
        reason = encodable(text or ending.describe(error))
        _C.tell_of_failed_start(
            self.store, self._shown_name(), int(self.rank), int(self.world_size), reason, self.store_thread
        )

    def _leave_store(self, waits: bool) -> None:
        """Counts this worker; where the store goes with this process, waits until the others have been counted."""
        try:
            with contextlib.suppress(RuntimeError, TimeoutError):  # of the store: the others cannot be helped
                if self.rank != 0:
                    within(_COUNTING_PATIENCE, self._count)
                elif waits:
                    within(_HOSTING_PATIENCE, self._await_others)
        finally:
            self._has_left = True

    def _count(self) -> None:
        self.store.add(_RAISING, 1)

    def _await_others(self) -> None:
        end = time.monotonic() + _HOSTING_PATIENCE
        while self.store.add(_RAISING, 0) < self.world_size - 1 and time.monotonic() < end and not self._has_left:
            time.sleep(_LOOK_INTERVAL)

    def _shown_name(self) -> str:
        return encodable(text_of(self.name))

    def _can_be_told_of(self) -> bool:
        ranked = isinstance(self.rank, numbers.Integral) and int(self.rank) in _RANKS
        return ranked and isinstance(self.world_size, numbers.Integral) and int(self.world_size) in _WORLD_SIZES


def _is_hosted_by_first(store: Store) -> bool:
    """Whether the store goes with the process of rank 0."""
    return isinstance(innermost(store), TCPStore) and not rendezvous_uses_agent_store()

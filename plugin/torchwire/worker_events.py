"""Functions of the program's that are told of workers that are lost and of workers that join."""

from __future__ import annotations

import logging
import queue
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, TypeVar

import torch.distributed.rpc as rpc
from torch.utils.hooks import RemovableHandle

from torchwire.errors import RpcError

logger = logging.getLogger(__name__)

LostCallback = Callable[[rpc.WorkerInfo, RpcError], Any]
JoinedCallback = Callable[[rpc.WorkerInfo], Any]
_Callback = TypeVar("_Callback", bound=Callable[..., Any])

_lost: OrderedDict[int, LostCallback] = OrderedDict()
_joined: OrderedDict[int, JoinedCallback] = OrderedDict()


def on_worker_lost(callback: LostCallback) -> RemovableHandle:
    """Has `callback(worker, error)` called for each worker that dies, and for each that leaves a dynamic group.

    worker: its `WorkerInfo`.
    error: what calls to it fail with: `torchwire.WorkerDied`, or `torchwire.WorkerUnreachable` for one that has left.

    By then its RRefs, its forks and its autograd contexts have been dropped here. If it comes back, `on_worker_joined`
    callbacks are called after those for its loss.

    The callbacks of a process are called one after another, in the order of the events and then of registration, on a
    thread of torchwire's own; they may make calls and wait for them. What they raise is logged. They hold for this
    process's present group and for those that it joins later, until `remove()` of what is returned. Thread-safe.
    Raises TypeError for what cannot be called.
    """
    return _add(_lost, callback)


def on_worker_joined(callback: JoinedCallback) -> RemovableHandle:
    """Has `callback(worker)` called for each worker that joins a dynamic or elastic group after this one, or returns.

    It can be called by then. `worker`: its `WorkerInfo`. All else is as for `on_worker_lost`.
    """
    return _add(_joined, callback)


def _add(callbacks: OrderedDict[int, _Callback], callback: _Callback) -> RemovableHandle:
    if not callable(callback):
        raise TypeError(f"the callback must be callable, got {type(callback).__name__}")
    handle = RemovableHandle(callbacks)
    callbacks[handle.id] = callback
    return handle


class _EventThread:
    """Runs what it is told, in order, on a thread that it starts when there is something, and which ends with it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    def put(self, event: Callable[[], None]) -> None:
        with self._lock:
            self._events.put(event)
            if self._thread is None or not self._thread.is_alive():  # the latter in a child of fork()
                # Daemonic: a callback that waits for ever must not keep the process from ending.
                self._thread = threading.Thread(target=self._run, name="torchwire_events", daemon=True)
                self._thread.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                if self._events.empty():
                    self._thread = None
                    return
                event = self._events.get()
            event()


_thread = _EventThread()


# Called by the extension, on a thread that may take the GIL. They only take note.


def worker_lost(worker: rpc.WorkerInfo, error: RpcError) -> None:
    if _lost:
        _thread.put(lambda: _call_all(_lost, worker, error))


def worker_joined(worker: rpc.WorkerInfo) -> None:
    if _joined:
        _thread.put(lambda: _call_all(_joined, worker))


def _call_all(callbacks: OrderedDict[int, Callable[..., Any]], *args: object) -> None:
    for callback in list(callbacks.values()):
        try:
            callback(*args)
        except Exception:
            logger.exception("a callback for worker %r failed: %r", args[0], callback)

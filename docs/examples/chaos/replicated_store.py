"""A service: a key-value store on several replicas, which loses no write while one of them lives.

Replicas only keep what they are told. A client sends each write to all of them, goes on with those that are left when
one dies, and brings one that comes back up to date.
"""

from __future__ import annotations

import itertools
import threading
from typing import NamedTuple

import torch.distributed.rpc as rpc
import torchwire
from torch import Tensor


class Entry(NamedTuple):
    version: int  # by which an older write that comes late does not undo a newer one
    value: Tensor


# ---- a replica: the client calls these by RPC ----

_lock = threading.Lock()
_entries: dict[str, Entry] = {}
_stopped = threading.Event()


def keep(entries: dict[str, Entry]) -> None:
    """Keeps what is newer than what is there. To be told twice changes nothing."""
    with _lock:
        for key, entry in entries.items():
            if key not in _entries or _entries[key].version < entry.version:
                _entries[key] = entry


def entry_of(key: str) -> Entry | None:
    with _lock:
        return _entries.get(key)


def all_entries() -> dict[str, Entry]:
    with _lock:
        return dict(_entries)


def stop() -> None:
    _stopped.set()


def run_replica(rank: int, world_size: int, init_method: str) -> None:
    """A replica's process: serves until it is told to stop, or is killed."""
    join(f"replica{rank}", rank, world_size, init_method)
    _stopped.wait()
    rpc.shutdown()


def join(name: str, rank: int, world_size: int, init_method: str) -> None:
    rpc.init_rpc(
        name,
        backend=rpc.BackendType.TORCHWIRE,  # pyright: ignore[reportAttributeAccessIssue]
        rank=rank,
        world_size=world_size,
        # Elastic: a replica that has died may come back.
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=init_method, elastic=True),
    )


# ---- the client ----


class NoReplicaLeft(Exception):
    pass


class Client:
    """Writes and reads, from any thread. Call close() before rpc.shutdown()."""

    def __init__(self, replicas: list[str]) -> None:
        self._lock = threading.Lock()
        self._versions = itertools.count(1)
        self._lives = itertools.count()
        self._receivers = {name: next(self._lives) for name in replicas}  # each with the number of its present life
        self._up_to_date = set(replicas)
        self._came_up_to_date = threading.Condition(self._lock)
        self.errors: list[torchwire.RpcError] = []  # for the test
        self._handles = [
            torchwire.on_worker_lost(lambda worker, error: self._drop(worker.name)),
            torchwire.on_worker_joined(lambda worker: self._bring_up_to_date(worker.name)),
        ]

    def put(self, key: str, value: Tensor) -> None:
        """Returns once all replicas have it; raises NoReplicaLeft when none lives."""
        entry = Entry(next(self._versions), value)
        have_it: set[tuple[str, int]] = set()
        # Who comes back meanwhile is told too: its copy of another replica's entries may have been made before.
        while missing := self._present() - have_it:
            calls = [(life, rpc.rpc_async(life[0], keep, args=({key: entry},))) for life in missing]
            for life, call in calls:
                try:
                    call.wait()
                    have_it.add(life)
                except (torchwire.WorkerDied, torchwire.WorkerUnreachable) as error:
                    self.errors.append(error)
                    self._drop(*life)
        if not have_it & self._present():
            raise NoReplicaLeft(f"the write of {key!r} may be lost")

    def get(self, key: str) -> Tensor | None:
        while True:
            replica = self._readable()
            try:
                entry = rpc.rpc_sync(replica, entry_of, args=(key,))
                return None if entry is None else Entry(*entry).value
            except (torchwire.WorkerDied, torchwire.WorkerUnreachable) as error:  # a read can always be repeated
                self.errors.append(error)
                self._drop(replica)

    def replicas(self) -> set[str]:
        """Those that can be read."""
        with self._lock:
            return set(self._up_to_date)

    def wait_for(self, replica: str, timeout: float) -> bool:
        """Waits until it can be read."""
        with self._lock:
            return self._came_up_to_date.wait_for(lambda: replica in self._up_to_date, timeout)

    def close(self) -> None:
        for handle in self._handles:
            handle.remove()

    def _present(self) -> set[tuple[str, int]]:
        with self._lock:
            return set(self._receivers.items())

    def _readable(self) -> str:
        with self._lock:
            if not self._up_to_date:
                raise NoReplicaLeft("nothing can be read")
            return min(self._up_to_date)

    def _drop(self, replica: str, life: int | None = None) -> None:
        """Without a life: whichever it is. A late error of a former life does not concern the present one."""
        with self._lock:
            if life is None or self._receivers.get(replica) == life:
                self._receivers.pop(replica, None)
                self._up_to_date.discard(replica)

    def _bring_up_to_date(self, replica: str) -> None:
        with self._lock:
            self._receivers[replica] = life = next(self._lives)  # first of all, so that it misses no write
        try:
            entries = rpc.rpc_sync(self._readable(), all_entries)
            rpc.rpc_sync(replica, keep, args=(entries,))
        except torchwire.RpcError as error:
            self.errors.append(error)
            self._drop(replica, life)
            return
        with self._lock:
            if self._receivers.get(replica) == life:
                self._up_to_date.add(replica)
                self._came_up_to_date.notify_all()

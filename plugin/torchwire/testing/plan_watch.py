"""How a plan that one worker sets reaches all: through the group's store, which no fault ever touches.

The store holds one record, of the newest plan and its revision. Whoever sets a plan replaces the record by one with the
next revision, in a compare-and-set, so that of several at the same time the last wins everywhere. Each worker looks at
it every 20 ms, puts what is new into effect and writes the revision under its own name, where who has set it looks.
"""

from __future__ import annotations

import atexit
import contextlib
import datetime
import json
import logging
import threading
import time
from collections.abc import Generator, Iterable
from typing import Any, cast

import torch.distributed as dist

from torchwire._C import FaultInterceptor
from torchwire.rendezvous import reason_of
from torchwire.testing.plan import Plan
from torchwire.torch_parts import FileStore, PrefixStore, Store

logger = logging.getLogger(__name__)

_PREFIX = "torchwire/faults"  # below the group's own, and beside the keys of the agent
_PLAN = "plan"
_ACKNOWLEDGED = "revision/"  # + name of a worker

_INTERVAL = 0.02  # seconds between two looks
_STORE_TIMEOUT = datetime.timedelta(seconds=5)
_PATIENCE = 10.0  # seconds for a look that goes on when the watch stops


class PlanWatch:
    """Keeps the faults of one worker at the plan in the store, on a thread of its own. Thread-safe."""

    def __init__(self, store: Store, worker: str, interceptor: FaultInterceptor, plan: Plan) -> None:
        """`plan` is in effect in `interceptor`; what the store has from before takes its place now."""
        self._store: Store | None = PrefixStore(_PREFIX, _connection_beside(store))
        self._worker = worker
        self._interceptor = interceptor
        self._mutex = threading.Lock()  # of the next three
        self._plan = plan
        self._revision = 0
        self._record = _record(0, Plan(), "")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="torchwire faults", daemon=True)
        self._store.compare_set(_PLAN, "", self._record)
        self._look(self._store)

    @property
    def plan(self) -> Plan:
        """The plan in effect on this worker."""
        with self._mutex:
            return self._plan

    def start(self) -> None:
        """Looks every 20 ms from now on."""
        self._thread.start()
        # Python must not end while the thread is in the store, which it would come back from to no interpreter.
        atexit.register(self.stop)

    def stop(self) -> None:
        """Ends the thread and the connection to the store; the plan stays in effect. May be called again."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        self._store = None
        atexit.unregister(self.stop)

    def end_faults(self) -> None:
        """Stops, and puts an empty plan into effect on this worker alone."""
        self.stop()
        with self._mutex:
            self._plan = Plan()
            self._interceptor.set_plan(self._plan.to_interceptor(self._revision))

    def publish(self, plan: Plan) -> int:
        """Puts `plan` into effect here, and soon on all; returns its revision.

        Raises RuntimeError when this worker shuts down, or the store does not answer.
        """
        with self._asking() as store:
            while True:
                before = store.get(_PLAN).decode()
                revision = json.loads(before)["revision"] + 1
                record = _record(revision, plan, self._worker)
                if store.compare_set(_PLAN, before, record).decode() == record:
                    self._look(store)
                    return revision

    def wait_for(self, workers: Iterable[str], revision: int, timeout: float) -> list[str]:
        """Waits, at most `timeout` seconds, until all have this revision or a later one; returns who has not.

        Raises RuntimeError as publish does.
        """
        deadline = time.monotonic() + timeout
        missing = list(workers)
        while True:
            with self._asking() as store:
                missing = [worker for worker in missing if _revision_of(store, worker) < revision]
            if not missing or time.monotonic() >= deadline:
                return missing
            self._stopping.wait(_INTERVAL / 2)

    @contextlib.contextmanager
    def _asking(self) -> Generator[Store]:
        store = self._open_store()
        try:
            yield store
        except dist.DistError as error:
            raise RuntimeError(
                f"worker {self._worker!r} could not set a fault plan for all: the rendezvous store did not answer: "
                f"{reason_of(error)}"
            ) from None

    def _open_store(self) -> Store:
        store = self._store
        if store is None or self._stopping.is_set():
            raise RuntimeError(f"worker {self._worker!r} is shutting RPC down, and takes no more part in plans")
        return store

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL):
            try:
                self._look(self._open_store())
            except dist.DistStoreError:  # it took too long; perhaps this process was paused
                continue
            except RuntimeError:  # the store ends with the process that hosts it
                logger.debug("worker %s: the store has ended; the fault plan stays", self._worker, exc_info=True)
                return
            except Exception:  # other workers may run another version of torchwire
                logger.warning("worker %s cannot read a fault plan; the former stays", self._worker, exc_info=True)
                return

    def _look(self, store: Store) -> None:
        record = store.get(_PLAN).decode()
        with self._mutex:
            if record == self._record:
                return
            content = json.loads(record)
            if content["revision"] <= self._revision:  # seen before by another thread's look
                return
            plan = Plan.from_dict(content["plan"])
            self._interceptor.set_plan(plan.to_interceptor(content["revision"]))
            self._plan, self._revision, self._record = plan, content["revision"], record
            # Under the mutex too, or a former revision could be written last.
            with contextlib.suppress(RuntimeError):  # the store's end; who waits for the answer sees it too
                store.set(_ACKNOWLEDGED + self._worker, str(self._revision))
        logger.info("worker %s: revision %d of the fault plan, set by %s", self._worker, self._revision, content["by"])


def _connection_beside(store: Store) -> Store:
    innermost = store
    while isinstance(innermost, PrefixStore):
        innermost = innermost.underlying_store
    if isinstance(innermost, FileStore):
        # It has no connection that could be busy; and a clone would count as one more worker that is done with the
        # file, which the last of them removes.
        return store
    own: Store = cast("Any", store).clone()  # PyTorch's stubs lack it
    own.set_timeout(_STORE_TIMEOUT)
    return own


def _record(revision: int, plan: Plan, by: str) -> str:
    return json.dumps({"revision": revision, "by": by, "plan": plan.to_dict()})


def _revision_of(store: Store, worker: str) -> int:
    key = _ACKNOWLEDGED + worker
    return int(store.get(key)) if store.check([key]) else 0

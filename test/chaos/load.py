"""The load that a worker makes: threads that perform operations, one after the other, until they are told to stop.

    worker.run(begin, settings, seed)  # the threads start
    worker.run(finish, limit)          # the threads end; returns a Record

One load at a time in a process.
"""

import collections
import dataclasses
import multiprocessing
import threading
import time
import traceback

import defects  # noqa: F401 - which enters its operations
import operations
import torchwire
from caller import Caller
from operations import WrongResult

# After an operation that failed: the next may fail as quickly, and nothing is learnt from thousands of those.
_PAUSE = 0.02

_MOST_DETAILS = 50  # of one kind in a record


@dataclasses.dataclass
class Failure:
    operation: str
    error: str
    trace: str


@dataclasses.dataclass
class Late:
    operation: str
    seconds: float
    limit: float


@dataclasses.dataclass
class Record:
    """What came of the operations of one worker."""

    done: collections.Counter = dataclasses.field(default_factory=collections.Counter)  # by operation
    failed: int = 0
    refused: list[Failure] = dataclasses.field(default_factory=list)  # by RPC, which faults may cause
    wrong: list[Failure] = dataclasses.field(default_factory=list)
    odd: list[Failure] = dataclasses.field(default_factory=list)  # errors that RPC does not raise
    late: list[Late] = dataclasses.field(default_factory=list)
    busy: list[Late] = dataclasses.field(default_factory=list)  # not ended yet


class Load:
    def __init__(self, settings, seed):
        self._settings = settings
        self._operations = operations.chosen(settings)
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._record = Record()
        self._current = {}  # caller -> operation and when it began
        self._threads = [
            threading.Thread(target=self._run, args=(Caller(settings, f"{seed}/{number}"),), daemon=True)
            for number in range(settings.callers)
        ]

    def start(self):
        for thread in self._threads:
            thread.start()

    def finish(self, limit):
        """Waits up to `limit` seconds for all operations to end. Those that have not are `busy` in the record."""
        self._stopped.set()
        end = time.monotonic() + limit
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        with self._lock:
            now = time.monotonic()
            busy = [Late(one.name, now - begin, self._limit_of(one)) for one, begin in self._current.values()]
            return dataclasses.replace(self._record, busy=busy)

    def _run(self, caller):
        while not self._stopped.is_set():
            caller.next_turn()
            self._perform(caller.random.choice(self._operations), caller)

    def _perform(self, operation, caller):
        begin = time.monotonic()
        with self._lock:
            self._current[caller] = operation, begin
        error = self._error_of(operation, caller)
        with self._lock:
            del self._current[caller]
            self._note(operation, error, time.monotonic() - begin)
        if error is not None:
            self._stopped.wait(_PAUSE)

    @staticmethod
    def _error_of(operation, caller):
        try:
            operation.function(caller)
        except BaseException as error:
            return error
        return None

    def _note(self, operation, error, seconds):
        record = self._record
        if error is None:
            record.done[operation.name] += 1
        else:
            record.failed += 1
            self._append(self._list_for(error), failure_of(operation, error))
        if seconds > self._limit_of(operation):
            self._append(record.late, Late(operation.name, seconds, self._limit_of(operation)))

    def _list_for(self, error):
        if isinstance(error, WrongResult):
            return self._record.wrong
        # What is words only, as after TorchScript, is of this very type; what a handler raises is derived from it too.
        of_rpc = isinstance(error, torchwire.RpcError) or type(error) is RuntimeError
        return self._record.refused if of_rpc else self._record.odd

    @staticmethod
    def _append(details, one):
        if len(details) < _MOST_DETAILS:
            details.append(one)

    def _limit_of(self, operation):
        return operation.waits * self._settings.timeout + self._settings.slack


def failure_of(operation, error):
    trace = "".join(traceback.format_exception(error))
    return Failure(operation.name, f"{type(error).__name__}: {error}", trace)


_load = None


def begin(settings, seed):
    global _load
    _load = Load(settings, f"{seed}/{multiprocessing.current_process().name}")
    _load.start()


def finish(limit):
    return _load.finish(limit)

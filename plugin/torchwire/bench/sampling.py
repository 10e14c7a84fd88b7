"""How calls are timed, in the process that makes them."""

from __future__ import annotations

import collections
import concurrent.futures
import gc
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torchwire.bench import processes
from torchwire.bench.batch import Batch

Call = Callable[[], Any]


class Pace(NamedTuple):
    """How long a turn takes."""

    seconds: float  # that are measured
    at_least: int = 3  # samples
    warm_ups: int = 5  # samples before, which do not count
    pids: Sequence[int] = ()  # whose CPU time counts


class Meter:
    """Time and CPU time from here on. Garbage is collected before; workers do it at no other time."""

    def __init__(self, pace: Pace) -> None:
        gc.collect()
        self._pids = pace.pids
        self._cpu = processes.cpu_time(self._pids)
        self.start = time.perf_counter_ns()
        self.end = self.start + int(pace.seconds * 1e9)

    def is_over(self) -> bool:
        return time.perf_counter_ns() >= self.end

    def batch(self, samples: list[float], calls: int) -> Batch:
        cpu = processes.cpu_time(self._pids) - self._cpu
        return Batch(samples, cpu / calls if self._pids else None)

    def rate(self, calls: int) -> Batch:
        """One sample: the time per call."""
        return self.batch([(time.perf_counter_ns() - self.start) / calls], calls)


def latency(call: Callable[..., Any], pace: Pace, prepare: Call | None = None) -> Batch:
    """One call after the other; each is a sample. `prepare` runs before each, untimed, and gives its argument."""
    clock = time.perf_counter_ns
    samples: list[float] = []
    for _ in range(pace.warm_ups):
        call(*() if prepare is None else (prepare(),))
    meter = Meter(pace)
    while len(samples) < pace.at_least or not meter.is_over():
        arguments = () if prepare is None else (prepare(),)
        start = clock()
        call(*arguments)
        samples.append(clock() - start)
    return meter.batch(samples, len(samples))


def window(begin: Callable[[], Call], size: int, pace: Pace) -> Batch:
    """`size` calls under way all the time; `begin` starts one and returns what waits for it."""
    for _ in range(pace.warm_ups):
        begin()()
    pending: collections.deque[Call] = collections.deque()
    calls = 0
    meter = Meter(pace)
    while not meter.is_over():
        while len(pending) < size:
            pending.append(begin())
        pending.popleft()()
        calls += 1
    while pending:
        pending.popleft()()
        calls += 1
    return meter.rate(calls)


def from_threads(call: Call, count: int, pace: Pace) -> Batch:
    """One call after the other on each of `count` threads. Raises what a call raises."""
    meters: list[Meter] = []
    ready = threading.Barrier(count, action=lambda: meters.append(Meter(pace)))

    def work(_: int) -> int:
        try:
            for _ in range(pace.warm_ups):
                call()
            ready.wait()
            calls = 0
            while not meters[0].is_over():
                call()
                calls += 1
            return calls
        except threading.BrokenBarrierError:
            return 0  # the error is another thread's
        except BaseException:
            ready.abort()  # nobody shall wait for this thread
            raise

    with concurrent.futures.ThreadPoolExecutor(count) as threads:
        counts = list(threads.map(work, range(count)))
    return meters[0].rate(max(sum(counts), 1))

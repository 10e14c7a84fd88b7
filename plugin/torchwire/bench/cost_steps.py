"""What a group costs by being there: its start, its end, and its processes while they have nothing to do."""

from __future__ import annotations

import time
from collections.abc import Callable

from torchwire.bench import processes
from torchwire.bench.batch import Batch
from torchwire.bench.call_steps import time_calls
from torchwire.bench.case import Case
from torchwire.bench.contestant import CALLS, RPC
from torchwire.bench.group import WorkerGroup
from torchwire.bench.sampling import Pace
from torchwire.bench.step import Scope, Step

_SETTLING = 0.05  # seconds


def start_up(scope: Scope) -> list[Step]:
    """init_rpc and a graceful shutdown of all workers at the same time, in processes that are there already."""
    return [
        Step(
            (Case("start_up", f"start-up of {size}"), Case("start_up", f"shutdown of {size}")),
            RPC,
            _join_and_leave,
            size=size,
            is_fresh=True,
            most_rounds=scope.start_up_rounds,
        )
        for size in scope.start_ups
    ]


def resources(scope: Scope) -> list[Step]:
    """Of each process of a pair, after a few calls: CPU without any, threads, open files, memory."""
    cases = (
        Case("resources", "idle CPU, of a core", "share"),
        Case("resources", "threads", "count"),
        Case("resources", "open files", "count"),
        Case("resources", "memory of its own", "bytes"),
    )
    run = _use_of(scope.idle_seconds)
    return [Step(cases, CALLS, run, is_fresh=True, most_rounds=scope.start_up_rounds)]


def _join_and_leave(group: WorkerGroup, _pace: Pace) -> list[Batch]:
    group.start_processes()
    times = [time.perf_counter_ns()]
    for action in (group.join, group.leave):
        action()
        times.append(time.perf_counter_ns())
    return [Batch([times[1] - times[0]]), Batch([times[2] - times[1]])]


def _use_of(seconds: float) -> Callable[[WorkerGroup, Pace], list[Batch]]:
    def run(group: WorkerGroup, pace: Pace) -> list[Batch]:
        group.start()
        for name in ("noop", "tensor"):  # which opens what they need for calls
            group.caller.run(time_calls, name, pace)
        time.sleep(_SETTLING)
        pids = group.pids()
        before = [processes.cpu_time([pid]) for pid in pids]
        time.sleep(seconds)
        batches = [
            Batch([(processes.cpu_time([pid]) - cpu) / (seconds * 1e9) for pid, cpu in zip(pids, before)]),
            Batch([processes.threads(pid) for pid in pids]),
            Batch([processes.open_files(pid) for pid in pids]),
            Batch([processes.private_memory(pid) for pid in pids]),
        ]
        group.close()
        return batches

    return run

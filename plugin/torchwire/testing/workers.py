"""Runs a function on several workers, in processes of their own, with faults."""

from __future__ import annotations

import contextlib
import multiprocessing
import numbers
import os
import pickle
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, cast

from torchwire import option_checks
from torchwire.testing import worker_process
from torchwire.testing.fault import Fault, read_logs
from torchwire.testing.plan import Plan, as_plan
from torchwire.testing.run import Run, WorkerFailure
from torchwire.testing.worker_process import Answer, Task

_CLOCK_TOLERANCE = 0.001  # seconds
_GRACE = 5.0  # seconds to end for those that had returned when others failed


def run_workers(
    function: Callable[..., Any],
    *args: Any,
    workers: int = 2,
    plan: Plan | str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    options: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    start_method: str = "spawn",
) -> Run:
    """Starts RPC on FAULTY_TORCHWIRE in new processes, runs the function in each, ends them, and says how it went.

    function, args: run as `function(*args)` by each worker, which can tell which one it is by rpc.get_worker_info().
        They and what is returned are pickled, so the function has to be at the top of a module.
    workers: how many; they are called worker0, worker1 ... Default 2.
    plan: a Plan or the path of a TOML file, in effect until all workers have returned. Default: as the options say.
    timeout: seconds for all of it. Processes that are still busy then are killed, and the others end. Default 60.
    options: keywords of FaultyTorchwireRpcBackendOptions, as a dict. Default: none.
    environment: variables that are set in each process before it starts RPC, beside those of this process. Default:
        none.
    start_method: of multiprocessing: "spawn", the default, or "forkserver".

    When all have returned, the faults end and rpc.shutdown() is called, gracefully unless any worker has failed or is
    gone; a function that wants to see that under faults calls rpc.shutdown() itself.

    What goes wrong in the workers does not raise, but is in the result. Raises TypeError and ValueError for bad
    arguments, and what pickling raises for a function that cannot be pickled.
    """
    checked = _checked_options(options, plan)
    count = _checked_count(workers)
    seconds = _checked_timeout(timeout)
    call = pickle.dumps((function, args))
    variables = {**os.environ, **(environment or {})}  # all, since a fork server has those that it was started with
    begin, wall_clock = time.monotonic(), time.time()
    with tempfile.TemporaryDirectory(prefix="torchwire-", ignore_cleanup_errors=True) as folder:
        checked = {"init_method": f"file://{folder}/store", "fault_log": f"{folder}/faults", **checked}

        def task(rank: int) -> Task:
            stacks = f"{folder}/stacks{rank}"
            return Task(rank, count, call, checked, variables, begin + seconds, stacks)

        with _Workers([task(rank) for rank in range(count)], start_method) as all_workers:
            all_workers.go_through(seconds)
        log = _log_since(wall_clock, checked["fault_log"])
        return all_workers.outcome(log, time.monotonic() - begin)


class _Worker:
    """A process and what is known of it."""

    def __init__(self, task: Task, start_method: str) -> None:
        context: Any = multiprocessing.get_context(start_method)  # the type of all kinds has no Process
        self.task = task
        self.connection: Connection
        self.connection, theirs = context.Pipe()
        self.process: BaseProcess = context.Process(target=worker_process.run, args=(task, theirs), name=task.name)
        self.process.start()
        theirs.close()
        self.value: bytes | None = None
        self.failure: WorkerFailure | None = None

    def take(self, answer: Answer) -> None:
        """Notes how a step went; the first failure stays."""
        self.value = self.value if answer.value is None else answer.value
        self.failure = self.failure or answer.failure

    def tell(self, step: str) -> None:
        """Lets the process go on. One that is gone is noticed when its answer is awaited."""
        with contextlib.suppress(OSError):
            self.connection.send(step)

    def receive(self) -> None:
        """Takes the answer that is there, or notes that the process is gone."""
        try:
            self.take(self.connection.recv())
        except (EOFError, OSError):
            self.process.join()
            self.take(Answer(failure=WorkerFailure("ProcessEnded", _how_it_ended(self.process.exitcode))))

    def kill_in(self, where: str) -> None:
        """Kills a process that has used up its time, and notes where it was."""
        self.process.kill()
        self.process.join()
        stacks = Path(self.task.stacks)
        trace = stacks.read_text(encoding="utf-8") if stacks.exists() else ""
        message = f"{self.task.name} was still in {where}, and was killed"
        self.take(Answer(failure=WorkerFailure("StillRunning", message, trace)))

    def kill(self) -> None:
        """Ends the process as a crash would."""
        self.process.kill()
        self.process.join()
        self.connection.close()


class _Workers:
    """All processes of a run. None is left when the with statement ends."""

    def __init__(self, tasks: list[Task], start_method: str) -> None:
        self._deadline = tasks[0].deadline
        self._workers: list[_Worker] = []
        try:
            for task in tasks:
                self._workers.append(_Worker(task, start_method))
        except BaseException:
            self._kill_all()
            raise

    def __enter__(self) -> _Workers:
        return self

    def __exit__(self, *_: object) -> None:
        self._kill_all()

    def go_through(self, timeout: float) -> None:
        """Takes all through their steps. Those that are still in one when the time is up are killed."""
        self._await_answers(self._workers, f"the function after {timeout:g} s")
        in_shutdown = f"rpc.shutdown() after {timeout:g} s"
        if not self._any_failed():
            self._take_step(worker_process.END_FAULTS, in_shutdown)
        self._take_step(worker_process.ABANDON if self._any_failed() else worker_process.SHUT_DOWN, in_shutdown)
        self._await_end()

    def outcome(self, log: list[Fault], seconds: float) -> Run:
        """What is known of all workers."""
        named = {worker.task.name: worker for worker in self._workers}
        return Run(
            results={name: pickle.loads(worker.value) for name, worker in named.items() if worker.value is not None},
            errors={name: worker.failure for name, worker in named.items() if worker.failure is not None},
            exit_codes={name: worker.process.exitcode or 0 for name, worker in named.items()},
            log=log,
            seconds=seconds,
        )

    def _any_failed(self) -> bool:
        return any(worker.failure is not None for worker in self._workers)

    def _take_step(self, step: str, where: str) -> None:
        if step == worker_process.ABANDON:
            self._deadline = max(self._deadline, time.monotonic() + _GRACE)
        for worker in self._workers:
            worker.tell(step)
        self._await_answers(self._workers, where)  # of those that are gone, it is noted that they are

    def _await_answers(self, workers: list[_Worker], where: str) -> None:
        awaited: dict[Any, _Worker] = {worker.connection: worker for worker in workers}
        while awaited:
            ready = wait(list(awaited), self._remaining())
            if not ready:
                break
            for connection in ready:
                awaited.pop(connection).receive()
        for worker in awaited.values():
            worker.kill_in(where)

    def _await_end(self) -> None:
        for worker in self._workers:
            worker.process.join(self._remaining())
            if worker.process.is_alive():
                worker.kill_in("its exit, after rpc.shutdown()")

    def _remaining(self) -> float:
        return max(self._deadline - time.monotonic(), 0)

    def _kill_all(self) -> None:
        for worker in self._workers:
            worker.kill()


def _checked_options(options: Any, plan: Any) -> dict[str, Any]:
    if options is not None and not isinstance(options, Mapping):
        raise TypeError(
            "run_workers: options must be a dict of keywords of FaultyTorchwireRpcBackendOptions, "
            f"got {type(options).__name__}"
        )
    checked = {name: value for name, value in cast("Mapping[str, Any]", options or {}).items() if value is not None}
    if plan is not None:
        if checked.get("fault_plan") is not None:
            raise ValueError("run_workers: plan and the option fault_plan are both given; give one")
        checked["fault_plan"] = as_plan("run_workers: plan", plan)
    return checked


def _checked_count(workers: Any) -> int:
    if isinstance(workers, bool) or not isinstance(workers, numbers.Integral):
        raise TypeError(f"run_workers: workers must be a whole number, got {workers!r} ({type(workers).__name__})")
    if int(workers) < 1:
        raise ValueError(f"run_workers: workers must be at least 1, got {workers}")
    return int(workers)


def _checked_timeout(timeout: Any) -> float:
    seconds = option_checks.timeout("run_workers: timeout", timeout)
    if seconds == 0:
        raise ValueError("run_workers: timeout must be more than 0, since nothing may hang")
    return seconds


def _log_since(begin: float, folder: str) -> list[Fault]:
    if not Path(folder).is_dir():
        return []  # no worker came so far
    return [fault for fault in read_logs(folder) if fault.time >= begin - _CLOCK_TOLERANCE]


def _how_it_ended(exit_code: int | None) -> str:
    if exit_code is not None and exit_code < 0:
        return f"the process was killed by {signal.Signals(-exit_code).name}"
    return f"the process ended by itself, with exit code {exit_code}"

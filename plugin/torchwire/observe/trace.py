"""Traces: what each call of a group did when, of all workers in one file that Perfetto opens.

The agents note their calls while a trace is on (backend/call/trace_log.h). At its end the worker that traces asks the
others for what they have noted, brings their clocks together, and writes Chrome's JSON format: one process for each
worker, one slice for each call on each side, arrows from caller to callee.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for, current_agent
from torchwire.observe import trace_part
from torchwire.observe.answers import ask, ask_all
from torchwire.observe.progress import Progress
from torchwire.observe.trace_file import WorkerTrace, write
from torchwire.observe.trace_part import REQUESTED, Owner

_logger = logging.getLogger(__name__)

TRACE_VARIABLE = "TORCHWIRE_TRACE"
CAPACITY = 1_000_000  # events of one worker
_MOST_EVENTS = 1_000_000_000

_COLLECTING = 60.0  # seconds that a worker has to hand over its events
_PINGS = 5


@dataclass
class _Trace:
    """One that this worker is to write."""

    agent: TorchwireAgent
    path: str | os.PathLike[str]
    owner: Owner
    doubtful: frozenset[str] = frozenset()  # workers that did not say that they take part
    is_written: bool = False

    def write(self) -> None:
        """Ends it on all workers, and writes what they have noted. Raises OSError."""
        self.is_written = True
        ranks = {worker.name: worker.id for worker in self.agent.get_worker_infos()}
        with Progress(ranks) as progress:
            _write(self, ranks, progress)


_on: _Trace | None = None


@contextmanager
def trace(path: str | os.PathLike[str], capacity: int = CAPACITY) -> Generator[None, None, None]:
    """While the block runs, all workers of the group note their calls; then this one writes them to the file `path`.

    Backward passes that begin and end within the block are in it, too, and which RRefs calls are about, links that
    break, workers that die and faults that are injected.

    The file is JSON, which https://ui.perfetto.dev and chrome://tracing open. `capacity` is how many events each worker
    keeps at most (default 1,000,000, of some 100 bytes); further ones are lost, which the log and the file say. One
    trace at a time in a group. A worker that joins or dies within the block is not in it, with a line in the log. A
    graceful rpc.shutdown() within the block writes the file and ends the trace.

    Raises OSError at once when the file cannot be written, ValueError for a capacity that is no whole number from 1 to
    1,000,000,000, RuntimeError when another trace is under way, or RPC is not initialized, runs on another backend, or
    was shut down within the block, but not gracefully. What the block raises passes through, and the file is written
    all the same. Where that takes longer than a second, standard error says how far it is.
    """
    global _on
    if type(capacity) is not int or not 1 <= capacity <= _MOST_EVENTS:
        raise ValueError(f"capacity must be a whole number of events from 1 to {_MOST_EVENTS:,}, got {capacity!r}")
    agent = agent_for("trace")
    require_writable(path)  # before anything is traced
    worker = agent.get_worker_info()
    owner = Owner(f"{time.time_ns():020}-{uuid.uuid4().hex}", f"worker {worker.name!r}", worker.id)
    on = _on = _Trace(agent, path, owner, _begin(agent, owner, capacity))
    try:
        yield
    except BaseException:
        try:
            _end(on)
        except (OSError, RuntimeError) as error:  # what the block has raised matters more
            _logger.error("the trace %s cannot be written: %s", os.fspath(path), error)
        raise
    _end(on)


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raises OSError when the file cannot be written. What is in it stays."""
    was_there = os.path.exists(path)
    with open(path, "a", encoding="utf-8"):
        pass
    if not was_there:
        os.unlink(path)


def _begin(agent: TorchwireAgent, owner: Owner, capacity: int) -> frozenset[str]:
    """The names of those that have not answered. Raises RuntimeError when a worker takes part in another trace."""
    here = trace_part.start(agent, capacity, owner)  # first: others take it that this worker has one trace at a time
    if here is not None:
        raise RuntimeError(_under_way(here.name))
    answers = ask_all(agent, {"ask": "start_trace", "capacity": capacity, "owner": owner})
    busy = next((answer["busy"] for answer in answers.values() if "busy" in answer), None)
    if busy is not None:
        ask_all(agent, {"ask": "stop_trace", "trace": owner.key})
        raise RuntimeError(_under_way(busy))
    silent = {name: answer["error"] for name, answer in answers.items() if "error" in answer}
    for name, error in silent.items():
        _logger.warning("worker %r may not be in the trace: %s", name, error)
    return frozenset(silent)


def _under_way(whose: str) -> str:
    return f"a trace of {whose} is under way: end that one first, there can be one at a time in a group"


def _end(on: _Trace) -> None:
    """Raises OSError, and RuntimeError when there is nobody to ask any more."""
    global _on
    _on = None
    if on.is_written:
        return
    if current_agent() is not on.agent:
        raise RuntimeError(
            f"the trace {os.fspath(on.path)!r} is not written: RPC was shut down within the block, and not gracefully"
        )
    on.write()


def check_requested(rank: int) -> None:
    """Before the agent is made.

    Raises RuntimeError when this worker would write the file that the environment names, and cannot.
    """
    path = os.environ.get(TRACE_VARIABLE)
    if path and rank == 0:
        try:
            require_writable(path)
        except OSError as error:
            raise RuntimeError(f"{TRACE_VARIABLE}: {path!r} cannot be written: {error.strerror}") from error


def start_if_requested(agent: TorchwireAgent) -> None:
    """By the environment variable, with which every worker of the group starts."""
    global _on
    path = os.environ.get(TRACE_VARIABLE)
    if path:
        trace_part.start(agent, CAPACITY, REQUESTED)
        _on = _Trace(agent, path, REQUESTED)


def write_before_leaving(agent: TorchwireAgent) -> None:
    """At the graceful shutdown, when all workers have come and none has left.

    A trace that the environment asks for is written by the first of them, another one by the worker whose it is.
    """
    global _on
    on, _on = _on, None
    if on is None or on.agent is not agent:
        return
    if on.owner == REQUESTED and not _is_first(agent):
        return
    try:
        on.write()
    except (OSError, RuntimeError, json.JSONDecodeError) as error:  # the shutdown goes on
        _logger.error("the trace %s cannot be written: %s", os.fspath(on.path), error)


def _is_first(agent: TorchwireAgent) -> bool:
    return agent.get_worker_info().id == min(worker.id for worker in agent.get_worker_infos())


def _write(trace: _Trace, ranks: Mapping[str, int], progress: Progress) -> None:
    question = {"ask": "stop_trace", "trace": trace.owner.key}
    answers = ask_all(trace.agent, question, _COLLECTING, progress.handed_in, trace.doubtful)
    workers: list[WorkerTrace] = []
    for name, answer in answers.items():
        if "error" in answer:
            _logger.warning("worker %r has not handed over its part of the trace: %s", name, answer["error"])
            continue
        if answer["lost"]:
            _logger.warning(
                "worker %r had no room for %d further events: trace for a shorter time", name, answer["lost"]
            )
        workers.append(WorkerTrace(name, ranks[name], answer, _clock_offset(trace.agent, ranks[name])))
    count = write(trace.path, workers, progress.wrote)
    _logger.info("%d events of %d workers are in %s", count, len(workers), os.fspath(trace.path))


def _clock_offset(agent: TorchwireAgent, worker: int) -> float:
    """How far the worker's clock is ahead of this one's, in seconds: by the quickest of a few round trips.

    0 where the two have the same clock: in one process, and on one host.
    """
    if worker == agent.get_worker_info().id or _is_on_this_host(agent, worker):
        return 0.0
    best, offset = float("inf"), 0.0
    for _ in range(_PINGS):
        try:
            begun = time.monotonic()
            there = float(ask(agent, worker, {"ask": "clock"})["now"])
            ended = time.monotonic()
        except RuntimeError:  # it has just gone; its events are here
            break
        if ended - begun < best:
            best, offset = ended - begun, there - (begun + ended) / 2
    return offset


def _is_on_this_host(agent: TorchwireAgent, worker: int) -> bool:
    """As far as can be seen: shared memory leads nowhere else."""
    transport = next((each.get("transport") for each in agent.peers() if each["id"] == worker), None)
    return transport in ("wire_shm", "shm")

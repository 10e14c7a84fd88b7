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
from collections.abc import Generator, Mapping
from contextlib import contextmanager

from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for
from torchwire.observe import trace_part
from torchwire.observe.answers import ask, ask_all
from torchwire.observe.progress import Progress
from torchwire.observe.trace_file import WorkerTrace, write

_logger = logging.getLogger(__name__)

TRACE_VARIABLE = "TORCHWIRE_TRACE"
CAPACITY = 1_000_000  # events of one worker

_COLLECTING = 60.0  # seconds that a worker has to hand over its events
_PINGS = 5

_requested: TorchwireAgent | None = None  # whose calls are noted because the environment says so


@contextmanager
def trace(path: str | os.PathLike[str], capacity: int = CAPACITY) -> Generator[None, None, None]:
    """While the block runs, all workers of the group note their calls; then this one writes them to the file `path`.

    Backward passes that begin and end within the block are in it, too, and which RRefs calls are about, links that
    break, workers that die and faults that are injected.

    The file is JSON, which https://ui.perfetto.dev and chrome://tracing open. `capacity` is how many events each worker
    keeps at most (default 1,000,000, of some 100 bytes); further ones are lost, which the log and the file say. One
    trace at a time in a group. A worker that joins or dies within the block is not in it, with a line in the log.

    Raises OSError at once when the file cannot be written, ValueError for a capacity below 1, RuntimeError when RPC is
    not initialized or runs on another backend. What the block raises passes through, and the file is written all the
    same. Where that takes longer than a second, standard error says how far it is.
    """
    if capacity < 1:
        raise ValueError(f"capacity must be at least 1 event, got {capacity!r}")
    agent = agent_for("trace")
    with open(path, "w", encoding="utf-8"):  # before anything is traced
        pass
    failed = {
        name: answer["error"]
        for name, answer in ask_all(agent, {"ask": "start_trace", "capacity": capacity}).items()
        if "error" in answer
    }
    for name, error in failed.items():
        _logger.warning("worker %r is not in the trace: %s", name, error)
    try:
        yield
    finally:
        write_trace(agent, path)


def write_trace(agent: TorchwireAgent, path: str | os.PathLike[str]) -> None:
    """Ends the trace on all workers and writes what they have noted. Raises OSError."""
    ranks = {worker.name: worker.id for worker in agent.get_worker_infos()}
    with Progress(ranks) as progress:
        _write(agent, path, ranks, progress)


def _write(agent: TorchwireAgent, path: str | os.PathLike[str], ranks: Mapping[str, int], progress: Progress) -> None:
    answers = ask_all(agent, {"ask": "stop_trace"}, _COLLECTING, progress.handed_in)
    workers: list[WorkerTrace] = []
    for name, answer in answers.items():
        if "error" in answer:
            _logger.warning("worker %r has not handed over its part of the trace: %s", name, answer["error"])
            continue
        if answer["lost"]:
            _logger.warning(
                "worker %r had no room for %d further events: trace for a shorter time", name, answer["lost"]
            )
        workers.append(WorkerTrace(name, ranks[name], answer, _clock_offset(agent, ranks[name])))
    count = write(path, workers, progress.wrote)
    _logger.info("%d events of %d workers are in %s", count, len(workers), os.fspath(path))


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


def start_if_requested(agent: TorchwireAgent) -> None:
    """By the environment variable, with which every worker of the group starts."""
    global _requested
    if os.environ.get(TRACE_VARIABLE):
        trace_part.start(agent, CAPACITY)
        _requested = agent


def write_if_requested(agent: TorchwireAgent) -> None:
    """At the graceful shutdown, when all workers have come and none has left: the first of them writes."""
    global _requested
    if _requested is not agent:
        return
    _requested = None
    path = os.environ[TRACE_VARIABLE]
    if agent.get_worker_info().id != min(worker.id for worker in agent.get_worker_infos()):
        return
    try:
        write_trace(agent, path)
    except (OSError, RuntimeError, json.JSONDecodeError) as error:  # the shutdown goes on
        _logger.warning("the trace %s cannot be written: %s", path, error)

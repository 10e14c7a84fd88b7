"""One of the processes of run_workers(): what runs in it.

process                                        who started it
init_rpc, function(*args) ── Answer ─────────▶ waits for all
faults end ◀──────────────── "end faults" ──── when all have returned
           ───────────────── Answer ─────────▶
rpc.shutdown() ◀──────────── "shut down" ───── when the faults have ended everywhere; or "abandon" if any failed
               ───────────── Answer ─────────▶
"""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import pickle
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch.distributed.rpc as rpc

from torchwire import torch_parts
from torchwire.testing import control
from torchwire.testing.options import FaultyTorchwireRpcBackendOptions
from torchwire.testing.run import WorkerFailure

END_FAULTS = "end faults"
SHUT_DOWN = "shut down"
ABANDON = "abandon"


@dataclass(frozen=True)
class Task:
    """What the process is to do."""

    rank: int
    world_size: int
    call: bytes  # pickled: the function and its arguments
    options: Mapping[str, Any]  # keywords of FaultyTorchwireRpcBackendOptions
    environment: Mapping[str, str]
    deadline: float  # by time.monotonic(), when it is going to be killed
    stacks: str  # file for the stacks of its threads just before

    @property
    def name(self) -> str:
        """The worker's."""
        return f"worker{self.rank}"


@dataclass(frozen=True)
class Answer:
    """How a step went."""

    value: bytes | None = None  # pickled, of the function
    failure: WorkerFailure | None = None


def run(task: Task, connection: Connection) -> None:
    """The process's main function."""
    os.environ.update(task.environment)
    _end_with_parent()
    with open(task.stacks, "w", encoding="utf-8") as stacks:
        early = min(0.5, (task.deadline - time.monotonic()) / 10)
        faulthandler.dump_traceback_later(max(task.deadline - early - time.monotonic(), 0.01), file=stacks)
        try:
            _take_steps(task, connection)
        finally:
            faulthandler.cancel_dump_traceback_later()


def _take_steps(task: Task, connection: Connection) -> None:
    connection.send(_attempt(lambda: _call(task)))
    step = connection.recv()
    if step == END_FAULTS:
        connection.send(_attempt(_end_faults))
        step = connection.recv()
    connection.send(_attempt(lambda: _shut_down(graceful=step == SHUT_DOWN)))


def _call(task: Task) -> bytes:
    function, args = pickle.loads(task.call)
    torch_parts.init_rpc(
        task.name,
        backend=rpc.BackendType["FAULTY_TORCHWIRE"],
        rank=task.rank,
        world_size=task.world_size,
        rpc_backend_options=FaultyTorchwireRpcBackendOptions(**task.options),
    )
    return pickle.dumps(function(*args))


# A function that has shut RPC down itself has done it under faults, if that is what it is to test.


def _end_faults() -> None:
    if torch_parts.is_current_rpc_agent_set():
        control.end_faults_here()


def _shut_down(graceful: bool) -> None:
    if torch_parts.is_current_rpc_agent_set():
        rpc.shutdown(graceful=graceful)


def _attempt(step: Callable[[], bytes | None]) -> Answer:
    try:
        return Answer(value=step())
    except BaseException as error:  # also SystemExit: how the process ends is not the function's to say
        return Answer(failure=WorkerFailure(type(error).__name__, str(error), traceback.format_exc()))


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, name="end with parent", daemon=True).start()

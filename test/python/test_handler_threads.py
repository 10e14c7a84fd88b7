"""On which threads functions run."""

import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running
from processes import LIMIT


@pytest.fixture
def trio(tmp_path):
    """A running group of three with one thread of each kind."""
    with running(3, tmp_path, num_worker_threads=1) as group:
        yield group


# ---- what the workers run ----


def thread_of(*_):
    """The kind of thread that runs this."""
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


def value_and_thread(rref):
    return rref.to_here(LIMIT).tolist(), thread_of()


def with_rref_of_a_third(function):
    """Calls a worker with an RRef that it has to tell the owner of before the function may run."""
    rref = rpc.remote("worker1", torch.add, (torch.ones(2), 1))
    return rpc.rpc_sync("worker2", function, (rref,), timeout=LIMIT)


# ---- tests ----


def test_functions_run_on_request_threads(trio):
    assert trio[0].run(rpc.rpc_sync, "worker2", thread_of) == "torchwire_work"
    assert trio[0].run(with_rref_of_a_third, thread_of) == "torchwire_work"


def test_a_function_with_an_rref_can_wait_for_calls_with_one_thread_of_each_kind(trio):
    assert trio[0].run(with_rref_of_a_third, value_and_thread) == ([2, 2], "torchwire_work")

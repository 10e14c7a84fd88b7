"""On which threads functions run, and what these keep of them."""

import contextvars
import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, file_in, running
from processes import LIMIT, WorkerError, wait_until
from torchwire import concurrent_shutdown


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


_variable = contextvars.ContextVar("variable", default="untouched")
_local = threading.local()


def set_and_tell(value):
    """Sets what a thread keeps for its code; returns what was there."""
    before = _variable.get(), getattr(_local, "value", None)
    _variable.set(value)
    _local.value = value
    return before


def set_and_raise(value):
    set_and_tell(value)
    raise ValueError(value)


def told_by_many_calls(to):
    return [rpc.rpc_sync(to, set_and_tell, ("many",)) for _ in range(200)]


def told_by_callbacks(to):
    def callback(_):
        return thread_of(), set_and_tell("callback")[0]

    return [rpc.rpc_async(to, thread_of).then(callback).wait() for _ in range(20)]


def with_rref_of_a_third(function):
    """Calls a worker with an RRef that it has to tell the owner of before the function may run."""
    rref = rpc.remote("worker1", torch.add, (torch.ones(2), 1))
    return rpc.rpc_sync("worker2", function, (rref,), timeout=LIMIT)


# ---- tests ----


# Requests that come fast run where they were read.
REQUEST_THREADS = {"torchwire_work", "torchwire_io"}


def test_functions_run_on_request_threads(trio):
    assert trio[0].run(rpc.rpc_sync, "worker2", thread_of) in REQUEST_THREADS
    assert trio[0].run(with_rref_of_a_third, thread_of) in REQUEST_THREADS


def test_a_function_with_an_rref_can_wait_for_calls_with_one_thread_of_each_kind(trio):
    value, thread = trio[0].run(with_rref_of_a_third, value_and_thread)
    assert value == [2, 2]
    assert thread in REQUEST_THREADS


def test_a_function_meets_no_context_variable_of_another_on_its_thread(trio):
    assert trio[0].run(rpc.rpc_sync, "worker2", set_and_tell, ("first",)) == ("untouched", None)
    with pytest.raises(WorkerError, match="ValueError: second"):
        trio[0].run(rpc.rpc_sync, "worker2", set_and_raise, ("second",))
    told = trio[0].run(told_by_many_calls, "worker2")
    assert {variable for variable, _ in told} == {"untouched"}
    # A thread keeps what is local to it, as in Python's own pools.
    assert {value for _, value in told} - {None, "second"} == {"many"}


def test_a_callback_meets_no_context_variable_of_another_on_its_thread(trio):
    told = trio[0].run(told_by_callbacks, "worker2")
    # Some may run on the thread that adds them, where the call was over by then.
    on_pool = {variable for thread, variable in told if thread == "torchwire_done"}
    assert on_pool == {"untouched"}


# ---- functions that wait for calls ----


def square(x):
    return x * x


def descend(names, depth, timeout=LIMIT):
    """Calls the next worker, which calls the one after it, and so on."""
    if depth == 0:
        return 0
    return 1 + rpc.rpc_sync(names[depth % len(names)], descend, (names, depth - 1, timeout), timeout=timeout)


def descend_by_future(names, depth):
    if depth == 0:
        return 0
    to = names[depth % len(names)]
    futures = [
        rpc.rpc_async(to, square, (depth,)),
        rpc.rpc_async(to, descend_by_future, (names, depth - 1), timeout=LIMIT),
    ]
    return 1 + torch.futures.wait_all(futures)[1]


def fetch_from(other):
    return rpc.remote(other, square, (3,)).to_here(LIMIT)


def many_that_fetch(to, other, count):
    """As many calls at a time, each of whose functions fetches an RRef of the worker that calls."""
    return [future.wait() for future in [rpc.rpc_async(to, fetch_from, (other,), timeout=LIMIT) for _ in range(count)]]


def descend_in_callbacks(names, depth):
    if depth == 0:
        return 0
    to = names[depth % len(names)]
    called = rpc.rpc_async(to, square, (depth,))
    return called.then(lambda _: 1 + rpc.rpc_sync(to, descend_in_callbacks, (names, depth - 1), timeout=LIMIT)).wait()


def wait_for_own(rref):
    return rref.to_here(LIMIT)


def own_value_in_many(names):
    """Functions that wait for a value which their own worker has yet to make, as long as they leave it a thread."""
    late = rpc.remote(names[1], descend, (names, 4))
    return [
        future.wait() for future in [rpc.rpc_async(names[1], wait_for_own, (late,), timeout=LIMIT) for _ in range(8)]
    ]


def test_functions_that_call_each_other_do_not_stand_still(trio):
    names = ["worker1", "worker2", "worker0"]
    assert trio[0].run(descend, names, 60) == 60
    assert trio[0].run(descend_by_future, names, 30) == 30
    assert trio[0].run(descend_in_callbacks, names, 30) == 30
    assert trio[0].run(own_value_in_many, names) == [4] * 8


def test_workers_that_fetch_from_each_other_do_not_stand_still(tmp_path):
    with running(2, tmp_path, num_worker_threads=2) as group:
        there = group[0].start(many_that_fetch, "worker1", "worker0", 20)
        back = group[1].start(many_that_fetch, "worker0", "worker1", 20)
        assert there.result() == back.result() == [9] * 20


def test_without_spare_threads_functions_that_call_each_other_stand_still(tmp_path):
    with running(2, tmp_path, num_worker_threads=1, num_spare_threads=0) as group:
        with pytest.raises(WorkerError, match="CallTimedOut"):
            group[0].run(descend, ["worker0", "worker1"], 3, timeout=1.5)


# ---- a function that shuts RPC down ----


def shut_down(beside_the_main_thread):
    if beside_the_main_thread:
        wait_until(concurrent_shutdown.runs_elsewhere)
    with pytest.raises(RuntimeError, match="waits for functions that have been called by RPC, and so for this one"):
        rpc.shutdown()
    return "went on"


@pytest.mark.parametrize("beside_the_main_thread", [True, False])
def test_a_function_is_refused_a_shutdown_that_waits_for_it(tmp_path, beside_the_main_thread):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        pending = group[0].start(rpc.rpc_sync, "worker1", shut_down, (beside_the_main_thread,))
        shut = group[1].start(rpc.shutdown) if beside_the_main_thread else None
        assert pending.result() == "went on"
        shut = shut or group[1].start(rpc.shutdown)
        group[0].run(rpc.shutdown)
        shut.result()

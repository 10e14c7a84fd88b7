"""Threads that wait for calls drive the loop, and requests that come fast run where they are read (docs/threads.md)."""

import os
import random
import threading
import time
from pathlib import Path

import pytest
import torch
import torch.distributed.rpc as rpc
from group import running
from processes import LIMIT

PROGRAMS = int(os.environ.get("TORCHWIRE_TEST_CALL_GRAPHS", "60"))


@pytest.fixture(scope="module")
def hot_pair(tmp_path_factory):
    """A running group of two, between which calls have come fast."""
    with running(2, tmp_path_factory.mktemp("hot")) as group:
        yield group


def thread_of():
    return Path(f"/proc/self/task/{threading.get_native_id()}/comm").read_text().strip()


def heat_up(to):
    """Calls until a request runs where it was read."""
    end = time.monotonic() + LIMIT
    while rpc.rpc_sync(to, thread_of) != "torchwire_io":
        assert time.monotonic() < end, "no request runs on the thread that reads"


# ---- handlers that block ----

_gates = {}


def gate(name):
    return _gates.setdefault(name, threading.Event())


def pass_gate(name):
    return gate(name).wait(LIMIT)


def open_gate(name):
    gate(name).set()


def call_gates(to, count):
    """Calls that block where requests are read, one after the other; a later call ends each."""
    for i in range(count):
        heat_up(to)
        blocked = rpc.rpc_async(to, pass_gate, (i,))
        rpc.rpc_sync(to, open_gate, (i,))
        assert blocked.wait()


def test_a_function_that_blocks_waits_for_a_request_that_comes_later(hot_pair):
    hot_pair[0].run(call_gates, "worker1", 10)


def call_behind_gate(to):
    heat_up(to)
    blocked = [rpc.rpc_async(to, pass_gate, (name,)) for name in "abc"]
    answers = [rpc.rpc_async(to, torch.add, (torch.ones(1), i)) for i in range(100)]
    values = [answer.wait().item() for answer in answers]
    rpc.rpc_sync(to, open_gate, ("c",))
    rpc.rpc_sync(to, open_gate, ("b",))
    rpc.rpc_sync(to, open_gate, ("a",))
    return values, [call.wait() for call in blocked]


def test_calls_behind_functions_that_block_are_answered(hot_pair):
    values, passed = hot_pair[0].run(call_behind_gate, "worker1")
    assert values == [1 + i for i in range(100)]
    assert passed == [True] * 3


def ping(depth, me, other):
    return 0 if depth == 0 else 1 + rpc.rpc_sync(other, ping, (depth - 1, other, me))


def ping_often(depth, count):
    heat_up("worker1")
    return {rpc.rpc_sync("worker1", ping, (depth, "worker1", "worker0")) for _ in range(count)}


def test_functions_call_back_and_forth(hot_pair):
    assert hot_pair[0].run(ping_often, 8, 20) == {8}


def ping_oneself(count):
    return {rpc.rpc_sync(rpc.get_worker_info(), torch.add, (i, 1)) - i for i in range(count)}


def test_a_worker_calls_itself(hot_pair):
    assert hot_pair[0].run(ping_oneself, 200) == {1}


# ---- threads that wait ----


def wait_under_a_lock(to):
    heat_up(to)
    lock = threading.Lock()
    for i in range(50):
        future = rpc.rpc_async(to, torch.add, (torch.ones(1), i))

        def callback(done):
            with lock:
                return done.value().item()

        chained = future.then(callback)
        with lock:
            assert future.wait().item() == i + 1
        assert chained.wait() == i + 1


def test_a_callback_may_need_a_lock_under_which_its_future_is_waited_for(hot_pair):
    hot_pair[0].run(wait_under_a_lock, "worker1")


def add_callback_while_waiting(to, name):
    """Another thread adds the callback once this one waits, and only then lets the call end."""
    heat_up(to)
    lock = threading.Lock()
    future = rpc.rpc_async(to, pass_gate, (name,))
    chained = []

    def callback(done):
        with lock:
            return done.value()

    def add_callback():
        chained.append(future.then(callback))
        rpc.rpc_sync(to, open_gate, (name,))

    with lock:
        thread = threading.Thread(target=add_callback)
        thread.start()
        passed = future.wait()
    thread.join()
    return passed, chained[0].wait()


def test_a_callback_that_is_added_while_its_future_is_waited_for_may_need_the_same_lock(hot_pair):
    for i in range(10):
        assert hot_pair[0].run(add_callback_while_waiting, "worker1", f"callback {i}") == (True, True)


def results_in_inference_mode(to):
    heat_up(to)
    with torch.inference_mode():
        return [rpc.rpc_sync(to, torch.add, (torch.ones(2), 1)).is_inference() for _ in range(50)]


def test_the_modes_of_a_thread_that_waits_do_not_reach_the_result(hot_pair):
    assert set(hot_pair[0].run(results_in_inference_mode, "worker1")) == {False}


def call_from_threads(to, threads, calls):
    heat_up(to)
    wrong = []

    def call(seed):
        for i in range(calls):
            value = rpc.rpc_sync(to, torch.add, (torch.ones(1), seed * calls + i)).item()
            if value != seed * calls + i + 1:
                wrong.append(value)

    started = [threading.Thread(target=call, args=(seed,)) for seed in range(threads)]
    for thread in started:
        thread.start()
    for thread in started:
        thread.join()
    return wrong


def test_many_threads_wait_at_the_same_time(hot_pair):
    assert hot_pair[0].run(call_from_threads, "worker1", 16, 50) == []


def fail(text):
    raise ValueError(text)


def errors_of_calls(to):
    heat_up(to)
    errors = []
    for call in (
        lambda: rpc.rpc_sync(to, fail, ("what went wrong",)),
        lambda: rpc.rpc_sync(to, pass_gate, ("never",), timeout=0.05),
        lambda: rpc.rpc_sync(to, torch.add, (torch.ones(2), torch.ones(3))),
    ):
        try:
            call()
        except Exception as error:
            errors.append(f"{type(error).__name__}: {error}")
    rpc.rpc_sync(to, open_gate, ("never",))
    return errors


def test_errors_are_raised_where_the_call_is_waited_for(hot_pair):
    raised, late, mismatch = hot_pair[0].run(errors_of_calls, "worker1")
    assert "On WorkerInfo(id=1, name=worker1):" in raised
    assert "ValueError('what went wrong')" in raised
    assert "RPC ran for more than set timeout" in late
    assert mismatch.startswith("RuntimeError: The size of tensor a (2)")


# ---- generated call graphs ----


def run_node(seed, depth, workers):
    """A call that makes others, in ways that the seed chooses; returns how many calls that were, itself included."""
    choose = random.Random(seed)
    count, pending = 1, []
    for i in range(choose.choice([0, 1, 1, 2, 3]) if depth else 0):
        to = choose.choice(workers)
        arguments = (seed * 7 + i, depth - 1, workers)
        way = choose.choice(["sync", "async", "then", "remote", "thread"])
        if way == "sync":
            count += rpc.rpc_sync(to, run_node, arguments)
        elif way == "async":
            pending.append(rpc.rpc_async(to, run_node, arguments).wait)
        elif way == "then":
            pending.append(rpc.rpc_async(to, run_node, arguments).then(lambda done: done.wait()).wait)
        elif way == "remote":
            pending.append(rpc.remote(to, run_node, arguments).to_here)
        else:
            box = []
            thread = threading.Thread(target=lambda: box.append(rpc.rpc_sync(to, run_node, arguments)))
            thread.start()
            pending.append(lambda thread=thread, box=box: thread.join() or box[0])
        if choose.random() < 0.1:
            threading.Event().wait(choose.choice([0.0, 0.0005, 0.002]))  # a function that takes its time
    return count + sum(wait() for wait in pending)


def count_nodes(seed, depth, workers):
    """What run_node returns, without calls."""
    choose = random.Random(seed)
    count = 1
    for i in range(choose.choice([0, 1, 1, 2, 3]) if depth else 0):
        choose.choice(workers)
        choose.choice(range(5))
        if choose.random() < 0.1:
            choose.choice(range(3))
        count += count_nodes(seed * 7 + i, depth - 1, workers)
    return count


def test_generated_call_graphs_end(tmp_path):
    workers = [f"worker{rank}" for rank in range(3)]
    with running(3, tmp_path, num_worker_threads=64) as group:
        for first in range(0, PROGRAMS, 3):
            pending = [group[i].start(run_node, first + i, 4, workers) for i in range(3)]
            for i, one in enumerate(pending):
                assert one.result() == count_nodes(first + i, 4, workers), f"program {first + i}"

"""What is pickled or fetched is awaited by the thread that calls, and nothing else is (plugin/torchwire/calls.py)."""

import threading
from pathlib import Path

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import running
from processes import LIMIT, wait_until

gate = threading.Event()
begun = []


def pass_gate():
    passed = gate.wait(LIMIT)
    gate.clear()
    return passed


def open_gate(_):
    gate.set()


class CallsWhilePickled:
    """Begins a call that ends only after the one that it is an argument of."""

    def __reduce__(self):
        begun.append(rpc.rpc_async("worker1", pass_gate))
        return int, ()


class CountsWhenRead:
    """Is as many as there are active calls of the worker that reads it."""

    def __reduce__(self):
        return active_calls, ()


def active_calls():
    return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.client_active_calls"])


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("awaited")) as workers:
        yield workers


def call_in_context():
    with dist_autograd.context():
        rpc.rpc_sync("worker1", open_gate, (CallsWhilePickled(),))
    return begun.pop().wait()


def test_only_the_call_itself_is_awaited_not_one_that_its_pickling_makes(group):
    for _ in range(20):
        assert group[0].run(call_in_context) is True


def counted(kind):
    if kind == "to_here":
        rref = rpc.remote("worker1", CountsWhenRead)
        wait_until(lambda: rref.confirmed_by_owner() and active_calls() == 0)
        return rref.to_here()
    with dist_autograd.context():
        return rpc.rpc_sync("worker1", CountsWhenRead)


@pytest.mark.parametrize("kind", ["to_here", "rpc_sync"])
def test_a_call_is_active_while_its_result_is_read(group, kind):
    for _ in range(20):
        wait_until(lambda: group[0].run(active_calls) == 0)
        assert group[0].run(counted, kind) == 1


def test_no_call_stays_active(group):
    group[0].run(counted, "to_here")
    group[0].run(failing_calls)
    wait_until(lambda: group[0].run(active_calls) == 0)  # RRefs that are gone are told of


def fail():
    raise ValueError("what went wrong")


def failing_calls():
    with pytest.raises(ValueError, match="what went wrong"):
        rpc.remote("worker1", fail).to_here()
    with pytest.raises(RuntimeError, match="The size of tensor"):
        rpc.rpc_sync("worker1", torch.add, (torch.ones(2), torch.ones(3)))
    with dist_autograd.context(), pytest.raises(ValueError, match="what went wrong"):
        rpc.rpc_sync("worker1", fail)


def test_to_here_keeps_its_name_and_documentation():
    method = torch._C._distributed_rpc.PyRRef.to_here
    assert method.__name__ == "to_here"
    assert "Blocking call that copies the value of the RRef" in method.__doc__


def make_slowly():
    threading.Event().wait(0.1)
    return 1


def names_of_threads():
    return {Path(f"/proc/self/task/{task.name}/comm").read_text().strip() for task in Path("/proc/self/task").iterdir()}


def wait_for_creations(count):
    rrefs = [rpc.remote("worker1", make_slowly)]  # kept: when one goes, its owner is told
    for _ in range(count):
        rrefs[-1]._get_future().wait()
        rrefs.append(rpc.remote("worker1", make_slowly))
    rrefs[-1]._get_future().wait()
    return names_of_threads()


def wait_with_callback():
    rref = rpc.remote("worker1", make_slowly)
    future = rref._get_future()
    future.then(lambda done: None)
    future.wait()
    return names_of_threads()


def test_who_waits_for_the_creation_of_an_rref_ends_it_unless_there_are_callbacks(tmp_path):
    with running(2, tmp_path) as workers:
        assert "torchwire_done" not in workers[0].run(wait_for_creations, 10)
        assert "torchwire_done" in workers[0].run(wait_with_callback)

"""Links that break under load: as long as a session lasts, nothing is lost, and nothing runs twice."""

import collections
import contextlib
import signal
import threading
import time

import connections
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import wait_until
from repetition import Repetition, begin, count, stop
from sockets import unix_names

over_each_transport = pytest.mark.parametrize(
    "transports", [None, ["wire_tcp"], ["wire_shm"]], ids=["default", "wire_tcp", "wire_shm"]
)

LARGE = 300_000  # elements, too many for a frame's head
CUTS = 15

# ---- what the workers run ----

_runs = collections.Counter()
_event = threading.Event()


def note(number, tensor):
    """Counts its runs."""
    _runs[number] += 1
    return tensor + 1


def runs():
    return dict(_runs)


class Calls(Repetition):
    """Calls of all sizes, several at a time; each has its number, which the callee counts."""

    def __init__(self, to):
        super().__init__()
        self._to = to
        self._made = 0

    def step(self):
        sizes = (1, 1000, LARGE) * 2
        futures = [rpc.rpc_async(self._to, note, (self._made + i, torch.ones(size))) for i, size in enumerate(sizes)]
        self._made += len(sizes)
        for size, future in zip(sizes, futures, strict=True):
            result = future.wait()
            assert result.numel() == size and bool((result == 2).all())

    def outcome(self):
        return self._made


def add(one, other):
    return one + other


class References(Repetition):
    """An RRef of the peer's, made, fetched and dropped; and a backward pass over it."""

    def __init__(self, to):
        super().__init__()
        self._to = to

    def step(self):
        rref = rpc.remote(self._to, add, (torch.ones(3), 1))
        assert rref.to_here().tolist() == [2, 2, 2]
        leaf = torch.ones(3, requires_grad=True)
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [rpc.rpc_sync(self._to, torch.mul, (leaf, 3)).sum()])
            assert dist_autograd.get_gradients(context)[leaf].tolist() == [3, 3, 3]


def links_lost():
    return sum(peer["links_lost"] for peer in torchwire.peers())


def held():
    return len(torchwire.rrefs()), len(torchwire.autograd_contexts())


def wait_for_event():
    _event.wait()
    return "done"


def set_event():
    _event.set()


_pending = None


def begin_call(to, function):
    global _pending
    _pending = rpc.rpc_async(to, function)


def result_of_call():
    return _pending.wait()


def failure_of_call():
    try:
        _pending.wait()
    except torchwire.RpcError as error:
        return type(error).__name__, error.worker, error.executed, str(error)
    raise AssertionError("it did not fail")


def name():
    return rpc.get_worker_info().name


def call_name(to):
    return rpc.rpc_sync(to, name)


# ---- under load ----


def break_links(group, times):
    """Again and again, on one side and the other, while their repetitions go on."""
    names = {one for worker in group for one in unix_names(worker.pid)}
    broken = 0
    for cut in range(times):
        before = [worker.run(count) for worker in group]
        broken += group[cut % 2].run(connections.break_all, names)
        for worker, done in zip(group, before, strict=True):
            wait_until(lambda worker=worker, done=done: worker.run(count) > done)
    assert broken >= times


@over_each_transport
def test_links_that_break_under_load_lose_no_call_and_run_none_twice(tmp_path, transports):
    with running(2, tmp_path, _transports=transports) as group:
        group[0].run(begin, Calls, "worker1")
        group[1].run(begin, Calls, "worker0")
        break_links(group, CUTS)
        made = group.all(stop)
        for callee, number in zip(group, reversed(made), strict=True):
            assert callee.run(runs) == dict.fromkeys(range(number), 1)
        assert min(group.all(links_lost)) >= CUTS // 2
        print(f"{made} calls, links lost: {group.all(links_lost)}")


@over_each_transport
def test_references_and_backward_passes_outlive_their_links(tmp_path, transports):
    with running(2, tmp_path, _transports=transports) as group:
        group[0].run(begin, References, "worker1")
        group[1].run(begin, References, "worker0")
        break_links(group, CUTS)
        group.all(stop)
        wait_until(lambda: group.all(held) == [(0, 0), (0, 0)])


def test_without_sessions_the_calls_of_a_link_fail_with_it(tmp_path):
    with running(2, tmp_path, session_timeout=0) as group:
        assert group[0].run(call_name, "worker1") == "worker1"
        group[0].run(begin_call, "worker1", wait_for_event)
        group[1].run(connections.break_all, set(unix_names(group[0].pid) + unix_names(group[1].pid)))
        kind, worker, executed, text = group[0].run(failure_of_call)
        group[1].run(set_event)
        assert (kind, worker, executed) == ("WorkerUnreachable", "worker1", "unknown")
        assert text.startswith("lost the connection to worker 'worker1' (rank 1) at ")


# ---- workers that stand still ----


@contextlib.contextmanager
def standing_still(worker):
    worker.signal(signal.SIGSTOP)
    try:
        yield
    finally:
        worker.signal(signal.SIGCONT)


@over_each_transport
@pytest.mark.slow
def test_nothing_is_lost_of_a_worker_that_stands_still_for_less_than_a_session_lasts(tmp_path, transports):
    with running(2, tmp_path, session_timeout=8, _transports=transports) as group:
        group[0].run(begin, Calls, "worker1")
        group[1].run(begin, Calls, "worker0")
        wait_until(lambda: min(group.all(count)) >= 2)
        with standing_still(group[1]):
            time.sleep(5)  # that is for how long
        after = group.all(count)
        wait_until(lambda: all(now > then for now, then in zip(group.all(count), after, strict=True)))
        made = group.all(stop)
        for callee, number in zip(group, reversed(made), strict=True):
            assert callee.run(runs) == dict.fromkeys(range(number), 1)


@over_each_transport
@pytest.mark.slow
def test_who_stands_still_for_longer_loses_its_session_and_is_told(tmp_path, transports):
    """What else becomes of it: test_declared_dead.py."""
    with Group(2) as group:
        group.init(file_in(tmp_path), session_timeout=2, _transports=transports)
        assert group[0].run(call_name, "worker1") == "worker1"
        assert group[1].run(call_name, "worker0") == "worker0"
        group[1].run(begin_call, "worker0", wait_for_event)
        with standing_still(group[1]):
            group[0].run(begin_call, "worker1", name)
            kind, worker, executed, text = group[0].run(failure_of_call)
        assert (kind, worker, executed) == ("WorkerUnreachable", "worker1", "unknown")
        assert "it has not said anything for 1000 ms" in text
        group[0].run(set_event)
        kind, worker, executed, text = group[1].run(failure_of_call)
        assert (kind, worker, executed) == ("WorkerUnreachable", "worker0", "unknown")
        group.all(rpc.shutdown, False)

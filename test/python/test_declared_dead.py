"""Workers that stand still for longer than their sessions last: the group goes on without them, and they are told."""

import contextlib
import re
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init
from processes import wait_until
from rref_counts import counts
from test_sessions import begin_call, failure_of_call, name, result_of_call, standing_still
from test_store_death import store_apart

SESSION = 2  # seconds

DEATH = (
    r"worker 'worker1' \(rank 1\) has died: worker 'worker.' \(rank .\) had not heard from it for 2000 ms, "
    "and the group goes on without it"
)

_kept = []


def succeeds(to):
    return rpc.rpc_sync(to, name, timeout=20) == to


def answer():
    return 42


def create_on(owner):
    _kept.append(rpc.remote(owner, answer))
    assert _kept[-1].to_here() == 42
    wait_until(_kept[-1].confirmed_by_owner)


def open_context_with(peer):
    _kept.append(dist_autograd.context())
    _kept[-1].__enter__()
    rpc.rpc_sync(peer, torch.mul, (torch.ones(2, requires_grad=True), 2))


def drop():
    _kept.clear()


def contexts():
    return len(torchwire.autograd_contexts())


def owners():
    return counts()["owners"]


def error_of_call(to):
    try:
        rpc.rpc_sync(to, name, timeout=20)
    except torchwire.RpcError as error:
        return type(error).__name__, error.executed, str(error)
    return None


def states():
    return {peer["name"]: peer["state"] for peer in torchwire.peers()}


def shutdown_error(graceful=True):
    try:
        rpc.shutdown(graceful)
    except RuntimeError as error:
        return str(error)
    return None


def survivors_shut_down(group):
    pending = [group[rank].start(shutdown_error) for rank in (0, 2)]
    assert [one.result() for one in pending] == [None, None]


@contextlib.contextmanager
def trio(folder, **options):
    with Group(3) as group:
        group.init(file_in(folder), session_timeout=SESSION, **options)
        yield group


@contextlib.contextmanager
def declared_dead(group):
    """Worker 1 stands still until all know it for dead: worker 0, which calls it, and worker 2, which does not."""
    assert group[0].run(succeeds, "worker1")  # else it could not be reached, of which nothing follows
    with standing_still(group[1]):
        group[0].run(begin_call, "worker1", name)
        kind, worker, executed, _ = group[0].run(failure_of_call)
        # Worker 2 may wait for it as well, and have been quicker.
        assert kind in ("WorkerUnreachable", "WorkerDied") and (worker, executed) == ("worker1", "unknown")
        for survivor in (group[0], group[2]):
            wait_until(lambda survivor=survivor: survivor.run(states)["worker1"] == "dead")
        yield


def test_all_agree_on_it_and_nothing_of_it_stays(tmp_path):
    with trio(tmp_path) as group:
        for owner in ("worker0", "worker2"):
            group[1].run(create_on, owner)
        group[1].run(open_context_with, "worker0")
        assert group[0].run(contexts) == group[0].run(owners) == group[2].run(owners) == 1
        with declared_dead(group):
            texts = [group[rank].run(error_of_call, "worker1") for rank in (0, 2)]
            assert texts[0] == texts[1]
            kind, executed, text = texts[0]
            assert (kind, executed) == ("WorkerDied", "no")
            assert re.fullmatch(DEATH, text)
            wait_until(lambda: group[0].run(owners) == group[2].run(owners) == group[0].run(contexts) == 0)
            assert group[0].run(succeeds, "worker2") and group[2].run(succeeds, "worker0")
            survivors_shut_down(group)


def test_it_is_told_when_it_goes_on_and_serves_and_calls_nobody(tmp_path):
    with trio(tmp_path) as group:
        group[1].run(create_on, "worker0")
        group[2].run(create_on, "worker1")
        with declared_dead(group):
            pass
        wait_until(lambda: set(group[1].run(states).values()) == {"dead"})
        for to in ("worker0", "worker2"):
            kind, executed, text = group[1].run(error_of_call, to)
            assert (kind, executed) == ("WorkerUnreachable", "no")
            assert text.startswith("this worker takes part in the RPC group no more, start it anew: ")
            assert "had not heard from it for 2000 ms" in text
        wait_until(lambda: group[1].run(owners) == 0)  # what worker 2 has made there
        text = group[1].run(shutdown_error)
        assert text.startswith("this worker takes part in the RPC group no more, start it anew: ")
        survivors_shut_down(group)


def test_in_a_dynamic_group_it_leaves_nobody_waiting_either(tmp_path):
    with Group(3) as group:
        for worker in group:
            worker.run(init, file_in(tmp_path), session_timeout=SESSION)
        group[1].run(create_on, "worker0")
        with declared_dead(group):
            wait_until(lambda: group[0].run(owners) == 0)
        wait_until(lambda: set(group[1].run(states).values()) == {"dead"})
        group[1].run(drop)
        text = group[1].run(shutdown_error)
        assert text.startswith("this worker takes part in the RPC group no more, start it anew: ")
        survivors_shut_down(group)


def test_of_two_that_stand_still_in_turn_the_first_is_dead(tmp_path):
    """The second has a session with the first, which ends too; but it has heard by then."""
    with trio(tmp_path) as group:
        with declared_dead(group):
            group[2].run(begin_call, "worker1", name)
            assert group[2].run(failure_of_call)[0] == "WorkerDied"
        wait_until(lambda: set(group[1].run(states).values()) == {"dead"})
        assert group[2].run(states)["worker0"] != "dead"
        assert group[0].run(succeeds, "worker2") and group[2].run(succeeds, "worker0")


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seconds", [5, 30])
def test_it_takes_the_10_s_that_sessions_last_by_default(tmp_path, seconds):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        assert group[0].run(succeeds, "worker1")
        with standing_still(group[1]):
            group[0].run(begin_call, "worker1", name)
            time.sleep(seconds)  # that is for how long
        if seconds < 10:
            assert group[0].run(result_of_call) == "worker1"
            group.shut_down()
            return
        assert group[0].run(failure_of_call)[0] == "WorkerUnreachable"
        wait_until(lambda: set(group[1].run(states).values()) == {"dead"})
        assert group[0].run(error_of_call, "worker1")[0] == "WorkerDied"
        assert group[0].run(shutdown_error) is None
        assert group[1].run(shutdown_error, False) is None


def test_without_the_store_a_silent_worker_stays():
    """Nobody can say that all agree; the log says so."""
    with store_apart() as apart, Group(3, apart.environment) as group:
        group.init(apart.init_method, session_timeout=SESSION, rpc_timeout=6)
        assert group[0].run(succeeds, "worker1")
        apart.kill()
        with standing_still(group[1]):
            group[0].run(begin_call, "worker1", name)
            assert group[0].run(failure_of_call)[0] == "WorkerUnreachable"
            wait_until(lambda: "cannot be declared dead without the store" in group[0].output())
        wait_until(lambda: group[0].run(error_of_call, "worker1") is None)
        assert group[2].run(succeeds, "worker1")
        group.all(shutdown_error, False)

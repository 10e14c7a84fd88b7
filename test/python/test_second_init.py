"""A process that calls init_rpc again after rpc.shutdown(): as another worker, in another group, on another backend.

Between an init_rpc and the end of its shutdown lies an RPC lifetime. What a program keeps from one says so in the next.
"""

import gc
import os
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init
from processes import WorkerError, wait_until

HAS_ENDED = "RPC lifetime that has ended"

# Shutdown waits for as long as this for RRefs that nobody deletes.
PROMPT = 10.0  # seconds

kept = {}  # what a worker holds on to from one lifetime to another


def test_a_process_joins_ten_groups_one_after_another(tmp_path):
    join_many_groups(tmp_path, 10)


@pytest.mark.long
def test_a_process_joins_a_hundred_groups_one_after_another(tmp_path):
    join_many_groups(tmp_path, 100)


def test_groups_one_after_another_meet_in_the_same_file(tmp_path):
    """The end of one's store must not take the file from the next, whose workers begin at the same moment."""
    with Group(2) as group:
        for _ in range(40):
            group.all(live, file_in(tmp_path))


def join_many_groups(folder, rounds):
    with Group(2, {"TORCHWIRE_LOG_LEVEL": "debug"}) as group:
        for rank, (early, late) in enumerate(group.all(live_often, file_in(folder), rounds)):
            assert late["threads"] == early["threads"]
            assert late["files"] == early["files"]
            # What glibc's arenas take up, and then keep: a leaked agent has rings and buffers of megabytes.
            assert late["memory"] - early["memory"] < (16 << 20) + (rounds << 17)
            assert group[rank].output().count("its agent is freed") == rounds


def live_often(init_method, rounds):
    """Runs in a worker. What it takes up after two rounds, when all that is made once is there, and after the last."""
    early = None
    for number in range(rounds):
        live(f"{init_method}{number}")
        if number == 1:
            early = taken_up()
    return early, taken_up()


def live(init_method, **where):
    init(init_method, **{"world_size": 2, **where})
    use_group()
    shut_down_promptly()


def use_group():
    """All kinds of calls, to a peer; and nothing of them stays there."""
    me = rpc.get_worker_info()
    peer = next(worker for worker in rpc.api._get_current_rpc_agent().get_worker_infos() if worker.id != me.id)
    assert rpc.rpc_sync(peer, add, (1, 2)) == 3
    rref = rpc.remote(peer, ones)
    assert rref.to_here().tolist() == [1, 1, 1]
    assert rref.owner_name() == peer.name
    assert rpc.rpc_sync(peer, value_of, (rref,)).tolist() == [1, 1, 1]
    counted = rpc.remote(peer, Counter)
    assert counted.rpc_sync().next() == 1
    with dist_autograd.context() as context:
        leaf = torch.ones(3, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(peer, torch.mul, (leaf, 2)).sum()])
        assert dist_autograd.get_gradients(context)[leaf].tolist() == [2, 2, 2]
    own = rpc.RRef(torch.zeros(1))
    assert rpc.rpc_sync(peer, fetch, (own,)).tolist() == [0]
    del rref, counted, own
    wait_until(lambda: not rpc.rpc_sync(peer, users_of_others, (me.id,)))


def shut_down_promptly():
    begin = time.monotonic()
    rpc.shutdown()
    assert time.monotonic() - begin < PROMPT


def add(a, b):
    return a + b


def ones():
    return torch.ones(3)


def value_of(rref):
    return rref.local_value()


def fetch(rref):
    return rref.to_here()


class Counter:
    count = 0

    def next(self):
        self.count += 1
        return self.count


def users_of_others(creator):
    """The RRefs of this worker that `creator` has made. On another backend: none, for all that is known."""
    agent = rpc.api._get_current_rpc_agent()
    if not isinstance(agent, torchwire.TorchwireAgent):
        return []
    return [rref["id"] for rref in agent.rrefs(0) if rref["role"] == "owner" and f"created_on={creator}," in rref["id"]]


def taken_up():
    gc.collect()
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return {
        "threads": len(os.listdir("/proc/self/task")),
        "files": len(os.listdir("/proc/self/fd")),
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
    }


# ---- as another worker --------------------------------------------------------------------------


def test_with_another_name_rank_and_world_size(tmp_path):
    with Group(3) as group:
        for number, ranks in enumerate([(0, 1, 2), (2, 0, 1), (1, 2, 0)]):
            method = f"{file_in(tmp_path)}{number}"
            results(
                group[process].start(live, method, name=f"member{number}{rank}", rank=rank, world_size=3)
                for process, rank in enumerate(ranks)
            )
        # A group of two, and one of one.
        method = f"{file_in(tmp_path)}-small"
        last = [
            group[1].start(live, method, name="b", rank=1, world_size=2),
            group[2].start(live, method, name="a", rank=0, world_size=2),
        ]
        group[0].run(live_alone, f"{file_in(tmp_path)}-alone", 0)
        results(last)


def results(pending):
    return [one.result() for one in list(pending)]


def live_alone(init_method, rank, name="alone", world_size=1):
    init(init_method, name=name, rank=rank, world_size=world_size)
    assert rpc.rpc_sync(name, add, (1, 2)) == 3
    assert rpc.remote(name, add, (1, 2)).to_here() == 3
    shut_down_promptly()


def test_in_dynamic_groups(tmp_path):
    with Group(2) as group:
        for number in range(3):
            group.all(init, f"{file_in(tmp_path)}{number}", world_size=None)
            group.all(use_group)
            group.all(shut_down_promptly)


def test_on_torchwire_and_tensorpipe_in_turn(tmp_path):
    with Group(2) as group:
        for number, backend in enumerate(["TENSORPIPE", "TORCHWIRE", "TENSORPIPE", "TENSORPIPE", "TORCHWIRE"]):
            options = {"options_class": rpc.TensorPipeRpcBackendOptions} if backend == "TENSORPIPE" else {}
            method = f"{file_in(tmp_path)}{number}"
            results(
                group[process].start(live, method, backend=backend, rank=(process + number) % 2, **options)
                for process in range(2)
            )


def test_forked_child_of_a_process_that_was_in_a_group(tmp_path):
    with Group(1) as group:
        assert group[0].run(live_and_fork, file_in(tmp_path)) == 0


def live_and_fork(init_method):
    live_alone(init_method, 0)
    child = os.fork()
    if child == 0:
        status = 1
        try:
            live_alone(f"{init_method}-child", 0, name="child")
            live_alone(f"{init_method}-again", 3, world_size=None)
            status = 0
        finally:
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


# ---- however the first lifetime has ended -------------------------------------------------------


def test_after_a_shutdown_that_was_not_graceful(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group.all(keep_all)
        group.all(rpc.shutdown, graceful=False)
        group.all(leave_context)
        group.all(live, f"{file_in(tmp_path)}-again")


def test_after_an_init_rpc_that_failed(tmp_path):
    with Group(2) as group:
        for pending in [worker.start(init, file_in(tmp_path), name="twin", rank=0, world_size=2) for worker in group]:
            with pytest.raises(WorkerError):
                pending.result()
        group.all(live, f"{file_in(tmp_path)}-again")


def test_after_a_peer_has_died(tmp_path):
    with Group(3) as group:
        group.init(file_in(tmp_path))
        results(worker.start(keep_all) for worker in group)
        group[2].kill()
        for pending in [worker.start(rpc.shutdown) for worker in group[:2]]:
            pending.result()
        results(worker.start(leave_context) for worker in group[:2])
        results(worker.start(live, f"{file_in(tmp_path)}-again") for worker in group[:2])


# ---- what a program keeps -----------------------------------------------------------------------


@pytest.mark.parametrize("graceful", [True, False])
def test_what_is_kept_from_an_earlier_lifetime_says_so(tmp_path, graceful):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group.all(keep_all)
        group.all(rpc.shutdown, graceful=graceful)
        group.all(use_user_after_shutdown)
        group.init(f"{file_in(tmp_path)}-again")
        group.all(use_what_was_kept)
        group.all(drop_what_was_kept)
        group.all(use_group)
        group.all(shut_down_promptly)


def keep_all():
    name = rpc.get_worker_info().name
    peer = f"worker{1 if name == 'worker0' else 0}"
    kept["user"] = rpc.remote(peer, Counter)
    assert kept["user"].rpc_sync().next() == 1
    kept["owner"] = rpc.RRef(torch.ones(2))
    rpc.rpc_sync(peer, keep, (kept["owner"],))
    kept["future"] = rpc.rpc_async(peer, add, (1, 2))
    kept["pending"] = rpc.rpc_async(peer, never_ends)
    kept["context"] = context = dist_autograd.context()
    kept["id"] = context.__enter__()
    kept["leaf"] = torch.ones(2, requires_grad=True)
    kept["loss"] = rpc.rpc_sync(peer, torch.mul, (kept["leaf"], 2)).sum()
    kept["future"].wait()
    kept["pending"] = torchwire.cancel(kept["pending"])  # or a graceful shutdown would wait for it


@rpc.functions.async_execution
def never_ends():
    return torch.futures.Future()


def keep(rref):
    kept["of peer"] = rref


def use_user_after_shutdown():
    with pytest.raises(RuntimeError, match=r"Cannot call to_here\(\) on it after deletion"):  # as on stock
        kept["user"].to_here()
    assert kept["future"].wait() == 3


def leave_context():
    """Says nothing, whatever has become of the context."""
    kept["context"].__exit__(None, None, None)


def expect_ended(function):
    with pytest.raises(RuntimeError, match=HAS_ENDED):
        function()


def use_what_was_kept():
    name = rpc.get_worker_info().name
    peer = f"worker{1 if name == 'worker0' else 0}"
    for user in (kept["user"], kept["of peer"]):
        expect_ended(user.to_here)
        expect_ended(lambda user=user: user.rpc_sync().next())
        expect_ended(lambda user=user: user.rpc_async().next().wait())
        expect_ended(lambda user=user: user.remote().next())
        expect_ended(lambda user=user: user.backward(1))
    for rref in (kept["user"], kept["of peer"], kept["owner"]):
        expect_ended(lambda rref=rref: rpc.rpc_sync(peer, fetch, (rref,)))
        expect_ended(lambda rref=rref: rpc.rpc_async(peer, fetch, (rref,)).wait())
        expect_ended(lambda rref=rref: rpc.remote(peer, fetch, (rref,)))
    assert kept["owner"].local_value().tolist() == [1, 1]
    assert kept["future"].wait() == 3
    expect_ended(lambda: rpc.rpc_sync(peer, add, (torch.ones(1, requires_grad=True), 2)))  # in the old context
    expect_ended(lambda: dist_autograd.backward(kept["id"], [kept["loss"]]))
    with dist_autograd.context() as context:  # the thread is out of the other one
        leaf = torch.ones(2, requires_grad=True)
        dist_autograd.backward(context, [rpc.rpc_sync(peer, torch.mul, (leaf, 2)).sum()])
    leave_context()
    expect_ended(lambda: rpc.rpc_sync(peer, fetch, (kept["user"],)))  # outside a context it is written another way


def drop_what_was_kept():
    """RRefs of this lifetime go on, whatever their numbers."""
    name = rpc.get_worker_info().name
    peer = f"worker{1 if name == 'worker0' else 0}"
    mine = [rpc.remote(peer, Counter) for _ in range(10)]
    counters = [rref.rpc_sync().next() for rref in mine]
    kept.clear()
    gc.collect()
    assert [rref.rpc_sync().next() for rref in mine] == [count + 1 for count in counters]

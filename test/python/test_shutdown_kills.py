"""Workers that are killed at any moment of a shutdown, or of a start: the others end, and say who is gone."""

import functools
import os
import random
import time

import machine_faults
import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, HostedStore, errors, init
from processes import WorkerError, wait_until

SIZE = 4

# Who loses a worker in the last step may wait for its goodbye, or for its answer in the store, before it goes.
USUAL = 20.0

TRANSPORTS = ["wire_shm", "wire_tcp"]

# ---- what the workers run ----


def call_others():
    names = [f"worker{rank}" for rank in range(SIZE)]
    torch.futures.wait_all([rpc.rpc_async(name, torch.add, (torch.ones(2), 1)) for name in names])


def shut_down():
    rpc.shutdown()


def wait_for(path):
    wait_until(path.exists)


def shut_down_while_a_call_runs(path):
    """No worker's shutdown is over before this call is."""
    rpc.rpc_async("worker2", wait_for, (path,))
    rpc.shutdown()


def shut_down_holding_an_rref(path):
    """Keeps an RRef of the last worker's, which waits for it, until the file is there."""
    rref = rpc.remote(f"worker{SIZE - 1}", torch.add, args=(torch.ones(2), 1))
    rref.to_here()
    shut_down_by_way_of(lambda: wait_for(path))


def shut_down_by_way_of(before_deletes):
    """Runs the function when all have come, before this worker's RRefs are deleted."""
    delete = rpc.api._delete_all_user_and_unforked_owner_rrefs

    def delete_later(*args, **kwargs):
        before_deletes()
        return delete(*args, **kwargs)

    rpc.api._delete_all_user_and_unforked_owner_rrefs = delete_later
    rpc.shutdown()


# ---- the tests ----


@pytest.fixture
def store():
    return HostedStore()


def has_key(store, name):
    return store.has(f"rpc_prefix_0/torchwire/{name}")


def ends(pending):
    """How those ended that live: "" or the sentence that shutdown raised."""
    collected = []
    for one in pending:
        try:
            one.result(USUAL)
        except WorkerError as error:
            collected.append(error.message.partition("\n")[0])
        else:
            collected.append("")
    return collected


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("rank", [0, 3])
def test_a_worker_that_dies_while_it_waits_for_the_shutdown_is_not_waited_for(store, rank, transport):
    with Group(SIZE, store.environment) as group:
        group.init(store.init_method, _transports=[transport])
        group.all(call_others)
        group[rank].start(shut_down)
        wait_until(lambda: has_key(store, f"shutdown/reach0/of/{rank}"))
        group[rank].kill()
        survivors = [worker for worker in group if worker is not group[rank]]
        begin = time.monotonic()
        assert ends([worker.start(shut_down) for worker in survivors]) == [""] * (SIZE - 1)
        assert time.monotonic() - begin < 10
        warning = f"without those that have died: worker 'worker{rank}' (rank {rank})"
        assert all(warning in worker.output() for worker in survivors)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_that_dies_while_calls_of_others_run_is_not_waited_for(store, tmp_path, transport):
    def is_reached():
        return all(has_key(store, f"shutdown/join1/of/{rank}") for rank in (2, 3))

    check_kill_in_round(store, transport, shut_down_while_a_call_runs, tmp_path / "go", shut_down, is_reached)


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_worker_that_dies_while_others_have_its_rrefs_is_not_waited_for(store, tmp_path, transport):
    reached = tmp_path / "reached"
    victim = functools.partial(shut_down_by_way_of, reached.touch)
    check_kill_in_round(store, transport, shut_down_holding_an_rref, tmp_path / "go", victim, reached.exists)


def check_kill_in_round(store, transport, shut_down_late, path, shut_down_of_victim, is_reached):
    with Group(SIZE, store.environment) as group:
        group.init(store.init_method, _transports=[transport])
        pending = [group[0].start(shut_down_late, path), *(worker.start(shut_down) for worker in group[1:-1])]
        group[-1].start(shut_down_of_victim)
        wait_until(is_reached)
        group[-1].kill()
        begin = time.monotonic()
        path.touch()
        assert ends(pending) == [""] * (SIZE - 1)
        assert time.monotonic() - begin < 10
        warning = f"without those that have died: worker 'worker{SIZE - 1}' (rank {SIZE - 1})"
        assert all(warning in worker.output() for worker in group[:-1])


def check_kill(store, seed, transport):
    draw = random.Random(seed)
    victim = draw.randrange(SIZE)
    delay = draw.choice([0.01, 0.06, 0.3]) * draw.random()
    with Group(SIZE, store.environment) as group:
        group.init(store.init_method, _transports=[transport])
        if draw.random() < 0.5:
            group.all(call_others)
        pending = [worker.start(shut_down) for worker in group]
        time.sleep(delay)  # the moment is what the seed draws
        group[victim].kill()
        told = ends([one for rank, one in enumerate(pending) if rank != victim])
        for sentence in told:
            assert not sentence or f"worker 'worker{victim}'" in sentence or "rendezvous store" in sentence, told


@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(4))
def test_a_kill_at_any_moment_of_a_shutdown_leaves_nobody_waiting(store, seed, transport):
    check_kill(store, seed, transport)


@pytest.mark.long
@pytest.mark.parametrize("transport", TRANSPORTS)
@pytest.mark.parametrize("seed", range(100, 160))
def test_many_kills_at_any_moment_of_a_shutdown(store, seed, transport):
    check_kill(store, seed, transport)


def check_kill_in_init_rpc(store, group):
    pending = [worker.start(init, store.init_method, world_size=SIZE) for worker in group]
    wait_until(lambda: all(f"worker{rank}".encode() in store.get("rpc_prefix_0/torchwire/roster") for rank in range(3)))
    begin = time.monotonic()
    group[1].kill()
    said = {error.message.partition("\n")[0] for error in errors([pending[0], pending[2]])}
    assert said == {
        "the RPC group of world_size=4 cannot start: worker 'worker1' (rank 1) ended before all workers were there"
    }
    assert time.monotonic() - begin < 10


def test_a_worker_that_dies_in_init_rpc_ends_the_start_of_all(store):
    with Group(3, store.environment) as group:
        check_kill_in_init_rpc(store, group)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root")
def test_a_worker_of_another_host_that_dies_in_init_rpc_ends_the_start_of_all(store):
    with Group(3, store.environment, prepare=[machine_faults.move_to_another_host] * 3) as group:
        check_kill_in_init_rpc(store, group)
        assert all("refused a connection" not in worker.output() for worker in group)


@pytest.mark.parametrize(
    "wrong, why",
    [
        ({"name": "node1.local-0"}, "init_rpc: name 'node1.local-0' contains '.'; use only ASCII letters"),
        ({"bind_address": "203.0.113.1"}, "203.0.113.1"),
        ({"secret_file": "/nonexistent/secret"}, "/nonexistent/secret"),
    ],
)
def test_a_worker_that_cannot_start_ends_the_start_of_all(store, wrong, why):
    with Group(3, store.environment) as group:
        pending = [group[0].start(init, store.init_method, world_size=3)]
        wait_until(lambda: has_key(store, "roster"))
        begin = time.monotonic()
        pending.append(group[1].start(init, store.init_method, rank=1, world_size=3, **wrong))
        (own,) = errors([pending[1]])
        assert why in own.message
        pending.append(group[2].start(init, store.init_method, world_size=3))
        said = [error.message.partition("\n")[0] for error in errors([pending[0], pending[2]])]
        assert time.monotonic() - begin < 20  # they would wait for a minute
        assert said[0] == said[1] and why in said[0], said
        assert said[0].startswith(f"worker '{wrong.get('name', 'worker1')}' (rank 1) could not start: ")

"""What survivors know and keep of a worker that has died, and how they shut down without it; see test_ends.py, too."""

import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in
from processes import wait_until
from rref_counts import counts

# The promise: nothing of a dead worker is left so much later.
RECLAIMED = 5.0

# A shutdown without the dead, on a busy machine.
IN_ORDER = 10.0

# ---- what the workers run ----

_kept = []
_event = threading.Event()


def answer():
    return 42


def never():
    _event.wait()


def release():
    _event.set()


def create_on(owner, function=answer, args=()):
    _kept.append(rpc.remote(owner, function, args=args))


def create_and_confirm(owner):
    create_on(owner)
    _kept[-1].to_here()
    wait_until(lambda: counts()["pending_users"] == 0)  # the value may be there before the creation's answer


def keep(rref):
    _kept.append(rref)


def hand_on(owner, to):
    """Makes an RRef on `owner` and gives it to a third worker, which keeps it."""
    rref = rpc.remote(owner, answer)
    rref.to_here()
    rpc.rpc_sync(to, keep, (rref,))


def fetch():
    begin = time.monotonic()
    try:
        _kept[-1].to_here(timeout=60)
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    raise AssertionError("it did not fail")


def listed():
    return [(rref["role"], rref["owner"]) for rref in torchwire.rrefs()]


def is_clean():
    now = counts()
    return now["owners"] == now["forks"] == now["pending_users"] == now["pending_children"] == 0


def contexts():
    return torchwire.autograd_contexts()


def double(tensor):
    return tensor * 2


def double_far(tensor, to):
    return rpc.rpc_sync(to, double, (tensor,))


def open_context(to, then):
    """Opens a context that spreads to two others, and stays in it."""
    context = dist_autograd.context()
    context.__enter__()
    _kept.append(context)
    rpc.rpc_sync(to, double_far, (torch.ones(2, requires_grad=True), then))


class Hold(torch.autograd.Function):
    """Its backward does not end."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        _event.wait()
        return gradient


def hold(tensor):
    return Hold.apply(tensor)


def hold_far(tensor, to):
    return rpc.rpc_sync(to, hold, (tensor,))


def backward_through(near, far):
    with dist_autograd.context() as context:
        tensor = torch.ones(2, requires_grad=True)
        loss = rpc.rpc_sync(near, hold_far, (tensor, far)).sum()
        try:
            dist_autograd.backward(context, [loss])
        except RuntimeError as error:
            return str(error), time.monotonic()
    raise AssertionError("it did not fail")


def shut_down():
    begin = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - begin


# ---- reclaim ----


@pytest.fixture
def trio(tmp_path):
    """Three workers of a static group; those that a test leaves alive shut down gracefully, without an error."""
    with Group(3) as group:
        group.init(file_in(tmp_path))
        yield group
        survivors = [worker for worker in group if worker.is_alive()]
        pending = [worker.start(shut_down) for worker in survivors]
        for one in pending:
            assert one.result() < IN_ORDER


def test_an_owner_drops_what_another_user_has_handed_to_a_dead_worker(trio):
    trio[1].run(hand_on, "worker0", "worker2")
    wait_until(lambda: trio[0].run(counts)["forks"] == 1)
    trio[2].kill()
    wait_until(lambda: trio[0].run(is_clean) and trio[1].run(is_clean), RECLAIMED)


def keep_own(to):
    """Gives an RRef that this worker owns to another one, which keeps it."""
    rpc.rpc_sync(to, keep, (rpc.RRef(42),))


def test_what_an_owner_itself_has_given_to_a_dead_worker_does_not_hold_up_its_shutdown(trio):
    # It does not know to whom: that is found out at the shutdown, which the fixture times.
    trio[0].run(keep_own, "worker1")
    trio[0].run(keep_own, "worker2")
    trio[1].kill()


def test_an_owner_drops_what_a_dead_worker_was_about_to_create(trio):
    trio[1].run(create_on, "worker0", never)
    wait_until(lambda: trio[0].run(counts)["running_creations"] == 1)
    trio[1].kill()
    wait_until(lambda: "has died" in trio[0].output())
    trio[0].run(release)
    wait_until(lambda: trio[0].run(is_clean), RECLAIMED)


def test_a_fetch_that_waits_fails_when_the_owner_dies(trio):
    trio[1].run(create_on, "worker0", never)
    pending = trio[1].start(fetch)
    wait_until(lambda: trio[0].run(counts)["running_creations"] == 1)
    trio[0].kill()
    text, _ = pending.result(limit=RECLAIMED)
    assert "worker 'worker0' (rank 0)" in text


def test_contexts_of_a_dead_worker_are_released_everywhere(trio):
    trio[0].run(open_context, "worker1", "worker2")
    assert len(trio[1].run(contexts)) == len(trio[2].run(contexts)) == 1
    trio[0].kill()
    wait_until(lambda: trio[1].run(contexts) == trio[2].run(contexts) == [], RECLAIMED)


def test_a_pass_fails_when_a_third_dies_in_it(trio):
    pending = trio[0].start(backward_through, "worker1", "worker2")
    wait_until(lambda: any(c["backward"] for c in trio[1].run(contexts)))
    died = time.monotonic()
    trio[2].kill()
    text, when = pending.result()
    assert "worker2" in text
    assert when - died < 1
    wait_until(lambda: trio[1].run(contexts) == trio[0].run(contexts) == [], RECLAIMED)


def test_a_death_is_noticed_without_any_call(trio):
    # There is no link between the two.
    trio[1].kill()
    wait_until(lambda: "worker 'worker1' (rank 1) has died: its process" in trio[0].output())


# ---- shutdown ----


@pytest.mark.parametrize("victim", [0, 1, 2])
@pytest.mark.parametrize("when", ["before", "during"])
def test_survivors_shut_down_in_order_and_name_the_dead_once(tmp_path, victim, when):
    with Group(3) as group:
        group.init(file_in(tmp_path))
        survivors = [worker for rank, worker in enumerate(group) if rank != victim]
        for worker in survivors:
            worker.run(create_and_confirm, f"worker{victim}")
            group[victim].run(create_and_confirm, worker.name)
        if when == "before":
            group[victim].kill()
        pending = [worker.start(shut_down) for worker in survivors]
        if when == "during":
            group[victim].kill()
        for one in pending:
            assert one.result() < IN_ORDER
        for worker in survivors:
            sentence = f"shuts down without those that have died: worker 'worker{victim}' (rank {victim})"
            assert worker.output().count(sentence) == 1


def test_two_of_four_die_and_the_others_shut_down(tmp_path):
    with Group(4) as group:
        group.init(file_in(tmp_path))
        group[0].kill()
        first = group[1].start(shut_down)
        group[3].kill()
        assert group[2].run(shut_down) < IN_ORDER
        assert first.result() < IN_ORDER

"""RRefs of workers that leave without a graceful shutdown, or that go before a creation of theirs has come."""

import signal
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import Group, file_in, init
from processes import LIMIT, wait_until
from rref_counts import counts

SOON = LIMIT / 4  # s: far below the time-outs, of LIMIT and more
MANY = 50
HELD = []  # of a worker process: RRefs
ENTERED = threading.Event()  # a handler of this worker's is about to wait
OPEN = threading.Event()  # functions of this worker's may return
FIRST, SECOND = torch.zeros(1 << 18), torch.zeros(1 << 18)  # each too large to be under way beside the other


@pytest.fixture
def trio(request, tmp_path):
    """A group of three of which worker2 goes; nobody shuts it down in order. A static one, unless the test says."""
    kind = getattr(request, "param", "static")
    options = {"rpc_timeout": 2 * LIMIT, "max_bytes_in_flight": FIRST.nbytes * 3 // 2}
    with Group(3) as group:
        if kind == "dynamic":
            for worker in group:
                worker.run(init, file_in(tmp_path), **options)
        else:
            group.init(file_in(tmp_path), elastic=kind == "elastic", **options)
        yield group
        group.kill()


def kinds(*names):
    return pytest.mark.parametrize("trio", names, indirect=True)


# ---- what the workers run ----


def value():
    return torch.ones(3)


def keep(rref):
    HELD.append(rref)


def drop():
    HELD.clear()


def give():
    return rpc.RRef(value())


def hold_many(owner):
    """RRefs that it has created, that the owner has given to it, and that it has of another user's."""
    for _ in range(MANY):
        keep(rpc.remote(owner, value))
        keep(rpc.rpc_sync(owner, give))
    for rref in HELD:
        rref.to_here()


def pass_all_on(to):
    for rref in HELD:
        rpc.rpc_sync(to, keep, (rref,))


def hand_on(to):
    rpc.rpc_async(to, keep, (HELD.pop(),))


def held():
    return len(HELD)


def fetch():
    """The type and the text of what a fetch of the last RRef raises, and how long that takes."""
    return outcome(HELD[-1].to_here, LIMIT)


def run_backward():
    """The same for a backward pass that is to start from it."""
    with dist_autograd.context() as context:
        return outcome(HELD[-1].backward, context)


def outcome(function, *args):
    began = time.monotonic()
    try:
        function(*args)
    except Exception as error:
        return type(error).__name__, str(error), time.monotonic() - began
    return "", "", time.monotonic() - began


def when_open(*_):
    ENTERED.set()
    assert OPEN.wait(LIMIT)


def has_entered():
    return ENTERED.is_set()


def open_gate():
    OPEN.set()


def create_unsent(owner, user):
    """Gives `user` an RRef of `owner`'s whose creation waits for room behind another call."""
    rpc.rpc_async(owner, when_open, (FIRST,))
    rref = rpc.remote(owner, when_open, (SECOND,))
    rpc.rpc_sync(user, keep, (rref,))


def use_at_owner(owner):
    return outcome(rpc.rpc_sync, owner, wait_for, (HELD[-1],))


def wait_for(rref, timeout=LIMIT):
    ENTERED.set()
    return rref.to_here(timeout)


def go(worker, how):
    if how == "leaves":
        worker.run(rpc.shutdown, graceful=False)
    else:
        worker.kill()


def nothing_is_left(worker):
    return not any(worker.run(counts).values())


# ---- leaving ----


@kinds("static", "dynamic")
def test_what_a_worker_held_that_leaves_is_reclaimed(trio):
    owner, user, leaver = trio
    user.run(hold_many, owner.name)
    user.run(pass_all_on, leaver.name)
    leaver.run(hold_many, owner.name)
    assert owner.run(counts)["owners"] == 4 * MANY
    user.run(drop)
    wait_until(lambda: user.run(counts)["pending_children"] == 0)
    leaver.run(rpc.shutdown, graceful=False)
    wait_until(lambda: nothing_is_left(owner), SOON)
    assert nothing_is_left(user)


@kinds("dynamic")
def test_a_user_keeps_what_a_worker_that_leaves_has_handed_to_it(trio):
    owner, user, leaver = trio
    leaver.run(hold_many, owner.name)
    leaver.run(pass_all_on, user.name)
    leaver.run(rpc.shutdown, graceful=False)
    wait_until(lambda: owner.run(counts)["forks"] == 2 * MANY, SOON)
    assert user.run(fetch)[0] == ""


def test_an_rref_of_which_nobody_has_told_the_owner_in_time_fails_at_once(trio):
    owner, user, leaver = trio
    leaver.run(hold_many, owner.name)
    leaver.run(rpc.rpc_sync, user.name, held)  # so that they have a link
    user.signal(signal.SIGSTOP)  # so that it tells the owner only when that has reclaimed the RRef
    leaver.run(hand_on, user.name)
    leaver.run(rpc.shutdown, graceful=False)
    wait_until(lambda: owner.run(counts)["owners"] == 0, SOON)
    user.signal(signal.SIGCONT)
    wait_until(lambda: user.run(held) == 1, SOON)
    kind, text, seconds = user.run(fetch)
    assert kind == "WorkerUnreachable" and leaver.name in text
    assert seconds < SOON


# ---- before the creation has come ----


@pytest.mark.parametrize("trio, how", [("static", "dies"), ("dynamic", "leaves")], indirect=["trio"])
def test_who_waits_for_an_rref_hears_that_its_creator_is_gone(trio, how):
    owner, user, creator = trio
    creator.run(create_unsent, owner.name, user.name)
    at_owner = user.start(use_at_owner, owner.name)
    wait_until(lambda: owner.run(has_entered))
    go(creator, how)
    expected = "WorkerDied" if how == "dies" else "WorkerUnreachable"
    later = user.run(fetch), user.run(use_at_owner, owner.name), user.run(run_backward)
    for kind, text, seconds in (at_owner.result(), *later):
        assert kind == expected
        assert creator.name in text and "will not be" in text
        assert seconds < SOON
    owner.run(open_gate)
    user.run(drop)
    for worker in (owner, user):
        wait_until(lambda worker=worker: nothing_is_left(worker), SOON)


def use_for(seconds, owner):
    return outcome(rpc.rpc_sync, owner, wait_for, (HELD[-1], seconds))


def test_a_wait_for_an_rref_that_has_not_been_created_ends_with_its_time_out_or_its_creator(trio):
    owner, user, creator = trio
    creator.run(create_unsent, owner.name, user.name)
    kind, text, seconds = user.run(use_for, 0.5, owner.name)
    assert kind == "CallTimedOut" and "no value yet" in text
    assert 0.5 <= seconds < SOON
    waiting = user.start(fetch)
    assert not waiting.is_there(0.5)
    creator.kill()
    kind, text, seconds = waiting.result()
    assert kind == "WorkerDied" and creator.name in text
    assert seconds < SOON
    owner.run(open_gate)

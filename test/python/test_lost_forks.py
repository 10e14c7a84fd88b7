"""Forks that never reach anybody: in a message that cannot be sent, and in one that is lost."""

import gc
import time

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, file_in
from processes import LIMIT
from rref_counts import counts, wait_until_none_is_left
from torch.distributed.rpc import internal

SOON = LIMIT / 4  # s: libtorch's own waits take 100
HELD = []  # of a worker process: RRefs


def value():
    return torch.ones(3)


def echo(x):
    return x


def give_with_a_lambda(rref):
    return rref, lambda: None


def fail_to_pass_on(owner):
    """An RRef of this worker's, or of another one, beside what cannot be pickled: as an argument and as a result."""
    rref = rpc.remote(owner, value)
    rref.to_here()
    for call in (
        lambda: rpc.rpc_sync("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.rpc_async("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.remote("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.rpc_sync("worker1", give_with_a_lambda, (rref,)),
    ):
        with pytest.raises(Exception, match="pickle"):
            call()


@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_an_rref_beside_what_cannot_be_pickled_is_taken_back(pair, owner):
    pair[0].run(fail_to_pass_on, owner)
    pair.all(gc.collect)  # the errors know the calls
    wait_until_none_is_left(pair)


def lose_forks(owner):
    """As in messages that are lost with a session: whoever is to get the fork never hears of it."""
    for rref in (rpc.RRef(value()), rpc.remote(owner, value)):
        rref._get_future().wait() if not rref.is_owner() else None
        internal.serialize(rref)
    found = counts()
    assert found["forks"] and found["pending_children"]


def shut_down():
    began = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - began


def test_a_shutdown_does_not_wait_for_forks_that_are_lost(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group[0].run(lose_forks, "worker1")
        assert max(group.all(shut_down)) < SOON

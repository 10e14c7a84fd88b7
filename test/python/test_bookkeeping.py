"""Requests by which workers keep each other's books of RRefs do not fail: libtorch would end the process."""

import contextlib
import signal
import time

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in
from processes import wait_until

# libtorch sends such a request six times, with pauses of 13 s in all.
LONGER = 15.0

pytestmark = pytest.mark.slow

_kept = []


def keep_rref(to):
    rref = rpc.remote(to, torch.add, (torch.ones(2), 1))
    wait_until(rref.confirmed_by_owner)
    rref.to_here()
    _kept.append(rref)


def drop_rrefs():
    _kept.clear()


def held():
    return len(torchwire.rrefs())


def sum_of(tensor):
    return tensor.sum().item()


def call(to):
    return rpc.rpc_sync(to, sum_of, (torch.ones(2),))


@contextlib.contextmanager
def pair(folder, **options):
    with Group(2) as group:
        group.init(file_in(folder), **options)
        yield group


def test_a_user_outlives_that_it_cannot_tell_a_dead_owner_of_its_end(tmp_path):
    with pair(tmp_path) as group:
        group[0].run(keep_rref, "worker1")
        group[1].kill()
        group[0].run(drop_rrefs)
        time.sleep(LONGER)
        assert group[0].run(held) == 0
        group[0].run(rpc.shutdown)


def test_an_owner_that_cannot_be_reached_for_long_hears_of_it_later(tmp_path):
    # Without sessions, since with them it would be declared dead.
    with pair(tmp_path, session_timeout=0, rpc_timeout=2) as group:
        group[0].run(keep_rref, "worker1")
        group[1].signal(signal.SIGSTOP)
        try:
            group[0].run(drop_rrefs)
            time.sleep(LONGER)
            assert group[0].is_alive()
        finally:
            group[1].signal(signal.SIGCONT)
        wait_until(lambda: group[1].run(held) == 0)
        assert group[0].run(call, "worker1") == 2
        group.shut_down()

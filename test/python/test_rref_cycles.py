"""Objects that hold RRefs of each other's, across workers, so that none is ever dropped: shutdown waits for none.

libtorch would wait 100 s and more for the forks to go.
"""

import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import Group, file_in, init
from torch.distributed.nn.api.remote_module import RemoteModule

PROMPT = 2.0  # seconds

kept = []


class Holder:
    def __init__(self):
        self.held = []

    def hold(self, rref):
        self.held.append(rref)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.held = []

    hold = Holder.hold


class WithRemoteModule(torch.nn.Module):
    """Of which the other worker's module is an attribute."""

    def __init__(self, other):
        super().__init__()
        self.remote = RemoteModule(f"{other}/cpu", Module)

    def close_cycle(self, own):
        self.remote.get_module_rref().rpc_sync().hold(own)


def hold(holder, rref):
    holder.rpc_sync().hold(rref)


def keep_value(rref):
    kept.append(rref.local_value())


def add(a, b):
    return a + b


def two_owners(kind, left, right):
    a, b = rpc.remote(left, kind), rpc.remote(right, kind)
    hold(a, b)
    hold(b, a)
    return a, b


def caller_and_owner(kind, left, _):
    own = kind()
    a, b = rpc.RRef(own), rpc.remote(left, kind)
    own.hold(b)
    hold(b, a)
    return a, b


def itself_by_way_of_another(kind, left, _):
    a = rpc.remote(left, kind)
    hold(a, a)
    return (a,)


def three_workers(kind, left, right):
    own = kind()
    a, b, c = rpc.remote(left, kind), rpc.remote(right, kind), rpc.RRef(own)
    hold(a, b)
    hold(b, c)
    own.hold(a)
    return a, b, c


def values_in_globals(kind, left, right):
    a, b = two_owners(kind, left, right)
    for owner, rref in ((left, a), (right, b)):
        rpc.rpc_sync(owner, keep_value, (rref,))
    return a, b


def results_of_a_context(kind, left, right):
    a, b = two_owners(kind, left, right)
    ones = torch.ones(2, requires_grad=True)
    result = rpc.remote(left, add, (ones, ones))
    for holder in (a, b):
        hold(holder, result)
    return a, b, result, result.to_here().sum()


def remote_modules(_, left, right):
    modules = [RemoteModule(f"{worker}/cpu", Module) for worker in (left, right)]
    for one, other in (modules, modules[::-1]):
        hold(one.get_module_rref(), other.get_module_rref())
    return modules


def module_with_a_remote_module(_, left, right):
    rref = rpc.remote(left, WithRemoteModule, (right,))
    rref.rpc_sync().close_cycle(rref)
    return (rref,)


SHAPES = (
    two_owners,
    caller_and_owner,
    itself_by_way_of_another,
    three_workers,
    values_in_globals,
    results_of_a_context,
    remote_modules,
    module_with_a_remote_module,
)


def make_cycles(others, keeps):
    context = dist_autograd.context()
    context.__enter__()
    kept.append(context)  # which stays open
    for kind in (Holder, Module):
        for shape in SHAPES:
            rrefs = shape(kind, *others)
            if keeps:
                kept.extend(rrefs)


def timed_shutdown():
    begin = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - begin


@pytest.mark.parametrize("keeps", [False, True], ids=["dropped", "kept"])
@pytest.mark.parametrize("mode", ["static", "elastic", "dynamic"])
def test_shutdown_does_not_wait_for_cycles(tmp_path, mode, keeps):
    names = ["worker0", "worker1", "worker2"]
    with Group(len(names)) as group:
        if mode == "dynamic":
            for worker in group:
                worker.run(init, file_in(tmp_path))
        else:
            group.init(file_in(tmp_path), elastic=mode == "elastic")
        for name, worker in zip(names, group):
            worker.run(make_cycles, [other for other in names if other != name], keeps)
        assert max(group.all(timed_shutdown)) < PROMPT

"""RRefs in results that come too late, and behind what cannot be unpickled: nobody holds them, so none is left."""

import gc
import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in
from processes import LIMIT
from rref_counts import wait_until_none_is_left
from torchwire import unread_rrefs

TOO_SHORT = 0.2  # s: the time-out of a call that is not answered until it is over
OWNERS = ["worker0", "worker1", "worker2"]  # the caller, the callee, another one

_waits = threading.Event()
_released = threading.Event()
_kept = []


@pytest.fixture(scope="module")
def trio(tmp_path_factory):
    with Group(3) as group:
        group.init(file_in(tmp_path_factory.mktemp("unread")))
        yield group


def value():
    return torch.ones(3, requires_grad=True)


def await_the_function():
    assert _waits.wait(LIMIT)


def release():
    """Lets the function go on that waits on this worker, or will soon."""
    await_the_function()
    _waits.clear()
    _released.set()


def forget():
    _kept.clear()


def rref_of(owner):
    if rpc.get_worker_info().name == owner:
        return rpc.RRef(value())
    rref = rpc.remote(owner, value)
    rref.to_here()
    return rref


# ---- a result that nobody waits for ------------------------------------------------------------


def give_late(owner, tensor=None):
    """An RRef of the owner's, once the caller has given up."""
    rref = rref_of(owner)
    _waits.set()
    assert _released.wait(LIMIT)
    _released.clear()
    return {"rref": rref, "again": [rref], "and": (tensor, torch.ones(2), rref_of(owner))}


def waits_in_vain(wait):
    with pytest.raises(RuntimeError):
        wait(TOO_SHORT)


def call(owner):
    waits_in_vain(lambda timeout: rpc.rpc_sync("worker1", give_late, (owner,), timeout=timeout))


def call_in_context(owner):
    with dist_autograd.context():
        waits_in_vain(lambda timeout: rpc.rpc_sync("worker1", give_late, (owner, value()), timeout=timeout))


def cancel(owner):
    future = rpc.rpc_async("worker1", give_late, (owner,))
    rpc.rpc_sync("worker1", await_the_function)
    assert torchwire.cancel(future)


def fetch(owner):
    rref = rpc.remote("worker1", give_late, (owner,))
    waits_in_vain(rref.to_here)
    _kept.append(rref)  # until the value is there: the fetch is answered then


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("way", [call, call_in_context, cancel, fetch], ids=lambda way: way.__name__)
def test_rrefs_in_a_result_that_comes_too_late(trio, way, owner):
    trio[0].run(way, owner)
    trio[1].run(release)
    if way is fetch:
        trio[0].run(fetch_again)
    trio.all(forget)
    wait_until_none_is_left(trio, collects=True)


def fetch_again():
    _kept.pop().to_here()


# ---- what cannot be unpickled ------------------------------------------------------------------


class Failing:
    """Cannot be unpickled on worker1, and as a result not on worker0."""

    def __init__(self, error, where):
        self.error = error
        self.where = where

    def __getstate__(self):
        return {"error": self.error, "where": self.where}

    def __setstate__(self, state):
        if rpc.get_worker_info().name == state["where"]:
            raise state["error"]("on purpose")
        self.__dict__.update(state)


def take(*_args):
    pass


def give_failing(error, owner):
    return rref_of(owner), Failing(error, "worker0"), rref_of(owner)


def send_failing(error, owner):
    arguments = (rref_of(owner), Failing(error, "worker1"), rref_of(owner))
    for attempt in (
        lambda: rpc.rpc_sync("worker1", take, arguments),
        lambda: rpc.rpc_async("worker1", take, arguments).wait(),
        lambda: rpc.remote("worker1", take, arguments).to_here(),
    ):
        with pytest.raises(Exception, match="on purpose"):
            attempt()


def receive_failing(error, owner):
    with pytest.raises(Exception, match="on purpose"):
        rpc.rpc_sync("worker1", give_failing, (error, owner))
    with pytest.raises(Exception, match="on purpose"):
        rpc.remote("worker1", give_failing, (error, owner)).to_here()


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("error", [ValueError, AttributeError, SystemExit, torchwire.RpcError])
@pytest.mark.parametrize("way", [send_failing, receive_failing], ids=lambda way: way.__name__)
def test_rrefs_on_both_sides_of_what_cannot_be_unpickled(trio, way, error, owner):
    """The callee drops them at once: a worker that nothing is asked of collects no garbage."""
    trio[1].run(gc.disable)
    trio[0].run(way, error, owner)
    trio[0].run(gc.collect)  # pytest.raises() keeps the error
    wait_until_none_is_left(trio)
    trio[1].run(gc.enable)


def unpack(*serialized):
    return rpc.internal.deserialize(*serialized)


class Packed:
    """Is pickled as a value of its own, in the middle of another."""

    def __init__(self, kept):
        self.kept = kept

    def __reduce__(self):
        return unpack, rpc.internal.serialize(self.kept)


def send_packed_then_failing(owner):
    with pytest.raises(Exception, match="on purpose"):
        rpc.rpc_sync("worker1", type, ([Packed(rref_of(owner)), Failing(ValueError, "worker1"), rref_of(owner)],))


@pytest.mark.parametrize("owner", OWNERS)
def test_rrefs_of_a_pickle_within_another_are_not_counted_for_it(trio, owner):
    trio[0].run(send_packed_then_failing, owner)
    wait_until_none_is_left(trio, collects=True)


# ---- what is read of a pickle ------------------------------------------------------------------


class Loud:
    """Whose code must not run."""

    ran = []

    def __reduce__(self):
        return Loud.ran.append, ("called",)


class Mapping(dict):
    pass


def drop_among_everything():
    rref = rpc.RRef(value())
    everything = [Loud(), Mapping(a=rref), {rref.is_owner(): {1, 2}}, b"x" * 100_000, (rref, Loud()), torch.ones(2)]
    pickled, _ = rpc.internal.serialize(everything)
    unread_rrefs.drop(pickled)
    assert not Loud.ran


def test_no_code_of_a_pickle_that_nobody_reads_runs(trio):
    trio[0].run(drop_among_everything)
    wait_until_none_is_left(trio, collects=True)


def test_a_pickle_that_cannot_be_read_is_no_error(caplog):
    with caplog.at_level("DEBUG", "torchwire.unread_rrefs"):
        unread_rrefs.drop(b"\x80\x04 no pickle, but _py_rref_receiver")
    assert "may stay" in caplog.text

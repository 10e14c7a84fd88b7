"""What a signal's handler raises in a call, at whatever place, is raised, and leaves no RRef and no context behind."""

import gc

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in
from interruption import Raising, interrupted_everywhere, raise_once, raise_timed_out
from rref_counts import wait_until_none_is_left


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with Group(2) as group:
        group.init(file_in(tmp_path_factory.mktemp("interruption")))
        yield group
        group.shut_down()


class Counter:
    def count(self, /, **_options):
        return 1


def rref_of(value):
    return rpc.RRef(value)


def fetch(rref):
    return rref.to_here()


def call_for_rref():
    assert rpc.rpc_sync("worker1", rref_of, (5,)).to_here() == 5


def call_for_rref_later():
    assert rpc.rpc_async("worker1", rref_of, (5,)).wait().to_here() == 5


def create():
    assert rpc.remote("worker1", int, (5,)).to_here() == 5


def pass_on():
    assert rpc.rpc_sync("worker1", fetch, (rpc.remote("worker1", int, (5,)),)) == 5


def call_by_proxy():
    assert rpc.remote("worker1", Counter).rpc_sync().count() == 1


def call_by_proxy_later():
    assert rpc.remote("worker1", Counter).rpc_async().count().wait() == 1


def create_by_proxy():
    assert rpc.remote("worker1", Counter).remote().count().to_here() == 1


def fail_by_proxy():
    try:
        rpc.remote("worker1", Counter).rpc_async().missing().wait()
    except AttributeError:
        pass
    else:
        raise AssertionError("it returned")


def call_by_proxy_and_go_on():
    counter = rpc.remote("worker1", Counter)
    counter.rpc_sync().count()
    counter.rpc_async().count()
    rpc.rpc_sync("worker1", int)


def fail():
    raise ValueError("on purpose")


def create_what_fails():
    try:
        rpc.remote("worker1", fail).to_here()
    except ValueError:
        pass
    else:
        raise AssertionError("it returned")


class Unreadable:
    def __setstate__(self, state):
        raise ValueError(state)

    def __getstate__(self):
        return "on purpose"


def give_unreadable():
    return Unreadable(), rpc.RRef(1), rpc.RRef(2)


def drop_what_cannot_be_read():
    try:
        rpc.rpc_sync("worker1", give_unreadable)
    except ValueError:
        pass
    else:
        raise AssertionError("it returned")


def scalar():
    return torch.ones(1, requires_grad=True).sum()


def backward_pass_of_an_rref():
    with dist_autograd.context() as context:
        rpc.remote("worker1", scalar).backward(context)


def backward_pass():
    with dist_autograd.context() as context:
        root = torch.ones(3, requires_grad=True)
        product = rpc.rpc_sync("worker1", torch.mul, (root, root))
        dist_autograd.backward(context, [product.sum()])
        assert dist_autograd.get_gradients(context)[root].tolist() == [2.0] * 3


WAYS = [
    call_for_rref,
    call_for_rref_later,
    create,
    pass_on,
    call_by_proxy,
    call_by_proxy_later,
    create_by_proxy,
    fail_by_proxy,
    call_by_proxy_and_go_on,
    create_what_fails,
    drop_what_cannot_be_read,
    backward_pass_of_an_rref,
    backward_pass,
]


STEPS = {drop_what_cannot_be_read: 13}  # whose error is pickled: that has many places


def interrupt_everywhere(way, handler=None):
    way()  # what is done the first time alone is done
    gc.disable()
    try:
        places = interrupted_everywhere(way, STEPS.get(way, 1), handler)
    finally:
        gc.enable()
    assert places > 20
    assert torchwire.autograd_contexts() == []
    with dist_autograd.context():  # which the thread would not enter while it is in another one
        pass


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_an_interrupt_anywhere(pair, way):
    pair[0].run(interrupt_everywhere, way)
    wait_until_none_is_left(pair, collects=True)


@pytest.mark.parametrize("handler", [Raising(), raise_timed_out, raise_once], ids=["object", "Exception", "once"])
@pytest.mark.parametrize("way", [call_for_rref, create_what_fails], ids=lambda way: way.__name__)
def test_an_interrupt_by_a_handler_of_another_kind(pair, way, handler):
    pair[0].run(interrupt_everywhere, way, handler)
    wait_until_none_is_left(pair, collects=True)


# ---- errors that are kept ----------------------------------------------------------------------


def call_missing_methods():
    rref = rpc.remote("worker1", Counter)
    for call in (rref.rpc_sync, rref.remote):
        with pytest.raises(AttributeError, match="missing"):
            call().missing()
    future = rref.rpc_async().missing()
    with pytest.raises(AttributeError, match="missing"):
        future.wait()
    assert rref.rpc_async().count().wait() == 1


def test_a_proxys_call_that_fails_keeps_no_rref(pair):
    pair[0].run(call_missing_methods)
    wait_until_none_is_left(pair, collects=True)


def call_with_every_name():
    names = dict.fromkeys(("rref", "rpc_api", "method", "name", "func_name", "timeout", "self", "kwargs"), 1)
    rref = rpc.remote("worker1", Counter)
    future = rref.rpc_async().count(**names)
    assert isinstance(future, torch.futures.Future)
    return rref.rpc_sync().count(**names), future.wait(), rref.remote().count(**names).to_here()


def test_a_proxys_arguments_may_have_any_name(pair):
    assert pair[0].run(call_with_every_name) == (1, 1, 1)


def enter_without_a_context():
    for method in (dist_autograd.context.__enter__, dist_autograd.context.__exit__):
        with pytest.raises(TypeError, match="method of"):
            method()


class Slotted(dist_autograd.context):
    def __setattr__(self, name, value):
        raise ValueError(name)


def enter_what_takes_no_attribute():
    with pytest.raises(ValueError, match="autograd_context"):
        Slotted().__enter__()
    assert torchwire.autograd_contexts() == []
    with dist_autograd.context():
        pass


@pytest.mark.parametrize("function", [enter_without_a_context, enter_what_takes_no_attribute])
def test_a_context_that_cannot_be_entered(pair, function):
    pair[0].run(function)


def give_no_class():
    class Local:
        pass

    Local.__qualname__ = "Nowhere"
    return Local()


def call_of_a_class_that_is_not_here():
    rref = rpc.remote("worker1", give_no_class)
    for call in (rref.rpc_sync, rref.remote):
        with pytest.raises(RuntimeError, match="Nowhere"):
            call().count()
    with pytest.raises(RuntimeError, match="Nowhere"):
        rref.rpc_async().count().wait()


def test_a_type_that_cannot_be_read_keeps_no_rref(pair):
    pair[0].run(call_of_a_class_that_is_not_here)
    wait_until_none_is_left(pair, collects=True)

"""A pickler of the program's, by PyTorch's _use_rpc_pickler: on both sides, for requests and for results."""

import collections
import contextlib
import gc
import io
import sys
import types

import cloudpickle
import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import running
from processes import wait_until
from pytorchs_way import pytorchs_way
from torch.distributed.rpc import api, internal


class _Pickler(cloudpickle.CloudPickler):
    def __init__(self, file, reducers):
        self.dispatch_table = collections.ChainMap(reducers, cloudpickle.CloudPickler.dispatch_table)
        super().__init__(file)  # which looks for that


class CloudPickler(internal._InternalRPCPickler):
    """As in docs/migrating.md."""

    def serialize(self, obj):
        reducers = {
            torch.Tensor: self._tensor_reducer,
            rpc.PyRRef: self._py_rref_reducer,
            rpc.RRef: self._rref_reducer,
            types.MethodType: lambda method: (getattr, (method.__self__, method.__name__)),
            **internal._internal_rpc_pickler._class_reducer_dict,
        }
        file, tables = io.BytesIO(), internal._thread_local_tensor_tables
        outer, tables.send_tables = getattr(tables, "send_tables", None), []
        try:
            _Pickler(file, reducers).dump(obj)
            return file.getvalue(), tables.send_tables
        finally:
            if outer is None:
                del tables.send_tables
            else:
                tables.send_tables = outer


_entered = contextlib.ExitStack()


def enter():
    _entered.enter_context(api._use_rpc_pickler(CloudPickler()))


def leave():
    _entered.close()


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("group")) as group:
        group.all(enter)
        yield group
        group.all(leave)


# ---- what they send ----


def own_module():
    """A module that no other process has, with a function, a class and an exception."""
    module = types.ModuleType("__main__")  # by which cloudpickle knows that it has to send what is in it
    source = """
class Own:
    def __init__(self, value):
        self.value = value
    def doubled(self):
        return Own(self.value * 2)

class OwnError(Exception):
    pass

def double(own):
    return own.doubled()

def fail(own):
    raise OwnError(own.value)
"""
    exec(source, module.__dict__)
    return module


def sync(function, *args):
    return rpc.rpc_sync("worker1", function, args)


def waiting(function, *args):
    return rpc.rpc_async("worker1", function, args).wait()


def fetching(function, *args):
    return rpc.remote("worker1", function, args).to_here()


def pytorchs(function, *args):
    with pytorchs_way():
        return sync(function, *args)


class Holder:
    def call(self, function, *args):
        return function(*args)


def by_proxy(function, *args):
    return rpc.remote("worker1", Holder).rpc_sync().call(function, *args)


def in_a_context(function, *args):
    with torch.distributed.autograd.context():
        return sync(function, *args)


def to_itself(function, *args):
    return rpc.rpc_sync("worker0", function, args)


each_way = pytest.mark.parametrize(
    "way", [sync, waiting, fetching, pytorchs, by_proxy, in_a_context, to_itself], ids=lambda way: way.__name__
)


def call_lambda(way):
    offset = torch.ones(2)
    return way(lambda x: x + offset, torch.ones(2)).tolist()


@each_way
def test_a_lambda_is_sent(pair, way):
    assert pair[0].run(call_lambda, way) == [2, 2]


def call_own(way):
    own = own_module()
    return way(own.double, own.Own(torch.ones(2))).value.tolist()


@each_way
def test_arguments_and_results_are_of_classes_that_only_the_caller_has(pair, way):
    assert pair[0].run(call_own, way) == [2, 2]


def make_own():
    return own_module().Own(3)


def value_of_own(way):
    return way(make_own).value


@each_way
def test_a_result_is_of_a_class_that_only_the_callee_has(pair, way):
    assert pair[0].run(value_of_own, way) == 3


def failure(way):
    own = own_module()
    try:
        way(own.fail, own.Own(3))
    except RuntimeError as error:
        original = getattr(error, "original", None)
        return type(error).__name__, str(error), original and original.args
    raise AssertionError("it did not fail")


@each_way
def test_an_exception_of_a_class_that_only_the_caller_has_is_raised(pair, way):
    name, text, args = pair[0].run(failure, way)
    assert "OwnError(3)" in text
    if way is not pytorchs:  # which makes a RuntimeError
        assert (name, args) == ("OwnError", (3,))


def pass_rref(way):
    rref = rpc.RRef(torch.ones(2))
    return way(lambda passed: passed.to_here() + 1, rref).tolist()


@each_way
def test_rrefs_are_sent(pair, way):
    assert pair[0].run(pass_rref, way) == [2, 2]


def fail_with_an_rref():
    error = KeyError("with an RRef")
    error.rref = rpc.RRef(torch.ones(2))
    raise error


def failure_with_an_rref(way):
    try:
        way(fail_with_an_rref)
    except RuntimeError as error:
        return str(error), hasattr(error, "rref")
    raise AssertionError("it did not fail")


@pytest.mark.parametrize("way", [sync, fetching], ids=lambda way: way.__name__)
def test_an_rref_in_an_exception_is_not_sent(pair, way):
    text, has_rref = pair[0].run(failure_with_an_rref, way)
    assert "with an RRef" in text and not has_rref
    wait_until(lambda: pair[1].run(rrefs) == 0)  # the user's end is told once the error is


def rrefs():
    gc.collect()
    return len(torchwire.rrefs())


# ---- picklers that are not whole ----


class Half:
    """PyTorch asks for serialize() of requests alone, and its own tests use one without."""

    def serialize(self, obj):
        return internal._internal_rpc_pickler.serialize(obj)


def with_half():
    with api._use_rpc_pickler(Half()):
        return [sync(make_half), fetching(make_half)]


def make_half():
    return sys.modules[__name__].Half


@pytest.fixture(scope="module")
def another_pair(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("another")) as group:
        yield group


def test_what_a_pickler_lacks_is_pytorchs(another_pair):
    assert another_pair[0].run(with_half) == [Half, Half]


def test_without_it_a_result_of_the_callees_own_class_is_an_error(another_pair):
    with pytest.raises(Exception, match="Own"):
        another_pair[0].run(value_of_own, sync)

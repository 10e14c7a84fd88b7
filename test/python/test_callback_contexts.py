"""Calls that a callback of a future makes belong to the autograd context in which the callback was added."""

import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import running

LIMIT = 20  # seconds


@pytest.fixture(scope="module", params=["smart", "fast"])
def pair(request, tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("group"), backward_mode=request.param) as group:
        yield group


# ---- what the workers run ----


def leaves():
    return [torch.tensor([float(i), i + 1.0], requires_grad=True) for i in (2, 3, 4)]


def multiply(a, b):
    return a * b


def gradients(root, context, leaves):
    dist_autograd.backward(context, [root.sum()])
    found = dist_autograd.get_gradients(context)
    return [found[leaf].tolist() if leaf in found else None for leaf in leaves]


EXPECTED = [[12.0, 20.0], [8.0, 15.0], [6.0, 12.0]]  # of a * b * c: what the two others make


def by_then(function):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        future = rpc.rpc_async("worker1", function, (a, b))
        product = future.then(lambda done: rpc.rpc_sync("worker1", function, (done.wait(), c)))
        return gradients(product.wait(), context, [a, b, c])


def by_a_chain(function):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        future = rpc.rpc_async("worker1", function, (a, b)).then(lambda done: done.wait())
        product = future.then(lambda done: rpc.rpc_async("worker1", function, (done.wait(), c)).wait())
        return gradients(product.wait(), context, [a, b, c])


def by_done_callback(function):
    a, b, c = leaves()
    products, ended = [], threading.Event()

    def callback(done):
        products.append(rpc.rpc_sync("worker1", function, (done.wait(), c)))
        ended.set()

    with dist_autograd.context() as context:
        rpc.rpc_async("worker1", function, (a, b)).add_done_callback(callback)
        assert ended.wait(LIMIT)
        return gradients(products[0], context, [a, b, c])


def by_collect_all(function):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        futures = torch.futures.collect_all([rpc.rpc_async("worker1", function, (a, b))])
        product = futures.then(lambda done: rpc.rpc_sync("worker1", function, (done.wait()[0].wait(), c)))
        return gradients(product.wait(), context, [a, b, c])


@rpc.functions.async_execution
def multiply_there(a, b, c):
    future = rpc.rpc_async("worker0", multiply, (a, b))
    return future.then(lambda done: rpc.rpc_sync("worker0", multiply, (done.wait(), c)))


def by_the_callee(_):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        return gradients(rpc.rpc_sync("worker1", multiply_there, (a, b, c)), context, [a, b, c])


def context_id(_=None):
    try:
        return dist_autograd._current_context()._context_id()
    except RuntimeError:
        return None


def wait_for_release():
    assert _released.wait(LIMIT)


_released = threading.Event()


def release():
    _released.set()


def in_a_released_context():
    """In which context a callback runs, and what a call gets that it makes, when its own has been released."""
    with dist_autograd.context():
        future = rpc.rpc_async("worker1", wait_for_release)
        seen = future.then(lambda _: (context_id(), rpc.rpc_sync("worker1", torch.add, (torch.ones(1), 1)).item()))
    with dist_autograd.context():  # which is not the callback's either
        rpc.rpc_sync("worker1", release)
        return seen.wait()


def outside_of_any():
    future = rpc.rpc_async("worker1", torch.add, (torch.ones(1), 1))
    added_outside = future.then(context_id)
    with dist_autograd.context() as context:
        added_inside = future.then(context_id)
        assert added_inside.wait() == context
        assert context_id() == context
    assert context_id() is None
    return added_outside.wait()


# ---- tests ----


@pytest.mark.parametrize("function", [torch.mul, multiply])
@pytest.mark.parametrize("way", [by_then, by_a_chain, by_done_callback, by_collect_all, by_the_callee])
def test_gradients_flow_through_the_calls_of_a_callback(pair, way, function):
    for _ in range(5):
        assert pair[0].run(way, function) == EXPECTED


def test_a_callback_whose_context_has_been_released_runs_in_none(pair):
    assert pair[0].run(in_a_released_context) == (None, 2.0)


def test_a_callback_that_is_added_outside_of_any_runs_in_none(pair):
    assert pair[0].run(outside_of_any) is None

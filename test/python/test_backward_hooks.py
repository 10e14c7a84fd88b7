"""Hooks that block, hooks that start passes of their own, and what becomes of a pass that is ended under a hook."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from backward_steps import (
    doubled,
    error_of,
    expect_no_passes,
    release,
    running_passes,
    wait_in_backward,
    wait_until_entered,
)
from group import Group, file_in, running
from processes import wait_until

CALLBACKS = []  # final callbacks that have run

# ---- what the workers run ----


def gradient_of(context, tensor):
    return dist_autograd.get_gradients(context)[tensor].tolist()


def start_another_pass_in_a_hook():
    """The gradients of a pass, and of one that a hook has started in another context and waited for."""
    leaf = torch.ones(2, requires_grad=True)
    inner = []

    def hook(gradient):
        with torch.enable_grad(), dist_autograd.context() as other:
            dist_autograd.backward(other, [rpc.rpc_sync("worker1", doubled, (leaf,)).sum()])
            inner.extend(gradient_of(other, leaf))

    with dist_autograd.context() as context:
        hooked = leaf * 1
        hooked.register_hook(hook)
        dist_autograd.backward(context, [rpc.rpc_sync("worker1", doubled, (hooked,)).sum()])
        return gradient_of(context, leaf), inner


def fetch(rref):
    return rref.to_here()


def doubled_with_a_hook_that_asks_back(tensor):
    """Its hook waits for worker0, which waits for an RRef's value from here."""
    five = rpc.RRef(torch.tensor(5.0))
    result = tensor * 2
    result.register_hook(lambda gradient: gradient * rpc.rpc_sync("worker0", fetch, (five,)))
    return result


def pass_through_such_a_hook():
    leaf = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        result = rpc.rpc_sync("worker1", doubled_with_a_hook_that_asks_back, (leaf,))
        dist_autograd.backward(context, [result.sum()])
        return gradient_of(context, leaf)


def queue_callback_and_wait():
    """The error of a pass in which a hook queues a final callback before a function waits."""
    # On a thread of its own, which takes the number of the released context with it.
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(_queue_callback_and_wait).result()


def _queue_callback_and_wait():
    leaf = torch.ones(2, requires_grad=True)
    context = dist_autograd._new_context()._context_id()
    waiting = wait_in_backward(leaf * 1)
    hooked = waiting * 1
    engine = torch.autograd.Variable._execution_engine
    hooked.register_hook(lambda gradient: engine.queue_callback(lambda: CALLBACKS.append(context)))
    return error_of(dist_autograd.backward, context, [hooked.sum()])[0]


def release_contexts():
    for context in torchwire.autograd_contexts():
        dist_autograd._release_context(context["id"])


def callbacks():
    return len(CALLBACKS)


_kept = []


def start_from(owner):
    """A pass whose root is `owner`, and which waits here."""
    leaf = torch.ones(2, requires_grad=True)
    sent = wait_in_backward(leaf * 1)
    context = dist_autograd._new_context()._context_id()
    _kept[:] = [context, leaf]
    rref = rpc.remote(owner, doubled_sum, (sent,))
    return error_of(rref.backward, context)[0]


def doubled_sum(tensor):
    return (tensor * 2).sum()


def another_pass(to):
    context, leaf = _kept
    dist_autograd.backward(context, [rpc.rpc_sync(to, doubled, (leaf,)).sum()])
    return gradient_of(context, leaf)


# ---- tests ----


@pytest.fixture
def pair_with_one_thread(tmp_path):
    with running(2, tmp_path, num_worker_threads=1, rpc_timeout=20) as group:
        yield group


class TestAHook:
    def test_may_start_a_pass_in_another_context(self, pair_with_one_thread):
        assert pair_with_one_thread[0].run(start_another_pass_in_a_hook) == ([2.0, 2.0], [2.0, 2.0])

    def test_may_wait_for_what_its_own_worker_serves(self, pair_with_one_thread):
        assert pair_with_one_thread[0].run(pass_through_such_a_hook) == [10.0, 10.0]


def test_a_pass_that_is_ended_runs_no_final_callbacks(tmp_path):
    with running(2, tmp_path) as group:
        failing = group[0].start(queue_callback_and_wait)
        group[1].run(end_pass_of_worker0)
        assert "was released" in failing.result()
        group[0].run(release)
        expect_no_passes(group)
        assert group[0].run(callbacks) == 0


def end_pass_of_worker0():
    """Runs on another worker, since worker0's main thread is in the pass."""
    rpc.rpc_sync("worker0", wait_until_entered)
    rpc.rpc_sync("worker0", release_contexts)


def test_a_root_that_dies_leaves_the_context_to_others(tmp_path):
    with Group(3) as group:
        group.init(file_in(tmp_path), rpc_timeout=20)
        failing = group[0].start(start_from, "worker1")
        group[2].run(wait_for_worker0)
        group[1].kill()
        assert "worker1" in failing.result()
        wait_until(lambda: group[0].run(running_passes) == 0, 10)
        group[0].run(release)
        assert group[0].run(another_pass, "worker2") == [2.0, 2.0]


def wait_for_worker0():
    rpc.rpc_sync("worker0", wait_until_entered)

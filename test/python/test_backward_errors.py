"""Backward passes that fail: what the root is told, and that nothing of them stays behind."""

import contextlib
import re

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from backward_modes import FAST, SMART
from backward_steps import (
    along,
    doubled,
    error_of,
    expect_no_passes,
    expect_nothing_left,
    fail_in_backward,
    fail_in_hook,
    release,
    relent,
    running_passes,
    wait_in_backward,
    wait_until_entered,
)
from group import Group, file_in, running
from processes import wait_until

# A failure comes at once; the limit leaves room for a busy machine and is far from the time-out.
QUICKLY = 3.0
RPC_TIMEOUT = 30.0

WAYS = [["worker1"], ["worker1", "worker2", "worker3"]]

# ---- what worker0 runs ----


def fail_along(workers, function):
    """The error of a pass whose gradients go along these workers, the last of which has `function`."""
    with dist_autograd.context() as context:
        result = along(workers, function, torch.ones(2, requires_grad=True))
        return error_of(dist_autograd.backward, context, [result.sum()])


def fail_here():
    with dist_autograd.context() as context:
        result = rpc.rpc_sync("worker1", doubled, (fail_in_backward(torch.ones(2, requires_grad=True)),))
        return error_of(dist_autograd.backward, context, [result.sum()])


def fail_between(before, function, after):
    """As fail_along, but gradients have a way before them and one behind."""
    with dist_autograd.context() as context:
        late = along(after, doubled, torch.ones(2, requires_grad=True))
        result = along(before, function, late)
        return error_of(dist_autograd.backward, context, [result.sum()])


def fail_everywhere():
    with dist_autograd.context() as context:
        a = torch.ones(2, requires_grad=True)
        pending = [rpc.rpc_async(f"worker{rank}", fail_in_backward, (a,)) for rank in (1, 2, 3) * 3]
        return error_of(dist_autograd.backward, context, [sum(one.wait() for one in pending).sum()])


def sum_along(workers, function, tensor):
    return along(workers, function, tensor).sum()


def fail_from_rref(owner, workers):
    with dist_autograd.context() as context:
        a = torch.ones(2, requires_grad=True)
        rref = rpc.remote(owner, sum_along, (workers, fail_in_backward, a))
        return error_of(rref.backward, context)


@torch.jit.script
def scripted_backward(context_id: int, roots: list[torch.Tensor]):
    dist_autograd.backward(context_id, roots)


def fail_from_script(workers):
    with dist_autograd.context() as context:
        result = along(workers, fail_in_backward, torch.ones(2, requires_grad=True))
        return error_of(scripted_backward, context, [result.sum()])


def fail_then_succeed(workers):
    a = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        result = along(workers, fail_in_backward, a).sum()
        rpc.rpc_sync(workers[-1], relent, (False,))
        text, _ = error_of(dist_autograd.backward, context, [result], True)
        rpc.rpc_sync(workers[-1], relent)
        dist_autograd.backward(context, [result])
        rpc.rpc_sync(workers[-1], relent, (False,))
        return text, dist_autograd.get_gradients(context)[a].tolist()


def succeed_along(workers):
    a = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [along(workers, doubled, a).sum()])
        return dist_autograd.get_gradients(context)[a].tolist()


# ---- callees that raise ----


@pytest.fixture(scope="module", params=[SMART, FAST], ids=["smart", "fast"])
def shared_group(request, tmp_path_factory):
    with running(4, tmp_path_factory.mktemp("group"), rpc_timeout=RPC_TIMEOUT, **request.param) as group:
        yield group


@pytest.fixture
def group(shared_group):
    """Four workers; afterwards nothing is left on them of the failed passes, and others run."""
    yield shared_group
    expect_nothing_left(shared_group)
    assert shared_group[0].run(succeed_along, WAYS[-1]) == [2.0**4] * 2


def expect_error(error, worker, function="FailingBackward"):
    text, seconds = error
    print(text)
    assert re.match(r"Error on Node [0-9]+: .*no gradient today", text, re.DOTALL)
    assert f"worker '{worker}'" in text
    assert re.search(function, text)
    assert "Traceback (most recent call last)" in text and re.search("in (backward|hook)\n", text)
    assert "ValueError: no gradient today" in text
    assert seconds < QUICKLY


@pytest.mark.parametrize("workers", WAYS, ids=["one hop", "three hops"])
class TestACalleeThatRaises:
    def test_in_an_autograd_function_is_named_with_its_traceback(self, group, workers):
        expect_error(group[0].run(fail_along, workers, fail_in_backward), workers[-1])

    def test_in_a_hook_is_named_with_its_traceback(self, group, workers):
        expect_error(group[0].run(fail_along, workers, fail_in_hook), workers[-1], "in a hook|MulBackward0")

    def test_fails_a_pass_that_torchscript_began(self, group, workers):
        text, seconds = group[0].run(fail_from_script, workers)
        assert "no gradient today" in text and f"worker '{workers[-1]}'" in text
        assert seconds < QUICKLY

    def test_leaves_the_context_fit_for_another_pass(self, group, workers):
        text, gradients = group[0].run(fail_then_succeed, workers)
        assert "no gradient today" in text
        assert gradients == [2.0 ** len(workers)] * 2


def test_the_root_itself_is_named_when_it_raises(group):
    expect_error(group[0].run(fail_here), "worker0")


def test_a_failure_ends_the_pass_on_workers_that_it_had_not_come_to(group):
    expect_error(group[0].run(fail_between, ["worker1"], fail_in_backward, ["worker2", "worker3"]), "worker1")


def test_of_many_failures_the_root_is_told_one(group):
    text, seconds = group[0].run(fail_everywhere)
    assert re.match("Error on Node [1-3]: .*no gradient today", text, re.DOTALL)
    assert seconds < QUICKLY


@pytest.mark.parametrize("workers", [["worker2"], ["worker2", "worker3"], ["worker0"]])
def test_a_failure_reaches_who_asked_for_a_pass_from_an_rref(group, workers):
    text, seconds = group[0].run(fail_from_rref, "worker1", workers)
    assert "no gradient today" in text and f"worker '{workers[-1]}'" in text
    assert seconds < QUICKLY


def test_no_pass_runs_once_the_root_has_been_told(group):
    for _ in range(10):
        group[0].run(fail_along, WAYS[-1], fail_in_backward)
        expect_no_passes(group)


# ---- workers that die ----


@contextlib.contextmanager
def mortals(size, folder, mode):
    """Those that are left shut down without waiting for the dead."""
    with Group(size) as group:
        group.init(file_in(folder), rpc_timeout=RPC_TIMEOUT, **mode)
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(rpc.shutdown, graceful=False)


@pytest.mark.parametrize("mode", [SMART, FAST], ids=["smart", "fast"])
@pytest.mark.parametrize("dies", [1, 2, 3])
def test_a_worker_that_dies_in_the_middle_of_a_pass_is_named_at_once(tmp_path, mode, dies):
    with mortals(4, tmp_path, mode) as group:
        failing = group[0].start(fail_along, WAYS[-1], wait_in_backward)
        group[3].run(wait_until_entered)
        group[dies].kill()
        text, seconds = failing.result()
        print(text)
        assert f"worker 'worker{dies}'" in text
        assert seconds < QUICKLY
        left = [worker for worker in group if worker.is_alive()]
        if dies != 3:
            group[3].run(release)
        expect_no_passes_on(left)
        if dies == 3:
            assert group[0].run(succeed_along, ["worker1", "worker2"]) == [2.0**3] * 2


def expect_no_passes_on(workers):
    wait_until(lambda: [worker.run(running_passes) for worker in workers] == [0] * len(workers), 10)

"""Backward passes that do not reach everything that was sent: right at once in smart mode, an error that explains in
fast mode."""

import contextlib
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from backward_modes import FAST, SMART
from backward_steps import along, doubled, error_of, expect_nothing_left, fail_in_forward
from group import Group, file_in, running
from processes import WorkerError

# Far from any time-out.
AT_ONCE = 1.0

# When a pass that cannot finish fails, in fast mode.
FAST_TIMEOUT = 2.0

# ---- what the workers run ----


def leaves(count=3):
    return [torch.full((2,), number + 2.0, requires_grad=True) for number in range(count)]


def passed_back(context, roots, tensors, retain_graph=False):
    """Runs a pass; returns the first elements of the gradients in the context, and the seconds that it took."""
    begin = time.monotonic()
    dist_autograd.backward(context, roots, retain_graph=retain_graph)
    seconds = time.monotonic() - begin
    gradients = dist_autograd.get_gradients(context)
    return [gradients[tensor][0].item() if tensor in gradients else None for tensor in tensors], seconds


def leave_a_result_unused():
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        _e = rpc.rpc_sync("worker1", torch.mul, (b, c))
        return passed_back(context, [(d + c).sum()], [a, b, c])


def first_of(*tensors):
    return tensors[0] * 2


def nothing_of(*tensors):
    return torch.ones(2, requires_grad=True) * 2


def leave_arguments_unused(callee):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", callee, (a, b))
        return passed_back(context, [(d + c).sum()], [a, b, c])


def leave_all_unused():
    a, b, _ = leaves()
    with dist_autograd.context() as context:
        for to in ("worker1", "worker2", "worker3"):
            rpc.rpc_sync(to, torch.mul, (a, b))
        return passed_back(context, [(a * 3).sum()], [a, b])


def call_twice_and_use_one(to, tensor):
    used, _unused = [rpc.rpc_async(to, doubled, (tensor,)) for _ in range(2)]
    _unused.wait()
    return used.wait()


def leave_a_result_unused_in_the_middle():
    """Each hop doubles, as does what is called at the end."""
    a, b, _ = leaves()
    with dist_autograd.context() as context:
        result = along(["worker1", "worker2"], call_twice_and_use_one, "worker3", a * b)
        return passed_back(context, [result.sum()], [a, b])


def pass_again_and_again(count):
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        _e = rpc.rpc_sync("worker1", torch.mul, (b, c))
        return [passed_back(context, [d.sum()], [a, b, c], retain_graph=True) for _ in range(count)]


def pass_from_other_roots_each_time():
    """What one pass does not reach has to be there for the next."""
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        e = rpc.rpc_sync("worker2", torch.mul, (b, c))
        choices = ([d.sum()], [e.sum()], [d.sum(), e.sum()], [(d + e).sum()], [a.sum()])
        return [passed_back(context, roots, [a, b, c], retain_graph=True)[0] for roots in choices]


_event = threading.Event()


def wait_and_double(tensor):
    _event.wait()
    return tensor * 2


def set_event():
    _event.set()


def clear_event():
    _event.clear()


def leave_a_call_that_timed_out(answered):
    """`answered`: the answer, which nobody waits for any more, has come before the pass begins."""
    a, b, _ = leaves()
    with dist_autograd.context() as context:
        with pytest.raises(RuntimeError, match="RPC ran for more than"):
            rpc.rpc_sync("worker1", wait_and_double, (a,), timeout=0.2)
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        if not answered:
            result = passed_back(context, [d.sum()], [a, b])
        rpc.rpc_sync("worker1", set_event)
        if answered:
            # A later call in the same direction: by then the event's waiter has been let go.
            d = rpc.rpc_sync("worker1", torch.mul, (a, b))
            result = passed_back(context, [d.sum()], [a, b])
        return result


def leave_a_call_that_raised():
    a, b, _ = leaves()
    with dist_autograd.context() as context:
        with pytest.raises(ValueError, match="no result today"):
            rpc.rpc_sync("worker1", fail_in_forward, (a,))
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        return passed_back(context, [d.sum()], [a, b])


def use_every_result():
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        e = rpc.rpc_sync("worker2", torch.mul, (b, c))
        return passed_back(context, [(d + e).sum()], [a, b, c])


def fail_then_use_every_result():
    a, b, c = leaves()
    with dist_autograd.context() as context:
        d = rpc.rpc_sync("worker1", torch.mul, (a, b))
        e = rpc.rpc_sync("worker1", torch.mul, (b, c))
        error_of(dist_autograd.backward, context, [d.sum()], True)
        failed = dist_autograd.get_gradients(context)
        before = [failed[leaf][0].item() if leaf in failed else 0 for leaf in (a, b, c)]
        after, _ = passed_back(context, [(d + e).sum()], [a, b, c])
        return [now - then for now, then in zip(after, before, strict=True)]


# A context that is kept from one step to the next, while the test does something to another worker.
_kept = {}


def call_and_keep(unused_to):
    """`unused_to`: the way to the callee whose result is not used."""
    a, b, _ = leaves()
    context = dist_autograd._new_context()
    _kept["id"] = context._context_id()
    d = rpc.rpc_sync("worker1", torch.mul, (a, b))
    _e = along(unused_to, doubled, a)
    _kept["rest"] = d, a, b


def pass_over_what_is_kept():
    d, a, b = _kept["rest"]
    return passed_back(_kept["id"], [d.sum()], [a, b])


def release_what_is_kept():
    begin = time.monotonic()
    dist_autograd._release_context(_kept["id"])
    return time.monotonic() - begin


# ---- smart mode ----


@pytest.fixture(scope="module")
def smart(tmp_path_factory):
    with running(4, tmp_path_factory.mktemp("smart"), rpc_timeout=20, **SMART) as group:
        yield group


@pytest.fixture
def group(smart):
    """The group in smart mode; afterwards nothing is left of what the test did."""
    yield smart
    expect_nothing_left(smart)


class TestInSmartMode:
    def test_an_unused_result_does_not_hold_the_pass_up(self, group):
        gradients, seconds = group[0].run(leave_a_result_unused)
        assert gradients == [3, 2, 1]
        assert seconds < AT_ONCE

    @pytest.mark.parametrize(
        "callee, expected", [(first_of, [[2, 0, 1], [2, None, 1]]), (nothing_of, [[None, None, 1]])]
    )
    def test_arguments_that_the_callee_did_not_use_get_no_gradient(self, group, callee, expected):
        gradients, seconds = group[0].run(leave_arguments_unused, callee)
        assert gradients in expected
        assert seconds < AT_ONCE

    def test_a_pass_that_reaches_no_call_at_all_is_a_local_one(self, group):
        gradients, seconds = group[0].run(leave_all_unused)
        assert gradients == [3, None]
        assert seconds < AT_ONCE

    def test_a_result_may_be_unused_in_the_middle_of_three_hops(self, group):
        gradients, seconds = group[0].run(leave_a_result_unused_in_the_middle)
        assert gradients == [8 * 3, 8 * 2]
        assert seconds < AT_ONCE

    def test_passes_can_be_repeated(self, group):
        passes = group[0].run(pass_again_and_again, 5)
        assert [gradients for gradients, _ in passes] == [[3 * n, 2 * n, None] for n in range(1, 6)]
        assert max(seconds for _, seconds in passes) < AT_ONCE

    def test_each_pass_may_reach_something_else(self, group):
        assert group[0].run(pass_from_other_roots_each_time) == [
            [3, 2, None],
            [3, 6, 3],
            [6, 12, 6],
            [9, 18, 9],
            [10, 18, 9],
        ]

    @pytest.mark.parametrize("answered", [False, True])
    def test_a_call_that_timed_out_does_not_matter(self, group, answered):
        group[1].run(clear_event)
        gradients, seconds = group[0].run(leave_a_call_that_timed_out, answered)
        assert gradients == [3, 2]
        assert seconds < AT_ONCE

    def test_a_call_that_raised_does_not_matter(self, group):
        gradients, seconds = group[0].run(leave_a_call_that_raised)
        assert gradients == [3, 2]
        assert seconds < AT_ONCE

    def test_any_worker_can_be_the_root(self, group):
        pending = [worker.start(leave_all_unused) for worker in group[1:]]
        assert [one.result()[0] for one in pending] == [[3, None]] * 3


@contextlib.contextmanager
def group_of_mortals(folder):
    """Those that are left shut down without waiting for the dead."""
    with Group(3) as group:
        group.init(file_in(folder), rpc_timeout=20, **SMART)
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(rpc.shutdown, graceful=False)


@pytest.mark.parametrize("unused_to", [["worker2"], ["worker1", "worker2"]])
def test_in_smart_mode_the_death_of_a_worker_that_the_pass_does_not_need_does_not_matter(tmp_path, unused_to):
    with group_of_mortals(tmp_path) as group:
        group[0].run(call_and_keep, unused_to)
        group[2].kill()
        gradients, seconds = group[0].run(pass_over_what_is_kept)
        assert gradients == [3, 2]
        assert seconds < AT_ONCE
        assert group[0].run(release_what_is_kept) < AT_ONCE


# ---- fast mode ----


@pytest.fixture(scope="module")
def fast(tmp_path_factory):
    with running(4, tmp_path_factory.mktemp("fast"), rpc_timeout=FAST_TIMEOUT, **FAST) as group:
        yield group


def failure_at_the_timeout(worker, function):
    with pytest.raises(WorkerError) as caught:
        worker.run(function)
    assert caught.value.type_name == "RuntimeError"
    return caught.value.message


class TestInFastMode:
    def test_a_pass_that_reaches_everything_runs(self, fast):
        gradients, _ = fast[0].run(use_every_result)
        assert gradients == [3, 6, 3]

    def test_an_unused_result_fails_the_pass_at_its_time_out(self, fast):
        begin = time.monotonic()
        failure_at_the_timeout(fast[0], leave_a_result_unused)
        assert FAST_TIMEOUT <= time.monotonic() - begin < 2 * FAST_TIMEOUT

    def test_the_error_names_what_waits_with_its_worker_and_operator(self, fast):
        lines = failure_at_the_timeout(fast[0], leave_a_result_unused).splitlines()
        # What was sent there for the unused result, and the result itself.
        assert [line for line in lines if line.strip().startswith("on worker 'worker0'")]
        assert [line for line in lines if "worker 'worker1'" in line and "MulBackward0" in line]
        assert any("smart" in line for line in lines)

    def test_the_error_names_a_worker_in_the_middle(self, fast):
        text = failure_at_the_timeout(fast[0], leave_a_result_unused_in_the_middle)
        assert [line for line in text.splitlines() if "worker 'worker2'" in line]
        assert [line for line in text.splitlines() if "worker 'worker3'" in line and "MulBackward0" in line]
        expect_nothing_left(fast)

    def test_the_context_can_run_another_pass_that_reaches_everything(self, fast):
        assert fast[0].run(fail_then_use_every_result) == [3, 6, 3]
        expect_nothing_left(fast)

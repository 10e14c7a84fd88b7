"""Distributed autograd contexts: who has them, what is shown of them, and that a release reaches every worker."""

import contextlib
import signal
import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import WorkerError, wait_until

# ---- what the workers run ----

_context = None
_reached = threading.Event()
_go_on = threading.Event()
_future = None
_parameter = torch.tensor([2.0, 3.0], requires_grad=True)


def open_context():
    global _context
    _context = dist_autograd.context()
    return _context.__enter__()


def close_context():
    _context.__exit__(None, None, None)


def contexts():
    return torchwire.autograd_contexts()


def has_contexts():
    return len(contexts()) > 0


def multiply(value, chain):
    """Multiplies on this worker and on those of the chain, each called by the one before."""
    if chain:
        value = rpc.rpc_sync(chain[0], multiply, (value, chain[1:]))
    return value * _parameter


def multiply_over(chain):
    return multiply(torch.ones(2), chain).tolist()


def backward_over(chain):
    dist_autograd.backward(_context.autograd_context._context_id(), [multiply(torch.ones(2), chain).sum()])


def wait_and_multiply(value, chain):
    _reached.set()
    _go_on.wait()
    return multiply(value, chain)


def begin_call(to, function, *arguments):
    global _future
    _future = rpc.rpc_async(to, function, (torch.ones(2, requires_grad=True), *arguments))


def result_of_call():
    return _future.wait().tolist()


def await_arrival():
    _reached.wait()


def go_on():
    _go_on.set()


def occupy():
    _reached.set()
    _go_on.wait()


def begin_to_occupy(to):
    global _occupying
    _occupying = rpc.rpc_async(to, occupy)


# ---- ----


@pytest.fixture
def four(tmp_path):
    with running(4, tmp_path) as group:
        yield group


@pytest.fixture
def mortals(tmp_path):
    """Four workers, of which a test may kill some; the others shut down without waiting for the dead."""
    with Group(4) as group:
        group.init(file_in(tmp_path))
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(rpc.shutdown, graceful=False)


def none_left(group):
    return not any(worker.run(has_contexts) for worker in group)


def await_none(group):
    wait_until(lambda: none_left(group))


def names(*numbers):
    return [f"worker{number}" for number in numbers]


# ---- what is shown ----


def test_a_context_is_listed_where_it_is_opened(four):
    context_id = four[0].run(open_context)
    (context,) = four[0].run(contexts)
    age = context.pop("age")
    assert 0 <= age < 60
    assert context == {
        "id": context_id,
        "creator": "worker0",
        "known_workers": [],
        "send_functions": 0,
        "recv_functions": 0,
        "gradients": 0,
        "calls": 0,
        "released": False,
        "backward": None,
    }
    assert not any(worker.run(has_contexts) for worker in four[1:])
    four[0].run(close_context)
    assert four[0].run(contexts) == []


def test_a_context_is_listed_on_each_worker_that_a_chain_of_calls_reaches(four):
    context_id = four[0].run(open_context)
    assert four[0].run(multiply_over, names(1, 2)) == [8.0, 27.0]
    shown = [worker.run(contexts) for worker in four]
    assert [len(one) for one in shown] == [1, 1, 1, 0]
    for (context,), known, (sends, recvs) in zip(shown, [[1], [0, 2], [1]], [(0, 1), (1, 1), (1, 0)], strict=False):
        assert (context["id"], context["creator"]) == (context_id, "worker0")
        assert context["known_workers"] == names(*known)
        assert (context["send_functions"], context["recv_functions"]) == (sends, recvs)
        assert context["gradients"] == context["calls"] == 0
    four[0].run(close_context)
    await_none(four)


def test_gradients_are_counted(four):
    four[0].run(open_context)
    four[0].run(backward_over, names(1, 2))
    assert [worker.run(contexts)[0]["gradients"] for worker in four[:3]] == [1, 1, 1]
    four[0].run(close_context)
    await_none(four)


def test_contexts_of_several_workers_are_told_apart(four):
    ids = [worker.run(open_context) for worker in four]
    for number, worker in enumerate(four):
        worker.run(multiply_over, names((number + 1) % 4))
    for number, worker in enumerate(four):
        listed = {context["id"]: context["creator"] for context in worker.run(contexts)}
        assert listed == {ids[number]: f"worker{number}", ids[number - 1]: f"worker{(number - 1) % 4}"}
    for worker in four:
        worker.run(close_context)
    await_none(four)


def test_without_rpc_there_is_nothing_to_list():
    with pytest.raises(RuntimeError, match=r"torchwire.autograd_contexts\(\): RPC is not initialized"):
        torchwire.autograd_contexts()


# ---- releases ----


def close_twice():
    close_context()
    close_context()


def test_a_context_can_be_released_once(four):
    context_id = four[0].run(open_context)
    with pytest.raises(WorkerError, match=f"Could not find autograd context with id: {context_id}"):
        four[0].run(close_twice)


def fail(value):
    raise ValueError("on purpose")


def multiply_then_fail(value, chain):
    return rpc.rpc_sync(chain[0], fail, (multiply(value, chain),))


def thousand_contexts(chain):
    for number in range(1000):
        function = multiply_then_fail if number % 10 == 0 else multiply
        with contextlib.suppress(ValueError), dist_autograd.context():
            rpc.rpc_sync(chain[0], function, (torch.ones(2), chain[1:]))


@pytest.mark.slow
@pytest.mark.alone
def test_a_thousand_contexts_of_which_some_end_in_errors_leave_nothing(four):
    four[0].run(thousand_contexts, names(1, 2, 3))
    await_none(four)


def test_a_release_reaches_workers_that_its_creator_does_not_know(four):
    four[0].run(open_context)
    four[0].run(multiply_over, names(1, 2, 3, 1))
    assert all(worker.run(has_contexts) for worker in four)
    four[0].run(close_context)
    assert not four[0].run(has_contexts)  # here at once
    await_none(four)


def test_a_call_that_is_under_way_goes_on_and_takes_the_context_with_it(four):
    four[0].run(open_context)
    four[0].run(begin_call, "worker1", wait_and_multiply, names(2, 3))
    four[1].run(await_arrival)
    four[0].run(close_context)
    wait_until(lambda: four[1].run(contexts)[0]["released"])
    assert four[1].run(contexts)[0]["calls"] == 1
    assert not four[0].run(has_contexts)
    four[1].run(go_on)  # only now it reaches workers 2 and 3
    assert four[0].run(result_of_call) == [8.0, 27.0]
    await_none(four)


def test_a_call_that_comes_after_the_release_takes_the_context_with_it(tmp_path):
    with running(4, tmp_path, num_worker_threads=1) as four:
        four[2].run(begin_to_occupy, "worker1")
        four[1].run(await_arrival)
        four[0].run(open_context)
        four[0].run(begin_call, "worker1", multiply, names(2, 3))  # waits for worker1's only thread
        four[0].run(close_context)
        wait_until(lambda: releases_answered(four[0]) == 1)
        four[1].run(go_on)
        assert four[0].run(result_of_call) == [8.0, 27.0]
        await_none(four)


def test_a_call_back_to_the_creator_goes_on_after_the_release(four):
    four[0].run(open_context)
    four[0].run(begin_call, "worker1", call_back, "worker0")
    four[0].run(await_arrival)
    four[0].run(close_context)
    four[0].run(go_on)
    assert four[0].run(result_of_call) == [4.0, 9.0]
    await_none(four)


def call_back(value, to):
    return rpc.rpc_sync(to, wait_and_multiply, (value, ["worker2"]))


# ---- deaths and departures ----


def test_a_release_reaches_those_behind_a_worker_that_has_died(mortals):
    mortals[0].run(open_context)
    mortals[0].run(multiply_over, names(1, 2, 3))
    mortals[1].kill()
    mortals[0].run(close_context)
    await_none([worker for worker in mortals if worker.is_alive()])


def test_a_release_reaches_those_behind_a_worker_that_dies_with_the_news(mortals):
    mortals[0].run(open_context)
    mortals[0].run(multiply_over, names(1, 2, 3))
    mortals[1].signal(signal.SIGSTOP)
    mortals[0].run(close_context)
    assert mortals[2].run(has_contexts) and mortals[3].run(has_contexts)
    mortals[1].kill()
    await_none([worker for worker in mortals if worker.is_alive()])


def test_the_next_context_works_without_the_dead(mortals):
    mortals[0].run(open_context)
    mortals[0].run(multiply_over, names(1, 2))
    mortals[1].kill()
    mortals[0].run(close_context)
    mortals[0].run(open_context)
    assert mortals[0].run(multiply_over, names(2, 3)) == [8.0, 27.0]
    mortals[0].run(close_context)
    await_none([worker for worker in mortals if worker.is_alive()])


def test_what_a_worker_that_leaves_has_opened_is_released(mortals):
    mortals[0].run(open_context)
    mortals[0].run(multiply_over, names(1, 2))
    mortals[0].run(rpc.shutdown, graceful=False)
    await_none(mortals[1:])
    mortals[0].kill()


def test_what_a_worker_that_died_has_opened_is_released(mortals):
    mortals[0].run(open_context)
    mortals[0].run(multiply_over, names(1, 2))
    mortals[0].kill()
    await_none(mortals[1:])


def frames_between(worker, peer):
    (status,) = [one for one in torchwire.peers() if one["name"] == peer]
    return status["frames_received"]


def releases_answered(worker):
    """How many frames have come from worker1, which has nothing to send but the answer to a release."""
    return worker.run(frames_between, worker.name, "worker1")

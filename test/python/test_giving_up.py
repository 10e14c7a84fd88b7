"""Calls that are given up: by cancel(), by a deadline, by Ctrl-C. Their callees learn of it."""

import concurrent.futures
import os
import signal
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import wait_until

AT_ONCE = 2.0  # seconds, on a busy machine; far from what the calls would take

# ---- what the workers run ----

_gate = threading.Event()
_begun = threading.Event()
_served = []
_kept = {}


def open_gate():
    _gate.set()


def pass_gate():
    _begun.set()
    _gate.wait()
    return "passed"


def await_begun():
    assert _begun.wait(60)


def until_cancelled():
    """Asks until it hears that nobody waits any more."""
    call = torchwire.current_call()
    _served.append(call.caller)
    _begun.set()
    while not call.cancelled:
        time.sleep(0.001)
    _served.append("cancelled")
    return "not seen"


def call_on(to):
    """How a call fails that this function makes for its caller, and after how long."""
    begin = time.monotonic()
    try:
        rpc.rpc_sync(to, pass_gate, timeout=60)
    except torchwire.CallTimedOut:
        _served.append(time.monotonic() - begin)
        raise


@rpc.functions.async_execution
def fail_when_cancelled():
    """Has a future that only its cancellation completes."""
    result = torch.futures.Future()
    call = torchwire.current_call()
    call.add_cancel_callback(lambda: 1 / 0)  # is logged
    call.add_cancel_callback(lambda: result.set_exception(concurrent.futures.CancelledError()))
    result.add_done_callback(lambda done: _served.append(type(done_with(done)).__name__))
    _kept["served"] = call
    _begun.set()
    return result


@rpc.functions.async_execution
def answer_with_callback():
    torchwire.current_call().add_cancel_callback(lambda: _served.append("cancelled"))
    _kept["served"] = torchwire.current_call()
    result = torch.futures.Future()
    result.set_result("answered")
    return result


def done_with(future):
    try:
        return future.value()
    except BaseException as error:
        return error


def callback_after_the_end():
    """What becomes of a callback that comes when the call has ended."""
    ran = []
    _kept["served"].add_cancel_callback(lambda: ran.append(1))
    return _kept["served"].cancelled, ran


def note_run():
    _served.append("ran")


def served():
    return list(_served)


def name():
    return rpc.get_worker_info().name


def begin(to, function, *args):
    _kept["call"] = rpc.rpc_async(to, function, args)


def kind_and_facts(function):
    try:
        function()
    except torchwire.RpcError as error:
        return type(error).__name__, error.worker, error.executed
    raise AssertionError("it did not fail")


def cancel_begun():
    assert torchwire.cancel(_kept["call"])
    assert not torchwire.cancel(_kept["call"])  # it has ended
    return kind_and_facts(_kept["call"].wait)


@pytest.fixture
def pair(tmp_path):
    with running(2, tmp_path) as group:
        yield group
        group.all(open_gate)


# ---- cancel ----


def test_a_call_that_is_cancelled_ends_at_once(pair):
    pair[0].run(begin, "worker1", pass_gate)
    pair[1].run(await_begun)
    assert pair[0].run(cancel_begun) == ("CallCancelled", "worker1", "unknown")


def test_a_function_can_ask_whether_its_call_is_cancelled(pair):
    pair[0].run(begin, "worker1", until_cancelled)
    pair[1].run(await_begun)
    pair[0].run(cancel_begun)
    wait_until(lambda: pair[1].run(served) == ["worker0", "cancelled"])


def test_the_future_of_an_async_function_can_fail_when_its_call_is_cancelled(pair):
    pair[0].run(begin, "worker1", fail_when_cancelled)
    pair[1].run(await_begun)
    assert pair[1].run(served) == []
    pair[0].run(cancel_begun)
    wait_until(lambda: pair[1].run(served) == ["CancelledError"])
    assert pair[1].run(callback_after_the_end) == (True, [1])


@pytest.fixture
def mortal_pair(tmp_path):
    """One of which may die."""
    with Group(2) as group:
        group.init(file_in(tmp_path))
        yield group
        group.kill()


def test_a_function_hears_of_its_callers_death(mortal_pair):
    mortal_pair[0].run(begin, "worker1", fail_when_cancelled)
    mortal_pair[1].run(await_begun)
    mortal_pair[0].kill()
    wait_until(lambda: mortal_pair[1].run(served) == ["CancelledError"])


def call_answer_with_callback(to):
    future = rpc.rpc_async(to, answer_with_callback)
    return future.wait(), torchwire.cancel(future)


def test_a_function_that_begins_after_its_callers_death_knows(tmp_path):
    with Group(2) as pair:
        pair.init(file_in(tmp_path), num_worker_threads=1)
        pair[0].run(begin, "worker1", pass_gate)
        pair[1].run(await_begun)  # so that the only thread is taken
        pair[0].run(begin, "worker1", fail_when_cancelled)
        wait_until(lambda: pair[1].run(active_requests) == 2)
        pair[0].kill()
        wait_until(lambda: pair[1].run(kind_of_call, "worker0") == "WorkerDied")
        pair[1].run(open_gate)
        wait_until(lambda: pair[1].run(served) == ["CancelledError"])
        pair.kill()


def test_callbacks_of_a_call_that_was_answered_do_not_run(mortal_pair):
    assert mortal_pair[0].run(call_answer_with_callback, "worker1") == ("answered", False)
    assert mortal_pair[1].run(callback_after_the_end) == (False, [])
    mortal_pair[0].kill()
    wait_until(lambda: mortal_pair[1].run(kind_of_call, "worker0") == "WorkerDied")
    assert mortal_pair[1].run(served) == []


def kind_of_call(to):
    return kind_and_facts(lambda: rpc.rpc_sync(to, name, timeout=1))[0]


def refused_callback():
    with pytest.raises(TypeError, match="must be callable, got int"):
        torchwire.current_call().add_cancel_callback(1)
    torchwire.current_call().add_cancel_callback(open_gate)  # outside of a call: never called
    return _gate.is_set()


def test_only_functions_are_callbacks(pair):
    assert not pair[0].run(refused_callback)


def test_a_function_that_has_not_begun_does_not_begin(tmp_path):
    with running(2, tmp_path, num_worker_threads=1) as pair:
        pair[0].run(begin, "worker1", pass_gate)
        pair[1].run(await_begun)  # so that the only thread is taken
        pair[0].run(begin, "worker1", note_run)
        pair[0].run(cancel_begun)
        wait_until(lambda: pair[1].run(cancellations) == 1)
        pair[1].run(open_gate)
        assert pair[0].run(rpc_sync_name, "worker1") == "worker1"
        assert pair[1].run(served) == []


def cancellations():
    return int(rpc.api._get_current_rpc_agent().get_debug_info()["agent.requests_cancelled"])


def active_requests():
    return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.server_active_calls"])


def rpc_sync_name(to):
    return rpc.rpc_sync(to, name)


def cancel_what_is_answered(to):
    future = rpc.rpc_async(to, name)
    future.wait()
    return torchwire.cancel(future), future.wait()


def test_a_call_that_has_been_answered_is_not_cancelled(pair):
    assert pair[0].run(cancel_what_is_answered, "worker1") == (False, "worker1")


def cancel_another_future():
    with pytest.raises(ValueError, match="future of a call"):
        torchwire.cancel(torch.futures.Future())


def cancel_a_creation(to):
    rref = rpc.remote(to, name)
    with pytest.raises(ValueError, match="future of a call"):
        torchwire.cancel(rref._get_future())
    return rref.to_here()


def test_only_calls_can_be_cancelled(pair):
    pair[0].run(cancel_another_future)
    assert pair[0].run(cancel_a_creation, "worker1") == "worker1"


def cancel_from_another_thread(to):
    future = rpc.rpc_async(to, pass_gate)
    rpc.rpc_sync(to, await_begun)
    thread = threading.Thread(target=torchwire.cancel, args=(future,))
    thread.start()
    found = kind_and_facts(future.wait)
    thread.join()
    return found


def test_who_waits_is_woken_by_a_cancel_elsewhere(pair):
    assert pair[0].run(cancel_from_another_thread, "worker1") == ("CallCancelled", "worker1", "unknown")


def facts_of_no_call():
    call = torchwire.current_call()
    return call.caller, call.cancelled


def test_outside_of_a_call_there_is_none_to_cancel(pair):
    assert pair[0].run(facts_of_no_call) == (None, False)


# ---- deadline ----


def call_within(seconds, to, way):
    begin = time.monotonic()
    with torchwire.deadline(seconds):
        if way == "sync":
            found = kind_and_facts(lambda: rpc.rpc_sync(to, until_cancelled))
        elif way == "wait":
            found = kind_and_facts(rpc.rpc_async(to, until_cancelled).wait)
    if way == "later":
        with torchwire.deadline(seconds):
            future = rpc.rpc_async(to, until_cancelled)
        found = kind_and_facts(future.wait)
    return found, time.monotonic() - begin


@pytest.mark.parametrize("way", ["sync", "wait", "later"])
def test_a_call_ends_at_the_deadline_and_its_callee_hears_of_it(pair, way):
    found, seconds = pair[0].run(call_within, 0.3, "worker1", way)
    assert found == ("CallTimedOut", "worker1", "unknown")
    assert 0.3 <= seconds < 0.3 + AT_ONCE
    wait_until(lambda: pair[1].run(served) == ["worker0", "cancelled"])


def limits(to):
    """By how much a call may take, in which blocks."""
    found = {}
    with torchwire.deadline(100):
        with torchwire.deadline(0.2):
            found["inner is earlier"] = time_out_of(to)
        with torchwire.deadline(200):
            found["outer is earlier"] = rpc.rpc_sync(to, name)
        found["its own is earlier"] = time_out_of(to, timeout=0.1)
    found["none"] = rpc.rpc_sync(to, name)
    with torchwire.deadline(0):
        found["over"] = time_out_of(to)
    return found


def time_out_of(to, **kwargs):
    return kind_and_facts(lambda: rpc.rpc_sync(to, pass_gate, **kwargs))[0]


def test_the_earliest_limit_holds(pair):
    assert pair[0].run(limits, "worker1") == {
        "inner is earlier": "CallTimedOut",
        "outer is earlier": "worker1",
        "its own is earlier": "CallTimedOut",
        "none": "worker1",
        "over": "CallTimedOut",
    }


# ---- Ctrl-C ----


def interrupted(function, *args):
    """How long after the signal KeyboardInterrupt came; and what the next call returns."""
    sent = []

    def interrupt():
        rpc.rpc_sync("worker1", await_begun)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    signal.signal(signal.SIGINT, signal.default_int_handler)
    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        function(*args)
    caught = time.monotonic()
    thread.join()
    return caught - sent[0], rpc.rpc_sync("worker1", name)


def calls_synchronously(function):
    rpc.rpc_sync("worker1", function)


def calls_and_waits(function):
    rpc.rpc_async("worker1", function).wait()


def calls_with_a_callback(function):
    future = rpc.rpc_async("worker1", function)
    future.add_done_callback(lambda _: None)
    future.wait()


WAITS = [calls_synchronously, calls_and_waits, calls_with_a_callback]


@pytest.mark.parametrize("way", WAITS, ids=lambda way: way.__name__)
def test_ctrl_c_ends_the_wait_and_cancels(pair, way):
    seconds, after = pair[0].run(interrupted, way, until_cancelled)
    assert seconds < AT_ONCE and after == "worker1"
    wait_until(lambda: pair[1].run(served) == ["worker0", "cancelled"])


def fetches(function):
    rpc.remote("worker1", function).to_here()


def test_ctrl_c_ends_a_fetch(pair):
    seconds, after = pair[0].run(interrupted, fetches, pass_gate)
    assert seconds < AT_ONCE and after == "worker1"
    pair[1].run(open_gate)


def double_with_a_hook_that_waits(tensor):
    result = tensor * 2
    result.register_hook(lambda _: None if pass_gate() else None)
    return result


def runs_backward():
    with dist_autograd.context() as context:
        loss = rpc.rpc_sync("worker1", double_with_a_hook_that_waits, (torch.ones(2, requires_grad=True),)).sum()
        dist_autograd.backward(context, [loss])


def test_ctrl_c_ends_a_backward_pass(pair):
    seconds, after = pair[0].run(interrupted, runs_backward)
    assert seconds < AT_ONCE and after == "worker1"
    pair[1].run(open_gate)


def raises_in_a_handler(kind):
    def handler(*_):
        raise kind("a signal")

    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    with pytest.raises(kind, match="a signal"):
        rpc.rpc_sync("worker1", until_cancelled)


def test_whatever_a_handler_raises_ends_the_wait(pair):
    pair[0].run(raises_in_a_handler, ValueError)


def goes_on_after_a_signal():
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: (seen.append("signal"), rpc.rpc_async("worker1", open_gate)))
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    return rpc.rpc_sync("worker1", pass_gate), seen


def test_a_handler_that_raises_nothing_runs_and_the_wait_goes_on(pair):
    assert pair[0].run(goes_on_after_a_signal) == ("passed", ["signal"])


def call_on_by(seconds, *route):
    """Calls along the route, within a deadline. How it fails."""
    with torchwire.deadline(seconds):
        try:
            rpc.rpc_sync(route[0], call_along, (route[1:],), timeout=60)
        except torchwire.CallTimedOut as error:
            return error.worker
    raise AssertionError("it did not fail")


def call_along(route):
    if len(route) == 1:
        return call_on(route[0])
    return rpc.rpc_sync(route[0], call_along, (route[1:],), timeout=60)


@pytest.mark.parametrize("inherits", [True, False])
def test_calls_of_functions_end_at_their_callers_deadline_where_asked_for(tmp_path, inherits):
    with running(4, tmp_path, inherit_deadline=inherits) as group:
        group[0].run(call_on_by, 1.0, "worker1", "worker2", "worker3")
        if inherits:  # on the last of the route, with what was left
            wait_until(lambda: len(group[2].run(served)) == 1)
            assert group[2].run(served)[0] < 1.0 + AT_ONCE
        else:
            assert group[2].run(served) == []
        group[3].run(open_gate)
        wait_until(lambda: group[2].run(rpc_is_idle))


def rpc_is_idle():
    return int(rpc._get_current_rpc_agent().get_metrics()["agent.client_active_calls"]) == 0

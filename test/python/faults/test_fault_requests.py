"""Requests and responses that are dropped, fail, are late, come twice or in another order."""

import threading

import faulty
import injected_calls
import pytest
import torch.distributed.rpc as rpc
from injected_calls import (
    LONG,
    QUICKLY,
    SHORT,
    expect_next_works,
    expect_one,
    expect_runs,
    first,
    log_of,
    new_tag,
    put,
)
from processes import LIMIT, wait_until
from torchwire.testing import Exponential, Normal, Uniform

PHASES = ["request", "in_flight", "response"]
at_each_phase = pytest.mark.parametrize("phase", PHASES)

# How often the function runs when a fault is injected into its call there. A request that is lost is not served.
RUNS_OF_LOST = {"request": 0, "in_flight": 0, "response": 1}


@at_each_phase
def test_a_dropped_message_ends_its_call_at_the_time_out(duo, phase):
    revision = put(duo, first("drop", phase))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag(), timeout=SHORT)
    assert "RPC ran for more than set timeout (500 ms)" in outcome.error
    assert SHORT <= outcome.seconds < SHORT + QUICKLY
    expect_next_works(duo)
    expect_runs(duo[1], tag, RUNS_OF_LOST[phase])
    expect_one(log_of(duo, revision), "drop", phase)


@at_each_phase
def test_a_failed_message_fails_its_call_at_once_and_names_worker_and_rule(duo, phase):
    revision = put(duo, first("fail", phase))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    assert outcome.error == (
        "RPCErr:2:a call from worker 'worker0' to worker 'worker1' failed on purpose, by rule 'it' of the fault plan"
    )
    assert outcome.seconds < QUICKLY
    expect_next_works(duo)
    # In flight: it is served all the same.
    expect_runs(duo[1], tag, 0 if phase == "request" else 1)
    expect_one(log_of(duo, revision), "fail", phase)


@at_each_phase
@pytest.mark.parametrize(
    "seconds", [0.3, Uniform(0.1, 0.4), Normal(0.3, 0.1), Exponential(0.2)], ids=lambda seconds: type(seconds).__name__
)
def test_a_delayed_message_is_late_by_as_much_as_the_log_says(duo, phase, seconds):
    revision = put(duo, first("delay", phase, seconds=seconds), seed=1)
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    fault = expect_one(log_of(duo, revision), "delay", phase)
    assert (outcome.value, outcome.error) == (tag, "")
    assert 0 < fault.seconds <= outcome.seconds < fault.seconds + QUICKLY
    assert fault.seconds == 0.3 or not isinstance(seconds, float)
    expect_next_works(duo)
    expect_runs(duo[1], tag, 1)


@at_each_phase
def test_others_overtake_a_delayed_message(duo, phase):
    revision = put(duo, first("delay", phase, seconds=2.0))
    duo[0].run(begin, "worker1", injected_calls.note, new_tag())
    wait_until(lambda: log_of(duo, revision))
    expect_next_works(duo)
    assert not duo[0].run(is_done)
    duo[0].run(finish)


@at_each_phase
def test_a_delay_beyond_the_time_out_is_a_time_out(duo, phase):
    put(duo, first("delay", phase, seconds=SHORT + 0.5))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag(), timeout=SHORT)
    assert "RPC ran for more than set timeout" in outcome.error
    expect_runs(duo[1], tag, 1)  # later
    expect_next_works(duo)


@at_each_phase
def test_a_duplicated_request_runs_twice_and_a_duplicated_response_once(duo, phase):
    revision = put(duo, first("duplicate", phase))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    assert (outcome.value, outcome.error) == (tag, "")
    assert outcome.seconds < QUICKLY
    expect_next_works(duo)
    expect_runs(duo[1], tag, 1 if phase == "response" else 2)
    expect_one(log_of(duo, revision), "duplicate", phase)


def give_rref():
    return rpc.RRef("theirs")


def use_rref_of(to):
    """The RRef in a result, for longer than a copy of the result takes to come and be read."""
    rref = rpc.rpc_sync(to, give_rref, timeout=LONG)
    return {rref.to_here(LONG) for _ in range(300)}


def test_an_rref_in_a_duplicated_response_stays_in_use(duo):
    revision = put(duo, first("duplicate", "response"))
    assert duo[0].run(use_rref_of, "worker1") == {"theirs"}
    expect_one(log_of(duo, revision), "duplicate", "response")


# ---- order ----

_pending = []
_order = []


def begin(to, function, *args):
    """Begins a call; is_done() and finish() are about it."""
    _pending[:] = [rpc.rpc_async(to, function, args, timeout=LONG)]


def is_done():
    return _pending[0].done()


def finish():
    return _pending[0].wait()


def note_order(number):
    _order.append(number)
    return number


def call_two(to):
    """The values of two calls, and whether the second had ended when the first did."""
    both_are_sent = threading.Event()
    futures = []

    def is_second_done(_):
        # On the only thread of the pool, which ends calls in the order of their responses where nobody waits for one.
        both_are_sent.wait(LIMIT)
        return futures[1].done()

    futures.append(rpc.rpc_async(to, note_order, (0,), timeout=LONG))
    second_was_done = futures[0].then(is_second_done)
    futures.append(rpc.rpc_async(to, note_order, (1,), timeout=LONG))
    both_are_sent.set()
    second_was_done = second_was_done.wait()
    return [future.wait() for future in futures], second_was_done


def order():
    return _order


@pytest.fixture(scope="module")
def one_by_one(tmp_path_factory):
    """Two workers with one thread each for what they are called for: it runs in the order in which it comes."""
    with faulty.running(2, tmp_path_factory.mktemp("one by one"), num_worker_threads=1) as group:
        yield group


@at_each_phase
def test_a_reordered_message_comes_after_the_next(one_by_one, phase):
    revision = put(one_by_one, first("reorder", phase, seconds=LONG))
    one_by_one[1].run(forget_order)
    values, second_was_done = one_by_one[0].run(call_two, "worker1")
    assert values == [0, 1]
    assert one_by_one[1].run(order) == ([0, 1] if phase == "response" else [1, 0])
    assert second_was_done
    expect_one(log_of(one_by_one, revision), "reorder", phase)
    expect_next_works(one_by_one)


@at_each_phase
def test_a_reordered_message_that_none_follows_goes_on_in_time(duo, phase):
    revision = put(duo, first("reorder", phase, seconds=0.3))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    assert outcome.value == tag and 0.3 <= outcome.seconds < 0.3 + QUICKLY
    assert expect_one(log_of(duo, revision), "reorder", phase).seconds == 0.3
    expect_runs(duo[1], tag, 1)


def forget_order():
    _order.clear()

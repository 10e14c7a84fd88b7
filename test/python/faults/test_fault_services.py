"""Faults of what is not a plain call to a peer: messages to oneself, RRefs, and distributed autograd."""

import gc

import faulty
import injected_calls
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from backward_steps import doubled, expect_nothing_left
from injected_calls import (
    LONG,
    QUICKLY,
    SHORT,
    expect_next_works,
    expect_runs,
    first,
    log_of,
    new_tag,
    put,
)
from processes import WorkerError
from rref_counts import wait_until_none_is_left
from torchwire.testing import Rule

at_each_phase = pytest.mark.parametrize("phase", ["request", "in_flight", "response"])

# ---- a worker that calls itself ----


def inject_into_own_call(group, action, phase, timeout=LONG, **arguments):
    """What came of a call of worker1 to itself, the only fault, and the tag."""
    revision = put(group, first(action, phase, from_="worker1", **arguments))
    outcome = group[1].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag(), timeout=timeout)
    (fault,) = log_of(group, revision)
    assert (fault.action, fault.phase, fault.worker, fault.from_, fault.to) == (action, phase, *["worker1"] * 3)
    expect_next_works(group, 1, 1)
    return outcome, fault, tag


@at_each_phase
def test_a_message_to_oneself_may_get_lost(duo, phase):
    outcome, _, tag = inject_into_own_call(duo, "drop", phase, timeout=SHORT)
    assert "RPC ran for more than set timeout (500 ms)" in outcome.error
    expect_runs(duo[1], tag, 1 if phase == "response" else 0)


@at_each_phase
def test_a_message_to_oneself_may_fail(duo, phase):
    outcome, _, tag = inject_into_own_call(duo, "fail", phase)
    assert "a call from worker 'worker1' to worker 'worker1' failed on purpose, by rule 'it'" in outcome.error
    assert outcome.seconds < QUICKLY
    expect_runs(duo[1], tag, 0 if phase == "request" else 1)


@at_each_phase
@pytest.mark.parametrize("action", ["delay", "pause", "reorder"])
def test_a_message_to_oneself_may_be_late(duo, phase, action):
    outcome, fault, tag = inject_into_own_call(duo, action, phase, seconds=0.2)
    assert outcome.value == tag
    assert fault.seconds == 0.2 <= outcome.seconds < 0.2 + QUICKLY
    expect_runs(duo[1], tag, 1)


@at_each_phase
def test_a_message_to_oneself_may_come_twice(duo, phase):
    outcome, _, tag = inject_into_own_call(duo, "duplicate", phase)
    assert outcome.value == tag
    expect_runs(duo[1], tag, 1 if phase == "response" else 2)


@at_each_phase
def test_the_link_of_a_worker_to_itself_may_break(duo, phase):
    outcome, _, tag = inject_into_own_call(duo, "close", phase)
    assert "worker 'worker1'" in outcome.error and "the link was broken on purpose, by rule 'it'" in outcome.error
    assert outcome.seconds < QUICKLY
    expect_runs(duo[1], tag, 0 if phase == "request" else 1)


@at_each_phase
def test_damage_within_a_worker_is_found(duo, phase):
    outcome, _, tag = inject_into_own_call(duo, "corrupt", phase, byte=40)
    assert "lost its calls to itself: a frame arrived damaged: its checksum differs" in outcome.error
    assert outcome.seconds < QUICKLY
    expect_runs(duo[1], tag, 1 if phase == "response" else 0)


def pass_that_calls_itself(tag):
    """What came of a call of this worker to itself in the midst of a pass that it has started, and the gradient."""
    outcomes = []

    def hook(_):
        outcomes.append(injected_calls.attempt("worker1", injected_calls.note, tag, timeout=LONG))

    leaf = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        result = rpc.rpc_sync("worker0", doubled, (leaf,))
        result.register_hook(hook)
        dist_autograd.backward(context, [result.sum()])
        return outcomes, dist_autograd.get_gradients(context)[leaf].tolist()


def test_damage_within_a_worker_ends_no_pass_that_it_has_started(duo):
    put(duo, first("corrupt", "request", from_="worker1", to="worker1", byte=40))
    (outcome,), gradient = duo[1].run(pass_that_calls_itself, new_tag())
    assert "lost its calls to itself" in outcome.error
    assert gradient == [2, 2]


# ---- RRefs ----

_rrefs = []


def make_rref(owner):
    _rrefs[:] = [rpc.remote(owner, torch.add, (torch.ones(1), 1))]
    return _rrefs[0].to_here().item()


def forget_rref():
    _rrefs.clear()
    gc.collect()


@pytest.mark.parametrize("action", ["drop", "fail"])
def test_a_delete_of_an_rref_that_is_lost_is_sent_again(tmp_path, action):
    rule = Rule(action, messages="RREF_USER_DELETE", from_="worker0", at_most=2)
    with faulty.running(2, tmp_path, rpc_timeout=0.5) as group:
        revision = put(group, rule)
        assert group[0].run(make_rref, "worker1") == 2
        group[0].run(forget_rref)
        wait_until_none_is_left(group)
        log = log_of(group, revision)
        assert [(fault.message, fault.action, fault.occurrence) for fault in log] == [
            ("RREF_USER_DELETE", action, 1),
            ("RREF_USER_DELETE", action, 2),
        ]


@pytest.mark.parametrize("action", ["duplicate", "delay", "reorder"])
def test_books_of_rrefs_come_out_even(duo, action):
    seconds = {} if action == "duplicate" else {"seconds": 0.1}
    revision = put(
        duo,
        Rule(action, messages="control", **seconds),
        Rule(action, messages=["SCRIPT_REMOTE_CALL", "fetch"], phase="response", **seconds),
    )
    for worker, owner in ((0, "worker1"), (1, "worker0")):
        assert duo[worker].run(make_rref, owner) == 2
        duo[worker].run(forget_rref)
    wait_until_none_is_left(duo)
    assert {"RREF_USER_DELETE", "SCRIPT_REMOTE_CALL"} <= {fault.message for fault in log_of(duo, revision)}


def test_an_rref_whose_creation_is_lost_says_so(duo):
    put(duo, Rule("drop", messages="SCRIPT_REMOTE_CALL", nth=1))
    with pytest.raises(WorkerError, match="worker"):
        duo[0].run(make_rref_that_is_lost, "worker1")
    duo[0].run(forget_rref)


def make_rref_that_is_lost(owner):
    _rrefs[:] = [rpc.remote(owner, torch.add, (torch.ones(1), 1), timeout=SHORT)]
    _rrefs[0].to_here(timeout=SHORT)


# ---- distributed autograd ----


def backward(timeout=LONG):
    """The gradient, or the error, of a pass over worker1."""
    rpc._set_rpc_timeout(timeout)
    try:
        with dist_autograd.context() as context:
            leaf = torch.full((3,), 5.0, requires_grad=True)
            result = rpc.rpc_sync("worker1", doubled, (leaf,)) * rpc.rpc_sync("worker1", doubled, (leaf,))
            outcome = injected_calls.timed(lambda: dist_autograd.backward(context, [result.sum()]))
            gradients = dist_autograd.get_gradients(context)
            return outcome._replace(value=gradients[leaf].tolist() if leaf in gradients else None)
    finally:
        rpc._set_rpc_timeout(rpc.constants.DEFAULT_RPC_TIMEOUT_SEC)


GRADIENT = [40.0] * 3  # of 2x * 2x


@at_each_phase
@pytest.mark.parametrize("action", ["duplicate", "delay", "reorder"])
def test_gradients_that_come_twice_late_or_in_another_order_are_right(duo, phase, action):
    seconds = {} if action == "duplicate" else {"seconds": 0.1}
    revision = put(duo, Rule(action, messages="GRADIENTS", phase=phase, **seconds))
    for _ in range(3):
        outcome = duo[0].run(backward)
        assert (outcome.value, outcome.error) == (GRADIENT, "")
    expect_nothing_left(duo)
    assert {(fault.message, fault.action, fault.phase) for fault in log_of(duo, revision)} == {
        ("GRADIENTS", action, phase)
    }


@at_each_phase
@pytest.mark.parametrize("action", ["drop", "fail"])
def test_gradients_that_are_lost_fail_the_pass(duo, phase, action):
    # From the root only: what worker1 sends back waits for as long as worker1's time-out.
    put(duo, first(action, phase, messages="GRADIENTS"))
    outcome = duo[0].run(backward, 1.0)
    if action == "drop":
        assert "RPC ran for more than set timeout (1000 ms)" in outcome.error
        assert 1.0 <= outcome.seconds < 1.0 + QUICKLY
    else:
        assert "failed on purpose, by rule 'it'" in outcome.error
        assert outcome.seconds < QUICKLY
    put(duo)
    assert duo[0].run(backward).value == GRADIENT
    expect_nothing_left(duo)

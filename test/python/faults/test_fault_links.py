"""Frames that are damaged, links that break, and connections that are refused."""

import faulty
import injected_calls
import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from injected_calls import (
    LONG,
    QUICKLY,
    expect_next_works,
    expect_one,
    expect_runs,
    expect_works_again,
    first,
    log_of,
    new_tag,
    put,
)
from processes import wait_until
from torchwire.testing import Plan, Rule

at_each_phase = pytest.mark.parametrize("phase", ["request", "in_flight", "response"])
LOST = "lost the connection to worker 'worker1' (rank 1) at"


def links_lost(to):
    return next(peer["links_lost"] for peer in torchwire.peers() if peer["name"] == to)


# ---- damage ----


@at_each_phase
@pytest.mark.parametrize("byte", [0, 40, None], ids=["header", "body", "anywhere"])
def test_damage_is_found_and_closes_the_link_with_the_reason_on_both_sides(duo, phase, byte):
    expect_next_works(duo)
    before = duo[0].run(links_lost, "worker1")
    revision = put(duo, first("corrupt", phase, byte=byte), seed=3)
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    fault = expect_one(log_of(duo, revision), "corrupt", phase)
    assert fault.byte == byte if byte is not None else fault.byte < 10_000
    assert outcome.value is None
    # Who has found it closes the link, and says why to the other.
    assert outcome.error.startswith(LOST)
    assert ("it closed the link: " in outcome.error) == (phase != "response")
    assert ": a frame arrived damaged: its " in outcome.error
    assert outcome.seconds < QUICKLY
    expect_works_again(duo)
    expect_runs(duo[1], tag, 1 if phase == "response" else 0)
    assert duo[0].run(links_lost, "worker1") == before + 1
    wait_until(lambda: "a frame arrived damaged" in duo[1].output())


BYTES = 8000  # that travel in the head of their frame, so that its middle is theirs


def bytes_that_came_back_wrong(to):
    """How many of a tensor that `to` clones."""
    sent = torch.arange(BYTES).to(torch.uint8)
    return int((rpc.rpc_sync(to, torch.clone, (sent,), timeout=LONG) != sent).sum())


@at_each_phase
def test_without_checksums_damage_may_reach_the_user(tmp_path, phase):
    with faulty.running(2, tmp_path, checksums=False) as group:
        revision = put(group, first("corrupt", phase, messages="SCRIPT_CALL", byte=BYTES // 2))
        assert group[0].run(bytes_that_came_back_wrong, "worker1") == 1
        assert group[0].run(bytes_that_came_back_wrong, "worker1") == 0
        expect_one(log_of(group, revision), "corrupt", phase, message="SCRIPT_CALL")


# ---- a link that breaks ----

_pending = []


def begin_held_call(to, tag):
    _pending[:] = [rpc.rpc_async(to, injected_calls.hold, (tag,), timeout=LONG)]


def outcome_of_held_call():
    return injected_calls.timed(_pending[0].wait)


@at_each_phase
def test_a_closed_link_fails_its_calls_at_once_and_the_next_dials_anew(duo, phase):
    expect_next_works(duo)
    duo[0].run(begin_held_call, "worker1", held_tag := new_tag())
    expect_runs(duo[1], held_tag, 1)
    before = duo[0].run(links_lost, "worker1")
    revision = put(duo, first("close", phase))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    held = duo[0].run(outcome_of_held_call)
    duo[1].run(injected_calls.release)
    for one in (outcome, held):
        assert "lost the connection to worker 'worker1' (rank 1)" in one.error
        assert one.seconds < QUICKLY
    # Where the link is broken, it is known why.
    reason = "the link was broken on purpose, by rule 'it' of the fault plan"
    assert (reason in outcome.error) == (phase == "request")
    expect_works_again(duo)
    expect_runs(duo[1], tag, 0 if phase == "request" else 1)
    expect_one(log_of(duo, revision), "close", phase)
    assert duo[0].run(links_lost, "worker1") == before + 1
    if phase != "request":
        wait_until(lambda: reason in duo[1].output())


# ---- connections that are refused ----

ATTEMPTS = 4  # dials before the calls that wait for one fail


def break_and_refuse(group, refusals):
    """Breaks the link from worker0, and refuses so many connections; returns the plan's revision."""
    expect_next_works(group)
    refuse = Rule("refuse", name="busy", from_="worker0", to="worker1", at_most=refusals)
    revision = put(group, first("close", "request"), refuse)
    assert group[0].run(injected_calls.attempt, "worker1", injected_calls.note, new_tag()).error
    wait_until(lambda: group[0].run(state_of, "worker1") == "idle")
    return revision


def state_of(peer):
    return next(entry["state"] for entry in torchwire.peers() if entry["name"] == peer)


def test_a_refused_connection_is_dialled_again(duo):
    revision = break_and_refuse(duo, ATTEMPTS - 1)
    expect_next_works(duo)
    _, *refusals = log_of(duo, revision)
    described = [(fault.rule, fault.action, fault.phase, fault.worker, fault.occurrence) for fault in refusals]
    assert described == [("busy", "refuse", "connect", "worker0", n) for n in range(1, ATTEMPTS)]
    named = {(fault.from_, fault.to, fault.message, fault.call_id) for fault in refusals}
    assert named == {("worker0", "worker1", "", 0)}


def test_a_worker_that_refuses_all_attempts_cannot_be_reached_and_then_it_can(duo):
    revision = break_and_refuse(duo, ATTEMPTS)
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    assert outcome.error.startswith("cannot reach worker 'worker1' (rank 1) at ")
    assert "(connection refused (injected by rule 'busy' of the fault plan)): check that its" in outcome.error
    assert outcome.seconds < QUICKLY
    expect_works_again(duo, "cannot reach worker 'worker1'")
    expect_runs(duo[1], tag, 0)
    assert len(log_of(duo, revision)) == 1 + ATTEMPTS


def test_others_reach_a_worker_that_refuses_one(tmp_path):
    with faulty.running(3, tmp_path, fault_plan=Plan([Rule("refuse", from_="worker0", to="worker1")])) as group:
        outcome = group[0].run(injected_calls.attempt, "worker1", injected_calls.note, new_tag())
        assert "cannot reach worker 'worker1'" in outcome.error
        expect_next_works(group, 0, 2)
        expect_next_works(group, 2, 1)
        expect_next_works(group, 1, 0)  # which makes a link for both directions
        expect_next_works(group, 0, 1)

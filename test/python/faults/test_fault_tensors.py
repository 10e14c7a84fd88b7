"""Faults in the middle of a large tensor, on each channel and in both directions."""

import faulty
import injected_calls
import pytest
from injected_calls import (
    LONG,
    QUICKLY,
    SHORT,
    expect_one,
    expect_runs,
    expect_works_again,
    first,
    log_of,
    new_tag,
    put,
)

CHANNELS = {
    "default": {},
    "basic": {"_channels": ["basic"]},
    "wire_tcp": {"_transports": ["wire_tcp"]},
}
# What is called, and at whose end the tensor is sent from.
WAYS = {"there": (injected_calls.send_large, "worker0"), "back": (injected_calls.fetch_large, "worker1")}

each_way = pytest.mark.parametrize("way", WAYS)


@pytest.fixture(scope="module", params=CHANNELS)
def carriers(request, tmp_path_factory):
    """A group on one of the ways by which large tensors travel."""
    with faulty.running(2, tmp_path_factory.mktemp(request.param), **CHANNELS[request.param]) as group:
        yield group


def inject(group, way, action, timeout=LONG, **arguments):
    """Returns what came of a call with a fault in its tensor, and the fault. Leaves the plan in effect."""
    function, sender = WAYS[way]
    revision = put(group, first(action, "mid_tensor", **arguments))
    tag = new_tag()
    outcome = group[0].run(function, "worker1", tag, timeout=timeout)
    fault = expect_one(log_of(group, revision), action, "mid_tensor", worker=sender)
    return outcome, fault, tag


def expect_tensors_pass(group):
    put(group)  # or the next tensor, the other way, were the first there
    for function, _ in WAYS.values():
        outcome = group[0].run(function, "worker1", new_tag())
        assert outcome.value is True, outcome.error
        assert outcome.seconds < QUICKLY


@each_way
def test_a_tensor_whose_rest_is_dropped_holds_up_all_behind_it_until_the_plan_ends(carriers, way):
    outcome, _, tag = inject(carriers, way, "drop", timeout=SHORT)
    later = carriers[0].run(
        injected_calls.attempt, "worker1", injected_calls.note, later_tag := new_tag(), timeout=SHORT
    )
    for one in (outcome, later):
        assert "RPC ran for more than set timeout (500 ms)" in one.error
        assert SHORT <= one.seconds < SHORT + QUICKLY
    # What goes the other way goes on: requests, where a response is stuck.
    runs = 0 if way == "there" else 1
    expect_runs(carriers[1], tag, runs)
    expect_runs(carriers[1], later_tag, runs)
    put(carriers)  # which breaks the link
    expect_works_again(carriers)
    expect_tensors_pass(carriers)


@each_way
def test_a_tensor_that_stands_still_in_its_middle_is_late_and_whole(carriers, way):
    outcome, fault, tag = inject(carriers, way, "delay", seconds=0.3)
    assert fault.seconds == 0.3
    assert outcome.value is True and 0.3 <= outcome.seconds < 0.3 + QUICKLY
    expect_tensors_pass(carriers)
    expect_runs(carriers[1], tag, 1)


@each_way
def test_a_tensor_that_is_damaged_in_its_middle_never_reaches_the_user(carriers, way):
    outcome, fault, tag = inject(carriers, way, "corrupt", byte=3 * injected_calls.MIB)
    assert fault.byte == 3 * injected_calls.MIB
    assert "lost the connection to worker 'worker1' (rank 1) at" in outcome.error
    assert "a frame arrived damaged: its checksum differs, or a tensor in it was changed" in outcome.error
    assert ("it closed the link" in outcome.error) == (way == "there")
    assert outcome.seconds < QUICKLY
    expect_works_again(carriers)
    expect_tensors_pass(carriers)
    expect_runs(carriers[1], tag, 0 if way == "there" else 1)


@each_way
def test_a_link_that_breaks_in_the_middle_of_a_tensor_fails_its_calls_at_once(carriers, way):
    outcome, _, tag = inject(carriers, way, "close")
    assert "lost the connection to worker 'worker1' (rank 1)" in outcome.error
    if way == "there":  # where the link is broken, it is known why
        assert "the link was broken on purpose, by rule 'it' of the fault plan" in outcome.error
    assert outcome.seconds < QUICKLY
    expect_works_again(carriers)
    expect_tensors_pass(carriers)
    expect_runs(carriers[1], tag, 0 if way == "there" else 1)


@each_way
def test_the_process_pauses_in_the_middle_of_a_tensor(carriers, way):
    outcome, fault, tag = inject(carriers, way, "pause", seconds=0.3)
    assert fault.seconds == 0.3
    assert outcome.value is True and 0.3 <= outcome.seconds < 0.3 + QUICKLY
    expect_tensors_pass(carriers)
    expect_runs(carriers[1], tag, 1)

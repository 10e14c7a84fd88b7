"""Partitions: what is sent across waits, and goes on in order when they are over."""

import faulty
import injected_calls
import pytest
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from injected_calls import (
    LONG,
    QUICKLY,
    expect_next_works,
    expect_runs,
    log_of,
    new_tag,
    put,
)
from processes import wait_until
from torchwire.testing import Plan, Rule

BETWEEN = (["worker0"], ["worker1"])
SECONDS = 1.5


def partition(**arguments):
    return Rule("partition", **{"name": "split", "between": BETWEEN, "seconds": SECONDS, **arguments})


_order = []


def note_number(number):
    _order.append(number)


def numbers():
    return _order


def call_with_numbers(to, count):
    for one in [rpc.rpc_async(to, note_number, (number,), timeout=LONG) for number in range(count)]:
        one.wait()


def test_calls_across_time_out_or_wait_and_what_was_held_arrives_late(duo):
    revision = put(duo, partition())
    hasty = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, hasty_tag := new_tag(), timeout=0.3)
    assert "RPC ran for more than set timeout (300 ms)" in hasty.error
    assert 0.3 <= hasty.seconds < SECONDS
    assert duo[1].run(injected_calls.runs, hasty_tag) == 0
    patient = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, patient_tag := new_tag())
    assert patient.value == patient_tag
    assert patient.seconds < SECONDS + QUICKLY
    expect_next_works(duo)
    for tag in (hasty_tag, patient_tag):
        expect_runs(duo[1], tag, 1)
    log = log_of(duo, revision)
    assert {(fault.rule, fault.action) for fault in log} == {("split", "partition")}
    # It took effect at worker1 a little later, and so may have held the responses, too.
    requests = [fault for fault in log if fault.phase == "request"]
    assert [fault.worker for fault in requests] == ["worker0"] * 2
    assert {fault.worker for fault in log if fault not in requests} <= {"worker1"}
    ends = [fault.time + fault.seconds for fault in requests]
    assert ends[1] == pytest.approx(ends[0], abs=0.05)


@pytest.mark.parametrize("caller", [0, 1])
def test_a_worker_on_either_side_waits(duo, caller):
    put(duo, partition(seconds=0.5))
    outcome = duo[caller].run(injected_calls.attempt, f"worker{1 - caller}", injected_calls.note, tag := new_tag())
    assert outcome.value == tag and outcome.seconds < 0.5 + QUICKLY


def test_a_partition_may_begin_later_and_another_plan_ends_it(duo):
    revision = put(duo, partition(after=0.4, seconds=LONG))
    expect_next_works(duo)
    wait_until(
        lambda: "set timeout"
        in duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, "early", timeout=0.2).error
    )
    held = duo[0].start(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    duo[1].run(faults.clear_plan)
    outcome = held.result()
    assert outcome.value == tag and outcome.seconds < QUICKLY
    assert {fault.action for fault in log_of(duo, revision)} == {"partition"}
    expect_next_works(duo)


def test_a_partition_spares_those_on_one_side_and_holds_handshakes(tmp_path):
    # By the options, since otherwise links might be there before it.
    with faulty.running(3, tmp_path, fault_plan=Plan([partition(seconds=3.0)])) as group:
        first = group[0].start(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
        assert group[2].run(injected_calls.attempt, "worker1", injected_calls.note, new_tag()).seconds < QUICKLY
        assert first.result().value == tag
        assert group[1].run(injected_calls.runs, tag) == 1
        expect_next_works(group, 1, 0)


def test_what_was_held_goes_on_in_order(tmp_path):
    with faulty.running(2, tmp_path, num_worker_threads=1) as group:
        put(group, partition(seconds=0.5))
        group[0].run(call_with_numbers, "worker1", 20)
        assert group[1].run(numbers) == list(range(20))

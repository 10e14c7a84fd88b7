"""Processes that stand still or die in the middle of a call, and what their peers see of it."""

import signal

import faulty
import injected_calls
import pytest
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from group import Group, file_in
from injected_calls import (
    LONG,
    QUICKLY,
    expect_next_works,
    expect_one,
    expect_runs,
    first,
    log_of,
    new_tag,
    put,
)
from processes import WorkerError

at_each_phase = pytest.mark.parametrize("phase", ["request", "in_flight", "response"])

# ---- pause ----


@at_each_phase
def test_a_process_pauses_and_its_calls_are_late(duo, phase):
    revision = put(duo, first("pause", phase, seconds=0.5))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag())
    assert outcome.value == tag and 0.5 <= outcome.seconds < 0.5 + QUICKLY
    fault = expect_one(log_of(duo, revision), "pause", phase)
    assert fault.seconds == 0.5
    expect_next_works(duo)
    expect_runs(duo[1], tag, 1)


@at_each_phase
def test_calls_to_a_paused_process_time_out_and_are_served_later(duo, phase):
    put(duo, first("pause", phase, seconds=1.0))
    outcome = duo[0].run(injected_calls.attempt, "worker1", injected_calls.note, tag := new_tag(), timeout=0.3)
    timed_out = "RPC ran for more than set timeout (300 ms)" in outcome.error
    if phase == "request":
        # Its own caller cannot even notice while it stands still itself; then the answer may be as quick as the timer.
        assert outcome.seconds >= 1.0 and (timed_out or outcome.value == tag)
    else:
        assert outcome.seconds >= 0.3 and timed_out
    expect_next_works(duo)
    expect_runs(duo[1], tag, 1)


# ---- kill ----


def write(path):
    """What a process that is killed has done is seen in a file."""
    with open(path, "a") as file:
        file.write("ran\n")


def attempt_to_write(to, path):
    return injected_calls.attempt(to, write, path)


WAYS = {
    # What worker0 calls, at which phase worker1 or worker0 is killed, and whether the function has run by then.
    "request": (attempt_to_write, "request", "worker0", False),
    "in_flight": (attempt_to_write, "in_flight", "worker1", False),
    "response": (attempt_to_write, "response", "worker1", True),
    "mid_tensor there": (injected_calls.send_large, "mid_tensor", "worker0", False),
    "mid_tensor back": (injected_calls.fetch_large, "mid_tensor", "worker1", True),
}


@pytest.fixture
def trio(tmp_path):
    """Three workers, of which a test has some killed; their logs are in tmp_path/logs."""
    with Group(3) as group:
        group.all(faulty.init, file_in(tmp_path), world_size=3, fault_log=tmp_path / "logs")
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(faults.control.end_faults_here)
                worker.run(rpc.shutdown, graceful=False)


@pytest.mark.parametrize("way", WAYS)
def test_a_killed_process_fails_the_calls_of_its_peers_at_once_and_its_log_stays(trio, tmp_path, way):
    function, phase, victim, has_run = WAYS[way]
    revision = put(trio, first("kill", phase))
    held = trio[2].start(injected_calls.attempt, victim, injected_calls.hold, held_tag := new_tag())
    expect_runs(trio[int(victim[-1])], held_tag, 1)
    ran = tmp_path / "ran"
    argument = str(ran) if function is attempt_to_write else new_tag()
    pending = trio[0].start(function, "worker1", argument)
    if victim == "worker0":
        with pytest.raises(WorkerError, match=f"ProcessEnded: exit code {-signal.SIGKILL}"):
            pending.result()
    else:
        expect_lost(pending.result(), victim)
        assert trio[1].process.join(LONG) is None and trio[1].process.exitcode == -signal.SIGKILL
    expect_lost(held.result(), victim, limit=LONG)
    assert not trio[2].run(injected_calls.attempt, victim, injected_calls.note, new_tag()).value
    expect_next_works(trio, 2, 1 if victim == "worker0" else 0)
    log = [fault for fault in faults.read_logs(tmp_path / "logs") if fault.revision == revision]
    expect_one(log, "kill", phase, worker=victim)
    if function is attempt_to_write:
        assert ran.exists() == has_run


def expect_lost(outcome, victim, limit=QUICKLY):
    assert f"lost the connection to worker '{victim}'" in outcome.error
    assert outcome.seconds < limit

"""Calls that a fault is injected into, and what came of them: for the caller, for the callee, and in the logs."""

import collections
import itertools
import threading
import time
from typing import Any, NamedTuple

import torch
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from processes import wait_until
from torchwire.testing import Fault, Plan, Rule

# What does not wait for a time-out comes at once. The limit leaves room for a busy machine.
QUICKLY = 3.0
LONG = 30.0  # the time-out of calls that are not to run into it
SHORT = 0.5  # and of those that are
MIB = 1 << 20

# ---- what the workers run ----

_runs = collections.Counter()
_released = threading.Event()


class Outcome(NamedTuple):
    """Of one call, for its caller."""

    value: Any
    error: str  # its text; empty: none
    seconds: float


def note(tag):
    """What is called. It counts how often it has run."""
    _runs[tag] += 1
    return tag


def runs(tag):
    return _runs[tag]


def hold(tag):
    """Keeps its caller waiting until release()."""
    _released.clear()
    note(tag)
    _released.wait()


def release():
    _released.set()


def large(tag):
    """A tensor that does not travel inside the head of a frame."""
    note(tag)
    return torch.arange(MIB, dtype=torch.int32)


def receive_large(tag, tensor):
    """Whether the tensor is that of large()."""
    note(tag)
    return torch.equal(tensor, torch.arange(MIB, dtype=torch.int32))


def timed(function):
    """What comes of a function that takes no arguments."""
    begin = time.monotonic()
    try:
        value, error = function(), ""
    except RuntimeError as problem:
        value, error = None, str(problem)
    return Outcome(value, error, time.monotonic() - begin)


def attempt(to, function, *args, timeout=LONG):
    return timed(lambda: rpc.rpc_sync(to, function, args, timeout=timeout))


def send_large(to, tag, timeout=LONG):
    return attempt(to, receive_large, tag, large("made for sending"), timeout=timeout)


def fetch_large(to, tag, timeout=LONG):
    """As attempt(); the value is whether the tensor came whole."""
    outcome = attempt(to, large, tag, timeout=timeout)
    return outcome if outcome.error else outcome._replace(value=torch.equal(outcome.value, large("to compare")))


# ---- what a test says ----

_tags = itertools.count()


def new_tag():
    return f"call {next(_tags)}"


def first(action, phase, **arguments):
    """A rule that applies to the first Python function that worker0 calls on worker1."""
    usual = {"name": "it", "messages": "PYTHON_CALL", "from_": "worker0", "to": "worker1", "nth": 1}
    return Rule(action, phase=phase, **{**usual, **arguments})


def put(group, *rules, seed=0):
    """Sets a plan for all; returns its revision."""
    return group[0].run(faults.set_plan, Plan(rules, seed))


def log_of(group, revision=None):
    """The faults that all workers have injected under the plan of this revision."""
    log = [fault for entries in group.all(faults.fault_log) for fault in entries]
    return [fault for fault in log if revision is None or fault.revision == revision]


# At whose end of a call a phase is.
def decider(phase):
    return "worker0" if phase == "request" else "worker1"


def expect_one(log, action, phase, worker=None, message="PYTHON_CALL", occurrence=1) -> Fault:
    """The only entry of a log, which has to be about worker0's call to worker1."""
    (fault,) = log
    assert (fault.rule, fault.action, fault.phase) == ("it", action, phase)
    assert (fault.from_, fault.to, fault.worker) == ("worker0", "worker1", worker or decider(phase))
    assert (fault.message, fault.occurrence) == (message, occurrence)
    assert fault.call_id > 0 and abs(time.time() - fault.time) < 60
    return fault


def expect_runs(worker, tag, count):
    """The function has run, or will have run, so often, and not more often once the caller has called again."""
    wait_until(lambda: worker.run(runs, tag) >= count)
    assert worker.run(runs, tag) == count


def expect_next_works(group, caller=0, callee=1):
    tag = new_tag()
    outcome = group[caller].run(attempt, f"worker{callee}", note, tag)
    assert outcome.value == tag, outcome.error
    assert outcome.seconds < QUICKLY
    return outcome


def expect_works_again(group, reason="lost the connection to worker 'worker1'"):
    """As expect_next_works, after a link has broken or could not be made: calls fail until all have been told of it."""
    begin = time.monotonic()
    outcomes = []

    def works():
        outcomes.append(group[0].run(attempt, "worker1", note, new_tag()))
        return not outcomes[-1].error

    wait_until(works)
    assert time.monotonic() - begin < QUICKLY
    for outcome in outcomes[:-1]:
        assert reason in outcome.error

"""Which messages a plan applies to: the same ones in each run, and again when its log is replayed."""

import faulty
import injected_calls
import pytest
import torchwire.testing as faults
from group import Group, file_in
from injected_calls import log_of, put
from processes import wait_until
from repetition import Repetition, begin, count, stop
from torchwire.testing import Plan, Rule, Uniform

CALLS = 60

MIXED = (
    Rule("fail", messages="PYTHON_CALL", probability=0.2),
    Rule("delay", messages="PYTHON_CALL", phase="in_flight", probability=0.2, seconds=Uniform(0.001, 0.01)),
    Rule("duplicate", messages="PYTHON_CALL", phase="response", probability=0.2),
    Rule("fail", messages="PYTHON_CALL", phase="response", probability=0.1),
)


def call_many(to, count):
    """For each call, one after the other, whether it worked."""
    return [not injected_calls.attempt(to, injected_calls.note, number).error for number in range(count)]


def other(worker):
    return "worker1" if worker == "worker0" else "worker0"


def call_each_other(group, count=CALLS):
    """Both workers at the same time, so that it differs how they interleave."""
    pending = [worker.start(call_many, other(worker.name), count) for worker in group]
    return [one.result() for one in pending]


def essence(log):
    """All of a log but times, call ids and revisions, in an order of its own: how workers interleave differs."""
    return sorted(
        tuple(str(value) for key, value in vars(fault).items() if key not in ("time", "call_id", "revision"))
        for fault in log
    )


def run_anew(folder, seed):
    """A group of its own with the plan; returns what worked and the essence of the log."""
    folder.mkdir()
    with faulty.running(2, folder, fault_plan=Plan(MIXED, seed), fault_log=folder / "logs") as group:
        worked = call_each_other(group)
    return worked, essence(faults.read_logs(folder / "logs"))


def test_the_same_seed_injects_the_same_faults_and_another_others(tmp_path):
    worked, log = run_anew(tmp_path / "first", 5)
    assert {entry[2:4] for entry in log} == {(rule.action, rule.phase) for rule in MIXED}
    assert not all(worked[0]) and any(worked[0])
    assert run_anew(tmp_path / "second", 5) == (worked, log)
    assert run_anew(tmp_path / "third", 6)[1] != log


def test_a_replay_applies_to_the_same_messages_without_the_plan(duo):
    revision = put(duo, *MIXED, seed=9)
    worked = call_each_other(duo)
    log = log_of(duo, revision)
    again = duo[1].run(faults.replay, log)
    assert call_each_other(duo) == worked
    assert essence(log_of(duo, again)) == essence(log)
    assert set(Plan.from_log(log_of(duo, again)).rules) == set(Plan.from_log(log).rules)


# ---- how many ----


def occurrences(group, *rules, seed=0, calls=CALLS):
    """Which of worker0's calls to worker1 met a fault."""
    revision = put(group, *rules, seed=seed)
    worked = group[0].run(call_many, "worker1", calls)
    injected = [fault.occurrence for fault in log_of(group, revision)]
    assert [n for n, works in enumerate(worked, start=1) if not works] == injected
    return injected


def fail(**arguments):
    return Rule("fail", messages="PYTHON_CALL", from_="worker0", **arguments)


def test_a_probability_applies_to_about_so_many_and_always_the_same(duo):
    once = occurrences(duo, fail(probability=0.1), seed=2, calls=200)
    assert 5 <= len(once) <= 40  # 20 are to be expected
    assert occurrences(duo, fail(probability=0.1), seed=2, calls=200) == once
    assert occurrences(duo, fail(probability=0.1), seed=3, calls=200) != once


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"nth": [1, 7, 9]}, [1, 7, 9]),
        ({"nth": 200}, []),
        ({"at_most": 3}, [1, 2, 3]),
        ({"at_least": 4, "probability": 0}, [1, 2, 3, 4]),
        ({"nth": [2, 4, 6, 8], "at_least": 2, "probability": 0}, [2, 4]),
        ({"nth": [2, 4, 6, 8], "at_most": 3}, [2, 4, 6]),
        ({"probability": 0}, []),
    ],
    ids=str,
)
def test_a_rule_applies_to_the_occurrences_that_it_names(duo, arguments, expected):
    assert occurrences(duo, fail(**arguments), calls=12) == expected


def test_chance_adds_to_what_is_guaranteed_and_stops_at_the_limit(duo):
    some = occurrences(duo, fail(probability=0.3, at_least=2, at_most=6), seed=1)
    assert some[:2] == [1, 2] and len(some) == 6


def repeat(contents):
    return [not injected_calls.attempt("worker1", injected_calls.note, content).error for content in contents]


def test_retries_of_one_message_are_counted_apart(duo):
    revision = put(duo, fail(each_message=True, nth=[1, 2]))
    assert duo[0].run(repeat, ["a", "b", "a", "a", "b", "b", "c"]) == [False, False, False, True, False, True, False]
    assert [fault.occurrence for fault in log_of(duo, revision)] == [1, 2, 3, 5, 7]


# ---- plans that change, and where they come from ----


class Caller(Repetition):
    def step(self):
        injected_calls.attempt("worker1", injected_calls.note, "again")


def test_a_plan_changes_while_calls_run(duo):
    duo[0].run(begin, Caller)
    for turn in range(10):
        revision = put(duo, *MIXED, seed=turn)
        before = duo[0].run(count)
        wait_until(lambda: duo[0].run(count) > before + 20)
        assert {fault.rule for fault in log_of(duo, revision)} <= {"fail#1", "delay#2", "duplicate#3", "fail#4"}
    revision = duo[1].run(faults.clear_plan)
    before = duo[0].run(count)
    wait_until(lambda: duo[0].run(count) > before + 20)
    duo[0].run(stop)
    assert log_of(duo, revision) == []
    assert {fault.revision for fault in log_of(duo)} >= set(range(revision - 10, revision))


PLAN_FILE = """
seed = 3

[[rule]]
name = "from the file"
action = "fail"
messages = ["PYTHON_CALL"]
from = ["worker0"]
nth = [2]
"""


@pytest.mark.parametrize("by", ["option", "environment"])
def test_a_plan_in_a_file_is_in_effect_from_the_start(tmp_path, by):
    path = tmp_path / "plan.toml"
    path.write_text(PLAN_FILE)
    environment = {"TORCHWIRE_FAULT_PLAN": str(path), "TORCHWIRE_FAULT_LOG": str(tmp_path / "logs")}
    options = {"fault_plan": path, "fault_log": tmp_path / "logs"}
    with Group(2, environment if by == "environment" else None) as group:
        group.all(faulty.init, file_in(tmp_path), world_size=2, **(options if by == "option" else {}))
        assert group[0].run(call_many, "worker1", 4) == [True, False, True, True]
        group.all(faulty.shut_down)
    (fault,) = faults.read_logs(tmp_path / "logs")
    assert (fault.rule, fault.occurrence, fault.revision, fault.worker) == ("from the file", 2, 0, "worker0")

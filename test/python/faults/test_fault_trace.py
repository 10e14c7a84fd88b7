"""Faults that are injected while a trace is on are in its file."""

import json

import injected_calls
import torchwire
from injected_calls import expect_next_works, expect_one, first, log_of, new_tag, put


def traced_call(path, tag):
    with torchwire.trace(path):
        injected_calls.attempt("worker1", injected_calls.note, tag)


def faults_in(path):
    return [
        (event["pid"], event["name"], event["args"]["reason"], event["ts"])
        for event in json.loads(path.read_text())["traceEvents"]
        if event["ph"] == "i" and event["name"].startswith("injected")
    ]


def test_an_injected_fault_is_a_moment_within_its_call(duo, tmp_path):
    path = tmp_path / "trace.json"
    revision = put(duo, first("fail", "request"))
    duo[0].run(traced_call, path, new_tag())
    fault = expect_one(log_of(duo, revision), "fail", "request")
    ((worker, name, reason, when),) = faults_in(path)
    assert (worker, name, reason) == (0, "injected fail", str(fault))
    call = next(
        event
        for event in json.loads(path.read_text())["traceEvents"]
        if event["ph"] == "X" and event["name"] == "injected_calls.note" and event["pid"] == 0
    )
    assert call["args"]["failed"] == "injected"
    margin = 1000  # microseconds, by which the two clocks may have drifted apart meanwhile
    assert call["ts"] - margin <= when <= call["ts"] + call["dur"] + margin
    expect_next_works(duo)
    duo[0].run(traced_call, path, new_tag())
    assert faults_in(path) == []  # what was injected before is not in it

"""Workers that meet an event at a random moment of an operation; see moments.py, which runs many by hand."""

import pathlib

import pytest
from processes import run_script

MOMENTS = pathlib.Path(__file__).with_name("moments.py")

EVENTS = ["sigint", "sigterm", "sigkill", "fork_exit", "fork_exec"]
OPERATIONS = ["init_rpc", "rpc_sync", "async_wait", "to_here", "backward", "shutdown"]


def check(tmp_path, *arguments, limit):
    done = run_script(MOMENTS, *arguments, "--output", tmp_path, limit=limit)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " 0 wrong" in done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "transport, operations",
    [("default", ["init_rpc", "to_here", "shutdown"]), ("wire_tcp", ["rpc_sync", "async_wait", "backward"])],
)
def test_an_event_at_any_moment_leaves_nobody_waiting(tmp_path, transport, operations):
    chosen = [word for operation in operations for word in ("--operation", operation)]
    check(tmp_path, *chosen, "--transport", transport, limit=240)


@pytest.mark.long
@pytest.mark.parametrize("transport", ["default", "wire_tcp"])
@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("event", EVENTS)
def test_many_events_at_any_moment(tmp_path, event, operation, transport):
    combination = ("--event", event, "--operation", operation, "--transport", transport)
    check(tmp_path, *combination, "--runs", 500, limit=3600)

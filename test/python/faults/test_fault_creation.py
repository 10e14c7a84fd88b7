"""RRefs whose creation meets a fault: who waits for the value hears of it, and the group shuts down all the same."""

import faulty
import pytest
import torch
import torch.distributed.rpc as rpc
from injected_calls import LONG, QUICKLY, first
from processes import wait_until
from torchwire.testing import Plan

# ---- what the workers run ----


def outcome_of_remote(to):
    """The error's text, or None if all went well."""
    try:
        rref = rpc.remote(to, torch.add, (torch.ones(1), 1), timeout=LONG)
        rref._get_future().wait()
        rref.to_here(LONG)
    except RuntimeError as error:
        return str(error)
    return None


def active_calls():
    return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.client_active_calls"])


# ---- tests ----


@pytest.mark.parametrize("to", ["worker0", "worker1"], ids=["self", "peer"])
@pytest.mark.parametrize("phase", ["request", "in_flight", "response"])
@pytest.mark.parametrize("action", ["close", "corrupt", "fail"])
def test_a_creation_that_fails_is_over(tmp_path, action, phase, to):
    arguments = {"byte": 40} if action == "corrupt" else {}
    rule = first(action, phase, messages="SCRIPT_REMOTE_CALL", to=to, **arguments)
    with faulty.running(2, tmp_path, fault_plan=Plan([rule])) as group:
        pending = group[0].start(outcome_of_remote, to)
        assert pending.result(QUICKLY * 3) is not None
        wait_until(lambda: group[0].run(active_calls) == 0)

"""A reply gets lost: the server has applied a push, and the trainer, which cannot know, sends it again."""

import threading

import pytest
import torch
import torch.distributed.rpc as rpc
from torchwire.testing import Plan, Rule

pytest_plugins = ["torchwire.testing.pytest_plugin"]

# ---- the parameter server ----

_lock = threading.Lock()
_parameter = torch.zeros(3)
_applied = set()


def apply(trainer, number, gradient):
    """Adds the gradient, unless this push has come before: a trainer repeats what was not answered."""
    with _lock:
        if (trainer, number) not in _applied:
            _applied.add((trainer, number))
            _parameter.add_(gradient)


def parameter():
    return _parameter


# ---- the trainer ----


def push(number, gradient):
    for _ in range(5):
        try:
            return rpc.rpc_sync("worker0", apply, (rpc.get_worker_info().name, number, gradient), timeout=1)
        except RuntimeError as error:  # it may have been applied, or not
            last = error
    raise last


def train(pushes):
    if rpc.get_worker_info().name == "worker0":
        return None  # it serves until all have returned
    for number in range(pushes):
        push(number, torch.ones(3))
    return rpc.rpc_sync("worker0", parameter).tolist()


# ---- the test ----


@pytest.mark.parametrize("phase", ["request", "response"])
def test_a_push_counts_once_whichever_message_is_lost(rpc_workers, phase):
    plan = Plan([Rule("drop", messages="PYTHON_CALL", from_="worker1", phase=phase, nth=[2, 5])])
    run = rpc_workers(train, 6, plan=plan)
    assert not run.errors
    assert run.results["worker1"] == [6, 6, 6]
    assert [fault.occurrence for fault in run.log] == [2, 5]

"""The network is cut for a while: a trainer works on by itself, and its count is right when all is over."""

import threading
import time

import torch.distributed.rpc as rpc
from torchwire.testing import Plan, Rule, set_plan

pytest_plugins = ["torchwire.testing.pytest_plugin"]

# ---- the coordinator ----

_lock = threading.Lock()
_newest = {}  # trainer -> (step, samples seen until then)


def report(trainer, step, samples):
    """Keeps the newest report. What the network held back comes late, and must not undo a newer one."""
    with _lock:
        _newest[trainer] = max(_newest.get(trainer, (0, 0)), (step, samples))


def coordinate(steps):
    if rpc.get_worker_info().name != "worker0":
        return None  # it trains when it is called
    set_plan(Plan([Rule("partition", between=("worker0", "worker2"), after=0.3, seconds=1)]))
    calls = {trainer: rpc.rpc_async(trainer, train, (steps,)) for trainer in ("worker1", "worker2")}
    missed = {trainer: call.wait() for trainer, call in calls.items()}
    return missed, {trainer: samples for trainer, (_, samples) in _newest.items()}


# ---- a trainer ----


def train(steps):
    """Returns how many of its reports were not answered in time."""
    missed = 0
    for step in range(1, steps + 1):
        time.sleep(0.02)  # a step of training, on 32 samples
        try:
            rpc.rpc_sync("worker0", report, (rpc.get_worker_info().name, step, 32 * step), timeout=0.2)
        except RuntimeError:  # the next report says it all
            missed += 1
    return missed


# ---- the test ----


def test_a_trainer_that_was_cut_off_is_counted_in_full(rpc_workers):
    run = rpc_workers(coordinate, 60, workers=3)
    assert not run.errors
    missed, samples = run.results["worker0"]
    assert missed["worker2"] > 0
    assert samples == {"worker1": 60 * 32, "worker2": 60 * 32}
    assert {fault.action for fault in run.log} == {"partition"}

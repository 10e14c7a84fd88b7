"""A worker is killed in the middle of a call: the learner goes on with the actors that are left."""

import signal

import torch
import torch.distributed.rpc as rpc
from torchwire.testing import Plan, Rule

pytest_plugins = ["torchwire.testing.pytest_plugin"]

# ---- an actor ----


def rollout(step):
    return torch.full((4,), float(step))


# ---- the learner ----


def learn(steps):
    if rpc.get_worker_info().name != "worker0":
        return None  # it serves until all have returned
    actors = ["worker1", "worker2"]
    batches = []  # per step, from how many actors
    for step in range(steps):
        calls = {actor: rpc.rpc_async(actor, rollout, (step,), timeout=30) for actor in actors}
        batch = []
        for actor, call in calls.items():
            try:
                batch.append(call.wait())
            except RuntimeError:  # its connection is lost
                actors.remove(actor)
        batches.append(len(batch))
    return batches


# ---- the test ----


def test_the_learner_goes_on_without_an_actor_that_dies(rpc_workers):
    plan = Plan([Rule("kill", messages="PYTHON_CALL", to="worker2", phase="in_flight", nth=3)])
    run = rpc_workers(learn, 5, workers=3, plan=plan)
    assert run.results["worker0"] == [2, 2, 1, 1, 1]
    assert set(run.errors) == {"worker2"}
    assert run.exit_codes["worker2"] == -signal.SIGKILL
    assert [(fault.worker, fault.action) for fault in run.log] == [("worker2", "kill")]

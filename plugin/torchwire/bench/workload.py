"""The table of workloads: what can be measured, by the name that the command line has for it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from torchwire.bench import call_steps, cost_steps, rpc_steps
from torchwire.bench.step import Scope, Step


class Workload(NamedTuple):
    title: str
    steps: Callable[[Scope], list[Step]]


WORKLOADS = {
    "latency": Workload("A call at a time", call_steps.latency),
    "rate": Workload("Calls of the no-op per second", call_steps.rate),
    "echo": Workload("There and back", call_steps.echo),
    "rref": Workload("RRefs", rpc_steps.rref),
    "remote_module": Workload("RemoteModule", rpc_steps.remote_module),
    "backward": Workload("Backward passes", rpc_steps.backward),
    "peers": Workload("The no-op, on all others at once", rpc_steps.peers),
    "start_up": Workload("Start-up and shutdown", cost_steps.start_up),
    "resources": Workload("What each of two processes costs", cost_steps.resources),
}


def title_of(name: str) -> str:
    """Of a workload; one that is not in the table, such as a direction between devices, has its name for a title."""
    return WORKLOADS[name].title if name in WORKLOADS else name[:1].upper() + name[1:]


def steps_of(names: Iterable[str], scope: Scope) -> list[Step]:
    """All steps of these workloads. Raises ValueError for a name that none has."""
    names = list(names)
    for name in names:
        if name not in WORKLOADS:
            raise ValueError(f"there is no workload {name!r}; there are {', '.join(WORKLOADS)}")
    return [step for name in names for step in WORKLOADS[name].steps(scope)]

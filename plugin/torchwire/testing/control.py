"""The plan and the log of a running group."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import NamedTuple

from torchwire import option_checks
from torchwire._C import FaultInterceptor, TorchwireAgent
from torchwire.current_agent import agent_for
from torchwire.testing.fault import Fault
from torchwire.testing.plan import Plan, as_plan
from torchwire.testing.plan_watch import PlanWatch


class _Running(NamedTuple):
    agent: TorchwireAgent
    watch: PlanWatch


_running: _Running | None = None
_interceptor: FaultInterceptor | None = None  # outlives its agent, for the log


def take(agent: TorchwireAgent, interceptor: FaultInterceptor, watch: PlanWatch) -> None:
    """From now on the functions below are about this agent."""
    global _running, _interceptor
    _running, _interceptor = _Running(agent, watch), interceptor


def set_plan(plan: Plan | str | os.PathLike[str], timeout: float = 10.0) -> int:
    """Puts a plan, or the one in a TOML file, into effect on all workers, in the place of the one before.

    Returns its revision, which logs show, once all workers have it. Counts of occurrences begin anew, a partition ends,
    and what was being delayed stays so. When several workers set plans at the same time, the last wins everywhere.

    Raises TimeoutError, which names them, when workers do not take it up within `timeout` seconds (default 10):
    they may have been killed or paused; the others have it all the same. Raises RuntimeError when this process runs no
    agent of FAULTY_TORCHWIRE, or is shutting it down, and as Plan does for a bad plan.
    """
    running = _running_for("set_plan")
    seconds = option_checks.timeout("set_plan: timeout", timeout)
    revision = running.watch.publish(as_plan("set_plan: plan", plan))
    workers = [info.name for info in running.agent.get_worker_infos()]
    missing = running.watch.wait_for(workers, revision, seconds)
    if missing:
        raise TimeoutError(
            f"set_plan(): revision {revision} of the fault plan is not in effect on "
            f"{', '.join(map(repr, sorted(missing)))} after {seconds:g} s; the workers may have been killed or paused, "
            "or be shutting down. All others have it"
        )
    return revision


def clear_plan(timeout: float = 10.0) -> int:
    """Ends all faults, on all workers. Takes `timeout` and raises as set_plan does."""
    return set_plan(Plan(), timeout)


def replay(log: Iterable[Fault], timeout: float = 10.0) -> int:
    """Has the faults of a log injected again, on all workers, at the same messages; see Plan.from_log.

    Takes `timeout` and raises as set_plan does.
    """
    return set_plan(Plan.from_log(log), timeout)


def end_faults_here() -> None:
    """Ends all faults on this worker alone, and its part in plans of the group. Raises as set_plan does."""
    _running_for("end_faults_here").watch.end_faults()


def current_plan() -> Plan:
    """The plan in effect on this worker. Raises RuntimeError as set_plan does."""
    return _running_for("current_plan").watch.plan


def fault_log() -> list[Fault]:
    """The faults that this worker has injected, in order; after rpc.shutdown() still those of the last agent.

    Raises RuntimeError when this process has never run an agent of FAULTY_TORCHWIRE.
    """
    if _interceptor is None:
        _running_for("fault_log")
        return []
    return [Fault.from_entry(entry) for entry in _interceptor.log()]


def _running_for(function: str) -> _Running:
    agent = agent_for(f"testing.{function}")
    if _running is not None and _running.agent is agent:
        return _running
    raise RuntimeError(
        f"torchwire.testing.{function}(): worker {agent.get_worker_info().name!r} runs on TORCHWIRE, which injects no "
        "faults; pass backend=BackendType.FAULTY_TORCHWIRE to init_rpc"
    )

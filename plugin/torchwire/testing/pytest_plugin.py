"""A pytest fixture that runs functions on several workers with faults. In a conftest.py or a test module:

    pytest_plugins = ["torchwire.testing.pytest_plugin"]

    def test_a_lost_message_is_sent_again(rpc_workers):
        run = rpc_workers(train, 3, workers=3, plan=Plan([Rule("drop", messages="PYTHON_CALL", nth=1)]))
        assert not run.errors

The report of a test that fails has the faults that were injected.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Protocol

import pytest

from torchwire.testing.run import Run
from torchwire.testing.workers import run_workers

_runs = pytest.StashKey[list[Run]]()

_MOST_FAULTS = 200  # in a report


class RpcWorkers(Protocol):
    """What the fixture is: run_workers()."""

    def __call__(self, function: Any, /, *args: Any, **keywords: Any) -> Run: ...


@pytest.fixture
def rpc_workers(request: pytest.FixtureRequest) -> RpcWorkers:
    """run_workers(), see there; all its processes have ended when it returns or raises."""
    runs = request.node.stash.setdefault(_runs, [])

    def run(function: Any, /, *args: Any, **keywords: Any) -> Run:
        runs.append(run_workers(function, *args, **keywords))
        return runs[-1]

    return run


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Generator[None, Any, None]:
    """Adds what is known of the runs to the report of a test that failed."""
    outcome = yield
    report = outcome.get_result()
    if report.when == "call" and report.failed:
        runs: list[Run] = item.stash.get(_runs, list[Run]())
        for number, run in enumerate(runs, start=1):
            report.sections.append((f"run {number} of rpc_workers", _described(run)))


def _described(run: Run) -> str:
    lines = [f"{worker}: {failure}" for worker, failure in run.errors.items()]
    lines += [f"{len(run.log)} faults were injected" + (":" if run.log else "")]
    lines += [str(fault) for fault in run.log[:_MOST_FAULTS]]
    if len(run.log) > _MOST_FAULTS:
        lines.append(f"and {len(run.log) - _MOST_FAULTS} more")
    return "\n".join(lines)

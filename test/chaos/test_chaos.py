"""A short selection of the loads; README.md has the long ones."""

import pathlib

import pytest
from crew import Crew
from outcomes import LOST
from rounds import Round
from settings import Settings
from torchwire import _build

PLANS = pathlib.Path(__file__).parent / "plans"

over_each_transport = pytest.mark.parametrize(
    "links",
    [
        {},
        {"transports": ("wire_tcp",)},
        {"transports": ("wire_tcp",), "channels": ("basic",), "encryption": True},
    ],
    ids=["default", "wire_tcp", "encrypted"],
)
needs_faults = pytest.mark.skipif(not _build.FAULT_INJECTION, reason="this build has no fault injection")


def report(outcome):
    """With the end of what its lost workers have written: a stack, if they crashed."""
    lost = {violation.worker for violation in outcome.violations if violation.kind == LOST}
    paths = [pathlib.Path(path) for path in outcome.files if any(path.endswith(f"-{name}.out") for name in lost)]
    ends = [f"---- {path.name}\n" + "\n".join(path.read_text().splitlines()[-80:]) for path in paths]
    return "\n".join([str(outcome), *ends])


def expect_good(folder, rounds, **chosen):
    """Returns the outcomes."""
    settings = Settings(output=str(folder), **chosen)
    with Crew(settings.world) as crew:
        outcomes = [Round(settings, number, crew).run() for number in range(rounds)]
    assert not any(outcome.violations for outcome in outcomes), "\n".join(map(report, outcomes))
    assert all(outcome.done for outcome in outcomes)
    return outcomes


@over_each_transport
def test_without_faults_nothing_fails(tmp_path, links):
    expect_good(tmp_path, 3, seconds=0.4, **links)


@pytest.mark.slow
@pytest.mark.alone
def test_workers_that_are_killed_come_back(tmp_path):
    expect_good(tmp_path, 2, restarts=4)


@pytest.mark.slow
@pytest.mark.alone
def test_the_same_processes_start_group_after_group(tmp_path):
    expect_good(tmp_path, 6, seconds=0.3, reuse=True)


@pytest.mark.slow
@pytest.mark.alone
@over_each_transport
def test_calls_queue_where_threads_run_out(tmp_path, links):
    operations = ("echo", "fan_out", "nested_calls", "async_chain", "exceptions", "remote_value", "gradients")
    chosen = {"operations": operations, "threads": 1, "checksums": True}
    expect_good(tmp_path, 2, seconds=0.5, **links, **chosen)


@pytest.mark.slow
@pytest.mark.alone
@over_each_transport
def test_survivors_of_kills_go_on(tmp_path, links):
    chosen = {"world": 5, "kills": 2, "timeout": 2, "seconds": 0.5}
    (outcome,) = expect_good(tmp_path, 1, **links, **chosen)
    assert outcome.faults["kill"] == 2


@pytest.mark.slow
@pytest.mark.alone
def test_survivors_of_those_that_leave_go_on(tmp_path):
    chosen = {"world": 4, "kills": 1, "departures": 1, "interrupts": 3, "timeout": 2, "seconds": 0.5}
    (outcome,) = expect_good(tmp_path, 1, **chosen)
    assert outcome.faults["leave"] == 1


@pytest.mark.slow
@pytest.mark.alone
def test_a_group_goes_on_after_workers_stood_still(tmp_path):
    outcomes = expect_good(tmp_path, 2, world=3, freezes=1, timeout=2, seconds=0.5)
    assert sum(outcome.faults["freeze"] for outcome in outcomes) == 2


@needs_faults
@pytest.mark.parametrize("plan", ["lossless", "lossy"])
def test_under_a_fault_plan(tmp_path, plan):
    # A creation that is lost while the object's methods are called keeps a thread of the owner waiting for ever, as in
    # all of PyTorch.
    operations = ("echo", "fan_out", "nested_calls", "async_chain", "exceptions", "gradients", "gradients_of_two")
    chosen = {"operations": operations, "plan": str(PLANS / f"{plan}.toml"), "seconds": 1.5}
    outcomes = expect_good(tmp_path, 2, **chosen)
    assert all(outcome.faults["injected"] for outcome in outcomes)
    if plan == "lossless":
        assert not any(outcome.failed for outcome in outcomes)

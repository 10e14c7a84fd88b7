"""run_workers(), and the pytest fixture."""

import os
import signal
import time

import faulty
import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from processes import run_script
from torchwire.testing import Plan, Rule, run_workers

pytest_plugins = ["torchwire.testing.pytest_plugin"]

# Processes from the fork server start faster.
FORK = {"start_method": "forkserver"}

# ---- what the workers run ----


def name():
    return rpc.get_worker_info().name


def other():
    return "worker1" if name() == "worker0" else "worker0"


def call_the_other(number):
    return name(), rpc.rpc_sync(other(), torch.add, (torch.tensor(number), 1)).item()


def outcomes(count):
    return faulty.outcomes(other(), count)


def call_worker1():
    return name() == "worker1" or call_the_other(1)


def variable(key):
    return os.environ.get(key)


def fail_on_worker1():
    if name() == "worker1":
        raise LookupError("there is no such thing")
    return "well"


def die_on_worker1():
    if name() == "worker1":
        os.kill(os.getpid(), signal.SIGKILL)
    return "well"


def exit_on_worker1():
    if name() == "worker1":
        os._exit(3)
    return "well"


def hang_on_worker1():
    if name() == "worker1":
        time.sleep(1000)
    return "well"


def result_that_cannot_travel():
    return lambda: None


def call_worker1_when_it_has_returned():
    if name() == "worker0":
        time.sleep(0.5)
        with pytest.raises(RuntimeError, match="worker1"):
            call_the_other(1)
    return "well"


def call_and_shut_down():
    call_worker1()
    rpc.shutdown()


# ---- what comes of it ----


def test_a_function_runs_on_all_workers():
    run = run_workers(call_the_other, 4)  # in fresh interpreters
    assert run.results == {"worker0": ("worker0", 5), "worker1": ("worker1", 5)}
    assert (run.errors, run.exit_codes, run.log) == ({}, {"worker0": 0, "worker1": 0}, [])
    assert 0 < run.seconds < 60


def test_the_number_of_workers_options_and_environment_are_as_asked():
    run = run_workers(
        variable, "COLOR", workers=3, environment={"COLOR": "red"}, options={"num_worker_threads": 2}, **FORK
    )
    assert run.results == {"worker0": "red", "worker1": "red", "worker2": "red"}


def test_an_exception_is_described():
    run = run_workers(fail_on_worker1, **FORK)
    assert run.results == {"worker0": "well"}
    (failure,) = run.errors.values()
    assert str(failure) == "LookupError: there is no such thing"
    assert "in fail_on_worker1" in failure.traceback
    assert run.exit_codes == {"worker0": 0, "worker1": 0}


@pytest.mark.parametrize(
    ("function", "code", "sentence"),
    [
        (die_on_worker1, -signal.SIGKILL, "ProcessEnded: the process was killed by SIGKILL"),
        (exit_on_worker1, 3, "ProcessEnded: the process ended by itself, with exit code 3"),
    ],
)
def test_a_process_that_ends_is_described(function, code, sentence):
    run = run_workers(function, **FORK)
    assert run.results == {"worker0": "well"}
    assert {worker: str(failure) for worker, failure in run.errors.items()} == {"worker1": sentence}
    assert run.exit_codes == {"worker0": 0, "worker1": code}


def test_a_process_that_ends_when_it_has_returned_is_described():
    plan = Plan([Rule("kill", to="worker1", phase="in_flight")])
    run = run_workers(call_worker1_when_it_has_returned, plan=plan, **FORK)
    assert run.results == {"worker0": "well", "worker1": "well"}
    assert {worker: str(failure) for worker, failure in run.errors.items()} == {
        "worker1": "ProcessEnded: the process was killed by SIGKILL"
    }
    assert run.exit_codes == {"worker0": 0, "worker1": -signal.SIGKILL}


def test_a_process_that_hangs_is_killed_and_shows_its_stacks():
    run = run_workers(hang_on_worker1, timeout=5, **FORK)
    assert run.results == {"worker0": "well"}
    (failure,) = run.errors.values()
    assert str(failure) == "StillRunning: worker1 was still in the function after 5 s, and was killed"
    assert "in hang_on_worker1" in failure.traceback
    assert run.exit_codes == {"worker0": 0, "worker1": -signal.SIGKILL}


def test_a_result_that_cannot_travel_is_a_failure():
    run = run_workers(result_that_cannot_travel, **FORK)
    assert set(run.errors) == {"worker0", "worker1"}
    assert "pickle" in str(run.errors["worker0"])


def test_options_that_are_wrong_are_a_failure_of_every_worker():
    run = run_workers(name, options={"num_worker_thread": 2}, **FORK)
    assert set(run.errors) == {"worker0", "worker1"}
    assert "did you mean 'num_worker_threads'?" in str(run.errors["worker0"])


@pytest.mark.parametrize(
    ("arguments", "kind", "sentence"),
    [
        ({"workers": 0}, ValueError, "workers must be at least 1, got 0"),
        ({"workers": "2"}, TypeError, "workers must be a whole number, got '2'"),
        ({"timeout": -1}, ValueError, "timeout must be finite"),
        ({"timeout": 0}, ValueError, "timeout must be more than 0"),
        ({"plan": 3}, TypeError, "plan must be a Plan or the path of a TOML file, got 3"),
        ({"plan": Plan(), "options": {"fault_plan": Plan()}}, ValueError, "plan and the option fault_plan are both"),
        ({"options": [1]}, TypeError, "options must be a dict of keywords"),
    ],
)
def test_bad_arguments_are_refused_with_a_sentence(arguments, kind, sentence):
    with pytest.raises(kind, match=f"run_workers: {sentence}"):
        run_workers(name, **arguments)


# ---- faults ----


def test_faults_of_all_workers_are_in_the_log():
    plan = Plan([Rule("delay", name="slow", messages="SCRIPT_CALL", seconds=0.05)])
    run = run_workers(call_the_other, 4, plan=plan, **FORK)
    assert not run.errors
    assert [(fault.rule, fault.seconds) for fault in run.log] == [("slow", 0.05)] * 2
    assert {fault.worker for fault in run.log} == {"worker0", "worker1"}
    assert run.log[0].time <= run.log[1].time


def test_the_log_has_what_killed_a_worker(tmp_path):
    plan = tmp_path / "plan.toml"
    plan.write_text(Plan([Rule("kill", to="worker1", phase="in_flight")]).to_toml())
    folder = tmp_path / "logs"
    run = run_workers(call_the_other, 4, plan=plan, options={"fault_log": str(folder)}, **FORK)
    assert run.exit_codes == {"worker0": 0, "worker1": -signal.SIGKILL}
    (fault,) = run.log
    assert (fault.worker, fault.action, fault.from_) == ("worker1", "kill", "worker0")
    assert faults.read_logs(folder) == run.log
    again = run_workers(call_the_other, 4, options={"fault_log": str(folder)}, **FORK)
    assert again.log == []  # what was there before is no part of it


def test_the_same_seed_gives_the_same_faults():
    plans = [Plan([Rule("fail", messages="call", probability=0.3)], seed=seed) for seed in (1, 1, 2)]
    first, again, other_seed = (run_workers(outcomes, 20, plan=plan, **FORK).results for plan in plans)
    assert first == again
    assert first != other_seed
    assert all(0 < results.count(False) < 20 for results in first.values())


def test_a_frame_that_a_fault_has_corrupted_is_found_by_its_checksum():
    plan = Plan([Rule("corrupt", to="worker1", nth=1)])
    run = run_workers(call_worker1, plan=plan, **FORK)
    assert "a frame arrived damaged" in run.errors["worker0"].message
    assert [fault.action for fault in run.log] == ["corrupt"]


def test_faults_end_before_the_shutdown():
    assert not run_workers(name, plan=Plan([Rule("drop")]), timeout=30, **FORK).errors


def test_a_function_may_shut_down_itself():
    plan = Plan([Rule("delay", seconds=0.01, messages="call")])
    run = run_workers(call_and_shut_down, plan=plan, **FORK)
    assert not run.errors
    assert run.log  # of the call


# ---- the fixture ----


def test_the_fixture_runs_functions(rpc_workers):
    assert rpc_workers(call_the_other, 1, **FORK).results["worker0"] == ("worker0", 2)


TEST = """
import torch
import torch.distributed.rpc as rpc
from torchwire.testing import Plan, Rule

pytest_plugins = ["torchwire.testing.pytest_plugin"]


def call():
    if rpc.get_worker_info().name == "worker0":
        return rpc.rpc_sync("worker1", torch.add, (torch.ones(1), 1), timeout=10).item()


def test_that_fails(rpc_workers):
    run = rpc_workers(call, plan=Plan([Rule("fail", name="unlucky")]), start_method="forkserver")
    assert not run.errors


def test_that_passes(rpc_workers):
    run = rpc_workers(call, plan=Plan([Rule("delay", name="patient", seconds=0.01)]), start_method="forkserver")
    assert not run.errors
"""


def test_the_report_of_a_failed_test_has_the_faults(tmp_path):
    path = tmp_path / "test_it.py"
    path.write_text(TEST)
    result = run_script(None, python_arguments=["-m", "pytest", "-p", "no:cacheprovider", str(path)])
    assert "1 failed, 1 passed" in result.stdout
    assert "run 1 of rpc_workers" in result.stdout
    assert "1 faults were injected:" in result.stdout
    assert "worker0: fail (unlucky, revision 0) request of SCRIPT_CALL" in result.stdout
    assert "patient" not in result.stdout

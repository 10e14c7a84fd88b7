"""Plans that change while a group runs, on one worker for all, and the log of what was injected."""

import signal
import threading

import faulty
import pytest
import torch.distributed.rpc as rpc
import torchwire.testing as faults
from group import Group, HostedStore, file_in, free_port, init
from processes import WorkerError, run_script, wait_until
from torchwire.testing import Plan, Rule

FAIL = Plan([Rule("fail", messages="SCRIPT_CALL")])

# ---- what the workers run ----


def stream_and_occurrence(log):
    return sorted((fault.from_, fault.to, fault.message, fault.phase, fault.action, fault.occurrence) for fault in log)


def set_and_count(plan, count):
    """Sets plans again and again; returns the last revision."""
    return [faults.set_plan(Plan(plan.rules, seed=seed)) for seed in range(count)][-1]


def threads():
    return [thread.name for thread in threading.enumerate() if thread.name == "torchwire faults"]


def threads_after_shutdown(graceful):
    before = threads()
    rpc.shutdown(graceful=graceful)
    return before, threads()


@pytest.fixture
def two(tmp_path):
    with faulty.running(2, tmp_path) as group:
        yield group


# ---- plans for all ----


def test_a_plan_that_one_worker_sets_is_in_effect_on_all(two):
    assert two[0].run(faults.set_plan, FAIL) == 1
    assert two.all(faults.current_plan) == [FAIL, FAIL]
    assert two[1].run(faulty.outcomes, "worker0", 2) == [False, False]
    assert two[1].run(faults.clear_plan) == 2
    assert two.all(faults.current_plan) == [Plan(), Plan()]
    assert two[1].run(faulty.outcomes, "worker0", 2) == [True, True]
    assert [fault.revision for fault in two[1].run(faults.fault_log)] == [1, 1]
    assert two[0].run(faults.fault_log) == []


def test_a_plan_may_be_in_a_file(two, tmp_path):
    path = tmp_path / "plan.toml"
    path.write_text(FAIL.to_toml())
    two[0].run(faults.set_plan, str(path))
    assert two.all(faults.current_plan) == [FAIL, FAIL]


def test_faults_that_hit_every_message_do_not_hit_plans(two):
    two[0].run(faults.set_plan, Plan([Rule("drop"), Rule("drop", phase="response")]))
    assert two[0].run(faulty.outcomes, "worker1", 1, timeout=0.2) == [False]
    two[1].run(faults.clear_plan)
    assert two[0].run(faulty.outcomes, "worker1", 1) == [True]


def test_the_plan_of_the_options_is_revision_0(tmp_path):
    with faulty.running(2, tmp_path, fault_plan=FAIL) as group:
        assert group.all(faults.current_plan) == [FAIL, FAIL]
        assert group[0].run(faulty.outcomes, "worker1", 1) == [False]
        (fault,) = group[0].run(faults.fault_log)
        assert (fault.revision, fault.rule, fault.message) == (0, "fail#1", "SCRIPT_CALL")


def test_of_plans_set_at_the_same_time_the_last_wins_everywhere(two):
    last = two.all(set_and_count, FAIL, 20)
    assert sorted(last)[-1] == 40
    wait_until(lambda: len(set(two.all(faults.current_plan))) == 1)
    winner = last.index(40)
    assert two[winner].run(faults.current_plan) == Plan(FAIL.rules, seed=19)


def test_killed_workers_are_named_and_the_others_have_the_plan(tmp_path):
    with Group(3) as group:
        group.all(faulty.init, file_in(tmp_path), world_size=3)
        group[2].kill()
        with pytest.raises(WorkerError, match="TimeoutError: .* revision 1 .* not in effect on 'worker2' after 0.5 s"):
            group[0].run(faults.set_plan, FAIL, timeout=0.5)
        assert [group[rank].run(faults.current_plan) for rank in (0, 1)] == [FAIL, FAIL]
        for rank in (0, 1):
            group[rank].run(rpc.shutdown, graceful=False)


def test_a_paused_worker_is_named_and_catches_up(two):
    two[1].signal(signal.SIGSTOP)
    try:
        with pytest.raises(WorkerError, match="TimeoutError: .* not in effect on 'worker1'"):
            two[0].run(faults.set_plan, FAIL, timeout=0.5)
    finally:
        two[1].signal(signal.SIGCONT)
    wait_until(lambda: two[1].run(faults.current_plan) == FAIL)
    two[0].run(faults.clear_plan)


def test_each_group_on_a_store_begins_with_its_own_options():
    store = HostedStore()
    with Group(2, store.environment) as group:
        for _ in range(2):
            group.all(faulty.init, store.init_method, world_size=2)
            assert group.all(faults.current_plan) == [Plan(), Plan()]
            assert group[0].run(faults.set_plan, FAIL) == 1
            group.all(faulty.shut_down)


def test_who_joins_later_has_the_plan_of_the_group():
    store = HostedStore()
    with Group(2, store.environment) as group:
        group[0].run(faulty.init, store.init_method)
        group[0].run(faults.set_plan, FAIL)
        group[1].run(faulty.init, store.init_method)
        assert group[1].run(faults.current_plan) == FAIL
        group[1].run(faults.clear_plan)
        assert group[0].run(faults.current_plan) == Plan()
        group.all(faulty.shut_down)


# ---- the end ----


@pytest.mark.parametrize("graceful", [True, False])
def test_the_thread_ends_when_rpc_shuts_down(tmp_path, graceful):
    with Group(2) as group:
        group.all(faulty.init, file_in(tmp_path), world_size=2)
        assert group.all(threads_after_shutdown, graceful) == [(["torchwire faults"], [])] * 2
        assert "Traceback" not in group[0].output() + group[1].output()


@pytest.mark.parametrize(
    ("arguments", "sentence"), [({"rank": 3}, "rank"), ({"rank": 0, "fault_plan": "no such file"}, "no such file")]
)
def test_a_start_that_fails_leaves_no_thread_and_no_agent(tmp_path, arguments, sentence):
    with Group(1) as group:
        with pytest.raises(WorkerError, match=sentence):
            group[0].run(faulty.init, file_in(tmp_path), world_size=1, **arguments)
        assert group[0].run(threads) == []
        assert not group[0].run(rpc._is_current_rpc_agent_set)


def test_the_thread_ends_quietly_with_the_store():
    with Group(2) as group:
        group.all(faulty.init, f"tcp://127.0.0.1:{free_port()}", world_size=2)
        group[0].kill()  # which was the store's host
        wait_until(lambda: group[1].run(threads) == [])
        with pytest.raises(
            WorkerError, match="'worker1' could not set a fault plan for all: the rendezvous store did not"
        ):
            group[1].run(faults.set_plan, FAIL)
        assert group[1].run(faults.current_plan) == Plan()
        assert "Traceback" not in group[1].output()
        group[1].run(rpc.shutdown, graceful=False)


SCRIPT = """
import sys
import torch.distributed.rpc as rpc
import torchwire.testing as faults

rpc.init_rpc("worker0", rpc.BackendType.FAULTY_TORCHWIRE, 0, 1,
             faults.FaultyTorchwireRpcBackendOptions(init_method="file://" + sys.argv[1]))
faults.set_plan(faults.Plan([faults.Rule("drop")]))
"""


def test_a_process_may_end_without_shutdown(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    result = run_script(script, tmp_path / "store")
    assert (result.returncode, result.stderr) == (0, "")


def test_the_log_is_there_after_shutdown(tmp_path):
    with Group(1) as group:
        group[0].run(faulty.init, file_in(tmp_path), world_size=1, fault_plan=FAIL)
        group[0].run(faulty.outcomes, "worker0", 1)
        group[0].run(faulty.shut_down)
        assert len(group[0].run(faults.fault_log)) == 1


# ---- logs and replay ----


def test_logs_of_all_workers_are_in_a_folder(tmp_path):
    folder = tmp_path / "made" / "on demand"
    with faulty.running(2, tmp_path, fault_log=folder, fault_plan=FAIL) as group:
        group[0].run(faulty.outcomes, "worker1", 2)
        group[1].run(faulty.outcomes, "worker0", 1)
        in_memory = [fault for log in group.all(faults.fault_log) for fault in log]
    assert faults.read_logs(folder) == in_memory
    assert [fault.worker for fault in in_memory] == ["worker0", "worker0", "worker1"]


def test_a_replay_injects_the_same_faults_at_the_same_messages(two):
    plan = Plan(
        [
            Rule("fail", messages="SCRIPT_CALL", probability=0.3),
            Rule("fail", messages="SCRIPT_CALL", phase="response", probability=0.3),
        ],
        seed=4,
    )
    two[0].run(faults.set_plan, plan)
    first = two.all(outcomes_with_the_other, 20)
    log = [fault for log in two.all(faults.fault_log) for fault in log]
    assert {fault.phase for fault in log} == {"request", "response"}
    assert two[1].run(faults.replay, log) == 2
    assert two.all(outcomes_with_the_other, 20) == first
    again = [fault for log in two.all(faults.fault_log) for fault in log if fault.revision == 2]
    assert stream_and_occurrence(again) == stream_and_occurrence(log)


def outcomes_with_the_other(count):
    return faulty.outcomes("worker1" if rpc.get_worker_info().name == "worker0" else "worker0", count)


def test_what_a_partition_held_back_is_delayed_in_a_replay(two):
    two[0].run(faulty.add, "worker1")  # or the call would wait for a handshake that is held
    two[0].run(faults.set_plan, Plan([Rule("partition", between=("worker0", "worker1"), seconds=2)]))
    assert two[0].run(faulty.outcomes, "worker1", 1) == [True]
    (held,) = two[0].run(faults.fault_log)
    assert (held.action, held.message, held.phase) == ("partition", "SCRIPT_CALL", "request")
    two[0].run(faults.replay, [held])
    assert two[0].run(faulty.outcomes, "worker1", 1) == [True]
    _, delayed = two[0].run(faults.fault_log)
    assert (delayed.action, delayed.occurrence, delayed.seconds) == ("delay", held.occurrence, held.seconds)


# ---- misuse ----


def test_without_rpc_there_is_no_plan():
    for function in (faults.current_plan, faults.clear_plan, faults.fault_log):
        with pytest.raises(
            RuntimeError, match=rf"torchwire.testing.{function.__name__.replace('clear', 'set')}\(\): RPC"
        ):
            function()


def test_on_torchwire_there_is_no_plan(tmp_path):
    with Group(1) as group:
        group[0].run(init, file_in(tmp_path), world_size=1)
        with pytest.raises(WorkerError, match="'worker0' runs on TORCHWIRE, which injects no faults; pass backend="):
            group[0].run(faults.set_plan, Plan())
        group[0].run(rpc.shutdown)


def test_a_worker_that_shuts_down_sets_no_plan(two):
    two[0].run(faults.control.end_faults_here)
    with pytest.raises(WorkerError, match="RuntimeError: worker 'worker0' is shutting RPC down"):
        two[0].run(faults.set_plan, Plan())


def test_workers_with_and_without_faults_make_no_group(tmp_path):
    with Group(2) as group:
        pending = [
            group[0].start(faulty.init, file_in(tmp_path), world_size=2),
            group[1].start(init, file_in(tmp_path), world_size=2),
        ]
        for one in pending:
            with pytest.raises(WorkerError, match="fault"):
                one.result()

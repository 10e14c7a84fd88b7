"""What goes wrong with traces: a second one, a shutdown within one, files that cannot be written, no trace at all."""

import json
import signal
from types import SimpleNamespace

import observed
import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import WorkerError, run_script, wait_until
from torchwire.observe import trace_part
from torchwire.observe.trace_part import Owner


def trace_to(path, **options):
    with torchwire.trace(path, **options):
        pass


def trace_that_raises(path):
    with torchwire.trace(path):
        observed.call_many("worker0", 1)
        raise KeyError("of the block")


def trace_within_a_trace(path, inner):
    with torchwire.trace(path):
        with pytest.raises(RuntimeError, match="a trace of worker 'worker0' is under way: end that one first"):
            trace_to(inner)
        observed.call_many("worker1", 3)


def count_of_calls(path):
    return sum(event.get("name") == "observed.add" for event in json.loads(path.read_text())["traceEvents"])


def test_bad_input(tmp_path):
    with running(1, tmp_path) as group:
        with pytest.raises(WorkerError, match="No such file or directory"):
            group[0].run(trace_to, tmp_path / "missing" / "trace.json")
        for capacity in (0, True, 1.5, 1 << 64):
            with pytest.raises(WorkerError, match="capacity must be a whole number of events from 1 to"):
                group[0].run(trace_to, tmp_path / "trace.json", capacity=capacity)
        with pytest.raises(WorkerError, match="of the block"):
            group[0].run(trace_that_raises, tmp_path / "trace.json")
        assert count_of_calls(tmp_path / "trace.json") == 2  # the call, and its request
        with pytest.raises(WorkerError, match="No space left"):
            group[0].run(trace_to, "/dev/full")
        with pytest.raises(WorkerError, match="of the block"):
            group[0].run(trace_that_raises, "/dev/full")
        assert "the trace /dev/full cannot be written: [Errno 28]" in group[0].output()
        assert group[0].run(observed.call_many, "worker0", 3) == 3


def hold_a_trace(path, pid, end):
    with torchwire.trace(path):
        pid.write_text("on")
        wait_until(end.exists)


def test_a_second_trace_is_refused_and_harms_nothing(tmp_path):
    first, second, on, end = (tmp_path / name for name in ("first.json", "second.json", "on", "end"))
    with running(2, tmp_path) as group:
        group[0].run(trace_within_a_trace, first, second)
        assert count_of_calls(first) == 6 and not second.exists()
        holding = group[1].start(hold_a_trace, first, on, end)
        wait_until(on.exists)
        with pytest.raises(WorkerError, match="a trace of worker 'worker1' is under way"):
            group[0].run(trace_to, second)
        group[0].run(observed.call_many, "worker1", 3)
        end.write_text("")
        holding.result()
        assert count_of_calls(first) == 6
        group[0].run(trace_to, second)


def test_a_trace_whose_owner_has_died_is_over(tmp_path):
    path, on, end = (tmp_path / name for name in ("trace.json", "on", "end"))
    with Group(2) as group:
        group.init(file_in(tmp_path), session_timeout=1)
        group[1].start(hold_a_trace, path, on, end)
        wait_until(on.exists)
        group[1].signal(signal.SIGKILL)
        group[0].run(observed.await_death, "worker1")
        group[0].run(trace_to, path)
        group[0].run(rpc.shutdown, graceful=False)


SHUTDOWN_WITHIN = """
import sys
import torch, torch.multiprocessing as mp, torch.distributed.rpc as rpc, torchwire

def work(rank, store, size, path):
    options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + store)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=size, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)
    if rank == 0:
        with torchwire.trace(path):
            rpc.rpc_sync(f"w{size - 1}", torch.add, (torch.ones(1), 1))
            rpc.shutdown(graceful=size > 1)
    else:
        rpc.shutdown()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1], int(sys.argv[2]), sys.argv[3]), nprocs=int(sys.argv[2]))
"""


@pytest.mark.long
def test_a_shutdown_within_a_trace(tmp_path):
    script, path = tmp_path / "program.py", tmp_path / "trace.json"
    script.write_text(SHUTDOWN_WITHIN)
    done = run_script(script, tmp_path / "store", 2, path)
    assert done.returncode == 0, done.stderr
    assert "aten::add" in path.read_text()
    done = run_script(script, tmp_path / "store2", 1, path)
    assert done.returncode != 0 and "RPC was shut down within the block, and not gracefully" in done.stderr


ALONE = """
import sys
import torch.distributed.rpc as rpc, torchwire

options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc("w0", rank=0, world_size=1, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)
rpc.shutdown(graceful=False)
"""


def test_a_program_that_writes_no_trace(tmp_path):
    script, path = tmp_path / "program.py", tmp_path / "trace.json"
    path.write_text("of yesterday")
    command = ["-m", "torchwire", "trace", "-o", str(path)]
    done = run_script(tmp_path / "missing.py", python_arguments=command)
    assert done.returncode == 2 and "there is no script" in done.stderr and "no trace is written" not in done.stderr
    script.write_text(ALONE)
    done = run_script(script, tmp_path / "store", python_arguments=command)
    assert done.returncode == 1 and "trace: no trace is written" in done.stderr, done.stderr
    script.write_text("raise SystemExit(3)")
    done = run_script(script, python_arguments=command)
    assert done.returncode == 3 and "trace: no trace is written" in done.stderr
    assert path.read_text() == "of yesterday"


def test_a_file_of_the_environment_that_cannot_be_written(tmp_path):
    script, path = tmp_path / "program.py", tmp_path / "missing" / "trace.json"
    script.write_text(ALONE)
    done = run_script(script, tmp_path / "store", environment={"TORCHWIRE_TRACE": str(path)})
    assert done.returncode == 1
    assert f"TORCHWIRE_TRACE: '{path}' cannot be written: No such file or directory" in done.stderr


class QuietAgent:
    """Of rank 1, in a group with worker 0, as far as trace_part asks."""

    def __init__(self):
        self.traces = 0

    def get_worker_info(self):
        return SimpleNamespace(id=1)

    def peers(self):
        return [{"id": 0, "state": "connected"}]

    def start_trace(self, _capacity):
        self.traces += 1

    def stop_trace(self):
        return [], [], 0

    def function_metrics(self):
        return []


def owner(key, rank):
    return Owner(key, f"worker {rank}", rank)


def test_a_trace_that_ends_before_it_begins_is_not_begun():
    agent = QuietAgent()
    with pytest.raises(RuntimeError, match="no part in this trace"):
        trace_part.take(agent, "1-late")
    assert trace_part.start(agent, 10, owner("1-late", 0)) is None and agent.traces == 0
    assert trace_part.start(agent, 10, owner("2-other", 0)) is None and agent.traces == 1
    trace_part.take(agent, "2-other")


def test_a_worker_that_begins_a_trace_has_ended_its_former_one():
    agent = QuietAgent()
    assert trace_part.start(agent, 10, owner("3", 0)) is None
    assert trace_part.start(agent, 10, owner("3", 0)) is None and agent.traces == 1  # told twice
    assert trace_part.start(agent, 10, owner("2", 0)).key == "3"  # late
    assert trace_part.start(agent, 10, owner("4", 0)) is None and agent.traces == 2
    assert trace_part.start(agent, 10, owner("5", 1)).key == "4"  # of another worker
    with pytest.raises(RuntimeError, match="but in one of worker 0"):
        trace_part.take(agent, "3")
    trace_part.take(agent, "4")


def test_a_worker_has_one_trace_of_its_own_at_a_time():
    agent = QuietAgent()
    assert trace_part.start(agent, 10, owner("6", 1)) is None
    assert trace_part.start(agent, 10, owner("7", 1)).key == "6"
    trace_part.take(agent, "6")

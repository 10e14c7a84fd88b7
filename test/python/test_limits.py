"""What a worker does at a limit of its process: what meets the limit fails at once and says so; the rest goes on.

Limits are set once all workers have started, and lifted again, which takes no restart.
"""

import os
import resource
import time

import pytest
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in
from machine_faults import limit_files, limit_user
from processes import WorkerError

# A call that meets a limit does not wait for its time-out.
TIMEOUT = 20.0
PROMPT = 8.0  # seconds, on a busy machine; alone it is less than two


@pytest.fixture
def group(tmp_path):
    """Three workers; no two of them have a connection yet."""
    with Group(3) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT)
        yield group
        group.shut_down()


def add(a, b):
    return a + b


def call(to):
    return rpc.rpc_sync(to, add, (1, 2))


def failed_call(to):
    """The error of a call, and how long it took."""
    begin = time.monotonic()
    try:
        call(to)
    except torchwire.RpcError as error:
        return type(error).__name__, str(error), time.monotonic() - begin
    return None, "", 0.0


def leave_files(count):
    """Lets this process open so many more files; returns its limit."""
    limit = max(map(int, os.listdir("/proc/self/fd"))) + 1 + count
    limit_files(limit)
    return limit


def lift_limit():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit_files(hard)


@pytest.mark.parametrize("count", [0, 1])
def test_a_worker_without_files_says_so_when_it_dials(group, count):
    assert group[0].run(call, "worker1") == 3
    limit = group[0].run(leave_files, count)
    kind, text, seconds = group[0].run(failed_call, "worker2")
    assert kind == "WorkerUnreachable"
    assert f"worker 'worker0' (rank 0) has reached its limit of {limit} open files (ulimit -n): raise it" in text
    assert "worker 'worker2' (rank 2)" in text
    assert "host can connect" not in text  # the peer has nothing to do with it
    assert seconds < PROMPT
    assert group[0].run(call, "worker1") == 3  # what is there goes on
    group[0].run(lift_limit)
    assert group[0].run(call, "worker2") == 3


@pytest.mark.parametrize("count", [0, 1])
def test_a_worker_without_files_tells_those_who_dial_it(group, count):
    assert group[0].run(call, "worker1") == 3
    group[0].run(leave_files, count)
    kind, text, seconds = group[2].run(failed_call, "worker0")
    assert kind == "WorkerUnreachable"
    assert "worker 'worker0' (rank 0)" in text
    assert "its process has reached its limit of open files (ulimit -n)" in text
    assert seconds < PROMPT
    assert group[1].run(call, "worker0") == 3
    group[0].run(lift_limit)
    assert group[2].run(call, "worker0") == 3


def test_many_who_dial_a_worker_without_files_all_hear_of_it(tmp_path):
    with Group(6) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT)
        group[0].run(leave_files, 0)
        pending = [worker.start(failed_call, "worker0") for worker in group[1:]]
        for kind, text, seconds in [one.result() for one in pending]:
            assert kind == "WorkerUnreachable"
            assert "limit of open files" in text
            assert seconds < PROMPT
        group[0].run(lift_limit)
        group.all(call, "worker0")
        group.shut_down()


def test_init_rpc_without_files_says_so(tmp_path):
    with Group(1) as group:
        group[0].run(leave_files, 2)
        with pytest.raises(WorkerError, match="open files"):
            group.init(file_in(tmp_path))
        group[0].run(lift_limit)
        group.init(file_in(tmp_path))
        assert group[0].run(call, "worker0") == 3
        group.shut_down()


# ---- threads ------------------------------------------------------------------------------------

NOBODY_ELSE = 54123  # a user without processes of its own: the limit counts all of them


def leave_no_threads():
    limit_user(NOBODY_ELSE, len(os.listdir("/proc/self/task")), hard=10_000)


def lift_limit_of_threads():
    resource.setrlimit(resource.RLIMIT_NPROC, (10_000, 10_000))


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_worker_that_can_start_no_thread_says_so_to_its_callers(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT)
        assert group[1].run(call, "worker0") == 3  # there is a connection, and no thread yet that serves calls
        group[1].run(leave_no_threads)
        kind, text, seconds = group[0].run(failed_call, "worker1")
        assert kind == "WorkerUnreachable"
        assert "worker 'worker1' does not serve the call: its process can start no more threads" in text
        assert seconds < PROMPT
        assert group[1].run(call, "worker0") == 3  # as far as it needs none
        group[1].run(lift_limit_of_threads)
        assert group[0].run(call, "worker1") == 3
        group.shut_down()

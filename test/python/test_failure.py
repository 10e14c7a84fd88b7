"""What happens when a worker dies, stops or leaves without a word."""

import contextlib
import ctypes
import functools
import os
import re
import signal
import statistics
import subprocess
import threading
import time

import pytest
import torch
import torch.distributed.rpc as rpc
from group import Group, HostedStore, file_in, init
from processes import WorkerError, WorkerProcess, run_script, wait_until
from repetition import Repetition, begin, count
from torchwire.observe import status_socket

# A lost connection is noticed in milliseconds. The limit leaves room for a busy machine and is far from any time-out.
QUICKLY = 3.0

# The promise for workers on one host; kept by the median of several deaths, so that a busy machine may miss it once.
AT_ONCE = 0.1

# None: those that torchwire chooses.
over_each_transport = pytest.mark.parametrize("transports", [None, ["wire_tcp"]], ids=["default", "wire_tcp"])

# ---- what the workers run ----

_event = threading.Event()


def wait_for_event():
    _event.wait()


def set_event():
    _event.set()


def my_name():
    return rpc.get_worker_info().name


def echo(value):
    return value


def name_of(to):
    return rpc.rpc_sync(to, my_name)


def failure_of(function):
    """The error's text, and when it came; the clock is the same in all processes."""
    try:
        function()
    except RuntimeError as error:
        return str(error), time.monotonic()
    raise AssertionError("it did not fail")


_pending = []
_failed_at = []


def begin_call_with_a_clock(to):
    """Makes a call that the callee does not answer, and notes when it fails."""
    _failed_at.clear()
    begin_calls(to, 1)
    _pending[0].add_done_callback(lambda _: _failed_at.append(time.monotonic()))


def failure_by_the_clock():
    text, _ = failure_of(_pending[0].wait)
    while not _failed_at:  # whoever waits may be told before the callback is
        time.sleep(0.001)
    return text, _failed_at[0]


def begin_calls(to, count, function=wait_for_event, arguments=()):
    """Makes calls that the callee does not answer."""
    name_of(to)  # now there is a link
    _pending[:] = [rpc.rpc_async(to, function, arguments) for _ in range(count)]


def begin_large_calls(to, size):
    tensor = torch.ones(size)
    _pending[:] = [rpc.rpc_async(to, echo, (tensor,)) for _ in range(4)]


def failures_of_pending():
    return [failure_of(future.wait) for future in _pending]


def failure_of_call(to):
    begin = time.monotonic()
    text, end = failure_of(lambda: name_of(to))
    return text, end - begin


# ---- death ----


def kill(worker):
    worker.kill()
    return time.monotonic()


@pytest.fixture
def trio(tmp_path):
    """Three workers, of which a test may kill some; the others shut down without waiting for the dead."""
    with Group(3) as group:
        group.init(file_in(tmp_path))
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(rpc.shutdown, graceful=False)


def test_calls_to_a_worker_that_dies_fail_at_once_and_name_it(trio):
    trio[0].run(begin_calls, "worker1", 20)
    died = kill(trio[1])
    for text, when in trio[0].run(failures_of_pending):
        assert "worker 'worker1' (rank 1) has died: its process" in text
        assert when - died < QUICKLY


@over_each_transport
def test_a_pending_call_fails_within_100_ms_of_the_death_of_its_callee(tmp_path, transports):
    with Group(6) as group:
        group.init(file_in(tmp_path), _transports=transports)
        caller, *victims = group
        delays = []
        for victim in victims:
            caller.run(begin_call_with_a_clock, victim.name)
            died = time.monotonic()
            victim.kill()
            text, when = caller.run(failure_by_the_clock)
            assert f"worker '{victim.name}' (rank {victim.name[6:]}) has died: its process" in text
            delays.append(when - died)
        print("failed after", ", ".join(f"{1000 * delay:.1f} ms" for delay in delays))
        assert statistics.median(delays) < AT_ONCE and max(delays) < QUICKLY
        caller.run(rpc.shutdown, graceful=False)


class Chatter(Repetition):
    """Keeps calls of all sizes under way, until one fails."""

    def __init__(self, to):
        super().__init__()
        self._to = to

    def step(self):
        futures = [rpc.rpc_async(self._to, echo, (torch.ones(size),)) for size in (1, 1000, 300_000) * 4]
        torch.futures.wait_all(futures)


def failure_of_chatter():
    return failure_of(wait_for_failure)


def wait_for_failure():
    while True:
        count()
        time.sleep(0.001)


@over_each_transport
def test_the_death_of_a_worker_is_noticed_while_both_sides_talk(tmp_path, transports):
    # What it sent before its end, and what it did not read any more, must not hide that end.
    with Group(6) as group:
        group.init(file_in(tmp_path), _transports=transports)
        caller, *victims = group
        for victim in victims:
            victim.run(begin, Chatter, caller.name)
            caller.run(begin, Chatter, victim.name)
            wait_until(lambda: min(caller.run(count), victim.run(count)) >= 3)
            died = kill(victim)
            text, when = caller.run(failure_of_chatter)
            assert f"worker '{victim.name}'" in text
            assert when - died < QUICKLY
        caller.run(rpc.shutdown, graceful=False)


def test_later_calls_to_a_dead_worker_fail_and_name_it(trio):
    trio[0].run(name_of, "worker1")
    kill(trio[1])
    for _ in range(3):
        text, seconds = trio[0].run(failure_of_call, "worker1")
        assert "worker 'worker1' (rank 1)" in text
        assert seconds < QUICKLY


def test_a_worker_that_died_before_the_first_call_is_named(trio):
    kill(trio[1])
    text, seconds = trio[0].run(failure_of_call, "worker1")
    assert "worker 'worker1' (rank 1) has died: its process" in text
    assert seconds < QUICKLY


def test_the_others_work_on_when_one_dies(trio):
    assert trio[0].run(name_of, "worker2") == "worker2"
    trio[0].run(begin_calls, "worker1", 5)
    kill(trio[1])
    assert trio[0].run(name_of, "worker2") == "worker2"
    assert trio[2].run(name_of, "worker0") == "worker0"
    assert len(trio[0].run(failures_of_pending)) == 5


def test_a_callee_outlives_the_death_of_its_caller(trio):
    trio[0].run(begin_calls, "worker1", 5)
    kill(trio[0])
    trio[2].run(rpc.rpc_sync, "worker1", set_event)  # the five answer a caller that is gone
    assert trio[2].run(name_of, "worker1") == "worker1"
    assert trio[1].run(name_of, "worker2") == "worker2"


def test_the_death_of_a_third_reaches_the_caller_through_the_callee(trio):
    assert trio[1].run(name_of, "worker2") == "worker2"
    kill(trio[2])
    with pytest.raises(WorkerError, match="worker 'worker2'"):
        trio[0].run(rpc.rpc_sync, "worker1", name_of, ("worker2",))


def test_large_tensors_on_their_way_to_a_dying_worker_fail(trio):
    trio[0].run(name_of, "worker1")
    trio[1].signal(signal.SIGSTOP)  # so that they stay on their way
    trio[0].run(begin_large_calls, "worker1", 4_000_000)
    died = kill(trio[1])
    for text, when in trio[0].run(failures_of_pending):
        assert "worker 'worker1' (rank 1)" in text
        assert when - died < QUICKLY
    assert trio[0].run(name_of, "worker2") == "worker2"


_rref = None


def make_rref():
    global _rref
    _rref = rpc.remote("worker1", torch.add, (torch.ones(2), 1))
    wait_until(_rref.confirmed_by_owner)  # else the creation may be what fails, by other words
    return _rref.to_here().tolist()


def fetch_rref():
    return failure_of(_rref.to_here)


def test_fetching_from_a_dead_owner_fails_and_names_it(trio):
    assert trio[0].run(make_rref) == [2, 2]
    died = kill(trio[1])
    text, when = trio[0].run(fetch_rref)
    assert "worker 'worker1' (rank 1)" in text and when - died < QUICKLY


# ---- what a crash leaves behind ----

_CLONE_NEWNS = 0x00020000
_libc = ctypes.CDLL(None, use_errno=True)


def enter_mounts_of_its_own():
    """Gives this process shared memory files that no other process sees."""
    check_call(_libc.unshare(_CLONE_NEWNS))
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"], check=True)


def enter_mounts_of(pid):
    with open(f"/proc/{pid}/ns/mnt") as namespace:
        check_call(_libc.setns(namespace.fileno(), _CLONE_NEWNS))


def check_call(status):
    if status != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def traces_of(pids):
    """Names that lead to one of the processes, in places that all share."""
    with open("/proc/net/unix") as table:
        names = [line.split()[-1] for line in table] + os.listdir("/tmp")
    return [name for name in names for pid in pids if re.search(rf"\b{pid}\b", name)]


def call_with_tensors(to):
    for size in (1, 1_000_000):
        rpc.rpc_sync(to, echo, (torch.ones(size),))


def may_mount():
    return subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode == 0


@pytest.mark.skipif(not may_mount(), reason="needs the right to mount")
@over_each_transport
def test_nothing_is_left_behind_by_workers_that_are_killed(tmp_path, transports, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    store = HostedStore()
    environment = {**store.environment, "TMPDIR": str(tmp_path)}
    with contextlib.closing(WorkerProcess("observer", prepare=enter_mounts_of_its_own)) as observer:
        assert observer.run(os.listdir, "/dev/shm") == []
        with Group(3, environment, prepare=[functools.partial(enter_mounts_of, observer.pid)] * 3) as group:
            group.init(store.init_method, _transports=transports)
            for worker in group:
                for other in group:
                    worker.run(call_with_tensors, other.name)
            pids = [worker.pid for worker in group]
            abstract = [name for name in traces_of(pids) if name.startswith("@")]
            assert bool(abstract) == (
                transports is None
            )  # the Unix sockets, but for the status sockets, which have files
            for worker in group:
                worker.run(begin, Chatter, "worker0")
            for worker in group:
                worker.kill()
        assert traces_of(pids) == []
        assert observer.run(os.listdir, "/dev/shm") == []
        # But for the files of status sockets, where no worker is left: whoever looks removes them.
        assert status_socket.sockets() == os.listdir(tmp_path / "torchwire") == []
        assert os.listdir(tmp_path) == ["torchwire"]


# ---- shutdown ----


def shut_down_locally():
    started = time.monotonic()
    rpc.shutdown(graceful=False)
    return time.monotonic() - started


def test_a_shutdown_that_is_not_graceful_waits_for_nobody(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group[0].run(begin_calls, "worker1", 3)
        assert group[0].run(shut_down_locally) < QUICKLY
        for text, _ in group[0].run(failures_of_pending):
            assert "shut its RPC agent down" in text or "shutting down its RPC agent" in text
        text, seconds = group[1].run(failure_of_call, "worker0")
        assert "worker 'worker0' (rank 0) has left" in text and seconds < QUICKLY
        group[1].run(set_event_here)
        group[1].run(shut_down_locally)


def set_event_here():
    _event.set()


def test_a_graceful_shutdown_waits_for_calls_that_are_under_way(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group[0].run(begin_calls, "worker1", 3)
        first = group[0].start(rpc.shutdown)
        group[1].run(set_event_here)
        group[1].run(rpc.shutdown)
        first.result()
        assert group[0].run(pending_values) == [None] * 3


def pending_values():
    return [future.value() for future in _pending]


# ---- standing still ----


def call_with_time_out(to):
    return failure_of(lambda: rpc.rpc_sync(to, my_name, timeout=0.5))


def test_a_call_to_a_worker_that_stands_still_times_out_and_later_ones_work(trio):
    trio[0].run(name_of, "worker1")
    trio[1].signal(signal.SIGSTOP)
    try:
        text, _ = trio[0].run(call_with_time_out, "worker1")
        assert "RPC ran for more than set timeout (500 ms)" in text
        assert trio[0].run(name_of, "worker2") == "worker2"
    finally:
        trio[1].signal(signal.SIGCONT)
    assert trio[0].run(name_of, "worker1") == "worker1"


# ---- starting again ----


def test_the_same_processes_start_a_group_again_and_again(tmp_path):
    with Group(2) as group:
        for turn in range(3):
            # Another file each time: PyTorch deletes that of a group that ended, perhaps only once it is open anew.
            folder = tmp_path / str(turn)
            folder.mkdir()
            group.init(file_in(folder))
            assert group.all(name_of, "worker0") == ["worker0"] * 2
            group.shut_down()


def test_after_a_crash_the_survivors_start_again_with_a_new_worker(tmp_path):
    stores = [HostedStore(), HostedStore()]
    with Group(2, stores[0].environment) as group:
        group.init(stores[0].init_method)
        kill(group[1])
        group[0].run(rpc.shutdown, graceful=False)
        with Group(2, stores[1].environment) as fresh:
            # PyTorch numbers the groups of a process, so that the survivor and the new worker would not meet.
            group[0].run(forget_earlier_groups, stores[1].environment)
            members = [group[0], fresh[1]]
            pending = [worker.start(init, stores[1].init_method, world_size=2) for worker in members]
            [one.result() for one in pending]
            assert group[0].run(name_of, "worker1") == "worker1"
            pending = [worker.start(rpc.shutdown) for worker in members]
            [one.result() for one in pending]


def forget_earlier_groups(environment):
    rpc._init_counter = 0
    os.environ.update(environment)


# ---- the end of the interpreter ----

END = """
import torch, torchwire, sys
import torch.distributed.rpc as rpc
options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + sys.argv[1])
rpc.init_rpc("w", backend=rpc.BackendType.TORCHWIRE, rank=0, world_size=1, rpc_backend_options=options)
assert rpc.rpc_sync("w", torch.add, (torch.ones(1), 1)).item() == 2
kept = rpc.remote("w", torch.add, (torch.ones(1), 1))
print("called", flush=True)
"""


@pytest.mark.parametrize(
    "last_words, status",
    [
        ("", 0),
        pytest.param("rpc.shutdown()", 0, marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
        pytest.param("1 / 0", 1, marks=pytest.mark.slow),
    ],
)
def test_a_process_ends_with_its_own_status_whether_or_not_it_shuts_down(tmp_path, last_words, status):
    script = tmp_path / "end.py"
    script.write_text(END + last_words)
    process = run_script(script, tmp_path / "store")
    assert process.stdout == "called\n", process.stderr
    assert process.returncode == status, process.stderr

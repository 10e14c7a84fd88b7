"""What a worker does at a limit of its process: what meets the limit fails at once and says so; the rest goes on.

Limits are set once all workers have started, and lifted again, which takes no restart.
"""

import contextlib
import functools
import os
import re
import resource
import signal
import socket
import time
from pathlib import Path
from typing import Any, NamedTuple

import network
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, errors, file_in, free_port, init
from machine_faults import limit_files, limit_user, small_file_system
from processes import WorkerError
from rref_counts import wait_until_none_is_left

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


def failed_call(to, call=call):
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
    limit_user(NOBODY_ELSE, soft=10_000, hard=10_000)
    resource.setrlimit(resource.RLIMIT_NPROC, (threads_of(NOBODY_ELSE), 10_000))


def threads_of(user):
    """How many of this process are that user's: the kernel's own, which io_uring starts and ends, stay root's."""
    count = 0
    for status in Path("/proc/self/task").glob("*/status"):
        with contextlib.suppress(OSError):  # has ended meanwhile
            count += f"\nUid:\t{user}\t" in status.read_text()
    return count


def lift_limit_of_threads():
    resource.setrlimit(resource.RLIMIT_NPROC, (10_000, 10_000))


def make_slowly():
    time.sleep(0.2)
    return torch.ones(2)


def work(to):
    """What functions, operators and an RRef on that worker give, of which several are under way at a time."""
    pending = [rpc.rpc_async(to, add, (number, 1)) for number in range(10)]
    rref = rpc.remote(to, make_slowly)
    product = rpc.rpc_async(to, torch.mul, (torch.ones(2), 3))
    return [one.wait() for one in pending], rref.to_here().tolist(), product.wait().tolist()


WORK = list(range(1, 11)), [1, 1], [3, 3]


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_worker_that_can_start_no_thread_works_and_is_worked_for(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT)
        assert group[1].run(call, "worker0") == 3  # there is a connection; worker1 has served nothing yet
        group[1].run(leave_no_threads)
        assert group[0].run(work, "worker1") == WORK
        assert group[1].run(work, "worker0") == WORK
        wait_until_none_is_left(group, collects=True)
        group[1].run(lift_limit_of_threads)
        group.shut_down()


kept = []


def keep_rref_on(to):
    kept.append(rpc.remote(to, make_slowly))
    kept[-1].to_here()


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
@pytest.mark.parametrize("limited", [0, 1])
def test_a_worker_that_can_start_no_thread_shuts_down(limited):
    with Group(3) as group:
        group.init(f"tcp://127.0.0.1:{free_port()}", rpc_timeout=TIMEOUT)  # a file would be another user's
        for to in ("worker0", "worker1", "worker2"):
            group.all(call, to)  # another user makes no connections any more
            group.all(keep_rref_on, to)
        group[limited].run(leave_no_threads)
        assert max(group.all(timed_shutdown)) < PROMPT


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_init_rpc_without_threads_says_so():
    store = f"tcp://127.0.0.1:{free_port()}"
    with Group(2) as group:
        group[1].run(leave_no_threads)
        for error in errors([worker.start(init, store, world_size=2) for worker in group]):
            assert "can start no more threads: raise the limit that it has reached" in str(error)
        group[1].run(lift_limit_of_threads)
        group.init(f"tcp://127.0.0.1:{free_port()}")
        assert group[0].run(work, "worker1") == WORK
        group.shut_down()


# ---- each resource at each stage ----------------------------------------------------------------

PORTS = range(50000, 50004)
PORT_RANGE = "/proc/sys/net/ipv4/ip_local_port_range"
SHARED_MEMORY = "/dev/shm"
MIB = 1 << 20
ROOM = 64 * MIB  # for threads and small things, where only a large tensor is to have no memory

taken = []  # by this process, for others not to have it


def leave_memory(kind=resource.RLIMIT_AS, room=0):
    name = {resource.RLIMIT_AS: "VmSize", resource.RLIMIT_DATA: "VmData"}[kind]
    with open("/proc/self/status") as file:
        used = int(re.search(rf"{name}:\s+(\d+) kB", file.read())[1]) * 1024
    resource.setrlimit(kind, (used + room, resource.RLIM_INFINITY))


def lift_limits_of_memory():
    for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
        resource.setrlimit(kind, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


def leave_no_ports():
    with open(PORT_RANGE, "w") as file:
        file.write(f"{PORTS[0]} {PORTS[-1]}")
    for port in PORTS:
        taken.append(socket.socket())
        taken[-1].bind(("", port))


def give_back_ports():
    while taken:
        taken.pop().close()


def fill_shared_memory():
    with open(f"{SHARED_MEMORY}/ballast", "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(resource.getpagesize()))
    assert os.statvfs(SHARED_MEMORY).f_bavail == 0


def empty_shared_memory():
    os.remove(f"{SHARED_MEMORY}/ballast")


class Limit(NamedTuple):
    """What leaves a process without a resource, and what lifts that again; what calls fail with that need a connection.

    None: they do not fail.
    """

    reach: Any
    lift: Any
    own: str | None  # of the process itself
    of_others: str | None
    transport: str = "wire_shm"


NO_PORTS = r"no port left for it: widen the range \(sysctl net.ipv4.ip_local_port_range, which is 50000 to 50003\)"
LIMITS = {
    "files": Limit(
        functools.partial(leave_files, 0),
        lift_limit,
        r"reached its limit of \d+ open files \(ulimit -n\): raise it",
        r"its process has reached its limit of open files \(ulimit -n\)",
    ),
    "memory": Limit(
        leave_memory,
        lift_limits_of_memory,
        r"its process has no memory for \d+ bytes: raise .*ulimit -v, which is \d+",
        r"worker 'worker0'.*its process has no memory for another connection: raise .*ulimit -v",
    ),
    "ports": Limit(
        leave_no_ports,
        give_back_ports,
        NO_PORTS,
        NO_PORTS,  # who dials is on the same host
        "wire_tcp",
    ),
    "shared memory": Limit(fill_shared_memory, empty_shared_memory, None, None),
}


@contextlib.contextmanager
def workers(limit, size=3):
    """Processes in which that limit can be reached without harm to others."""
    with contextlib.ExitStack() as stack:
        prepare = None
        if limit == "ports":
            prepare = [stack.enter_context(network.Hosts()).entrances()[0]] * size
        elif limit == "shared memory":
            prepare = [shared_memory_of_its_own] * size
        yield stack.enter_context(Group(size, prepare=prepare))


def shared_memory_of_its_own():
    small_file_system(SHARED_MEMORY, 16 * resource.getpagesize())


@pytest.fixture(params=LIMITS)
def limited(request, tmp_path):
    """A group of which the first worker has a connection to the second only, and a limit that it does not meet yet."""
    name = request.param
    if name in ("ports", "shared memory") and (reason := network.why_impossible()):
        pytest.skip(reason)
    limit = LIMITS[name]
    with workers(name) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT, _transports=[limit.transport])
        assert group[0].run(call, "worker1") == 3
        assert group[1].run(call, "worker0") == 3
        yield group, limit
        assert max(group.all(timed_shutdown)) < PROMPT


def timed_shutdown():
    begin = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - begin


@pytest.mark.parametrize("stage", ["dial", "accept"])
def test_a_limit_is_said_at_once_and_lifted_without_a_restart(limited, stage):
    group, limit = limited
    group[0].run(limit.reach)
    expected, (caller, to) = (
        (limit.own, (group[0], "worker2")) if stage == "dial" else (limit.of_others, (group[2], "worker0"))
    )
    kind, text, seconds = caller.run(failed_call, to)
    assert kind == (expected and "WorkerUnreachable")
    assert re.search(expected or "^$", text), text
    assert seconds < PROMPT
    assert group[0].run(call, "worker1") == 3
    group[0].run(limit.lift)
    assert caller.run(call, to) == 3


def test_a_worker_at_a_limit_shuts_down(limited):
    group, limit = limited
    group[0].run(limit.reach)


def test_init_rpc_without_ports_says_so(tmp_path):
    if reason := network.why_impossible():
        pytest.skip(reason)
    with workers("ports", 1) as group:
        group[0].run(leave_no_ports)
        with pytest.raises(WorkerError, match="no port left for it: widen the range"):
            group.init(file_in(tmp_path), _transports=["wire_tcp"])
        group[0].run(give_back_ports)
        group.init(file_in(tmp_path), _transports=["wire_tcp"])
        group.shut_down()


# ---- disk ---------------------------------------------------------------------------------------


@contextlib.contextmanager
def beside_a_full_disk(tmp_path, variable, file=""):
    """A group of two and a folder in which no file can be made; the environment variable names it, or a file there."""
    if os.geteuid() != 0:
        pytest.skip("mounts a file system")
    full = tmp_path / "full"
    full.mkdir()
    prepare = functools.partial(small_file_system, str(full), "4k,nr_inodes=1")
    with Group(2, {variable: str(full / file)}, prepare=[prepare] * 2) as group:
        yield group, full


def test_a_full_disk_costs_the_status_socket_alone(tmp_path):
    with beside_a_full_disk(tmp_path, "XDG_RUNTIME_DIR") as (group, _):
        group.init(file_in(tmp_path))
        assert group[0].run(call, "worker1") == 3
        group.shut_down()
        for worker in group:
            assert re.search(r"has no status socket.*No space left on device", worker.output())


def test_init_rpc_says_that_there_is_no_room_for_a_trace_or_a_store(tmp_path):
    with beside_a_full_disk(tmp_path, "TORCHWIRE_TRACE", "trace") as (group, full):
        with pytest.raises(
            WorkerError, match=f"TORCHWIRE_TRACE: '{full}/trace' cannot be written: No space left on device"
        ):
            group.init(file_in(tmp_path))
        with pytest.raises(WorkerError, match="No space left on device"):
            group.init(f"file://{full}/store")


# ---- memory for a large tensor ------------------------------------------------------------------


def numel(tensor):
    return tensor.numel()


def zeros(size):
    return torch.zeros(size, dtype=torch.uint8)


def failed_transfer(to, function, argument):
    """What a call with a tensor of four times ROOM ends with, while another one to the same worker is under way."""
    other = rpc.rpc_async(to, sleep_and_add, (1, 2))
    begin = time.monotonic()
    try:
        rpc.rpc_sync(to, function, (argument(),))
    except torchwire.RpcError as error:
        return str(error), time.monotonic() - begin, other.wait()
    return None, 0.0, other.wait()


def sleep_and_add(a, b):
    time.sleep(0.5)  # so that it is under way when the other fails
    return a + b


def large_tensor():
    return zeros(4 * ROOM)


def large_size():
    return 4 * ROOM


def error_of_creation(to, in_context):
    begin = time.monotonic()
    with dist_autograd.context() if in_context else contextlib.nullcontext():
        try:
            rpc.remote(to, numel, (large_tensor(),)).to_here()
        except torchwire.RpcError as error:
            return str(error), error.executed, time.monotonic() - begin


@pytest.mark.parametrize("in_context", [False, True], ids=["plain", "context"])
def test_who_waits_for_an_rref_whose_creation_is_refused_hears_of_it_at_once(group, in_context):
    group[1].run(leave_memory, resource.RLIMIT_DATA, ROOM)
    text, executed, seconds = group[0].run(error_of_creation, "worker1", in_context)
    assert re.search(r"creation .*failed.*no memory for \d+ bytes", text)
    assert executed == "no"
    assert seconds < PROMPT
    group[1].run(lift_limits_of_memory)
    wait_until_none_is_left(group, collects=True)


def time_out_with_rref(to):
    with pytest.raises(torchwire.CallTimedOut):
        rpc.rpc_sync(to, type, (rpc.RRef(1), large_tensor()), timeout=0.5)


def test_a_refusal_that_comes_after_the_time_out_takes_rrefs_back(group):
    group[1].run(leave_memory, resource.RLIMIT_DATA, ROOM)
    assert group[0].run(call, "worker1") == 3
    group[1].signal(signal.SIGSTOP)
    group[0].run(time_out_with_rref, "worker1")
    group[1].signal(signal.SIGCONT)
    wait_until_none_is_left(group, collects=True)
    group[1].run(lift_limits_of_memory)


@pytest.mark.parametrize("direction", ["request", "answer"])
@pytest.mark.parametrize("transport", ["wire_shm", "wire_tcp"])
def test_a_tensor_without_memory_fails_its_own_call_only(tmp_path, transport, direction):
    with Group(2) as group:
        group.init(file_in(tmp_path), rpc_timeout=TIMEOUT, _transports=[transport])
        assert group[0].run(call, "worker1") == 3
        assert group[1].run(call, "worker0") == 3
        group[1].run(leave_memory, resource.RLIMIT_DATA, ROOM)
        caller, transfer = (
            (group[0], ("worker1", numel, large_tensor))
            if direction == "request"
            else (group[1], ("worker0", zeros, large_size))
        )
        text, seconds, other = caller.run(failed_transfer, *transfer)
        assert "worker1'" in text
        size = re.search(r"no memory for (\d+) bytes: raise .*ulimit -d, which is \d+", text)
        assert size, text
        assert 0 <= int(size[1]) - 4 * ROOM < MIB  # what else is in the message
        assert seconds < PROMPT
        assert other == 3
        group[1].run(lift_limits_of_memory)
        assert caller.run(failed_transfer, *transfer) == (None, 0.0, 3)
        group.shut_down()

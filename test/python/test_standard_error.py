"""What a worker writes to standard error when others go: its own sentences alone, for which nobody waits."""

import fcntl
import os
import pathlib
import signal
import sys

import pytest
import torch.distributed.rpc as rpc
from group import Group, file_in, free_port, init, running
from processes import WorkerError, run_script, wait_until
from rref_counts import counts

FOLDER = pathlib.Path(__file__).parent

# ---- what the workers run ----

_kept = []


def answer():
    return 42


def keep_rrefs_on(peer, number):
    _kept.extend(rpc.remote(peer, answer) for _ in range(number))
    for rref in _kept:
        rref.to_here()


def have_nobody_read_errors():
    """Standard error becomes a pipe that is full, as where what has started a program does not read it."""
    _, end = os.pipe()
    fcntl.fcntl(end, fcntl.F_SETFL, os.O_NONBLOCK)
    try:
        while True:
            os.write(end, b"x")
    except BlockingIOError:
        fcntl.fcntl(end, fcntl.F_SETFL, 0)
    os.dup2(end, sys.stderr.fileno())


def owned():
    return counts()["owners"]


# ---- the tests ----


def test_what_a_worker_had_is_taken_back_where_nobody_reads_errors(tmp_path):
    with Group(3) as trio:
        trio.init(file_in(tmp_path))
        trio[1].run(keep_rrefs_on, "worker0", 20)
        assert trio[0].run(owned) == 20
        trio[0].run(have_nobody_read_errors)
        trio[1].kill()
        wait_until(lambda: trio[0].run(owned) == 0)
        trio.kill()


def fail():
    raise ValueError("an error for the caller alone")


def fail_on(peer, number):
    for _ in range(number):
        with pytest.raises(ValueError, match="an error for the caller alone"):
            rpc.rpc_sync(peer, fail, timeout=20)


def test_functions_that_raise_are_answered_where_nobody_reads_errors(tmp_path):
    with Group(2) as pair:
        pair.init(file_in(tmp_path), num_worker_threads=2)
        pair[1].run(have_nobody_read_errors)
        pair[0].run(fail_on, "worker1", 5)
        pair.shut_down()


def test_what_a_function_raises_is_on_the_callees_standard_error(tmp_path):
    with Group(2) as pair:
        pair.init(file_in(tmp_path))
        pair[0].run(fail_on, "worker1", 1)
        wait_until(lambda: "ValueError: an error for the caller alone" in pair[1].output())
        pair.shut_down()


HOLDER = """
import atexit, os, sys, threading
import torch.distributed.rpc as rpc
import torchwire

def init(rank):
    options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + sys.argv[1] + "/store")
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)

if os.fork() == 0:
    init(1)
    try:
        while True:
            rpc.rpc_sync("w0", os.getpid)
    except torchwire.WorkerUnreachable as error:
        os.write(1, str(error).encode())
        os._exit(0)
init(0)
kept = [rpc.remote("w1", os.getpid) for _ in range(3)]
[rref.to_here() for rref in kept]
"""


def test_a_process_that_holds_rrefs_when_it_ends_writes_nothing(tmp_path):
    script = tmp_path / "holder.py"
    script.write_text(HOLDER)
    process = run_script(script, tmp_path)
    assert (process.returncode, process.stderr) == (0, "")
    seen = "worker 'w0' (rank 0) has left the RPC group: its main program ended without rpc.shutdown()"
    assert process.stdout == seen


def call_until_it_has_left(peer):
    with pytest.raises(RuntimeError, match="has left the RPC group"):
        while True:
            rpc.rpc_sync(peer, answer)


@pytest.mark.parametrize("is_static", [True, False])
def test_a_worker_that_leaves_says_nothing_of_those_that_end_meanwhile(tmp_path, is_static):
    with Group(3) as trio:
        trio.all(init, file_in(tmp_path), world_size=3 if is_static else None)
        trio.all(rpc.rpc_sync, "worker0", answer)
        trio[2].signal(signal.SIGSTOP)  # worker0 waits for it to take note
        shutdown = trio[0].start(rpc.shutdown, graceful=not is_static)
        trio[1].run(call_until_it_has_left, "worker0")
        trio[1].kill()
        shutdown.result()
        assert trio[0].output() == ""
        trio.kill()


def test_of_a_store_that_dies_there_are_no_stacks(tmp_path):
    with Group(2) as duo:
        duo.init(f"tcp://127.0.0.1:{free_port()}", rpc_timeout=12)
        duo[0].kill()
        with pytest.raises(WorkerError):
            duo[1].run(rpc.rpc_sync, "worker0", answer)
        duo[1].run(rpc.shutdown)
        told = duo[1].output()
        assert told.count("torchwire warning: the RPC group shuts down without its rendezvous store") == 1
        assert "frame #" not in told and "[c10d]" not in told
        duo.kill()


@pytest.mark.parametrize("transports, warnings", [(["ibv", "uv"], 1), (["wire_shm", "wire_tcp"], 0)])
def test_transports_without_proof_are_named_once(tmp_path, transports, warnings):
    with running(2, tmp_path, _transports=transports) as duo:
        duo.all(rpc.rpc_sync, "worker0", answer)
        outputs = duo
    for worker in outputs:
        assert worker.output().count("torchwire warning: ") == warnings
        assert worker.output().count("_transports names 'uv', which let in whoever connects") == warnings


WRITER = """
import sys
from test_standard_error import have_nobody_read_errors
from torchwire._C import write_error

if sys.argv[1:]:
    have_nobody_read_errors()
write_error("the last line\\n")
"""


@pytest.mark.parametrize("arguments, written", [((), "the last line\n"), (("nobody reads",), "")])
def test_a_process_waits_a_moment_for_its_last_line(tmp_path, arguments, written):
    script = tmp_path / "writer.py"
    script.write_text(WRITER)
    process = run_script(script, *arguments, environment={"PYTHONPATH": os.pathsep.join([str(FOLDER), *sys.path])})
    assert (process.returncode, process.stderr) == (0, written)

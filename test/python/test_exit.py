"""How processes end, on torchwire and on PyTorch's own backend: programs of exit_programs.py.

Two workers start, call each other and end. Each notes what it sees; a note that differs between the backends is a
difference that the documentation names. Rows on PyTorch's own are for tools/test --full: they change when torch does.
They want to be alone: a connection of somebody else's to one of that backend's ports ends the process.

What peers see of a main program that ends in any other way than by rpc.shutdown() is in test_ends.py.
"""

import json
import pathlib
import pickle
import subprocess
import sys
import tempfile
import time

import pytest
import torch.distributed.rpc as rpc
from group import file_in, init
from processes import LIMIT, WorkerError, WorkerProcess, run_script
from torch.distributed.rpc import api

PROGRAMS = pathlib.Path(__file__).with_name("exit_programs.py")

# Before this release, children that multiprocessing forks end without what the program has registered with atexit.
FORKED_CHILDREN_RUN_ATEXIT = sys.version_info >= (3, 13)

DONE = ["shutdown: ok"]
SECOND = "shutdown: RuntimeError: RPC has not been initialized. Call torch.distributed.rpc.init_rpc first."
LEFT = "call: worker 'worker1' (rank 1) has left the RPC group: "
ENDED = "its main program ended without rpc.shutdown()"


def slow(*values):
    return pytest.param(*values, marks=pytest.mark.slow)


def rare(*values):
    return pytest.param(*values, marks=pytest.mark.long)


def stock(*values):
    return pytest.param(*values, marks=pytest.mark.stock)


BOTH = pytest.mark.parametrize("backend", ["TORCHWIRE", stock("TENSORPIPE")])


class _Programs:
    """A process of exit_programs.py for one backend."""

    def __init__(self, backend):
        self._errors = tempfile.TemporaryFile(mode="w+", errors="replace")
        self._process = subprocess.Popen(
            [sys.executable, "-X", "faulthandler", PROGRAMS, backend],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def run(self, way, row, folder):
        """How the two processes end, and what each has noted."""
        print(way, row, folder, file=self._process.stdin, flush=True)
        outcome = json.loads(self._process.stdout.readline())
        self._errors.seek(0)
        print(self._errors.read(), file=sys.stderr)  # which pytest shows if the test fails
        self._errors.seek(0)
        self._errors.truncate()
        return outcome["ends"], outcome["notes"]

    def close(self):
        self._process.stdin.close()
        self._process.wait()


@pytest.fixture(scope="module")
def programs():
    made = {}

    def of(backend):
        if backend not in made:
            made[backend] = _Programs(backend)
        return made[backend]

    yield of
    for one in made.values():
        one.close()


@pytest.fixture
def end(programs, tmp_path):
    """Runs a row; returns how the processes ended, and the notes of worker0 and of worker1."""

    def run(backend, way, row):
        ends, (notes0, notes1) = programs(backend).run(way, row, tmp_path)
        return ends, notes0, notes1

    return run


# ---- a shutdown of the program's own ----


@BOTH
@pytest.mark.parametrize(
    "way, row",
    [
        ("main", "handler_before_import"),
        ("main", "handler_after_init"),
        ("main", "finalizer"),
        ("main", "thread"),
        ("fork", "finalizer"),
        ("fork", "thread"),
        slow("main", "handler_before_init"),
        rare("spawn", "handler_before_import"),
        rare("spawn", "handler_before_init"),
        slow("spawn", "handler_after_init"),
        rare("spawn", "finalizer"),
        rare("spawn", "thread"),
        slow("forkserver", "finalizer"),
        slow("forkserver", "thread"),
    ],
)
def test_a_shutdown_at_the_end_is_graceful_wherever_it_comes_from(end, backend, way, row):
    assert end(backend, way, row) == ([0, 0], DONE, DONE)


@BOTH
@pytest.mark.parametrize("way", ["fork", slow("forkserver")])
@pytest.mark.parametrize("row", ["handler_before_init", slow("handler_before_import"), slow("handler_after_init")])
def test_a_forked_child_runs_a_handler_where_python_does(end, backend, way, row):
    seen = DONE if FORKED_CHILDREN_RUN_ATEXIT else []
    assert end(backend, way, row) == ([0, 0], seen, seen)


@BOTH
@pytest.mark.parametrize("way", ["main", rare("spawn")])
def test_rpc_shutdown_itself_can_be_the_handler(end, backend, way):
    notes = ["initialized after it: False"]
    assert end(backend, way, "plain_handler_before_init") == ([0, 0], notes, notes)


@pytest.mark.slow
@BOTH
def test_a_program_that_fails_still_runs_its_handler(end, backend):
    assert end(backend, "main", "handler_and_error") == ([1, 1], DONE, DONE)


@pytest.mark.slow
@BOTH
def test_a_second_shutdown_is_told_that_there_is_nothing_to_shut_down(end, backend):
    notes = [*DONE, SECOND]
    assert end(backend, "main", "twice") == ([0, 0], notes, notes)


@BOTH
def test_a_shutdown_at_exit_waits_for_a_call_that_runs(end, backend):
    assert end(backend, "main", "call_runs") == ([0, 0], ["call: ok", *DONE], DONE)


# ---- in two threads ----


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, second", [("TORCHWIRE", "shutdown: ok"), stock("TENSORPIPE", "a thread still waits")]
)
@pytest.mark.parametrize("way", ["main", rare("spawn"), slow("fork"), slow("forkserver")])
def test_of_two_threads_the_second_waits_for_the_first(end, backend, way, second):
    assert end(backend, way, "two_threads") == ([0, 0], ["shutdown: ok", second], DONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "backend, first",
    [
        (
            "TORCHWIRE",
            "shutdown: RuntimeError: the RPC group cannot shut down gracefully: "
            "this worker is shutting down its RPC agent",
        ),
        stock("TENSORPIPE", "a thread still waits"),
    ],
)
def test_a_shutdown_that_is_not_graceful_breaks_off_one_that_waits(end, backend, first):
    ends, notes, others = end(backend, "main", "broken_off")
    assert (ends, sorted(notes), others) == (
        [0, 0],
        sorted(["not graceful: ok", first]),
        [],
    )  # of two threads, in any order


# ---- no shutdown ----


def returned(way):
    return ENDED if way == "main" else "its function returned without rpc.shutdown()"


@pytest.mark.parametrize("way", ["fork", rare("spawn"), slow("forkserver")])
@pytest.mark.parametrize("row", ["silent", "daemon_thread"])
def test_a_child_that_does_not_shut_down_ends_and_its_peer_hears_of_it(end, way, row):
    assert end("TORCHWIRE", way, row) == ([0, 0], [LEFT + returned(way), "at once: True"], [])


@pytest.mark.parametrize(
    "way, way_to_end, peer, status, reason",
    [
        ("main", "error", "shuts_down", 1, "it ended by ValueError: on purpose,\\n\\x1b[31mand in red"),
        ("fork", "error", "calls", 1, "it ended by ValueError: on purpose,\\n\\x1b[31mand in red"),
        slow("main", "exit_on_error", "calls", 1, "it ended by ValueError: on purpose (sys.exit(1))"),
        rare("spawn", "exit_on_error", "calls", 1, "it ended by ValueError: on purpose (sys.exit(1))"),
        slow("fork", "exit", "shuts_down", 3, "it ended with sys.exit(3)"),
        ("main", "exit_on_signal", "calls", 3, "it ended with sys.exit(3)"),
        ("fork", "exit_on_signal", "shuts_down", 3, "it ended with sys.exit(3)"),
        slow("main", "exit_as_on_signal", "calls", 3, "it ended by ValueError: on purpose (sys.exit(3))"),
        slow("main", "exit_in_handler", "calls", 3, "it ended by OSError: on purpose (sys.exit(3))"),
        slow("main", "caught_exit", "calls", 0, ENDED),
        slow(
            *("main", "leave_on_error", "calls", 1),
            "it called rpc.shutdown(graceful=False) while handling ValueError: on purpose",
        ),
    ],
)
def test_the_peers_are_told_how_a_process_ends(end, way, way_to_end, peer, status, reason):
    ends, notes, _ = end("TORCHWIRE", way, f"ends:{way_to_end}:{peer}")
    prefix = "shutdown: RuntimeError: the RPC group cannot shut down gracefully: "
    seen = [LEFT + reason, "at once: True"] if peer == "calls" else [LEFT.replace("call: ", prefix) + reason]
    assert (ends, notes) == ([0, status], seen)


@pytest.mark.parametrize("way", ["main", slow("fork")])
def test_a_daemon_thread_whose_shutdown_fails_at_exit_may_print_that(end, way):
    # Stopped in the midst of it, it would keep stderr, and Python abort.
    printed = ["raised RuntimeError", "printed"]
    seen = [LEFT + returned(way), "at once: True"]
    assert end("TORCHWIRE", way, "daemon_thread_that_prints") == ([0, 0], seen, printed)


@pytest.mark.slow
@pytest.mark.parametrize("way", ["fork", slow("main")])
@pytest.mark.parametrize(
    "backend, error",
    [
        ("TORCHWIRE", "WorkerUnreachable: worker 'worker1' (rank 1) has left the RPC group"),
        stock("TENSORPIPE", "RuntimeError: eof"),
    ],
)
def test_a_handler_that_never_returns_does_not_keep_a_process(end, backend, way, error):
    if way == "main" and sys.version_info[:2] == (3, 12):
        pytest.skip("Python 3.12 starts no thread at exit, and torchwire needs one to stop waiting")
    ends, (note,), _ = end(backend, way, "blocked_handler")
    assert ends == [0, 0]
    assert note.startswith(f"call: {error}")


@pytest.mark.stock
@pytest.mark.parametrize("way", ["main", "fork"])
@pytest.mark.parametrize("row", ["silent", "daemon_thread"])
def test_on_the_built_in_backend_the_peer_sees_a_broken_connection(end, way, row):
    (end_of_peer, _), notes, _ = end("TENSORPIPE", way, row)  # the other one aborts at times
    assert end_of_peer == 0
    assert notes[0].startswith("call: eof") and notes[1] == "at once: True"


# ---- what is left ----


def _parts_of_shutdown():
    cells = [cell.cell_contents for cell in rpc.shutdown.__closure__]
    return api._wait_all_workers, api._finalize_shutdown, *cells


def _parts_before_between_and_after(init_method, graceful):
    before = _parts_of_shutdown()
    init(init_method, "worker0", 0, 1)
    between = _parts_of_shutdown()
    rpc.shutdown(graceful=graceful)
    after = _parts_of_shutdown()
    return before == after, [one is other for one, other in zip(before, between, strict=True)]


@pytest.fixture
def worker():
    worker = WorkerProcess("worker0")
    yield worker
    worker.close()


@pytest.mark.parametrize("graceful", [True, False])
def test_nothing_stays_behind_in_pytorch(worker, tmp_path, graceful):
    same_after, same_between = worker.run(_parts_before_between_and_after, file_in(tmp_path), graceful)
    assert same_after and not any(same_between)


def _exit_and_its_exception_travel(init_method):
    init(init_method, "worker0", 0, 1)
    try:
        sys.exit(3)
    except SystemExit as error:
        code = pickle.loads(pickle.dumps(error)).code
    rpc.shutdown()
    return code, pickle.loads(pickle.dumps(sys.exit)) is sys.exit


def test_sys_exit_can_be_pickled_as_ever(worker, tmp_path):
    assert worker.run(_exit_and_its_exception_travel, file_in(tmp_path)) == (3, True)


SPINNING = """
import threading
from torchwire import _C

def spin():
    begun.set()
    while True:
        pass

begun = threading.Event()
threading.Thread(target=_C.withdrawing_rrefs_of_call(spin), daemon=True).start()
begun.wait()
"""


def test_a_daemon_thread_that_python_ends_below_a_replaced_function_ends(tmp_path):
    script = tmp_path / "spinning.py"
    script.write_text(SPINNING)
    process = run_script(script)
    assert (process.returncode, process.stderr) == (0, "")


# ---- a daemon thread in init_rpc ----

STARTING = """
import sys, threading
import torch.distributed.rpc as rpc
import torchwire
from torchwire import registration

def start():
    options = torchwire.TorchwireRpcBackendOptions(init_method=sys.argv[2])
    rpc.init_rpc("worker0", rank=0, world_size=2, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)

def reach(*arguments):
    reached.set()
    return original(*arguments)

reached = threading.Event()
original = getattr(registration, sys.argv[1])
setattr(registration, sys.argv[1], reach)
threading.Thread(target=start, daemon=True).start()
reached.wait()
"""


@pytest.mark.parametrize("place", ["start_agent", "_make_agent", "_start"])
def test_main_may_return_while_a_daemon_thread_is_in_init_rpc(worker, tmp_path, place):
    """The others hear at once, also one that comes later."""
    script = tmp_path / "starting.py"
    script.write_text(STARTING)
    process = run_script(script, place, file_in(tmp_path))
    assert process.returncode == 0, process.stderr
    began = time.monotonic()
    interrupted = "was interrupted in init_rpc|could not start: init_rpc was interrupted"
    reason = f"({interrupted})" if place == "_start" else ""
    with pytest.raises(WorkerError, match=rf"worker 'worker0' \(rank 0\) {reason}"):
        worker.run(init, file_in(tmp_path), "worker1", 1, 2)
    assert time.monotonic() - began < LIMIT / 4


# ---- torchwire in the place of TENSORPIPE ----

SPAWNED = """
import atexit, os, sys, tempfile
import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

def work(rank, folder):
    atexit.register(rpc.shutdown)
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    rpc.rpc_sync(f"worker{1 - rank}", os.getpid)
    os.write(1, type(rpc.api._get_current_rpc_agent()).__name__.encode() + b" ")  # at once: two processes write here

if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "agent, launcher", [("TorchwireAgent", ["-m", "torchwire", "run"]), stock("TensorPipeAgent", [])]
)
def test_an_unchanged_program_that_registers_its_shutdown_first_ends(tmp_path, agent, launcher):
    script = tmp_path / "spawned.py"
    script.write_text(SPAWNED)
    process = run_script(script, tmp_path, python_arguments=launcher)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == [agent, agent]
    assert "Exception ignored" not in process.stderr  # which is how atexit reports a handler's error


FAILING = """
import sys, time
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

class SlowToGo:
    def __del__(self, sleep=time.sleep):
        sleep(1)

def work(rank, folder):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{folder}/store")
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)
    rpc.rpc_sync(f"worker{1 - rank}", time.time)
    if rank == 1:
        globals()["kept"] = SlowToGo()  # until the interpreter is taken down
        raise ValueError("on purpose")
    {wait}

if __name__ == "__main__":
    mp.spawn(work, args=(sys.argv[1],), nprocs=2)
"""


@pytest.mark.parametrize(
    "wait",
    [
        slow("rpc.shutdown()"),
        pytest.param("while True: rpc.rpc_sync('worker1', time.time)", marks=pytest.mark.long),
    ],
)
def test_a_launcher_shows_the_error_that_comes_first(tmp_path, wait):
    script = tmp_path / "failing.py"
    script.write_text(FAILING.replace("{wait}", wait))
    process = run_script(script, tmp_path, python_arguments=["-m", "torchwire", "run"])
    assert process.returncode == 1
    assert "-- Process 1 terminated with the following error:" in process.stderr
    assert process.stderr.rstrip().endswith("ValueError: on purpose")

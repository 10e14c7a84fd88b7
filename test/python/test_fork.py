"""Processes that are forked from a worker: strangers to its group, who neither harm it nor hang, and may join one."""

import contextlib
import gc
import multiprocessing
import os
import pathlib
import pickle
import re
import signal
import subprocess
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, init, running
from processes import LIMIT, run_script, wait_until
from torch.distributed.rpc import api
from torch.utils.data import DataLoader, Dataset
from torchwire import concurrent_shutdown, registration, rendezvous

TRANSPORTS = pytest.mark.parametrize("transport", ["wire_shm", "wire_tcp"])
PROGRAM = pathlib.Path(__file__).with_name("forking_program.py")
REFUSED = "this process was forked from worker 'worker0' after init_rpc"


@pytest.fixture
def group(tmp_path, transport):
    with running(2, tmp_path, _transports=[transport], rpc_timeout=20) as workers:
        workers[0].run(call_all)
        yield workers
        workers[0].run(call_all)  # whatever the child has done


# ---- what runs in workers ------------------------------------------------------------------------


def call_all():
    for number in range(20):
        assert rpc.rpc_sync("worker1", echo, (("worker0's", number),)) == ("worker0's", number)


def echo(value):
    return value


def ones(size):
    return torch.ones(size)


def count_to(end):
    return torch.arange(end)


def wait_a_while():
    time.sleep(3)
    return "late"


@torch.jit.script
def backward_in_script(context: int, root: torch.Tensor):
    dist_autograd.backward(context, [root])


class Counter:
    def __init__(self):
        self.count = 0

    def increase(self):
        self.count += 1
        return self.count


def in_child(function, *args):
    """What `function` returns or raises in a forked child, which leaves then."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            with os.fdopen(writing, "wb") as pipe:
                try:
                    pickle.dump(("value", function(*args)), pipe)
                except BaseException as error:
                    pickle.dump(("error", f"{type(error).__name__}: {error}"), pipe)
            status = 0
        finally:
            os._exit(status)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        return _ended(child, pipe.read)


def _ended(child, read):
    """A child that hangs is killed, and shows where it hung."""
    late = threading.Timer(LIMIT / 2, os.kill, (child, signal.SIGABRT))
    late.start()
    try:
        answer = read()
        _, status = os.waitpid(child, 0)
    finally:
        late.cancel()
    assert status == 0, f"the child ended with {status}"
    kind, value = pickle.loads(answer)
    if kind == "error":
        raise RuntimeError(value)
    return value


def refusal_of(function, *args):
    try:
        return f"it returned {function(*args)!r}"
    except RuntimeError as error:
        return str(error)


# ---- RRefs ---------------------------------------------------------------------------------------


def drop_in_child():
    rref = rpc.remote("worker1", ones, (3,))
    rref.to_here()
    kept = [rref]
    in_child(_drop, kept)
    return rref.to_here(5).sum().item(), rpc.rpc_sync("worker1", forks_here)


def _drop(kept):
    kept.clear()
    gc.collect()


def forks_here():
    return sum(len(one["forks"]) for one in torchwire.rrefs() if one["role"] == "owner")


@TRANSPORTS
def test_an_rref_that_a_child_drops_stays_the_parents(group):
    total, forks = group[0].run(drop_in_child)
    assert total == 3
    assert forks == 1


# ---- what the child may not do -------------------------------------------------------------------


def refusals_in_child():
    rref = rpc.remote("worker1", Counter)
    rref.to_here()
    pending = {
        "python": rpc.rpc_async("worker1", wait_a_while),
        "builtin": rpc.rpc_async("worker1", torch.add, (torch.ones(1), 1)),
    }
    pending["then"] = pending["python"].then(lambda done: done.value())
    refused = in_child(_refusals, rref, pending, api._get_current_rpc_agent())
    return refused, [pending[name].wait() for name in ("python", "then")]


def _refusals(rref, pending, agent):
    ones = torch.ones(1, requires_grad=True)

    def backward():
        with dist_autograd.context() as context:
            dist_autograd.backward(context, [rpc.rpc_sync("worker1", torch.add, (ones, ones)).sum()])

    def local(backward):
        with dist_autograd.context() as context:
            return backward(context, (ones * 2).sum())

    attempts = {
        "rpc_sync": lambda: rpc.rpc_sync("worker1", echo, (1,)),
        "rpc_sync by rank": lambda: rpc.rpc_sync(1, echo, (1,)),
        "rpc_sync to itself": lambda: rpc.rpc_sync("worker0", echo, (1,)),
        "rpc_sync of an operator": lambda: rpc.rpc_sync("worker1", torch.add, (ones, 1)),
        "rpc_async": lambda: rpc.rpc_async("worker1", echo, (1,)).wait(),
        "remote": lambda: rpc.remote("worker1", echo, (1,)).to_here(),
        "to_here": lambda: rref.to_here(),
        "proxy": lambda: rref.rpc_sync().increase(),
        "proxy, async": lambda: rref.rpc_async().increase().wait(),
        "get_worker_info": lambda: rpc.get_worker_info("worker1"),
        "backward": backward,
        "backward without calls": lambda: local(lambda context, root: dist_autograd.backward(context, [root])),
        "backward in a script": lambda: local(backward_in_script),
        "backward of an RRef": lambda: local(lambda context, root: rpc.RRef(root).backward(context)),
        "_all_gather": lambda: api._all_gather(1),
        "_barrier": lambda: api._barrier({"worker0", "worker1"}),
        "_wait_all_workers": api._wait_all_workers,
        "_delete_all_user_and_unforked_owner_rrefs": api._delete_all_user_and_unforked_owner_rrefs,
        "rref_counts of the parent's agent": agent.rref_counts,  # as in a shutdown that the child goes on with
        "peers": torchwire.peers,
        "rrefs": torchwire.rrefs,
        "metrics": torchwire.metrics,
        "dump": torchwire.dump,
        "explain": lambda: torchwire.explain("worker1"),
    }
    attempts |= {f"wait of {name}": future.wait for name, future in pending.items() if not future.done()}
    return {name: refusal_of(attempt) for name, attempt in attempts.items()}


@TRANSPORTS
def test_whatever_a_child_asks_of_the_group_is_refused_at_once(group):
    refused, results = group[0].run(refusals_in_child)
    assert results == ["late"] * 2
    assert {name: text for name, text in refused.items() if REFUSED not in text} == {}
    assert {"wait of python", "wait of then"} <= refused.keys()


# ---- how the child ends --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "transport, how",
    [
        ("wire_shm", "return"),
        ("wire_tcp", "return"),
        ("wire_shm", "atexit"),
        ("wire_tcp", "shutdown"),
        ("wire_shm", "shutdown, not graceful"),
        ("wire_tcp", "context"),
    ],
)
def test_a_child_ends_as_programs_do_and_says_nothing_to_the_group(tmp_path, transport, how):
    ended = run_script(PROGRAM, tmp_path, transport, how)
    assert (ended.returncode, ended.stdout) == (0, "0 connected []\n"), ended.stderr
    assert ended.stderr == ""


# ---- what the child does not keep ----------------------------------------------------------------


def files_of_this_process():
    files = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            files.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except FileNotFoundError:  # of the list itself
            pass
    return files


def files_before_init(init_method, transport):
    before = files_of_this_process()
    init(init_method, world_size=2, _transports=[transport])
    return before


def files_in_child(before):
    rpc.rpc_sync("worker1", echo, (torch.ones(1 << 20),))
    made = {name for name in files_of_this_process() - before if re.search("socket|pidfd|memfd|eventpoll", name)}
    kept, rings = in_child(lambda: (files_of_this_process(), rings_of_this_process()))
    return len(made), made & kept, rings_of_this_process(), rings


def rings_of_this_process():
    with open("/proc/self/maps") as maps:
        return sum("memfd:torchwire" in line for line in maps)


@TRANSPORTS
def test_a_child_keeps_no_connection_and_no_shared_memory(tmp_path, transport):
    with Group(2) as group:
        before, _ = group.all(files_before_init, file_in(tmp_path), transport)
        made, kept, rings, kept_rings = group[0].run(files_in_child, before)
        assert made > 2
        assert kept == set()
        assert rings > 0 or transport == "wire_tcp"
        assert kept_rings == 0
        group.shut_down()


# ---- the child as a worker -----------------------------------------------------------------------


def child_joins(init_method, rank):
    mine = rpc.remote("worker1", ones, (3,))
    mine.to_here()
    answer = in_child(_join, init_method, rank, [mine])
    return answer, mine.to_here(5).sum().item()


def _join(init_method, rank, inherited):
    init(init_method, name=f"worker{rank}", rank=rank)
    answer = rpc.rpc_sync("worker1", echo, ("the child's",))
    inherited.clear()
    own = rpc.remote("worker1", ones, (2,)).to_here().numel()
    rpc.shutdown()
    return answer, own


@TRANSPORTS
def test_a_child_may_join_its_parents_group_as_a_worker_of_its_own(tmp_path, transport):
    with Group(2) as group:
        for worker in group:
            worker.run(init, file_in(tmp_path), _transports=[transport])
        group[0].run(call_all)
        for rank in (2, 3):
            assert group[0].run(child_joins, file_in(tmp_path), rank) == (("the child's", 2), 3)
        group[0].run(call_all)
        group.shut_down()


def init_forked_before(name, init_method):
    """What init_rpc raises in a child that is forked in it, as by a handler of a signal that returns."""
    original = getattr(registration, name)
    children, reading, writing = [], *os.pipe()

    def fork_there(*args, **kwargs):
        children.append(os.fork())
        return original(*args, **kwargs)

    setattr(registration, name, fork_there)
    refusal = ""
    try:
        init(init_method, world_size=2)
    except RuntimeError as error:
        refusal = str(error)
    if children[0] == 0:
        os.write(writing, refusal.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(children[0], 0)
    return refusal, text


@pytest.mark.parametrize("name", ["start_agent", "_make_agent", "_start"])
def test_a_child_that_is_forked_in_init_rpc_is_refused_and_its_parent_starts(tmp_path, name):
    with Group(2) as group:
        other = group[1].start(init, file_in(tmp_path), world_size=2)
        parents, childs = group[0].run(init_forked_before, name, file_in(tmp_path))
        other.result()
        assert parents == ""
        assert childs.startswith("this process was forked from worker 'worker0'")
        group[0].run(call_all)
        group.shut_down()


def drop_agent_in_child():
    """After the shutdown, when nothing but a program's reference keeps the agent."""
    agent = rpc._get_current_rpc_agent()
    rpc.shutdown()
    kept = [agent]
    del agent
    in_child(kept.clear)


@TRANSPORTS
def test_a_child_may_drop_the_last_reference_to_the_agent(tmp_path, transport):
    with Group(2) as group:
        group.init(file_in(tmp_path), _transports=[transport])
        group.all(drop_agent_in_child)


# ---- in the middle of calls ----------------------------------------------------------------------


def fork_amid_calls(forks):
    """Three threads call while children are forked, each of which is refused a call and drops an RRef."""
    stop, wrong, done = threading.Event(), [], [0, 0, 0]

    def call(thread):
        while not stop.is_set():
            sent = (thread, done[thread], "x" * 50_000)
            try:
                got = rpc.rpc_sync("worker1", echo, (sent,))
            except Exception as error:
                got = error
            if got != sent:
                wrong.append(repr(got)[:200])
            done[thread] += 1

    threads = [threading.Thread(target=call, args=(thread,)) for thread in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(forks):
            kept = [rpc.remote("worker1", ones, (2,))]
            text = in_child(_call_and_drop, kept)
            if REFUSED not in text:
                wrong.append(text)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert min(done) > 0
    return wrong


def _call_and_drop(kept):
    kept.clear()
    return refusal_of(rpc.rpc_sync, "worker1", echo, (1,))


@TRANSPORTS
@pytest.mark.parametrize("forks", [20, pytest.param(200, marks=pytest.mark.long)])
def test_forks_amid_calls_of_other_threads_disturb_none(group, forks):
    assert group[0].run(fork_amid_calls, forks) == []


# ---- what programs fork for ----------------------------------------------------------------------


class Received(Dataset):
    """Of rows of a tensor that came from another worker."""

    def __init__(self, rows):
        self.rows = rows

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index].clone()


def load(method, persistent):
    rows = rpc.rpc_sync("worker1", count_to, (64 * 4096,)).reshape(64, 4096)
    loader = DataLoader(
        Received(rows), batch_size=16, num_workers=2, multiprocessing_context=method, persistent_workers=persistent
    )
    sums = [sum(batch.sum().item() for batch in loader) for _ in range(2)]
    assert sums == [rows.sum().item()] * 2


def double_in_pool(method):
    tensor = rpc.rpc_sync("worker1", ones, (100_000,))
    with multiprocessing.get_context(method).Pool(2) as pool:
        assert pool.map(_double, [tensor, tensor])[1].sum().item() == 200_000


def _double(tensor):
    return tensor * 2


def run_programs():
    assert subprocess.run(["true"]).returncode == 0
    assert subprocess.run(["true"], preexec_fn=os.getpid).returncode == 0  # which forks rather than spawns
    child = os.posix_spawn("/bin/true", ["true"], os.environ)
    assert os.waitpid(child, 0)[1] == 0
    assert os.system("true") == 0


@pytest.mark.parametrize("transport", ["wire_shm"])
@pytest.mark.parametrize(
    "work",
    [
        (load, "fork", False),
        (load, "fork", True),
        (double_in_pool, "fork"),
        (run_programs,),
        pytest.param((load, "forkserver", False), marks=pytest.mark.long),
        pytest.param((load, "spawn", True), marks=pytest.mark.long),
    ],
)
def test_programs_fork_as_they_please(group, work):
    group[0].run(stop_being_a_daemon)
    group[0].run(*work)


def stop_being_a_daemon():
    """A daemon of multiprocessing's may have no children."""
    multiprocessing.current_process()._config["daemon"] = False


def fork_in_handler():
    return in_child(refusal_of, rpc.rpc_sync, "worker0", echo, (1,))


def return_twice():
    child = os.fork()
    return child if child == 0 else os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def wait_a_moment():
    time.sleep(0.02)  # so that the answer comes when the callback is there


@rpc.functions.async_execution
def return_twice_later():
    """From a callback, on the thread that gets the answer."""
    return rpc.rpc_async("worker0", wait_a_moment).then(lambda _: return_twice())


@rpc.functions.async_execution
def return_twice_further_on():
    """From a callback of a future that another callback completes."""
    first = torch.futures.Future()
    rpc.rpc_async("worker0", wait_a_moment).then(lambda _: first.set_result(None))
    return first.then(lambda _: return_twice())


def create_and_fetch(to, function):
    return rpc.remote(to, function).to_here()


@TRANSPORTS
@pytest.mark.parametrize("function", [return_twice, return_twice_later, return_twice_further_on])
@pytest.mark.parametrize("call", [rpc.rpc_sync, create_and_fetch])
def test_a_child_that_returns_from_a_handler_ends(group, call, function):
    for _ in range(10):  # the value of an RRef goes to those that wait for it before anything else is done with it
        assert group[0].run(call, "worker1", function) == 1
    assert "has returned in a process that it has forked" in group[1].output()


def join_in_child():
    """What a child that is a worker of its own is answered; it shuts down, then."""
    with tempfile.TemporaryDirectory() as folder:
        return in_child(_call_oneself, file_in(folder))


def _call_oneself(init_method):
    init(init_method, "child", 0, 1)
    tensor = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync("child", torch.mul, (tensor, tensor)).sum()])
    answer = rpc.remote("child", echo, (rpc.rpc_sync("child", os.getpid) == os.getpid(),)).to_here()
    rpc.shutdown()
    return answer


def join_in_child_in_context():
    context = dist_autograd.context()
    context.__enter__()
    with tempfile.TemporaryDirectory() as folder:
        answer = in_child(_call_and_leave, context, file_in(folder))
    context.__exit__(None, None, None)
    return answer


def _call_and_leave(context, init_method):
    answer = _call_oneself(init_method)
    context.__exit__(None, None, None)
    return answer


def call_in_context(function):
    with dist_autograd.context():
        return rpc.rpc_sync("worker1", function, (torch.ones(1, requires_grad=True),))


def join_in_child_with(_tensor):
    return join_in_child()


@TRANSPORTS
@pytest.mark.parametrize(
    "function, arguments",
    [
        (rpc.rpc_sync, ("worker1", join_in_child)),
        (create_and_fetch, ("worker1", join_in_child)),
        (call_in_context, (join_in_child_with,)),
        (join_in_child_in_context, ()),
    ],
    ids=["called", "created", "called in a context", "in a context"],
)
def test_a_child_may_join_a_group_wherever_it_is_forked(group, function, arguments):
    for _ in range(3):
        assert group[0].run(function, *arguments) is True


@TRANSPORTS
def test_a_handler_may_fork(group):
    text = group[0].run(rpc.rpc_sync, "worker1", fork_in_handler)
    assert "this process was forked from worker 'worker1' after init_rpc" in text


def interrupt(process, handled):
    """Has a signal come to the caller, and returns once its handler has run."""
    os.kill(process, signal.SIGHUP)
    end = time.monotonic() + LIMIT / 2
    while not os.path.exists(handled) and time.monotonic() < end:
        time.sleep(0.01)
    return "handled"


def interrupt_shutdown(parent, handled):
    """Once the parent waits for functions that run on it, of which this is one."""
    wait_until(lambda: b"torchwire_join" in names_of_threads(parent))
    return interrupt(parent, handled)


def names_of_threads(process):
    names = set()
    for file in pathlib.Path(f"/proc/{process}/task").glob("*/comm"):
        with contextlib.suppress(OSError):  # the thread has ended meanwhile
            names.add(file.read_bytes().strip())
    return names


def shut_down(parent, handled):
    rpc.rpc_async("worker0", interrupt_shutdown, (parent, handled))
    rpc.shutdown(graceful=False)
    return "handled"


WAITS = {
    "rpc_sync": lambda *args: rpc.rpc_sync("worker1", interrupt, args),
    "async_wait": lambda *args: rpc.rpc_async("worker1", interrupt, args).wait(),
    "to_here": lambda *args: rpc.remote("worker1", interrupt, args).to_here(),
    "shutdown": shut_down,
}


def fork_upon(number, parent_goes_on, child_goes_on=lambda: None):
    """Has the signal's handler fork. Returns a list to which it adds how the child has ended."""
    statuses = []

    def fork(number, frame):
        child = os.fork()
        if child == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(int(LIMIT / 2))  # ends it where it hangs
            child_goes_on()
            return
        statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        parent_goes_on()

    signal.signal(number, fork)
    return statuses


def exit_on_purpose():
    raise SystemExit("on purpose")


def wait_while_a_signals_handler_forks(wait, handled, child_exits):
    """What the wait returns, and how the child ends, which goes on in the wait of its parent."""
    parent = os.getpid()
    statuses = fork_upon(signal.SIGHUP, pathlib.Path(handled).touch, *[exit_on_purpose] * child_exits)
    try:
        value = WAITS[wait](parent, handled)
    except (SystemExit, RuntimeError) as error:
        if os.getpid() == parent:
            raise
        os._exit(7 if str(error) == "on purpose" else 8 if REFUSED in str(error) else 9)
    if os.getpid() != parent:
        os._exit(10)
    return value, statuses


@TRANSPORTS
@pytest.mark.parametrize("wait", [wait for wait in WAITS if wait != "shutdown"])
@pytest.mark.parametrize("child_exits, status", [(True, 7), (False, 8)])
def test_a_child_that_a_signals_handler_forks_does_not_wait(group, tmp_path, wait, child_exits, status):
    seen = group[0].run(wait_while_a_signals_handler_forks, wait, str(tmp_path / "handled"), child_exits)
    assert seen == ("handled", [status])


@TRANSPORTS
@pytest.mark.parametrize("child_exits, status", [(True, 7), (False, 8)])
def test_a_child_that_a_signals_handler_forks_does_not_wait_in_a_shutdown(tmp_path, transport, child_exits, status):
    with Group(2) as group:
        group.init(file_in(tmp_path), _transports=[transport])
        group[0].run(call_all)
        seen = group[0].run(wait_while_a_signals_handler_forks, "shutdown", str(tmp_path / "handled"), child_exits)
        assert seen == ("handled", [status])
        group[1].run(rpc.shutdown, graceful=False)


def shut_down_beside_a_thread(handled):
    """How a child ends that a signal's handler forks while this thread waits for the other's shutdown."""
    parent = os.getpid()
    threading.Thread(target=rpc.shutdown).start()
    wait_until(concurrent_shutdown.runs_elsewhere)
    statuses = fork_upon(signal.SIGALRM, pathlib.Path(handled).touch)
    signal.setitimer(signal.ITIMER_REAL, 0.3)
    rpc.shutdown()
    if os.getpid() != parent:
        os._exit(8)
    return statuses


def test_a_child_that_a_signals_handler_forks_does_not_wait_for_a_shutdown_of_another_thread(tmp_path):
    handled = tmp_path / "handled"
    with Group(2) as group:
        group.init(file_in(tmp_path))
        pending = group[0].start(shut_down_beside_a_thread, str(handled))
        wait_until(handled.exists)
        group[1].run(rpc.shutdown)
        assert pending.result() == [8]


def test_a_child_that_a_signals_handler_forks_does_not_wait_for_a_thread():
    parent, done, before = os.getpid(), threading.Event(), signal.getsignal(signal.SIGALRM)
    statuses = fork_upon(signal.SIGALRM, done.set)
    signal.setitimer(signal.ITIMER_REAL, 0.2)
    try:
        rendezvous.within(LIMIT, done.wait)
    except RuntimeError as error:
        if os.getpid() == parent:
            raise
        os._exit(8 if "this process was forked" in str(error) else 9)
    finally:
        if os.getpid() != parent:
            os._exit(10)
        signal.signal(signal.SIGALRM, before)
    assert statuses == [8]

"""Traces: what is in the file matches the calls that were made, and nests."""

import collections
import json
import os
import pty
import signal
import subprocess
import sys

import connections
import observed
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import run_script, send_signal, wait_until
from raising_function import Raises
from sockets import unix_names

CALLS, REQUESTS, PASSES = 100_000, 200_000, 300_000  # the first lanes
STAGES = {"pickle", "wire", "callee", "reply", "unpickle", "queue", "run"}


def slices_of(path):
    """The slices by worker and lane."""
    tracks = collections.defaultdict(list)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] == "X":
            tracks[event["pid"], event["tid"]].append(event)
    return tracks


def check_nesting(tracks):
    """Slices of one track lie beside or within each other."""
    for slices in tracks.values():
        open_ends = []
        for each in sorted(slices, key=lambda each: (each["ts"], -each["dur"])):
            while open_ends and open_ends[-1] <= each["ts"] + 0.01:  # microseconds; they are sums of floats
                open_ends.pop()
            end = each["ts"] + each["dur"]
            assert not open_ends or end <= open_ends[-1] + 0.01, each
            open_ends.append(end)


def calls(tracks, requests):
    """(worker, name) of the calls, or of the requests, and how often."""
    return collections.Counter(
        (pid, each["name"])
        for (pid, tid), slices in tracks.items()
        for each in slices
        if tid < PASSES and (tid >= REQUESTS) == requests and each["name"] not in STAGES
    )


def arrows_of_calls(tracks):
    """The call's stage `wire` and the request, by the arrow's number."""
    found = collections.defaultdict(dict)
    for slices in tracks.values():
        for each in slices:
            if "bind_id" in each:
                found[each["bind_id"]]["request" if each.get("flow_in") else "wire"] = each
    return found


def arrows_of_gradients(path):
    found = collections.defaultdict(dict)
    for event in json.loads(path.read_text())["traceEvents"]:
        if event["ph"] in "sf":
            found[event["id"]][event["ph"]] = event
    return found


def slices_at(tracks, end):
    """Those that an arrow's end is in, the outermost first."""
    return [each for each in tracks[end["pid"], end["tid"]] if encloses(each, end["ts"], end["ts"])]


def encloses(each, begun, ended):
    return each["ts"] <= begun + 0.01 and ended <= each["ts"] + each["dur"] + 0.01


def moments(path):
    """(worker, name, reason) of what is no slice."""
    return [
        (event["pid"], event["name"], event["args"].get("reason", ""))
        for event in json.loads(path.read_text())["traceEvents"]
        if event["ph"] == "i"
    ]


def traced_calls(path):
    observed.call_many("worker1", 3)  # before: not in it
    with torchwire.trace(path):
        observed.call_many("worker1", 10)
        observed.begin_nap("worker1", 0.05)
        observed.begin_nap("worker1", 0.05)
        observed.wait_for_pending()
        rpc.rpc_sync("worker1", relay, ("worker0",))
    observed.call_many("worker1", 3)


def relay(to):
    return rpc.rpc_sync(to, observed.add, (1, 1))


def test_each_call_is_there_on_both_sides(tmp_path):
    path = tmp_path / "trace.json"
    with running(2, tmp_path) as group:
        group[0].run(traced_calls, path)
    tracks = slices_of(path)
    check_nesting(tracks)
    assert calls(tracks, requests=False) == {
        (0, "observed.add"): 10,
        (0, "observed.nap_in_a_handler"): 2,
        (0, "test_trace.relay"): 1,
        (1, "observed.add"): 1,
    }
    assert calls(tracks, requests=True) == {
        (1, "observed.add"): 10,
        (1, "observed.nap_in_a_handler"): 2,
        (1, "test_trace.relay"): 1,
        (0, "observed.add"): 1,
    }
    found = arrows_of_calls(tracks).values()
    assert len(found) == 14
    for ends in found:
        begun, ended = ends["wire"], ends["request"]
        assert begun["name"] == "wire" and begun["pid"] != ended["pid"]
        assert begun["ts"] + begun["dur"] <= ended["ts"] + 0.01
        (call, *_) = [each for each in tracks[begun["pid"], begun["tid"]] if encloses(each, begun["ts"], begun["ts"])]
        assert call["args"]["call"] == ended["args"]["call"] and call["name"] == ended["name"]
    naps = [each for slices in tracks.values() for each in slices if each["name"] == "observed.nap_in_a_handler"]
    assert all(each["dur"] >= 50_000 for each in naps)
    add = next(each for each in tracks[0, CALLS] if each["name"] == "observed.add")
    stages = [
        each["name"]
        for each in tracks[0, CALLS]
        if each is not add and add["ts"] <= each["ts"] < add["ts"] + add["dur"] + 0.01
    ]
    assert stages[:4] == ["pickle", "wire", "callee", "reply"] and "unpickle" in stages


def test_a_backward_pass_of_four_workers(tmp_path):
    path = tmp_path / "trace.json"
    with running(4, tmp_path) as group:
        group[0].run(observed.backward_of_four, path)
    tracks = slices_of(path)
    check_nesting(tracks)
    made, served = calls(tracks, requests=False), calls(tracks, requests=True)
    assert made[0, "forward"] == 3
    assert all(served[rank, "forward"] == 1 for rank in (1, 2, 3))
    gradients = sum(count for (_, name), count in served.items() if name == "backward")
    assert gradients >= 6  # to each worker and back from each
    check_passes(path, tracks, gradients)
    names = {
        event["args"]["name"]
        for event in json.loads(path.read_text())["traceEvents"]
        if event["name"] == "process_name"
    }
    assert names == {f"worker{rank} (rank {rank})" for rank in range(4)}


def check_passes(path, tracks, gradients):
    """One pass from worker0, a part of it on each worker, and arrows from and to the calls that bring gradients."""
    passes = [each for (_, tid), slices in tracks.items() if tid >= PASSES for each in slices]
    (whole,) = [each for each in passes if each["name"] == "backward pass"]
    tasks = {each["pid"]: each for each in passes if each["name"] == "graph task"}
    assert whole["pid"] == 0 and set(tasks) == {0, 1, 2, 3} and len(passes) == 5
    assert all(each["args"] == whole["args"] and whole["args"]["root"] == 0 for each in tasks.values())
    assert tasks[0]["tid"] == whole["tid"]  # the others' are within it by the clock, too: this is one host
    assert all(encloses(whole, each["ts"], each["ts"] + each["dur"]) for each in tasks.values())
    found = arrows_of_gradients(path)
    assert len(found) == 2 * gradients  # each leaves a graph task for a call, and gets to one from a request
    for ends in found.values():
        begun, ended = ({each["name"] for each in slices_at(tracks, ends[which])} for which in "sf")
        task, call = (begun, ended) if ends["s"]["name"] == "gradients sent" else (ended, begun)
        assert "graph task" in task and "backward" in call


def backward_that_fails(path):
    with torchwire.trace(path), dist_autograd.context() as context:
        x = rpc.rpc_sync("worker1", failing_later, (torch.ones(2, requires_grad=True),))
        with pytest.raises(RuntimeError, match="on purpose"):
            dist_autograd.backward(context, [x.sum()])


def failing_later(x):
    return Raises.apply(x, "on purpose")


def test_a_backward_pass_that_fails_says_why(tmp_path):
    path = tmp_path / "trace.json"
    with running(2, tmp_path) as group:
        group[0].run(backward_that_fails, path)
    tracks = slices_of(path)
    check_nesting(tracks)
    passes = [each for (_, tid), slices in tracks.items() if tid >= PASSES for each in slices]
    assert sorted((each["pid"], each["name"]) for each in passes) == [
        (0, "backward pass"),
        (0, "graph task"),
        (1, "graph task"),
    ]
    assert all("on purpose" in each["args"]["failed"] for each in passes)


def traced_rref(path):
    with torchwire.trace(path):
        rref = rpc.remote("worker1", torch.add, (torch.ones(1), 1))
        rref.to_here()
        rpc.rpc_sync("worker2", hold_for_a_moment, (rref,))
        ids = [each["id"] for each in torchwire.rrefs()]
        del rref
        wait_until(lambda: not torchwire.rrefs())  # the deletion has been acknowledged
    return ids


def hold_for_a_moment(rref):
    return rref.to_here().tolist()


def test_calls_about_an_rref_say_which_one(tmp_path):
    path = tmp_path / "trace.json"
    with running(3, tmp_path) as group:
        (rref,) = group[0].run(traced_rref, path)
    tracks = slices_of(path)
    named = [
        (each["name"], tid >= REQUESTS, each["args"]["rref"], each["args"].get("fork"))
        for (_, tid), slices in tracks.items()
        for each in slices
        if "rref" in each.get("args", {})
    ]
    assert {each[2] for each in named} == {rref}
    for name, least in ("aten::add", 1), ("fetch", 2), ("rref", 3):
        for is_request in False, True:
            assert sum(each[:2] == (name, is_request) for each in named) >= least, named
    books = [
        each["args"]
        for (_, tid), slices in tracks.items()
        if REQUESTS <= tid < PASSES
        for each in slices
        if each["name"] == "rref"
    ]
    assert books and all(args["rref"] == rref and "fork" in args for args in books)


def trace_while_cut(path, names):
    observed.call_many("worker1", 2)
    with torchwire.trace(path):
        assert connections.break_all(names)
        observed.call_many("worker1", 2)
        wait_until(lambda: all(peer["state"] == "connected" for peer in torchwire.peers()))


def test_a_link_that_breaks_is_a_moment_on_both_sides(tmp_path):
    path = tmp_path / "trace.json"
    with running(2, tmp_path) as group:
        group[0].run(trace_while_cut, path, {one for worker in group for one in unix_names(worker.pid)})
    found = moments(path)
    for worker in 0, 1:
        names = [name for rank, name, _ in found if rank == worker]
        assert names[:2] == ["link broken", "session resumed"], found
        reason = next(reason for rank, name, reason in found if (rank, name) == (worker, "link broken"))
        assert f"lost the connection to worker 'worker{1 - worker}'" in reason


def traced_with_a_small_capacity(path):
    with torchwire.trace(path, capacity=10):
        observed.call_many("worker0", 20)


def test_a_trace_without_room_says_so(tmp_path):
    path = tmp_path / "trace.json"
    with running(1, tmp_path) as group:
        group[0].run(traced_with_a_small_capacity, path)
        assert "had no room for" in group[0].output()
    assert json.loads(path.read_text())["otherData"]["lost events"]["worker0"] >= 40


def trace_while(path, to):
    with torchwire.trace(path):
        observed.call_many(to, 2)
        os.kill(_victim[0], 9)
        for worker in "worker0", "worker1":
            rpc.rpc_sync(worker, observed.await_death, ("worker2",))


_victim = []


def note_victim(pid):
    _victim.append(pid)


def test_a_worker_that_dies_meanwhile_is_left_out(tmp_path):
    path = tmp_path / "trace.json"
    with Group(3) as group:
        group.init(file_in(tmp_path), session_timeout=1)
        group[0].run(note_victim, group[2].pid)
        group[0].run(trace_while, path, "worker1")
        assert "worker 'worker2' has not handed over its part of the trace" in group[0].output()
        assert calls(slices_of(path), requests=False)[0, "observed.add"] == 2
        died = [(worker, reason) for worker, name, reason in moments(path) if name == "worker died"]
        assert {worker for worker, _ in died} == {0, 1}
        assert all("worker 'worker2' (rank 2) has died" in reason for _, reason in died)
        group[0].run(rpc.shutdown, graceful=False)
        group[1].run(rpc.shutdown, graceful=False)


SCRIPT = """
import sys
import torch, torch.multiprocessing as mp, torch.distributed.rpc as rpc, torchwire

def work(rank, store):
    options = torchwire.TorchwireRpcBackendOptions(init_method="file://" + store)
    rpc.init_rpc(f"w{rank}", rank=rank, world_size=2, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)
    if rank == 0:
        for _ in range(5):
            rpc.rpc_sync("w1", torch.add, (torch.ones(1), 1))
    rpc.shutdown()

if __name__ == "__main__":
    mp.spawn(work, (sys.argv[1],), nprocs=2)
"""


def test_a_program_is_traced_from_the_command_line(tmp_path):
    script = tmp_path / "program.py"
    script.write_text(SCRIPT)
    path = tmp_path / "trace.json"
    command = ["-m", "torchwire", "trace", "-o", str(path)]
    result = run_script(script, tmp_path / "store", python_arguments=command)
    assert result.returncode == 0, result.stderr
    tracks = slices_of(path)
    check_nesting(tracks)
    assert calls(tracks, requests=True)[1, "aten::add"] == 5
    result = run_script(script, python_arguments=["-m", "torchwire", "trace", "-o", str(tmp_path / "no" / "file")])
    assert result.returncode == 2 and "cannot be written" in result.stderr and "Traceback" not in result.stderr


def trace_and_stop(path, pid):
    with torchwire.trace(path):
        observed.call_many("worker1", 2)
        send_signal(pid, signal.SIGSTOP)


def test_who_keeps_the_trace_waiting_is_said(tmp_path):
    path = tmp_path / "trace.json"
    with running(3, tmp_path, session_timeout=300) as group:
        pending = group[0].start(trace_and_stop, path, group[1].pid)
        said = "torchwire trace: 2 of 3 workers have handed in"
        try:
            wait_until(lambda: said in group[0].output())
        finally:
            group[1].signal(signal.SIGCONT)
        pending.result()
        assert "waiting for 'worker1'\n" in group[0].output().partition(said)[2]
        assert calls(slices_of(path), requests=True)[1, "observed.add"] == 2


WAITING = """
from torchwire.observe.progress import Progress

with Progress(["worker0", "worker1"]) as progress:
    progress.handed_in("worker0", {"events": [1, 2, 3]})
    input()  # until the test has seen it
"""


@pytest.mark.long
def test_on_a_terminal_the_progress_is_a_bar():
    pytest.importorskip("rich")
    ours, its = pty.openpty()
    command = [sys.executable, "-c", WAITING]
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stderr=its, env=environment) as process:
        os.close(its)
        seen = b""
        while "━".encode() not in seen or b"waiting for 'worker1'" not in seen:
            seen += os.read(ours, 4096)
        assert b"1 of 2 workers have handed in 3 events" in seen
        process.stdin.close()
        while data := read_of_terminal(ours):
            seen += data
    os.close(ours)
    assert b"\x1b[2K" in seen  # at the end the bar is wiped away
    assert b"Traceback" in seen  # input() has raised: with the bar gone, what the program says can be read


def read_of_terminal(terminal):
    """Empty once nobody has it open any more, which is an error on Linux."""
    try:
        return os.read(terminal, 4096)
    except OSError:
        return b""

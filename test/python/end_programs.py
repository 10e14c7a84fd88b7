"""Groups of which some workers end, each in a way of its own, and what two others see of it; see test_ends.py.

    python end_programs.py KIND TRANSPORT FOLDER WAY,WAY...

forks for each group a process for each way, which is a worker of that name, and for `owner` and `other`, which stay.
Each ends as a main program does. Prints a line of JSON: for each group, how each process ended, and what it has noted.

Before it ends a worker has an RRef on the owner, an autograd context that reaches it, and a call of the owner's that
runs; the owner has an RRef on the worker. The other one has no link to it.
"""

import atexit
import gc
import json
import os
import pathlib
import signal
import sys
import threading
import time

import exit_programs
import torch
import torch.distributed as dist
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from exit_programs import ForkedProcess, is_in_shutdown

LIMIT = 120.0  # s, of each wait here: on a busy machine the processes may take a minute to end
STAY = ("owner", "other")
NO_END = "error_in_handler"
LATE = "in_init_rpc"  # comes to the group when it runs
TIME_OUT = 240.0  # s, of calls: none should reach it

HELD = []  # RRefs, futures, contexts


class Worker:
    """One of the processes. Its notes are lines of JSON."""

    def __init__(self, name, kind, transport, folder, ways):
        self.name, self.kind, self.transport, self.folder, self.ways = name, kind, transport, folder, ways
        self.port = int((folder / "port").read_text())  # of the group's store
        self.users = [way for way in ways if way != LATE]

    def note(self, what, **details):
        with open(self.folder / f"notes of {self.name}", "a") as file:
            file.write(json.dumps({"what": what, **details}) + "\n")

    def attempt(self, what, function, *args, **details):
        began = time.monotonic()
        kind = text = ""
        try:
            function(*args)
        except BaseException as error:
            kind, text = type(error).__name__, str(error).partition("\n")[0]
        self.note(what, kind=kind, text=text, seconds=time.monotonic() - began, **details)

    def mark(self, name):
        (self.folder / name).touch()

    def has(self, name):
        return (self.folder / name).exists()

    def await_mark(self, name):
        wait_until(lambda: self.has(name))

    def start(self):
        torch.set_num_threads(1)
        workers = [*STAY, *self.users]
        rpc.init_rpc(
            self.name,
            backend=rpc.BackendType.TORCHWIRE,
            rank=[*workers, LATE].index(self.name),
            world_size=None if self.kind == "dynamic" else len(workers),
            rpc_backend_options=torchwire.TorchwireRpcBackendOptions(
                init_method=f"tcp://127.0.0.1:{self.port}",
                rpc_timeout=TIME_OUT,
                _transports=[self.transport],
                elastic=self.kind == "elastic",
            ),
        )
        self.mark(f"{self.name} has started")
        for name in workers:
            self.await_mark(f"{name} has started")

    # ---- those that stay ----

    def stay(self):
        self.start()
        if self.name == "owner":
            self._use_all()
            self._await_ends()
        self.await_mark("over")
        for way in self.ways:
            self.attempt("call", rpc.rpc_sync, way, os.getpid, to=way)
        if self.name == "owner":
            self._see_what_is_left()
        self._await_calls()
        self.attempt("shutdown", rpc.shutdown)
        self.mark("done")

    def _await_calls(self):
        """A shutdown's time must not include the wait for workers that are late."""
        self.mark(f"{self.name} has called")
        for name in STAY:
            self.await_mark(f"{name} has called")

    def _use_all(self):
        for way in self.users:
            if way != NO_END:
                HELD.append((way, rpc.remote(way, answer)))
                HELD[-1][1].to_here()
            future = rpc.rpc_async(way, until_it_is_over, args=(way, str(self.folder / f"{way} is gone")))
            future.then(lambda done, way=way: self._note_end(done, way))
        self.mark("the owner is ready")

    def _note_end(self, future, way):
        self.attempt("running call", future.value, to=way, at=time.monotonic())
        self.mark(f"{way} is gone")

    def _await_ends(self):
        path = self.folder / f"notes of {self.name}"
        wait_until(lambda: path.exists() and len(path.read_text().splitlines()) == len(self.users))

    def _see_what_is_left(self):
        for way, rref in HELD:
            self.attempt("fetch", rref.to_here, to=way)
        began = time.monotonic()
        while time.monotonic() < began + 2 and (torchwire.rrefs() or torchwire.autograd_contexts()):
            time.sleep(0.01)
        ranks = [rref["id"].rpartition("created_on=")[2].partition(",")[0] for rref in torchwire.rrefs()]
        owners = [rref["owner"] for rref in torchwire.rrefs()]
        creators = [str(context["creator"]) for context in torchwire.autograd_contexts()]
        self.note("left", rrefs=ranks, owners=owners, contexts=creators, seconds=time.monotonic() - began)
        HELD.clear()

    # ---- those that end ----

    def end(self):
        way = self.name.partition(":")[0]
        if way == LATE:
            self.await_mark("go")
            threading.Thread(target=self._kill_once_listed, daemon=True).start()
        if way == "atexit_before_init":
            atexit.register(self._call_at_exit)
        self.start()
        if way == "atexit_after_init":
            atexit.register(self._call_at_exit)
        if way != NO_END:
            self._use_the_owner()
        self.mark(f"{self.name} is ready")
        self.await_mark("go")
        getattr(self, way)(*self.name.split(":")[1:])

    def _kill_once_listed(self):
        store = dist.TCPStore("127.0.0.1", self.port)
        wait_until(lambda: self.name.encode() in store.get("rpc_prefix_0/torchwire/roster"))
        os.kill(os.getpid(), signal.SIGKILL)

    def in_init_rpc(self):
        wait_until(lambda: False)

    def _call_at_exit(self):
        self.attempt("call at exit", rpc.rpc_sync, "owner", answer)

    def _use_the_owner(self):
        HELD.append(rpc.remote("owner", answer))
        HELD[-1].to_here()
        HELD.append(dist_autograd.context())
        HELD[-1].__enter__()
        rpc.rpc_sync("owner", torch.add, args=(torch.ones(2, requires_grad=True), 1))

    def main_returns(self):
        pass

    atexit_before_init = atexit_after_init = main_returns

    def sys_exit(self):
        sys.exit(3)

    def os_exit(self):
        os._exit(4)

    def error(self):
        raise ValueError("on purpose")

    def error_in_thread(self):
        thread = threading.Thread(target=self.error)
        thread.start()
        thread.join()

    def error_in_handler(self):
        """No end: it stays, and shuts down with the others."""
        self._await_calls()
        self.attempt("shutdown", rpc.shutdown)

    def sigterm(self):
        os.kill(os.getpid(), signal.SIGTERM)

    def sigterm_handler(self):
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        os.kill(os.getpid(), signal.SIGTERM)
        wait_until(lambda: False)

    def sigkill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def abort(self):
        os.abort()

    def leave(self):
        rpc.shutdown(graceful=False)

    def execv(self):
        self.note("end", at=time.monotonic())
        program = f"while ! test -e '{self.folder}/done'; do sleep 0.05; done; exit 6"
        os.execv("/bin/sh", ["sh", "-c", program])

    def daemon_thread(self, call):
        calling = threading.Event()
        threading.Thread(target=call_for_ever, args=(CALLS[call], calling), daemon=True).start()
        calling.wait(LIMIT)

    def in_shutdown(self, way):
        if way == "main_returns":
            thread = threading.Thread(target=self._shut_down, daemon=True)
            thread.start()
            wait_until(lambda: is_in_shutdown(thread))
            return
        if way == "sigterm_handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        number = signal.SIGKILL if way == "sigkill" else signal.SIGTERM
        threading.Thread(target=kill_in_shutdown, args=(number,), daemon=True).start()
        self._shut_down()

    def _shut_down(self):
        if self.kind == "dynamic":  # where a shutdown waits for calls of its own alone
            HELD.append(rpc.rpc_async("owner", until_mark, args=(str(self.folder / "over"),)))
        rpc.shutdown()


def wait_until(condition):
    exit_programs.wait_until(condition, LIMIT)


# ---- what they call ----


def answer():
    return 42


def until_mark(path):
    wait_until(pathlib.Path(path).exists)


def until_it_is_over(name, path):
    if name == NO_END:
        raise ValueError("on purpose")
    until_mark(path)


def make_and_fetch():
    rpc.remote("owner", os.getpid).to_here()


def pass_backward():
    leaf = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync("owner", torch.add, args=(leaf, leaf)).sum()])


CALLS = {
    "sync": lambda: rpc.rpc_sync("owner", os.getpid),
    "async": lambda: rpc.rpc_async("owner", os.getpid).wait(),
    "fetch": make_and_fetch,
    "backward": pass_backward,
}


def call_for_ever(call, calling):
    while True:
        try:
            for _ in range(10):
                call()
        except RuntimeError:  # the other threads are at their end: this one is to be in calls until then
            time.sleep(0.001)
        calling.set()


def kill_in_shutdown(number):
    # A handler that raises before PyTorch's function has begun ends the program, but no shutdown.
    wait_until(lambda: is_in_shutdown(threading.main_thread(), "torch/distributed/rpc/api.py"))
    os.kill(os.getpid(), number)


# ---- the processes ----


def serve_store(folder):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    (folder / "port.new").write_text(str(store.port))
    (folder / "port.new").rename(folder / "port")
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.1)
    os._exit(0)


class Group:
    """One group's processes."""

    def __init__(self, folder, ways):
        self.folder, self.ways = pathlib.Path(folder), ways
        self.folder.mkdir()
        self.processes = {}
        self.ends = {}
        self._marks = {
            "go": [*(f"{way} is ready" for way in ways if way != LATE), "the owner is ready"],
            "over": [f"{way} is gone" if way == "execv" else f"{way} has ended" for way in ways if way != NO_END],
        }

    def fork(self, kind, transport):
        """In a child its worker; in the parent nothing. The store has a process of its own, which ends last."""
        self._store = ForkedProcess()
        if self._store.pid == 0:
            serve_store(self.folder)
        wait_until((self.folder / "port").exists)
        gc.freeze()  # so that the last collection of each process does not write to, and so copy, every page
        for name in [*STAY, *self.ways]:
            process = ForkedProcess()
            if process.pid == 0:
                return Worker(name, kind, transport, self.folder, self.ways)
            self.processes[name] = process
        return None

    def look(self, give_up):
        """Notes which have ended; ends them all if they are to be given up."""
        for name, process in self.processes.items():
            if name not in self.ends:
                process.join(0.001)
                if process.exitcode is None and give_up:
                    os.kill(process.pid, signal.SIGABRT)
                if process.exitcode is not None or give_up:
                    self.ends[name] = {"status": "hung" if give_up else process.exitcode, "at": time.monotonic()}
                    (self.folder / f"{name} has ended").touch()
        for mark, before in self._marks.items():
            if all((self.folder / name).exists() for name in before):
                (self.folder / mark).touch()
        return len(self.ends) == len(self.processes)

    def outcome(self):
        os.kill(self._store.pid, signal.SIGKILL)
        paths = {name: self.folder / f"notes of {name}" for name in self.processes}
        notes = {
            name: [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
            for name, path in paths.items()
        }
        return {"ends": self.ends, "notes": notes}


def run(kind, transport, folder, *groups):
    os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}  # the stores are there
    running = []
    for number, ways in enumerate(groups):
        running.append(Group(f"{folder}/{number}", ways.split(",")))
        worker = running[-1].fork(kind, transport)
        if worker is not None:
            worker.stay() if worker.name in STAY else worker.end()
            return
    limit = time.monotonic() + 2 * LIMIT
    ended = [False]
    while not all(ended):
        ended = [group.look(time.monotonic() > limit) for group in running]
    print(json.dumps([group.outcome() for group in running]), flush=True)


if __name__ == "__main__":
    run(*sys.argv[1:])

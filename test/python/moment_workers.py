"""What the workers of a run of moments.py do: one of them, the victim, meets an event at a random moment.

Each is a process that is forked from moments.py and ends as its main program does. It talks to that by a socket, in
lines of JSON.
"""

import faulthandler
import gc
import json
import os
import random
import re
import select
import signal
import subprocess
import sys
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire

TIMEOUT = 5.0  # of each call
SLACK = 2.0  # on top of it, until whoever waits has to be told
BOOKS = 2.0  # until nothing is left of RRefs and contexts

_SIZES = (0, 1, 1000, 70_000, 300_000)

# ---- what they call on each other ----

_kept = []


def echo(tensor):
    return tensor


def doubled(tensor):
    return tensor * 2


def ones(size):
    return torch.ones(size)


def keep(rref):
    _kept.append(rref)


class WrongValue(Exception):
    pass


def expect(got, wanted):
    if not torch.equal(got, wanted):
        raise WrongValue(f"{got.shape} {got.flatten()[:4]}, and not {wanted.shape} {wanted.flatten()[:4]}")


# ---- the operations ----


def draw_tensor(chance):
    return torch.full((chance.choice(_SIZES),), float(chance.randrange(100)))


def call(chance, to):
    sent = draw_tensor(chance)
    expect(rpc.rpc_sync(to, echo, (sent,)), sent)


def call_and_wait(chance, to):
    sent = draw_tensor(chance)
    expect(rpc.rpc_async(to, doubled, (sent,)).wait(), sent * 2)


def fetch(chance, to):
    size = chance.choice(_SIZES)
    expect(rpc.remote(to, ones, (size,)).to_here(), torch.ones(size))


def pass_backward(chance, to):
    leaf = torch.ones(chance.choice((1, 1000)), requires_grad=True)
    with dist_autograd.context() as context:
        result = rpc.rpc_sync(to, doubled, (leaf,))
        dist_autograd.backward(context, [(result * 3).sum()])
        expect(dist_autograd.get_gradients(context)[leaf], torch.full_like(leaf, 6))


OPERATIONS = {
    "init_rpc": call,
    "rpc_sync": call,
    "async_wait": call_and_wait,
    "to_here": fetch,
    "backward": pass_backward,
    "shutdown": call,
}


# ---- the workers ----


class Worker:
    """Not thread-safe."""

    def __init__(self, run, rank, channel):
        self._run, self._rank, self._channel = run, rank, channel
        self._process = os.getpid()
        self._chance = random.Random(f"{run}/{rank}")
        self._others = [f"worker{other}" for other in range(run.world) if other != rank]
        self._victim = f"worker{run.victim}"

    @property
    def is_forked(self):
        return os.getpid() != self._process

    def tell(self, kind, **details):
        if self.is_forked:
            return
        self._channel.sendall(json.dumps({"kind": kind, **details}).encode() + b"\n")

    def begin(self):
        faulthandler.register(signal.SIGUSR2, all_threads=True)
        time.sleep(self._chance.choice((0, 0, 0.02)) * self._chance.random())  # who is first is drawn, too
        rpc.init_rpc(
            f"worker{self._rank}",
            backend=rpc.BackendType.TORCHWIRE,
            rank=self._rank,
            world_size=self._run.world,
            rpc_backend_options=torchwire.TorchwireRpcBackendOptions(
                init_method=f"file://{self._run.folder}/store",
                rpc_timeout=TIMEOUT,
                _transports=[self._run.transport] if self._run.transport != "default" else None,
            ),
        )

    def share(self):
        """Whoever ends leaves RRefs behind: its own with the others, and others' with itself."""
        own = rpc.RRef(torch.ones(3))
        for other in self._others:
            rpc.rpc_sync(other, keep, (own,))
            of_other = rpc.remote(other, ones, (3,))
            _kept.append(of_other)
            rpc.rpc_sync(self._chance.choice(self._others), keep, (of_other,))

    def meet(self, name, ranks):
        """Waits until these workers have come here."""
        self._mark(f"{name}{self._rank}").touch()
        end = time.monotonic() + TIMEOUT
        while not self._are_there(name, ranks):
            if time.monotonic() > end:
                raise TimeoutError(f"not all have come to {name}")
            time.sleep(0.002)

    def _are_there(self, name, ranks):
        return all(self._mark(f"{name}{rank}").exists() for rank in ranks)

    def _mark(self, name):
        return self._run.folder / name


class Victim(Worker):
    def take_part(self):
        self._handle_signals()
        try:
            self._work()
        except (KeyboardInterrupt, SystemExit) as error:
            self.tell("raised", error=type(error).__name__)
            if self._run.answer != "leaves":
                raise
            if rpc.api._is_current_rpc_agent_set():
                rpc.shutdown(graceful=False)
        except RuntimeError as error:
            if not self.is_forked or "this process was forked from worker" not in str(error):
                raise
        self.tell("out")

    def _work(self):
        self._noted = threading.Event()
        if self._run.forks_in_thread:
            threading.Thread(target=self._fork_when_told, daemon=True).start()
        if self._run.operation == "init_rpc":
            self.tell("ready")
        self.begin()
        self.share()
        self.meet("shared", range(self._run.world))
        if self._run.operation == "shutdown":
            self.tell("ready")
            time.sleep(self._run.pause())
        else:
            self._repeat_operation()
            if not self.is_forked:
                self._mark("over").touch()
        _kept.clear()
        rpc.shutdown()
        if self._run.answer != "goes on":
            return  # the event may still come
        self._noted.wait(TIMEOUT)

    def _repeat_operation(self):
        operation = OPERATIONS[self._run.operation]
        try:
            if self._run.operation != "init_rpc":
                self.tell("ready")
            while not self._noted.is_set():
                operation(self._chance, self._chance.choice(self._others))
        except KeyboardInterrupt:
            if self._run.answer != "goes on":
                raise

    # ---- events ----

    def _handle_signals(self):
        if self._run.event == "sigint":
            signal.signal(signal.SIGINT, self._interrupt)
        elif self._run.answer == "exits":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
        elif self._run.forks:
            signal.signal(signal.SIGUSR1, lambda *_: self._fork())

    def _interrupt(self, number, frame):
        self._noted.set()  # what this raises is lost where it meets a destructor
        signal.default_int_handler(number, frame)

    def _fork_when_told(self):
        select.select([self._channel], [], [])
        self._fork()

    def _fork(self):
        way = self._run.way
        if way == "subprocess":
            status = subprocess.run(["/bin/true"]).returncode
        elif way == "posix_spawn":
            status = wait_for(os.posix_spawn("/bin/true", ["true"], os.environ))
        else:
            child = os.fork()
            if child == 0:
                self._noted.set()
                self._channel.close()
                self._end_child(way)
                return
            status = wait_for(child)
        self.tell("child", status=status)
        self._noted.set()

    def _end_child(self, way):
        if way == "exec":
            os.execv("/bin/true", ["true"])
        elif way == "_exit":
            os._exit(0)
        elif way == "shutdown":
            if rpc.api._is_current_rpc_agent_set():  # the parent had not shut down yet
                rpc.shutdown()
            os._exit(0)
        elif way == "exit":
            _kept.clear()
            sys.exit(0)


def wait_for(child):
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Survivor(Worker):
    """Reports what it has seen of the victim's end, and what should not be."""

    def take_part(self):
        self._wrong = []
        self._seen = []
        try:
            self._work()
        except Exception as error:
            self._wrong.append(f"{type(error).__name__}: {error}")
        self.tell("report", wrong=self._wrong, seen=self._seen)

    def _work(self):
        if not self._attempt("init_rpc", self.begin):
            return
        if not self._attempt("share", self._share) and self._run.operation != "shutdown":
            self._check_left()
        elif self._run.operation == "shutdown":
            time.sleep(self._run.pause(self._rank))
        else:
            self._call_victim()
            self._check_left()
        _kept.clear()
        self._attempt("shutdown", rpc.shutdown)

    def _share(self):
        self.share()
        self._mark(f"shared{self._rank}").touch()
        while not self._are_there("shared", range(self._run.world)):
            call(self._chance, self._victim)

    def _call_victim(self):
        """Until it has ended, or has gone on after the event."""
        operations = list(OPERATIONS.values())
        while not self._mark("over").exists():
            operation = self._chance.choice(operations)
            if not self._attempt(operation.__name__, lambda: operation(self._chance, self._victim)):
                return

    def _check_left(self):
        survivors = [rank for rank in range(self._run.world) if rank != self._run.victim]
        for other in self._others:
            if other != self._victim:
                pass_backward(self._chance, other)
        self.meet("shared_all", survivors)  # what one of them passes on, another keeps
        begin = time.monotonic()
        while left := self._forgotten():
            if time.monotonic() - begin > BOOKS:
                self._wrong.append(f"left over after {BOOKS} s: {left}")
                break
            time.sleep(0.005)
        self.meet("checked", survivors)

    def _forgotten(self):
        _kept.clear()  # again and again: a request of who has ended may still run
        gc.collect()
        return self._books()

    @staticmethod
    def _books():
        counts = {name: n for name, n in rpc._get_current_rpc_agent().rref_counts().items() if n}
        return [*map(str, torchwire.rrefs()), *map(str, torchwire.autograd_contexts()), *([counts] if counts else [])]

    def _attempt(self, what, function):
        """Whether it returned; an error has to name the victim, and how it ended."""
        begin = time.monotonic()
        try:
            function()
        except Exception as error:
            text = str(error)
            self._seen.append(f"{what}: {text.splitlines()[0]}")
            if not re.search(self._run.expected_error(what), text):
                self._wrong.append(f"{what} raised {type(error).__name__}: {text}")
            return False
        finally:
            if time.monotonic() - begin > TIMEOUT + SLACK:
                self._wrong.append(f"{what} took {time.monotonic() - begin:.1f} s")
        return True

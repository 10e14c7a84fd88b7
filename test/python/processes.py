"""Processes that a test drives: it tells each, step by step, what to run, and gets the results.

    worker = WorkerProcess("worker0")
    pending = worker.start(function, 1, 2)  # the process begins to run function(1, 2)
    pending.result()                        # its return value; WorkerError if it raised
    worker.run(function, 1, 2)              # both in one step

Nothing here knows of RPC. Functions travel by name, so they have to be at the top of a module.

A process is forked from a fork server that has imported torch already, since importing it takes far longer than most
tests; so is what run_module runs. What needs a fresh interpreter (what an import does, what the end of a process does)
uses run_script.
"""

import contextlib
import ctypes
import faulthandler
import multiprocessing
import multiprocessing.forkserver
import os
import pickle
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback

import pytest

CONTEXT = multiprocessing.get_context("forkserver")

# Generous, because the machine may be busy; a test that runs into it has hung.
LIMIT = 60.0

_PR_SET_PDEATHSIG = 1


def start_fork_server():
    """Lets the fork server import what all processes need, while pytest goes on."""
    # An import that fails is ignored there, and repeated with an error by the process that needs it.
    way = ["pytorchs_way"] if os.environ.get("TORCHWIRE_TEST_PYTORCHS_WAY") == "1" else []
    CONTEXT.set_forkserver_preload(["torch", "torch.distributed.rpc", *way, "torchwire", "numpy", "pytest"])
    multiprocessing.forkserver.ensure_running()


class WorkerError(Exception):
    """An exception in a worker process; its text is the type, the message and the traceback from there."""

    def __init__(self, worker, type_name, message, trace):
        super().__init__(f"{worker}: {type_name}: {message}\n{trace}")
        self.worker = worker
        self.type_name = type_name
        self.message = message


class Pending:
    """The result of a function that a process runs."""

    def __init__(self, worker):
        self._worker = worker
        self._answer = None

    def result(self, limit=LIMIT):
        """Waits for the function to return. A process that takes longer than `limit` seconds fails the test, after
        it has shown the stacks of all its threads; one that has died raises WorkerError."""
        __tracebackhide__ = True
        if self._answer is None:
            self._answer = self._receive(limit)
        kind, *details = self._answer
        if kind == "value":
            return pickle.loads(details[0])
        raise WorkerError(self._worker.name, *details)

    def is_there(self, limit):
        """Whether result() would return or raise at once, after waiting up to `limit` seconds for it."""
        return self._answer is not None or self._worker.connection.poll(limit)

    def _receive(self, limit):
        worker = self._worker
        if not self.is_there(limit):
            worker.fail_with_stacks(f"{worker.name} did not finish within {limit} s")
        try:
            return pickle.loads(worker.connection.recv_bytes())
        except (EOFError, ConnectionResetError):
            worker.process.join(LIMIT)
            return "error", "ProcessEnded", f"exit code {worker.process.exitcode}", ""


class WorkerProcess:
    """A process that runs one function at a time, on its main thread. Not thread-safe."""

    _all = []

    def __init__(self, name, environment=None, prepare=None):
        """`environment` is added to this process's own; `prepare`, a function without arguments, runs first of all."""
        self.name = name
        self.connection, theirs = CONTEXT.Pipe()
        # A forked process would otherwise see the environment that the fork server was started with.
        environment = {**os.environ, **(environment or {})}
        self._output = tempfile.NamedTemporaryFile(mode="r", errors="replace", prefix=f"{name}-")
        arguments = (theirs, environment, self._output.name, prepare)
        self.process = CONTEXT.Process(target=_serve, args=arguments, name=name, daemon=True)
        self.process.start()
        theirs.close()
        WorkerProcess._all.append(self)

    @property
    def pid(self):
        return self.process.pid

    def is_alive(self):
        return self.process.is_alive()

    def start(self, function, *args, **kwargs):
        """Begins to run `function` there and returns at once."""
        try:
            self.connection.send_bytes(pickle.dumps((function, args, kwargs)))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the process is gone, as result() will say
        return Pending(self)

    def run(self, function, *args, **kwargs):
        """Runs `function` there and returns its result."""
        __tracebackhide__ = True
        return self.start(function, *args, **kwargs).result()

    def output(self):
        """What it has written so far, to stdout and stderr."""
        self._output.seek(0)
        return self._output.read()

    def show_output(self):
        text = self.output()
        if text:
            print(f"---- output of {self.name} (process {self.pid}) ----\n{text}", file=sys.stderr)

    def signal(self, number):
        """After SIGSTOP no thread of it runs any more when this returns."""
        send_signal(self.pid, number)

    def kill(self):
        """Ends the process as a crash would: nothing of it runs any more."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
                self.signal(signal.SIGKILL)
        self.process.join(LIMIT)

    def close(self):
        """Lets the process end once it has nothing to do; kills it if it does not."""
        self.connection.close()
        self.process.join(10)
        self.kill()
        if self in WorkerProcess._all:
            WorkerProcess._all.remove(self)

    def fail_with_stacks(self, message):
        """Fails the test. Every process shows its stacks first: one that hangs often waits for another.

        Only threads that run Python have a stack there.
        """
        processes = [worker for worker in WorkerProcess._all if worker.is_alive()]
        for worker in processes:
            worker.signal(signal.SIGUSR1)
        time.sleep(1)  # there is no telling when they have written, and nothing depends on it
        for worker in processes:
            worker.kill()
        for worker in processes:
            worker.show_output()
        pytest.fail(f"{message}; the stacks of all processes are in the captured stderr")


def send_signal(pid, number):
    """After SIGSTOP no thread of the process runs any more when this returns: until then they may answer."""
    os.kill(pid, number)
    if number == signal.SIGSTOP:
        wait_until(lambda: all(state == "T" for state in _thread_states(pid)))


def _thread_states(pid):
    """Of all threads of a process, as /proc has them."""
    for thread in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{thread}/stat") as file:
            yield file.read().rpartition(")")[2].split()[0]


def wait_until(condition, limit=LIMIT):
    """Asks again and again, for what nothing announces; fails the test when it takes longer than `limit` seconds."""
    end = time.monotonic() + limit
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"it did not come to pass within {limit} s")
        time.sleep(0.01)


def close_all(workers):
    """Closes the connections first, so that the processes end at the same time."""
    for worker in workers:
        worker.connection.close()
    for worker in workers:
        worker.close()


def _serve(connection, environment, output, prepare):
    _become(environment, output, output)
    faulthandler.register(signal.SIGUSR1, file=sys.stderr, all_threads=True)
    import torch

    torch.set_num_threads(1)  # several processes share the machine
    if prepare is not None:
        prepare()
    while True:
        try:
            request = connection.recv_bytes()
        except EOFError:
            os._exit(0)
        connection.send_bytes(pickle.dumps(_answer_to(request)))


def _become(environment, output, errors):
    """Leaves what the fork server has given this process."""
    # The fork server is the parent. It goes when pytest does, however that ends, and takes us along.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, stream, path in ((1, sys.stdout, output), (2, sys.stderr, errors)):
        stream.flush()
        file = os.open(path, os.O_WRONLY | os.O_APPEND)
        os.dup2(file, descriptor)
        os.close(file)
    os.environ.clear()
    os.environ.update(environment)


def _answer_to(request):
    try:
        function, args, kwargs = pickle.loads(request)
        return "value", pickle.dumps(function(*args, **kwargs))
    except BaseException as error:  # also SystemExit: the process is not its function's to end
        return "error", type(error).__name__, str(error), traceback.format_exc()


def run_script(path, *arguments, environment=None, limit=LIMIT, python_arguments=()):
    """Runs a Python script in a fresh interpreter; returns its CompletedProcess, with text output.

    `python_arguments` come before the script's path, which may be None.
    """
    command = [sys.executable, *python_arguments, *([str(path)] if path else []), *map(str, arguments)]
    # A session of its own: what the script has started is killed with it.
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONFAULTHANDLER": "1", **(environment or {})},
        start_new_session=True,
    )
    try:
        output, errors = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGABRT)  # which makes faulthandler show the stacks
        try:
            output, errors = process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, errors = process.communicate()
        pytest.fail(f"{' '.join(command)} did not finish within {limit} s:\n{output}\n{errors}")
    return subprocess.CompletedProcess(command, process.returncode, output, errors)


def run_module(module, *arguments, environment=None, limit=LIMIT):
    """As run_script runs `python -m module`, but without importing torch anew."""
    command = [module, *map(str, arguments)]
    with tempfile.NamedTemporaryFile("r") as output, tempfile.NamedTemporaryFile("r") as errors:
        files = (output.name, errors.name)
        process = CONTEXT.Process(
            target=_main, args=(command, {**os.environ, **(environment or {})}, *files), daemon=True
        )
        process.start()
        process.join(limit)
        if process.exitcode is None:
            os.kill(process.pid, signal.SIGABRT)  # which makes faulthandler show the stacks
            process.join(5)
            with contextlib.suppress(ProcessLookupError):  # it has none of its own yet
                os.killpg(process.pid, signal.SIGKILL)
            process.kill()
            pytest.fail(f"{' '.join(command)} did not finish within {limit} s:\n{output.read()}\n{errors.read()}")
        return subprocess.CompletedProcess(command, process.exitcode, output.read(), errors.read())


def _main(command, environment, output, errors):
    os.setsid()
    _become(environment, output, errors)
    faulthandler.enable(sys.stderr)
    sys.argv = command
    runpy.run_module(command[0], run_name="__main__", alter_sys=True)

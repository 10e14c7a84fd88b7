"""Starts a test's processes by forking a server that has torch loaded.

PyTorch's MultiProcessTestCase starts four fresh interpreters a test, and importing torch in
each costs far more than the test itself. A multiprocessing fork server imports everything once,
stays single-threaded, and forks in some ten milliseconds:

    run.py ── runner.py ── fork server (torch, the backend, the suites loaded)
              one test      ├─ rank 0
              at a time     ├─ rank 1 ...
"""

import ctypes
import multiprocessing
import os

import profiler_mode

_CONTEXT = multiprocessing.get_context("forkserver")

# The server swallows an ImportError of these silently; whoever starts it imports "suites" too,
# so that a broken import is seen there.
PRELOAD = ["torch", "torch.distributed.rpc", "fork_server", "suites"]

FULL_EXIT = "TORCHWIRE_TEST_FULL_EXIT"


class TestProcess(_CONTEXT.Process):
    """One rank of a test. Not thread-safe."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # A forked child would see the environment that the server was started with; suites set
        # variables (MASTER_PORT) just before they start their processes.
        self._environment = dict(os.environ)

    def run(self):
        os.environ.clear()
        os.environ.update(self._environment)
        with profiler_mode.profiled():
            super().run()

    def _bootstrap(self, *args, **kwargs):
        code = super()._bootstrap(*args, **kwargs)
        if os.environ.get(FULL_EXIT) == "1":
            _exit_interpreter(code)
        return code


def _exit_interpreter(code):
    """Ends this process as a fresh interpreter would: atexit, modules, C++ destructors.

    The fork server ends its children with os._exit, which hides whatever breaks in those.
    """
    ctypes.pythonapi.Py_Exit(code)


class ForkServerSpawning:
    """Mixed into a fixture: takes the processes of MultiProcessTestCase from the fork server.

    It replaces the process class where processes are made and not `_spawn_processes`, whose
    arguments are PyTorch's business and differ between versions.
    """

    def _start_processes(self, proc, *args, **kwargs):
        super()._start_processes(TestProcess, *args, **kwargs)


def start():
    """Starts the server; it imports while the caller goes on."""
    _CONTEXT.set_forkserver_preload(PRELOAD)
    from multiprocessing import forkserver

    forkserver.ensure_running()


def count_threads():
    """Waits until the server serves and returns its number of threads: more than one before a
    fork is a trap, since a child inherits the locks of threads that it does not have."""
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = TestProcess(target=_send_parent_threads, args=(sender,))
    process.start()
    sender.close()
    threads = receiver.recv()
    process.join()
    return threads


def cuda_error():
    """Why CUDA cannot be initialized in a process that is forked from the server; None where it can.

    A child of a process that has initialized CUDA has the parent's handles of the driver, but not its threads and
    mappings, and every call there fails. The ranks therefore descend from nobody that has: neither run.py, which has
    no torch, nor the runner is their parent, but this server. It is a fresh interpreter (fork and exec) that imports
    torch and the suites and does nothing else; all that those ask of CUDA while they are imported is how many devices
    there are, which NVML answers without initializing it (PYTORCH_NVML_BASED_CUDA_CHECK=1; without that,
    torch.cuda.is_available() would call cuInit). What the runner does to CUDA is of no consequence. An import that
    breaks this, in a newer torch for example, is found here, and not as 99 failures.
    """
    receiver, sender = _CONTEXT.Pipe(duplex=False)
    process = TestProcess(target=_send_cuda_error, args=(sender,))
    process.start()
    sender.close()
    error = receiver.recv()
    process.join()
    return error


def _send_cuda_error(sender):
    import torch

    try:
        torch.cuda.init()
        sender.send(None)
    except Exception as error:
        sender.send(f"{type(error).__name__}: {error}")


def _send_parent_threads(sender):
    sender.send(len(os.listdir(f"/proc/{os.getppid()}/task")))

"""A runner process as run.py sees it: started, given one test at a time, killed when it hangs."""

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import tripwire
from case import FAILED, Attempt

HERE = Path(__file__).resolve().parent

# Importing torch twice takes four seconds on an idle machine.
START_LIMIT = 300

# A test that hangs is ended by PyTorch's own limit, which shows the stack of every rank. The
# runner is killed only when that did not help.
KILL_GRACE = 30

OUTPUT_LIMIT = 1 << 20


class StartError(Exception):
    """The runner could not import torch, the backend or the suites."""


def _environment(temporary, limit, tripwire_library):
    """What a runner and the processes of its tests see."""
    environment = dict(os.environ)
    inherited = filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))
    environment.update(
        PYTHONPATH=os.pathsep.join([str(HERE), *map(os.path.abspath, inherited)]),
        PYTHONUNBUFFERED="1",  # keep what a crashing process wrote
        TMPDIR=temporary,  # every test leaves a file there
        DISTRIBUTED_TESTS_DEFAULT_TIMEOUT=str(limit),
        # Look for GPUs without initializing CUDA, which does not survive a fork.
        PYTORCH_NVML_BASED_CUDA_CHECK="1",
        PYTORCH_PRINT_REPRO_ON_FAILURE="0",  # it would name a command that does not exist
    )
    # Four ranks a test share few cores, and OpenBLAS starts its threads when it is imported,
    # before the fork.
    for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        environment[variable] = "1"
    if tripwire_library:
        environment.update(tripwire.environment(tripwire_library, _trips_in(temporary)))
    return environment


def _trips_in(temporary):
    return os.path.join(temporary, "trips")


class RunnerProcess:
    """A runner, its fork server and the processes of its test: one process group, killed as one.

    Not thread-safe.
    """

    def __init__(self, limit, tripwire_library=None):
        self._limit = limit
        self._tripwire_library = tripwire_library
        self._process = None
        self.start()

    def start(self):
        self._temporary = tempfile.TemporaryDirectory(prefix="torchwire-stock-", ignore_cleanup_errors=True)
        self._log = open(os.path.join(self._temporary.name, "log"), "a+b")
        self._trips = tripwire.Trips(_trips_in(self._temporary.name))
        self.connection, theirs = multiprocessing.Pipe()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "runner.py"), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                env=_environment(self._temporary.name, self._limit, self._tripwire_library),
                # The fork server would import what lies in the caller's folder first.
                cwd=self._temporary.name,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self.greeting = None
        self.case = None
        self._begin(START_LIMIT)

    def stop(self):
        """Kills the whole group; nothing in it has anything to finish."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        self.connection.close()
        self._log.close()
        self._temporary.cleanup()

    @property
    def idle(self):
        return self.greeting is not None and self.case is None

    @property
    def busy(self):
        return self.case is not None

    @property
    def overdue(self):
        return not self.idle and time.monotonic() > self._deadline

    @property
    def seconds(self):
        """How long it has been at what it does."""
        return time.monotonic() - self._since

    def assign(self, case):
        """Has it run one test. A runner that died while idle is noticed by `receive`."""
        self.case = case
        self._begin(self._limit + KILL_GRACE)
        with contextlib.suppress(OSError):
            self.connection.send((case.suite, case.test))

    def receive(self):
        """Takes the message that is waiting: the greeting, or the end of a test, whose case it
        returns."""
        try:
            message = self.connection.recv()
        except (EOFError, OSError):
            return self._lost(f"the runner died ({self._describe_exit()})")
        if self.greeting is None:
            self.greeting = message
            return None
        return self._finish(message[0], message[1], self._output())

    def give_up(self):
        """Ends a runner that is overdue; returns the case that it was at."""
        return self._lost(f"killed after {self.seconds:.0f} s")

    def _begin(self, limit):
        self._since = time.monotonic()
        self._deadline = self._since + limit
        self._log_start = self._log.seek(0, os.SEEK_END)

    def _lost(self, why):
        """Restarts; the test that ran is charged with it."""
        output = self._output()
        if self.greeting is None:
            raise StartError(f"{why}, before it could run tests\n{output}")
        case = self._finish(FAILED, why, output) if self.case else None
        self.stop()
        self.start()
        return case

    def _finish(self, result, detail, output):
        case, self.case = self.case, None
        case.attempts.append(Attempt(result, self.seconds, detail, output, tuple(self._trips.new())))
        return case

    def _describe_exit(self):
        try:
            return f"exit status {self._process.wait(timeout=5)}"
        except subprocess.TimeoutExpired:
            return "it closed its connection"

    def _output(self):
        """What was written since the test began, or the last part of that."""
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(self._log_start, end - OUTPUT_LIMIT))
        return self._log.read().decode(errors="replace")

"""The command doctor in processes of their own, on a machine or in a network where a test has made a fault."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

LIMIT = 120.0

_COMMAND = [sys.executable, "-m", "torchwire", "doctor"]


class Result:
    """The exit status, what was printed, and with --json the checks by name."""

    def __init__(self, status, output, errors):
        self.status = status
        self.output = output
        self.errors = errors
        self.checks = {}
        if output.startswith("{"):
            document = json.loads(output)
            self.checks = {check["name"]: check for check in document["checks"]}
            assert document["failed"] == any(check["status"] == "failed" for check in self.checks.values())
            for check in self.checks.values():
                assert (check["remedy"] is None) == (check["status"] == "ok")

    def __getitem__(self, name):
        return self.checks[name]

    def failed(self):
        """The names of the checks that failed."""
        return [name for name, check in self.checks.items() if check["status"] == "failed"]


def start(*arguments, fault=None, environment=None):
    """`fault` runs in the process before it becomes the doctor."""
    return subprocess.Popen(
        [*_COMMAND, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
        preexec_fn=fault,
        start_new_session=True,
    )


def finish(process):
    try:
        output, errors = process.communicate(timeout=LIMIT)
    except subprocess.TimeoutExpired:
        kill(process)
        output, errors = process.communicate()
        pytest.fail(f"the doctor did not finish within {LIMIT} s:\n{output}\n{errors}")
    return Result(process.returncode, output, errors)


def kill(process):
    """With all that it has started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


def run(*arguments, fault=None, environment=None):
    return finish(start(*arguments, fault=fault, environment=environment))


def examine(*arguments, fault=None, environment=None):
    """Like run, with --json."""
    return run(*arguments, "--json", fault=fault, environment=environment)


class Server:
    """`doctor serve`, as long as the with statement lasts; `place` is where it listens."""

    def __init__(self, *arguments, fault=None, environment=None):
        self._process = start("serve", *arguments, fault=fault, environment=environment)

    def __enter__(self):
        try:
            line = self.line()
            assert line.startswith("listening on "), line + self._process.stderr.read()
        except BaseException:
            self.__exit__()
            raise
        self.place = line.removeprefix("listening on ")
        return self

    def __exit__(self, *_):
        kill(self._process)
        self._process.communicate()

    def line(self):
        """The next one that it prints; empty when it has ended."""
        late = threading.Timer(LIMIT, kill, [self._process])
        late.start()
        try:
            return self._process.stdout.readline().strip()
        finally:
            late.cancel()

    def interrupt(self):
        """Ctrl-C; returns the exit status."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(LIMIT)

    def wait(self):
        return self._process.wait(LIMIT)

    @contextlib.contextmanager
    def stopped(self):
        """Stands still, with all that it has started, as long as the with statement lasts."""
        os.killpg(self._process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.killpg(self._process.pid, signal.SIGCONT)

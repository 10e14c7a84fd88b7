"""The processes of a contestant that know each other."""

from __future__ import annotations

import abc
import contextlib
import multiprocessing
import multiprocessing.forkserver
import os
import pathlib
import signal
import tempfile
from collections.abc import Generator, Sequence
from typing import Any

from torchwire.bench import processes, worker
from torchwire.bench.contestant import Contestant
from torchwire.bench.member import Place

PATIENCE = 60.0  # seconds for an answer
_PATIENCE_AT_END = 10.0

_PRELOADED = ["torch", "torch.distributed.rpc", "torch.distributed.nn", "torchwire", "torchwire.bench.functions"]


class GroupError(Exception):
    """A group does not do what it was told; the text says what and why."""


class Group(abc.ABC):
    """The processes of a contestant, stopped but within `with group.running()`. Not thread-safe."""

    def __init__(self, contestant: Contestant, size: int) -> None:
        self.contestant = contestant
        self.size = size  # workers

    @contextlib.contextmanager
    def running(self) -> Generator[None]:
        """Lets the processes run. Nothing may be under way at the end."""
        processes.send(self.pids(), signal.SIGCONT)
        try:
            yield
        finally:
            processes.stop(self.pids())

    @abc.abstractmethod
    def start(self) -> None:
        """Makes the processes and has them join each other; they run. Raises GroupError."""

    @abc.abstractmethod
    def pids(self) -> list[int]:
        """All its processes."""

    @abc.abstractmethod
    def close(self) -> None:
        """Ends a group whose processes run. Raises GroupError where they do not end well."""

    @abc.abstractmethod
    def kill(self) -> None:
        """Ends the processes, whatever they do. Does nothing where they have ended."""


class WorkerGroup(Group):
    """Workers in Python, which run what they are told.

    The processes are forked from a server that has imported torch, since importing it takes far longer than most
    measurements; so what a process costs does not include that.
    """

    def __init__(self, contestant: Contestant, size: int) -> None:
        super().__init__(contestant, size)
        self._folder = tempfile.TemporaryDirectory(prefix="torchwire-bench-")
        self.workers: list[WorkerProcess] = []

    @property
    def caller(self) -> WorkerProcess:
        return self.workers[0]

    def start(self) -> None:
        self.start_processes()
        self.join()

    def start_processes(self) -> None:
        folder = pathlib.Path(self._folder.name)
        for rank in range(self.contestant.processes or self.size):
            self.workers.append(WorkerProcess(self.contestant, Place(rank, self.size, folder)))
        self.run_on_all(_nothing)

    def join(self) -> None:
        self.run_on_all(worker.join)

    def leave(self) -> None:
        self.run_on_all(worker.leave)

    def run_on_all(self, function: worker.Command, *arguments: Any) -> list[Any]:
        """Runs it on all workers at the same time."""
        return self.run_on(self.workers, function, *arguments)

    @staticmethod
    def run_on(workers: Sequence[WorkerProcess], function: worker.Command, *arguments: Any) -> list[Any]:
        for one in workers:
            one.begin(function, *arguments)
        return [one.result() for one in workers]

    def pids(self) -> list[int]:
        pids = [one.pid for one in self.workers if one.is_alive()]
        return pids if self.contestant.processes is None else processes.with_descendants(pids)

    def close(self) -> None:
        self.leave()
        for one in self.workers:
            one.end()
        self._folder.cleanup()

    def kill(self) -> None:
        processes.send(self.pids(), signal.SIGKILL)
        for one in self.workers:
            one.join()
        self._folder.cleanup()


class WorkerProcess:
    """A process that runs one function at a time."""

    def __init__(self, contestant: Contestant, place: Place) -> None:
        self._name = f"process {place.rank} of {contestant.name}"
        self._output = place.folder / f"output-{place.rank}"
        context = multiprocessing.get_context("forkserver")
        self._commands, theirs = context.Pipe()
        self._process = context.Process(
            target=worker.serve,
            args=(contestant, place, str(self._output), theirs),
            daemon=contestant.processes is None,
        )
        self._process.start()
        theirs.close()
        self._doing = ""

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def run(self, function: worker.Command, *arguments: Any) -> Any:
        """Runs function(member, *arguments) there and returns what it returns."""
        self.begin(function, *arguments)
        return self.result()

    def begin(self, function: worker.Command, *arguments: Any) -> None:
        self._doing = function.__name__.strip("_").replace("_", " ")
        with contextlib.suppress(BrokenPipeError):  # it is gone, as result() will say
            self._commands.send((function, arguments))

    def result(self) -> Any:
        """What the function returned that was begun. Raises GroupError where there is none."""
        if not self._commands.poll(PATIENCE):
            raise GroupError(f"{self._name} does not answer within {PATIENCE:.0f} s ({self._doing})")
        try:
            kind, value = self._commands.recv()
        except (EOFError, ConnectionResetError):
            raise GroupError(f"{self._name} has ended ({self._doing}){self._last_words()}") from None
        if kind == "error":
            raise GroupError(f"{self._name} ({self._doing}): {value}")
        return value

    def end(self) -> None:
        """Lets it end; kills it if it does not."""
        with contextlib.suppress(BrokenPipeError):
            self._commands.send(None)
        self._process.join(_PATIENCE_AT_END)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise GroupError(f"{self._name} does not end")

    def join(self) -> None:
        self._process.join(_PATIENCE_AT_END)

    def _last_words(self) -> str:
        lines = self._output.read_text(errors="replace").strip().splitlines() if self._output.exists() else []
        return f": {lines[-1]}" if lines else ""


def _nothing(_member: Any) -> None:
    """Shows that the process is there."""


def start_fork_server() -> None:
    """Lets it import what all workers need. Returns at once. For the main thread."""
    # Stock's backend has to be what it is, also in processes that torchwire's replacement would reach.
    os.environ.pop("TORCHWIRE_REPLACE_TENSORPIPE", None)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # it inherits this: Ctrl-C is for the command
    try:
        multiprocessing.forkserver.ensure_running()
    finally:
        signal.signal(signal.SIGINT, handler)

"""A bare TensorPipe pipe between two processes, those of the program test/bench/pipe.cpp."""

from __future__ import annotations

import select
import signal
import subprocess

from torchwire.bench import group, processes
from torchwire.bench.batch import Batch
from torchwire.bench.contestant import Contestant, pipe_program
from torchwire.bench.group import Group, GroupError
from torchwire.bench.sampling import Pace

_PATIENCE_AT_END = 10.0  # seconds
_BYTES_A_TURN = 16 << 20
_SAMPLES_A_TURN = 200


class PipeGroup(Group):
    """The two ends of a pipe. The caller reads workloads and writes the nanoseconds of their samples."""

    def __init__(self, contestant: Contestant, size: int) -> None:
        super().__init__(contestant, size)
        self._transport = contestant.name.partition("/")[2]
        self._processes: list[subprocess.Popen[str]] = []

    def start(self) -> None:
        callee = self._start("callee", self._transport)
        url = self._read_line(callee, "its start").strip()
        self._start("caller", self._transport, url)

    def echo(self, size: int, pace: Pace) -> Batch:
        samples = min(max(_BYTES_A_TURN // max(size, 1), pace.at_least), _SAMPLES_A_TURN)
        caller = self._processes[-1]
        assert caller.stdin is not None
        caller.stdin.write(f"echo {size} {pace.warm_ups} {samples} 1\n")
        caller.stdin.flush()
        # Its CPU time is left out: shm polls on until this process, which waits for a core, has read the line.
        return Batch([float(text) for text in self._read_line(caller, f"an echo of {size} bytes").split()])

    def pids(self) -> list[int]:
        return [process.pid for process in self._processes if process.poll() is None]

    def close(self) -> None:
        for process in reversed(self._processes):  # the caller first, who closes the pipe
            assert process.stdin is not None
            process.stdin.close()
            try:
                status = process.wait(_PATIENCE_AT_END)
            except subprocess.TimeoutExpired:
                raise GroupError(f"{self.contestant.name} does not end") from None
            if status != 0:
                raise GroupError(f"{self.contestant.name} ended with status {status}")

    def kill(self) -> None:
        processes.send(self.pids(), signal.SIGKILL)
        for process in self._processes:
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    stream.close()

    def _start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [str(pipe_program()), *arguments]
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the command, which ends its processes
        )
        self._processes.append(process)
        return process

    def _read_line(self, process: subprocess.Popen[str], doing: str) -> str:
        assert process.stdout is not None
        if not select.select([process.stdout], [], [], group.PATIENCE)[0]:
            raise GroupError(f"{self.contestant.name} hangs in {doing}")
        line = process.stdout.readline()
        if not line:
            raise GroupError(f"{self.contestant.name} ended in {doing}, with status {process.wait()}")
        return line

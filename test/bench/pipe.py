"""Times TensorPipe pipes between two processes, transport by transport: python test/bench/pipe.py

Each contestant, TRANSPORT or TRANSPORT/CHANNEL, has two processes of its own. Small batches alternate between the
contestants, so that whatever else the machine does meets all alike; whoever is not measured is stopped, as
TensorPipe's shared memory polls on a core for as long as its context lives. Builds the program (pipe.cpp) first.

A workload is echo_SIZE (a sample is one message there and back) or stream_SIZE (a sample is several messages one
way, at least 32 MiB in all, up to an answer). "Best" is the median of the quietest round, "CPU" what both processes
used per sample. The last columns compare ours with the transport that it is to replace: below 1 is faster. "Per
round" is the median of each round's ratio.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import select
import signal
import statistics
import subprocess
import sys
import time
from typing import NamedTuple

ROOT = pathlib.Path(__file__).resolve().parents[2]
RIVALS = {"wire_shm": "shm", "wire_tcp": "uv"}  # ours: what it is compared with
CONTESTANTS = ("shm", "wire_shm", "uv", "wire_tcp")
WORKLOADS = ("echo_64", "echo_64k", "echo_1m", "echo_16m", "stream_1m", "stream_16m")
PATIENCE = 60  # seconds; long enough to attach a debugger to what hangs


class Workload(NamedTuple):
    kind: str  # echo or stream
    size: int  # of one message, in bytes
    warm_ups: int  # samples
    samples: int
    messages: int  # per sample

    @classmethod
    def parse(cls, name: str) -> Workload:
        kind, _, size = name.partition("_")
        if kind not in ("echo", "stream") or not size.removesuffix("k").removesuffix("m").isdigit():
            sys.exit(f"no workload is called {name}; examples: echo_64, stream_1m")
        count = int(size.rstrip("km")) << {"k": 10, "m": 20}.get(size[-1], 0)
        messages = 1 if kind == "echo" else min(max((32 << 20) // count, 4), 1000)
        samples = min(max((16 << 20) // count, 4), 200) if kind == "echo" else 4
        return cls(kind, count, min(max(samples // 5, 1), 40), samples, messages)

    def bytes(self) -> int:
        """What one sample carries."""
        return self.size * self.messages * (2 if self.kind == "echo" else 1)


class Batch(NamedTuple):
    samples: list[int]  # nanoseconds
    cpu: float  # nanoseconds per sample, of both processes, warm-ups included

    def median(self) -> float:
        return statistics.median(self.samples)


class Pair:
    """The two processes of a contestant, stopped except during run()."""

    def __init__(self, program: pathlib.Path, name: str, options: list[str], cores: list[set[int]]) -> None:
        """The caller runs on the first, the callee on the last of `cores`."""
        self.name = name
        self._callee = self._start([str(program), "callee", name, *options], cores[-1])
        url = self._read_line(self._callee, "its start").strip()
        self._caller = self._start([str(program), "caller", name, url, *options], cores[0])
        self.run(Workload.parse("echo_64"))

    def run(self, workload: Workload) -> Batch:
        self._signal(signal.SIGCONT)
        before = self._cpu_time()
        self._caller.stdin.write(" ".join(map(str, workload)) + "\n")
        self._caller.stdin.flush()
        samples = self._read_line(self._caller, f"{workload.kind} of {workload.size} bytes")
        cpu = (self._cpu_time() - before) / (workload.warm_ups + workload.samples)
        self._signal(signal.SIGSTOP)
        for process in (self._callee, self._caller):
            os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        return Batch([int(sample) for sample in samples.split()], cpu)

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        self._caller.stdin.close()
        for process in (self._caller, self._callee):
            try:
                code = process.wait(PATIENCE)
                if code != 0:
                    print(f"{self.name}: process {process.pid} ended with {code}")
            except subprocess.TimeoutExpired:
                print(f"{self.name}: process {process.pid} does not end")
                process.kill()

    @staticmethod
    def _start(command: list[str], cores: set[int]) -> subprocess.Popen[str]:
        all_cores = os.sched_getaffinity(0)
        os.sched_setaffinity(0, cores)  # inherited by the process and all its threads
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        finally:
            os.sched_setaffinity(0, all_cores)

    def _read_line(self, process: subprocess.Popen[str], doing: str) -> str:
        if not select.select([process.stdout], [], [], PATIENCE)[0]:
            sys.exit(f"{self.name} hangs in {doing}")
        line = process.stdout.readline()
        if not line:
            sys.exit(f"{self.name} ended in {doing}: code {process.wait()}")
        return line

    def _signal(self, number: signal.Signals) -> None:
        for process in (self._callee, self._caller):
            process.send_signal(number)

    def _cpu_time(self) -> int:
        # As clock_getcpuclockid(3) makes the clock of another process, which Python does not offer.
        return sum(time.clock_gettime_ns((~p.pid << 3) | 2) for p in (self._callee, self._caller))


def measure(pairs: list[Pair], workloads: dict[str, Workload], rounds: int) -> dict[str, dict[str, list[Batch]]]:
    """By workload and contestant: a batch per round."""
    batches: dict[str, dict[str, list[Batch]]] = {name: {p.name: [] for p in pairs} for name in workloads}
    for i in range(rounds):
        first = i % len(pairs)
        for name, workload in workloads.items():
            for pair in pairs[first:] + pairs[:first]:
                batches[name][pair.name].append(pair.run(workload))
    return batches


class Summary:
    """What all batches of a contestant come to."""

    def __init__(self, batches: list[Batch]) -> None:
        samples = sorted(sample for batch in batches for sample in batch.samples)
        self.medians = [batch.median() for batch in batches]
        self.best = min(self.medians)
        self.p50 = statistics.median(samples)
        self.p99 = samples[len(samples) * 99 // 100]
        self.cpu = statistics.median(batch.cpu for batch in batches)

    def compare(self, rival: Summary) -> list[float]:
        rounds = [mine / theirs for mine, theirs in zip(self.medians, rival.medians, strict=True)]
        return [self.best / rival.best, self.p50 / rival.p50, statistics.median(rounds)]


def print_table(name: str, workload: Workload, batches: dict[str, list[Batch]]) -> None:
    print(f"\n{name:14}  best us    p50 us    p99 us    CPU us    GB/s   time by that of    best   p50  per round")
    summaries = {contestant: Summary(mine) for contestant, mine in batches.items()}
    for contestant, mine in summaries.items():
        figures = "".join(f" {n / 1e3:9.1f}" for n in (mine.best, mine.p50, mine.p99, mine.cpu))
        line = f"  {contestant:14}{figures} {workload.bytes() / mine.p50:7.2f}"
        transport, slash, channel = contestant.partition("/")
        rival = RIVALS.get(transport, "") + slash + channel
        if rival in summaries:
            line += "   {:15} {:6.2f}{:6.2f}{:11.2f}".format(rival, *mine.compare(summaries[rival]))
        print(line)


def build(folder: pathlib.Path) -> pathlib.Path:
    """The path of the program, which is up to date then."""
    # Meson and ninja of this Python's environment, if it has them.
    path = os.pathsep.join([str(pathlib.Path(sys.executable).parent), os.environ.get("PATH", "")])

    def meson(*arguments: str) -> None:
        environment = {**os.environ, "PATH": path}
        done = subprocess.run(["meson", *arguments], cwd=ROOT, env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)

    if not (folder / "build.ninja").exists():
        meson("setup", str(folder), "--buildtype=release", "-Dcore_only=true")
    meson("compile", "-C", str(folder), "pipe_bench")
    return folder / "test/bench/pipe_bench"


def with_channel(contestant: str, channel: str | None) -> str:
    return contestant if channel is None or "/" in contestant else f"{contestant}/{channel}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "contestants",
        nargs="*",
        default=CONTESTANTS,
        help=f"TRANSPORT[/CHANNEL] (default: {' '.join(CONTESTANTS)})",
    )
    parser.add_argument(
        "--channel",
        choices=("basic", "cma", "mpt"),
        help="send tensors over it, where the contestant names none (mpt: only over uv and wire_tcp)",
    )
    parser.add_argument("--rounds", type=int, default=20, help="alternations (default 20)")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="default: %(default)s")
    parser.add_argument("--fresh-buffers", action="store_true", help="allocate memory for each message that comes")
    parser.add_argument("--user-thread", action="store_true", help="send on a thread that TensorPipe's has to wake")
    parser.add_argument("--pin", action="store_true", help="give each of the two processes a core of its own")
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build/bench", help="where to build")
    arguments = parser.parse_args()

    workloads = {name: Workload.parse(name) for name in arguments.workloads.split(",")}
    program = build(arguments.build.absolute())
    options = [f"--{o}" for o in ("fresh-buffers", "user-thread") if getattr(arguments, o.replace("-", "_"))]
    all_cores = os.sched_getaffinity(0)
    cores = [{core} for core in sorted(all_cores)[:2]] if arguments.pin else [all_cores]
    pairs = [Pair(program, with_channel(name, arguments.channel), options, cores) for name in arguments.contestants]
    for name, batches in measure(pairs, workloads, arguments.rounds).items():
        print_table(name, workloads[name], batches)
    for pair in pairs:
        pair.close()


if __name__ == "__main__":
    main()

"""Groups of which one worker meets an event at a random moment of an operation; what the others see is checked.

    python moments.py --event sigint --operation shutdown --transport wire_tcp --seed 1 --runs 500

A run draws all from its number, the event, the operation and the transport: `--seed 37 --runs 1` repeats run 37, as far
as the machine lets it. Without --event, --operation or --transport all are run. The exit status is 1 if anything was
wrong.

Workers are forked from this process, which has imported all and started nothing: so a run takes a fraction of a second.
"""

import argparse
import collections
import dataclasses
import gc
import json
import os
import pathlib
import random
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TORCHWIRE_CHECK_THREADS", "1")

import torch
from moment_workers import OPERATIONS, SLACK, TIMEOUT, Survivor, Victim

ANSWERS = {
    "sigint": ("ends", "leaves", "goes on"),
    "sigterm": ("killed", "exits"),
    "sigkill": ("killed",),
    "fork_exit": ("goes on",),
    "fork_exec": ("goes on",),
}
# Of a forked child. One that returns, from a handler, goes on in the operation, which is its parent's. One that ends
# with the thread that has forked it aborts in torch's own destructors, with or without RPC.
WAYS = {"fork_exit": ("exit", "_exit", "shutdown", "return"), "fork_exec": ("exec", "subprocess", "posix_spawn")}
OF_HANDLERS = ("exit", "return")
SIGNALS = {"sigint": signal.SIGINT, "sigterm": signal.SIGTERM, "sigkill": signal.SIGKILL}
TRANSPORTS = ("default", "wire_tcp")

# All of a run: what is awaited one after the other, each with a time-out of its own, on a busy machine.
LIMIT = 4 * (TIMEOUT + SLACK)


@dataclasses.dataclass(repr=False)
class Run:
    """What is drawn of a run, and what has to come of it."""

    number: int
    event: str
    operation: str
    transport: str
    folder: pathlib.Path

    def __post_init__(self):
        chance = random.Random(str(self))
        self.world = chance.choice((2, 3))
        self.victim = chance.randrange(self.world)
        can_go_on = self.operation not in ("init_rpc", "shutdown") or self.forks
        self.answer = chance.choice([one for one in ANSWERS[self.event] if can_go_on or one != "goes on"])
        self.delay = chance.choice((0.003, 0.03, 0.15)) * chance.random()
        self.forks_in_thread = self.forks and chance.random() < 0.5
        ways = WAYS.get(self.event, ("",))
        self.way = chance.choice([way for way in ways if not self.forks_in_thread or way not in OF_HANDLERS])
        self._pauses = [chance.choice((0, 0.005, 0.05)) * chance.random() for _ in range(self.world)]

    def __str__(self):
        return f"--event {self.event} --operation {self.operation} --transport {self.transport} --seed {self.number}"

    @property
    def forks(self):
        return self.event in WAYS

    @property
    def unharmed(self):
        return self.answer == "goes on"

    def pause(self, rank=None):
        """Before the worker calls rpc.shutdown()."""
        return self._pauses[self.victim if rank is None else rank]

    def expected_error(self, what):
        """A pattern for what the others raise in `what` they attempt."""
        if self.unharmed:
            return "(?!)"  # nothing
        who = rf"worker 'worker{self.victim}'( \(rank {self.victim}\))?"
        if self.answer == "killed":
            killed = rf"{who} (has died: its process \d+ has ended|ended before all workers were there)"
            # docs/gotchas.md, "A FileStore whose last entry is incomplete answers nobody"
            store = self.folder / "store"
            torn = what == self.operation == "init_rpc" and store.exists() and is_torn(store)
            return rf"{killed}|the rendezvous store .* did not answer" if torn else killed
        raised = "KeyboardInterrupt" if self.event == "sigint" else "SystemExit: 3"
        ended = r"it ended with sys\.exit\(3\)" if self.event == "sigterm" else "it ended by KeyboardInterrupt"
        how = [rf"it called rpc\.shutdown\(graceful=False\) while handling {raised}"]
        if self.answer != "leaves":
            how = [ended]
        if self.answer != "leaves" or self.operation == "shutdown":
            how.append(rf"its rpc\.shutdown\(\) failed: {raised}")
        if self.operation == "init_rpc":
            how.append(rf"its init_rpc failed: {raised}")
        left = [
            f"{who} has left the RPC group",
            f"{who} shut its RPC agent down during the backward pass",
            rf"{who} tried to send\(\) .* RPC is no longer running on this node",
        ]
        patterns = [rf"{who} (was interrupted in (init_rpc|rpc\.shutdown\(\))|could not start: {raised})"]
        patterns.append(f"({'|'.join(left)}): ({'|'.join(how)})")
        if self.operation == "init_rpc":
            # It has said goodbye before it had a link to this worker.
            unlinked = (
                "Connection refused",
                r"has died: its process \d+ has ended",
                "refused the connection: .* is shutting down",
                "nobody listens on the lane that was asked for: the worker shuts down",
            )
            patterns.append(rf"{who} .*({'|'.join(unlinked)})")
        return "|".join(patterns)

    def statuses(self, is_out):
        """How the victim's process may end; is_out: it had done all that it had to, when the event came or not."""
        usual = {"ends": {-signal.SIGINT}, "exits": {3}, "leaves": {0}, "goes on": {0}}
        killed = {-SIGNALS.get(self.event, 0)}
        statuses = usual.get(self.answer, killed)
        # What comes while Python ends is either too late, or ends it in its own way.
        return statuses | {0, 1, -SIGNALS[self.event]} if is_out and not self.unharmed else statuses


def is_torn(store):
    """Whether a FileStore's file ends within an entry: a key and a value, each a length and its bytes."""
    data, position, strings = store.read_bytes(), 0, 0
    while position + 4 <= len(data):
        position += 4 + int.from_bytes(data[position : position + 4], sys.byteorder)
        strings += 1
    return position != len(data) or strings % 2 == 1


class Process:
    """A worker's. In the child, `is_here` is true, and nothing else is of use."""

    def __init__(self, run, rank, others):
        self.rank = rank
        self._channel, theirs = socket.socketpair()
        self.output = run.folder / f"output{rank}"
        self.messages, self.status, self._rest = [], None, b""
        self.pid = os.fork()
        self.is_here = self.pid == 0
        if self.is_here:
            self._channel.close()
            for other in others:
                other._channel.close()
            redirect(self.output)
            theirs.recv(1)  # all processes are there
            self.part = (Victim if rank == run.victim else Survivor)(run, rank, theirs)
        else:
            theirs.close()
            self._descriptor = os.pidfd_open(self.pid)

    def await_message(self, kind, end):
        """Whether it has come before the process's end, and in time."""
        while not self.has_said(kind):
            if not select.select([self._channel], [], [], max(0, end - time.monotonic()))[0] or not self._receive():
                return self.has_said(kind)
        return True

    def has_said(self, kind):
        return any(message["kind"] == kind for message in self.messages)

    def _receive(self):
        try:
            data = self._channel.recv(1 << 16)
        except ConnectionResetError:
            data = b""
        *lines, self._rest = (self._rest + data).split(b"\n")
        self.messages += map(json.loads, lines)
        return bool(data)

    def go_on(self):
        self._channel.send(b".")

    def meet_event(self, run):
        if run.forks_in_thread:
            self.go_on()
        else:
            os.kill(self.pid, SIGNALS.get(run.event, signal.SIGUSR1))

    def await_end(self, end):
        if self.status is None and select.select([self._descriptor], [], [], max(0, end - time.monotonic()))[0]:
            self._reap()
        return self.status is not None

    def _reap(self):
        self.status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def show_stacks(self):
        """Those of its children, too. Python's go to its output."""
        children = pathlib.Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text().split()
        for pid in [str(self.pid), *children]:
            command = ["gdb", "-p", pid, "-batch", "-ex", "thread apply all backtrace 60"]
            done = subprocess.run(command, capture_output=True, text=True, errors="replace")
            self.output.with_suffix(f".{pid}.gdb").write_text(done.stdout)
        os.kill(self.pid, signal.SIGUSR2)
        time.sleep(0.5)  # there is no telling when it has written, and nothing depends on it

    def close(self):
        if self.status is None:
            os.kill(self.pid, signal.SIGKILL)
            self._reap()
        while self._receive():
            pass
        self._channel.close()
        os.close(self._descriptor)


def redirect(path):
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for descriptor in (1, 2):
        os.dup2(file, descriptor)
    os.close(file)


def start(run):
    """The processes of a run. In each of them, it alone."""
    processes = []
    for rank in range(run.world):
        processes.append(Process(run, rank, list(processes)))
        if processes[-1].is_here:
            return processes[-1:]
    for process in processes:
        process.go_on()
    return processes


def observe(run, processes):
    """What was wrong with the run."""
    wrong = []
    victim = processes[run.victim]
    end = time.monotonic() + LIMIT
    if victim.await_message("ready", end) and (run.operation != "init_rpc" or await_announcement(run, end)):
        time.sleep(run.delay)
        victim.meet_event(run)
    else:
        wrong.append("the victim was not ready")
    end = time.monotonic() + LIMIT
    hung = [process for process in processes if not process.await_end(end)]
    wrong += [f"worker{process.rank} HUNG" for process in hung]
    for process in hung:
        process.show_stacks()
    for process in processes:
        process.close()
    return wrong + judged(run, victim, [process for process in processes if process is not victim])


def await_announcement(run, end):
    """Who ends earlier in init_rpc has not come at all, for all that others know."""
    announcement, store = f"arrived/{run.victim}".encode(), run.folder / "store"
    while not (store.exists() and announcement in store.read_bytes()):
        if time.monotonic() > end:
            return False
        time.sleep(0.0005)
    return True


def judged(run, victim, survivors):
    wrong = []
    if victim.status not in run.statuses(victim.has_said("out")):
        wrong.append(f"the victim's exit status is {victim.status}")
    if run.forks and not any(message.get("status") == 0 for message in victim.messages):
        wrong.append(f"the child of the victim has not ended as it should: {victim.messages}")
    for process in survivors:
        reports = [message for message in process.messages if message["kind"] == "report"]
        wrong += [f"worker{process.rank}: {text}" for report in reports for text in report["wrong"]]
        if process.status != 0 or not reports:
            wrong.append(f"worker{process.rank} ended with status {process.status}")
    return wrong


def particulars_gone(text):
    return re.sub(r"worker\d|\(rank \d\)|\d+", "#", text)[:200]


class Record:
    """Of all runs."""

    def __init__(self, folder):
        self._folder = folder
        self._runs, self._bad = collections.Counter(), collections.Counter()
        self._seen = collections.Counter()

    def add(self, run, processes, wrong, seconds):
        name = f"{run.event} {run.operation} {run.transport}"
        self._runs[name] += 1
        texts = {text for one in processes for message in one.messages for text in message.get("seen", [])}
        self._seen.update({particulars_gone(text) for text in texts})
        if wrong:
            self._bad[name] += 1
            kept = self._folder / f"{name.replace(' ', '-')}-{run.number}"
            shutil.move(run.folder, kept)
            facts = f"{run.answer}, {run.way or '-'}, world {run.world}, victim {run.victim}, {seconds:.1f} s"
            print(f"WRONG {run} --runs 1 ({facts}; see {kept})", *wrong, sep="\n    ", flush=True)
        else:
            shutil.rmtree(run.folder)

    def __str__(self):
        lines = [f"{name}: {count} runs, {self._bad[name]} wrong" for name, count in self._runs.items()]
        seen = [f"{count:7} {text}" for text, count in self._seen.most_common()]
        return "\n".join(["what others saw:", *seen, *lines, f"{self._runs.total()} runs, {self._bad.total()} wrong"])

    @property
    def failed(self):
        return self._bad.total() > 0


def parser():
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("--event", choices=ANSWERS, action="append")
    add("--operation", choices=OPERATIONS, action="append")
    add("--transport", choices=TRANSPORTS, action="append")
    add("--seed", type=int, default=1, help="the first run's number")
    add("--runs", type=int, default=1, help="of each combination")
    add("--seconds", type=float, default=float("inf"), help="after which no further run begins")
    add("--output", type=pathlib.Path, help="a folder for outputs and stacks of runs that went wrong")
    return made


def runs_of(chosen, folder):
    for number in range(chosen.seed, chosen.seed + chosen.runs):
        for event in chosen.event or ANSWERS:
            for operation in chosen.operation or OPERATIONS:
                for transport in chosen.transport or TRANSPORTS:
                    yield Run(number, event, operation, transport, folder / "run")


def main():
    chosen = parser().parse_args()
    folder = chosen.output or pathlib.Path(tempfile.mkdtemp(prefix="torchwire-moments-"))
    record = Record(folder)
    gc.freeze()
    end = time.monotonic() + chosen.seconds
    for run in runs_of(chosen, folder):
        if time.monotonic() > end:
            break
        run.folder.mkdir(parents=True)
        begin = time.monotonic()
        processes = start(run)
        if processes[0].is_here:
            processes[0].part.take_part()  # and ends as a main program does
            return 0
        wrong = observe(run, processes)
        record.add(run, processes, wrong, time.monotonic() - begin)
    print(record)
    return 1 if record.failed else 0


if __name__ == "__main__":
    torch.set_num_threads(1)
    if status := main():
        sys.exit(status)

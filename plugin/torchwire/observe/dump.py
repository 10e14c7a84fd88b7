"""All calls that are under way at this worker, made and served, with stacks: for whoever looks for what hangs."""

from __future__ import annotations

import datetime
import faulthandler
import os
import sys
import tempfile
from collections import defaultdict
from typing import IO, Any

from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for
from torchwire.observe.parallel import of_each
from torchwire.observe.stacks import stack_of
from torchwire.printable import printable

_PATIENCE = 2.0  # seconds, twice, that a peer has to say where calls are
_MOST = 1000  # calls in each part


def dump(file: IO[str] | None = None) -> None:
    """Writes all calls that are under way at this worker to `file` (default: standard error).

    Calls that it has made: how long each has taken, and where it is: not sent, on the wire, queued at the callee behind
    what, or running there since when, with the Python stack of its handler. For that each callee is asked, and has four
    seconds. Requests that it serves: how long each has waited and run, with its stack. At the end the stacks of all
    threads of this process, as faulthandler writes them. At most 1,000 calls in each part.

    Raises RuntimeError when RPC is not initialized or runs on another backend. Waits for the callees: at most four
    seconds in all. Thread-safe. SIGUSR2 does the same (docs/operating.md).
    """
    text = text_of(agent_for("dump"))
    out = sys.stderr if file is None else file
    out.write(text)
    out.flush()


def text_of(agent: TorchwireAgent, with_threads: bool = True) -> str:
    """What dump() writes, of this agent; with the stacks of all threads or without."""
    info = agent.get_worker_info()
    now = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    lines = [f"torchwire: worker '{info.name}' (rank {info.id}, process {os.getpid()}) at {now}"]
    names = {worker.id: worker.name for worker in agent.get_worker_infos()}
    lines += _made(agent, names)
    lines += _served(agent, names)
    if with_threads:
        lines += ["", "threads of this process:", _all_threads()]
    return printable("\n".join([*lines, ""]))


def _made(agent: TorchwireAgent, names: dict[int, str]) -> list[str]:
    calls = agent.pending_calls()
    lines = ["", f"{len(calls)} calls of this worker are under way" + _cut(calls)]
    where = _whereabouts(agent, calls[:_MOST])
    for call in calls[:_MOST]:
        limit = f", time-out {call['timeout']:g} s" if call["timeout"] else ""
        lines.append(
            f"  call {call['id']} of {_label(call)} to '{names.get(call['to'], call['to'])}': "
            f"{call['seconds']:.3f} s{limit}; {where[call['to'], call['id']]}"
        )
    return lines


def _whereabouts(agent: TorchwireAgent, calls: list[dict[str, Any]]) -> dict[tuple[int, int], str]:
    """By worker and call; many workers are asked at the same time."""
    by_worker: defaultdict[int, list[int]] = defaultdict(list)
    for call in calls:
        by_worker[call["to"]].append(call["id"])

    def ask(worker: int) -> list[str]:
        try:
            return agent.whereabouts(worker, by_worker[worker], _PATIENCE)
        except RuntimeError as error:  # this worker shuts down
            return [str(error)] * len(by_worker[worker])

    answers = zip(by_worker, of_each(ask, by_worker))
    return {(worker, id): text for worker, texts in answers for id, text in zip(by_worker[worker], texts)}


def _served(agent: TorchwireAgent, names: dict[int, str]) -> list[str]:
    calls = agent.served_calls()
    lines = ["", f"{len(calls)} requests to this worker are not answered" + _cut(calls)]
    for call in calls[:_MOST]:
        lines.append(
            f"  call {call['id']} of {_label(call)} from '{names.get(call['caller'], call['caller'])}': "
            f"{call['seconds']:.3f} s; {call['state']} for {call['state_seconds']:.3f} s"
        )
        stack = stack_of(call["thread"]) if call["thread"] else ""
        lines += [f"    {line}" for line in stack.splitlines()]
    return lines


def _cut(calls: list[Any]) -> str:
    return "" if len(calls) <= _MOST else f", of which the oldest {_MOST} are shown"


def _label(call: dict[str, Any]) -> str:
    return call["function"] or f"({call['kind']})"


def _all_threads() -> str:
    with tempfile.TemporaryFile("w+") as file:  # faulthandler needs a file of the system's
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read().rstrip()

"""Which way tensors take to another worker, and why."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed.rpc as rpc

from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for

# By what the device paths' reasons say (cuda/transfer), which are without a remedy.
_DEVICE_REMEDIES = {
    "it runs on another host": "ipc is for one host; give both workers the option nccl=True",
    "does not have the option nccl": "give it nccl=True",
    "the option _device_paths leaves it out": "name it there, for both workers",
    "cudaIpcOpenMemHandle failed": "in containers share the host's IPC and PID namespaces (--ipc=host --pid=host)",
}


@dataclass(frozen=True)
class NotTaken:
    """A transport, channel or path that is not used, though it comes before the one that is.

    name: as in the options, such as "wire_shm", "cma" or "ipc".
    reason: what was found when it was tried, or why it was not tried.
    remedy: what helps; empty where nothing does, or nothing has to.
    """

    name: str
    reason: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.name} not taken: {self.reason}" + (f"; remedy: {self.remedy}" if self.remedy else "")


@dataclass(frozen=True)
class DevicePath:
    """The way of large tensors by one entry of a device map: `path` is "host", "process", "ipc" or "nccl".

    `not_taken` are the paths that come before it, in the order in which they would be tried (docs/devices.md).
    """

    source: torch.device
    target: torch.device
    path: str
    reason: str
    not_taken: tuple[NotTaken, ...]


# What the first line says of a worker that there is no connection to, by the link's state.
_FATES = {
    "dead": ", which is dead",
    "left": ", which has left",
    "disconnecting": ". The connection has broken",
    "resuming": ". The connection has broken, and is being made again",
}
_GONE = ("dead", "left")


@dataclass(frozen=True)
class Explanation:
    """What the connection to a worker uses, and why nothing better; `print` shows it as a table.

    worker: its name.
    state: of the link, as in `torchwire.peers()`: "connected", "idle" until there is something to send, "dead" ...; to
        this worker itself it is "connected".
    transport, channel: they carry what is in the host's memory; of the last connection, if there is none now, and empty
        as long as there has been none.
    encryption: the cipher by which what the transport carries is encrypted, such as "AES-256-GCM"; empty where it is
        not.
    devices: one entry for each of the device map for requests to the worker: source and target, two torch.devices;
        path, "host", "process", "ipc" or "nccl"; reason, why that one; and not_taken, as below.
    transports_not_taken, channels_not_taken: those that come before transport and channel, the best first, each with
        name, reason and remedy. Empty as long as there has been no connection, and where the best one is used.
    """

    worker: str
    state: str
    transport: str
    channel: str
    encryption: str
    devices: tuple[DevicePath, ...]
    transports_not_taken: tuple[NotTaken, ...]
    channels_not_taken: tuple[NotTaken, ...]

    def __str__(self) -> str:
        lines = [
            f"to worker '{self.worker}'{self._fate()}",
            f"  calls           by {self.transport or self._instead_of_a_transport()}"
            + (f", encrypted ({self.encryption})" if self.encryption else ""),
            *_indented(self.transports_not_taken),
        ]
        if self.channel:
            lines += [f"  large tensors   by {self.channel}", *_indented(self.channels_not_taken)]
        routes = [f"{entry.source} -> {entry.target}" for entry in self.devices]
        width = max(map(len, routes), default=0)
        for route, entry in zip(routes, self.devices):
            lines.append(f"  {route:<{max(width, 14)}}  by {entry.path:<7}  ({entry.reason})")
            lines += _indented(entry.not_taken)
        return "\n".join(lines)

    def _fate(self) -> str:
        """At the end of the first line."""
        if self.state == "connected" or not (self.transport or self.state in _GONE):
            return ""
        fate = _FATES.get(self.state, ". There is no connection now")
        return f"{fate}. The last connection:" if self.transport else fate

    def _instead_of_a_transport(self) -> str:
        return "nothing: there has been no connection" if self.state in _GONE else "a connection, once there is one"


def explain(to: str | int | rpc.WorkerInfo) -> Explanation:
    """Which way tensors take from this worker to another one (name, rank or WorkerInfo), or to itself, and why.

    Tries nothing: a path that no tensor has needed yet is said to be untried. What it says of transports and channels
    was found when the connection was made.

    Raises RuntimeError when RPC is not initialized or runs on another backend, or there is no such worker; TypeError
    when `to` is something else.
    """
    agent = agent_for("explain")
    worker = _worker_of(agent, to)
    is_self = worker.id == agent.get_worker_info().id
    link = _link_to(agent, worker.id)
    transports, channels = agent.explain_link(worker.id)
    return Explanation(
        worker.name,
        "connected" if is_self else link["state"],
        "memory of this process" if is_self else link["transport"],
        "" if is_self else link["channel"],
        "" if is_self else link["encryption"],
        tuple(
            DevicePath(source, target, path, reason, _with_remedies(others))
            for source, target, path, reason, others in agent.explain_devices(worker.id)
        ),
        tuple(NotTaken(*one) for one in transports),
        tuple(NotTaken(*one) for one in channels),
    )


def _link_to(agent: TorchwireAgent, worker: int) -> dict[str, Any]:
    """As in peers(), which has no entry for a worker that there has never been a link to."""
    without = {"state": "idle", "transport": "", "channel": "", "encryption": ""}
    return next((peer for peer in agent.peers() if peer["id"] == worker), without)


def _worker_of(agent: TorchwireAgent, to: str | int | rpc.WorkerInfo) -> rpc.WorkerInfo:
    try:
        worker = agent.get_worker_info(to.name if isinstance(to, rpc.WorkerInfo) else to)
    except TypeError:  # pybind11's, which lists overloads
        raise TypeError(
            f"torchwire.explain(): {to!r} ({type(to).__name__}) cannot be a worker; pass its name, its rank or its "
            "WorkerInfo"
        ) from None
    if isinstance(to, rpc.WorkerInfo) and to.id != worker.id:
        raise RuntimeError(
            f"torchwire.explain(): worker {to.name!r} has rank {worker.id}, not {to.id} as its WorkerInfo says; take "
            "that from rpc.get_worker_info()"
        )
    return worker


def _indented(not_taken: Sequence[NotTaken]) -> list[str]:
    return [f"    {one}" for one in not_taken]


def _with_remedies(reasons: Sequence[tuple[str, str]]) -> tuple[NotTaken, ...]:
    return tuple(NotTaken(name, reason, _remedy_for(reason)) for name, reason in reasons)


def _remedy_for(reason: str) -> str:
    return next((remedy for text, remedy in _DEVICE_REMEDIES.items() if text in reason), "")

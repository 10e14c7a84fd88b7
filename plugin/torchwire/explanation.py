"""Which way tensors take to another worker, and why."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed.rpc as rpc

from torchwire.current_agent import agent_for


@dataclass(frozen=True)
class DevicePath:
    """The way of large tensors by one entry of a device map: `path` is "host", "process" or "ipc" (docs/devices.md)."""

    source: torch.device
    target: torch.device
    path: str
    reason: str


@dataclass(frozen=True)
class Explanation:
    """What the connection to a worker uses; `print` shows it as a table.

    worker: its name.
    transport, channel: they carry what is in the host's memory, and are empty as long as there is no connection.
    devices: one entry for each of the device map for requests to the worker: source and target, two torch.devices;
        path, "host", "process" or "ipc"; and reason, why that one.
    """

    worker: str
    transport: str
    channel: str
    devices: tuple[DevicePath, ...]

    def __str__(self) -> str:
        lines = [
            f"to worker '{self.worker}'",
            f"  calls           by {self.transport or 'a connection, once there is one'}",
        ]
        if self.channel:
            lines.append(f"  large tensors   by {self.channel}")
        rows = [(f"{entry.source} -> {entry.target}", f"by {entry.path}", entry.reason) for entry in self.devices]
        width = max((len(row[0]) for row in rows), default=0)
        lines += [f"  {route:<{max(width, 14)}}  {path:<10}  ({reason})" for route, path, reason in rows]
        return "\n".join(lines)


def explain(to: str | int | rpc.WorkerInfo) -> Explanation:
    """Which way tensors take from this worker to another one (name, rank or WorkerInfo), or to itself, and why.

    Tries nothing: a path that no tensor has needed yet is said to be untried.

    Raises RuntimeError when RPC is not initialized or runs on another backend, or there is no such worker.
    """
    agent = agent_for("explain")
    worker = to if isinstance(to, rpc.WorkerInfo) else agent.get_worker_info(to)
    link = next((peer for peer in agent.peers() if peer["id"] == worker.id), {"transport": "", "channel": ""})
    is_self = worker.id == agent.get_worker_info().id
    return Explanation(
        worker.name,
        "memory of this process" if is_self else link["transport"],
        "" if is_self else link["channel"],
        tuple(DevicePath(*entry) for entry in agent.explain_devices(worker.id)),
    )

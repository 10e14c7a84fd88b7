"""The agent that serves this process, if it is one of torchwire's."""

from __future__ import annotations

from typing import Any

from torchwire import torch_parts
from torchwire._C import ForkedAgent, TorchwireAgent


def current_agent() -> TorchwireAgent | None:
    """This process's agent, or None when RPC is not initialized or runs on another backend."""
    if not torch_parts.is_current_rpc_agent_set():
        return None
    agent = torch_parts.get_current_rpc_agent()
    return agent if isinstance(agent, TorchwireAgent) else None


def forked_agent() -> ForkedAgent | None:
    """What this process has in the place of an agent if it was forked from a worker, and has not called init_rpc."""
    agent = torch_parts.get_current_rpc_agent() if torch_parts.is_current_rpc_agent_set() else None
    return agent if isinstance(agent, ForkedAgent) else None


def agent_for(function: str) -> TorchwireAgent:
    """This process's agent, for the function of torchwire's with this name.

    Raises RuntimeError when RPC is not initialized or runs on another backend, and in a process that was forked from a
    worker.
    """
    agent = current_agent()
    if agent is not None:
        return agent
    forked = forked_agent()
    if forked is not None:
        raise RuntimeError(f"torchwire.{function}(): {forked.refusal}")
    if torch_parts.is_current_rpc_agent_set():
        worker, agent_type = torch_parts.get_worker_info().name, type(torch_parts.get_current_rpc_agent()).__name__
        raise RuntimeError(
            f"torchwire.{function}(): worker {worker!r} runs on {agent_type}, not on torchwire; "
            "pass backend=BackendType.TORCHWIRE to init_rpc"
        )
    raise RuntimeError(f"torchwire.{function}(): RPC is not initialized in this process; call rpc.init_rpc first")


def peers() -> list[dict[str, Any]]:
    """One dict for each peer that this worker knows, with what its link is made of and how it fares.

    name, id, address: of the peer. id: its rank.
    state: of the link: "idle" until there is something to send, then "dialing", "greeting" and "connected"; "resuming"
        while a broken connection is made again; "disconnecting", "left" or "dead" at its end.
    transport, channel: by which the link goes, or the last one went; "" as long as there has been none.
    encryption: the cipher by which the transport encrypts, such as "AES-256-GCM"; "" where it does not.
    calls: requests sent to it. frames_sent, frames_received: requests and responses.
    bytes_sent, bytes_received: of those, in bytes. links_lost: how often the link broke.
    carried: bytes_sent and bytes_received by what has carried them first, a list with a dict for each pair of transport
        and channel: transport, channel, bytes_sent, bytes_received.

    Raises RuntimeError when RPC is not initialized or runs on another backend.
    """
    return agent_for("peers").peers()

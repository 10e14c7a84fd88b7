"""The agent that serves this process, if it is one of torchwire's."""

from __future__ import annotations

from torchwire import torch_parts
from torchwire._C import ForkedAgent, TorchwireAgent
from torchwire.records import PeerInfo


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


def peers() -> list[PeerInfo]:
    """One `torchwire.PeerInfo` for each peer that this worker knows.

    Raises RuntimeError when RPC is not initialized or runs on another backend.
    """
    return [PeerInfo(peer) for peer in agent_for("peers").peers()]

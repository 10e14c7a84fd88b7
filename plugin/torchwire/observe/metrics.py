"""What a worker has counted, as a dict: the one source for all who show it."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import torch

from torchwire._build import VERSION
from torchwire._C import TorchwireAgent
from torchwire.current_agent import agent_for

_PAGE = os.sysconf("SC_PAGE_SIZE")


def metrics() -> dict[str, Any]:
    """What this worker has counted since it started; times in seconds, sizes in bytes.

    time: when this was read, as `time.time()`.
    worker: name, rank, pid, torch and torchwire (versions), memory_bytes (resident).
    functions: one dict for each function that this worker has called, or that it has run for others: `kind` ("python",
        "builtin", "script", "remote", "fetch", "rref", "forward", "backward", "control" or "profiled"), `function`
        ("module.name"; empty where the kind has none), `failures` (reason -> its own calls without an answer), `errors`
        (requests that it has served whose function has raised, or could not run) and four histograms: `latency` of its
        own calls, `wire` (that without the callee's part), `queue` and `run` of requests that it has served. A
        histogram has count, sum, p50, p99 (both right to an eighth), and counts, by the bounds of
        `TorchwireAgent.histogram_bounds`.
    counts: counters and gauges by name: calls_in_flight, requests_active (that came and are not answered),
        requests_async (of these, whose function has left a future), requests_cancelled, threads and threads_idle
        (num_worker_threads), gil_waits and gil_wait_seconds (only while `rpc.enable_gil_profiling(True)`),
        strangers_rejected (connections refused by this process), backward_passes (begun here), bytes_in_flight and
        requests_waiting (see max_bytes_in_flight), buffer_bytes_lent and buffer_bytes_kept (see receive_cache).
    peers: what `torchwire.peers()` returns.
    rrefs: pending users, owners and forks by PyTorch's names. autograd_contexts: how many are open.
    secrets: 8 hexadecimal digits for each of the group's secrets that this worker accepts, the one that it uses first.
        Workers with the same digits have the same secrets. Like a proof, they let who sees them check a guess.

    Raises RuntimeError when RPC is not initialized or runs on another backend. Thread-safe. Takes about 50 us for ten
    functions, and asks no other worker.
    """
    return metrics_of(agent_for("metrics"))


def metrics_of(agent: TorchwireAgent) -> dict[str, Any]:
    """As metrics(), of this agent."""
    info = agent.get_worker_info()
    return {
        "time": time.time(),
        "worker": {
            "name": info.name,
            "rank": info.id,
            "pid": os.getpid(),
            "torch": torch.__version__,
            "torchwire": VERSION,
            "memory_bytes": _resident_bytes(),
        },
        "functions": agent.function_metrics(),
        "counts": agent.counts(),
        "peers": agent.peers(),
        "rrefs": agent.rref_counts(),
        "autograd_contexts": len(agent.autograd_contexts()),
        "secrets": agent.secret_labels(),
    }


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE

"""What a row of the table says: from two looks at a worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from torchwire.top.sources import Answer

# What the program itself asks for; the rest keeps books.
_CALLS = ("python", "builtin", "script", "remote", "fetch", "forward", "profiled")


@dataclass(frozen=True)
class Row:
    """A worker; rates per second since the last look, or since its start where there was none; times in seconds."""

    worker: str
    rank: int = -1
    pid: int = 0
    calls_out: float = 0.0
    calls_in: float = 0.0
    failures: float = 0.0
    errors: float = 0.0
    p50: float = 0.0
    p99: float = 0.0
    in_flight: int = 0
    active: int = 0
    bytes_out: float = 0.0
    bytes_in: float = 0.0
    transports: str = ""
    peers: int = 0
    peers_lost: int = 0
    rrefs: int = 0
    contexts: int = 0
    memory: int = 0
    problem: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


NAMES = ("worker", "rank")  # tell workers apart; the other columns are about how much there is
SORTABLE = (
    *NAMES,
    "calls_out",
    "calls_in",
    "failures",
    "errors",
    "p50",
    "p99",
    "in_flight",
    "active",
    "bytes_out",
    "bytes_in",
    "rrefs",
    "contexts",
    "memory",
)


def row_of(now: Answer, before: Answer | None, bounds: list[float]) -> Row:
    """The row of a worker; `bounds` are those of its histograms."""
    status = now.status
    if status is None:
        return Row(worker=now.name, rank=now.rank, problem=now.error)
    last = before.status if before is not None and before.status is not None else None
    if last is not None and last["worker"]["pid"] != status["worker"]["pid"]:
        last = None  # another process in its place
    seconds = status["time"] - last["time"] if last is not None else 0.0
    latency = _difference(_buckets(status), _buckets(last) if last else [])
    peers = status["peers"]

    def rate(read: Callable[[Mapping[str, Any]], float]) -> float:
        return max(0.0, read(status) - read(last)) / seconds if last is not None and seconds > 0 else 0.0

    return Row(
        worker=status["worker"]["name"],
        rank=status["worker"]["rank"],
        pid=status["worker"]["pid"],
        calls_out=rate(lambda each: _count(each, "latency")),
        calls_in=rate(lambda each: _count(each, "run")),
        failures=rate(_failures),
        errors=rate(_errors),
        p50=quantile(latency, bounds, 0.5),
        p99=quantile(latency, bounds, 0.99),
        in_flight=int(status["counts"]["calls_in_flight"]),
        active=int(status["counts"]["requests_active"]),
        bytes_out=rate(lambda each: sum(peer["bytes_sent"] for peer in each["peers"])),
        bytes_in=rate(lambda each: sum(peer["bytes_received"] for peer in each["peers"])),
        transports=",".join(sorted({_shown_transport(peer) for peer in peers if peer["transport"]})),
        peers=sum(peer["state"] == "connected" for peer in peers),
        peers_lost=sum(peer["state"] in ("dead", "resuming") for peer in peers),
        rrefs=sum(status["rrefs"].values()),
        contexts=status["autograd_contexts"],
        memory=status["worker"]["memory_bytes"],
    )


def _shown_transport(peer: Mapping[str, Any]) -> str:
    return f"{peer['transport']} encrypted" if peer.get("encryption") else peer["transport"]


def quantile(counts: list[int], bounds: list[float], part: float) -> float:
    """What so large a part of what is in the buckets did not exceed; 0 where there is nothing."""
    wanted = part * sum(counts)
    before = 0
    for count, low, high in zip(counts, [0.0, *bounds], [*bounds, bounds[-1]]):
        if count and before + count >= wanted:
            return low + (high - low) * (wanted - before) / count
        before += count
    return 0.0


def _programs(status: Mapping[str, Any]) -> Iterable[Mapping[str, Any]]:
    return (function for function in status["functions"] if function["kind"] in _CALLS)


def _count(status: Mapping[str, Any], histogram: str) -> int:
    return sum(function[histogram]["count"] for function in _programs(status))


def _failures(status: Mapping[str, Any]) -> int:
    return sum(sum(function["failures"].values()) for function in _programs(status))


def _errors(status: Mapping[str, Any]) -> int:
    # What rpc.remote's function has raised is said again by each fetch.
    return sum(function["errors"] for function in _programs(status) if function["kind"] != "fetch")


def _buckets(status: Mapping[str, Any]) -> list[int]:
    return [sum(bucket) for bucket in zip(*(function["latency"]["counts"] for function in _programs(status)))]


def _difference(now: list[int], before: list[int]) -> list[int]:
    return [max(0, count - old) for count, old in zip(now, before)] if before else now

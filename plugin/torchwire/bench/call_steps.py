"""Calls: how long one takes, how many there are in a second, how fast bytes go there and back."""

from __future__ import annotations

from collections.abc import Callable

from torchwire.bench import sampling
from torchwire.bench.batch import Batch
from torchwire.bench.case import Case, size_text
from torchwire.bench.contestant import CALLS, ECHO, RPC, THREADS
from torchwire.bench.group import Group, WorkerGroup
from torchwire.bench.member import Member
from torchwire.bench.raw_pipe import PipeGroup
from torchwire.bench.sampling import Pace
from torchwire.bench.step import Scope, Step

# By the name in functions.py: how it is called in reports, and what it needs.
_FUNCTIONS = {
    "builtin": ("torch.add", CALLS),
    "noop": ("no-op", CALLS),
    "tensor": ("function of a small tensor", CALLS),
    "torchscript": ("TorchScript function", RPC),
    "async": ("async function", RPC),
}
_WINDOWS = (1, 8, 64)
_THREADS = (1, 4, 16)

# Bytes from which an echo takes so long that few will do.
_LARGE = 16 << 20
_PACE_OF_LARGE = {"at_least": 2, "warm_ups": 1}


def latency(_scope: Scope) -> list[Step]:
    """One call after the other."""
    return [
        Step((Case("latency", title),), needs, on_caller(time_calls, name))
        for name, (title, needs) in _FUNCTIONS.items()
    ]


def rate(_scope: Scope) -> list[Step]:
    """Many calls of the no-op at a time."""
    windows = [
        Step((Case("rate", f"window of {size}", "rate"),), CALLS, on_caller(time_window, size)) for size in _WINDOWS
    ]
    threads = [
        Step(
            (Case("rate", f"{count} thread{'s' if count > 1 else ''}", "rate"),),
            THREADS,
            on_caller(time_threads, count),
        )
        for count in _THREADS
    ]
    return windows + threads


def echo(scope: Scope) -> list[Step]:
    """A tensor, or as many bytes, there and back."""
    return [echo_step(size, scope) for size in scope.sizes]


def on_caller(function: Callable[..., Batch], *arguments: object) -> Callable[[WorkerGroup, Pace], list[Batch]]:
    """What runs function(member, *arguments, pace) on the group's first worker."""
    return lambda group, pace: [group.caller.run(function, *arguments, pace)]


def echo_step(size: int, scope: Scope, workload: str = "echo") -> Step:
    """So many bytes there and back, which belongs to the workload of that name."""
    case = Case(workload, size_text(size), "bandwidth", 2 * size)
    rounds = max(scope.rounds // 3, 1) if size >= _LARGE else scope.rounds
    return Step((case,), ECHO, _echo_of(size), most_rounds=rounds)


def _echo_of(size: int) -> Callable[[Group, Pace], list[Batch]]:
    def run(group: Group, pace: Pace) -> list[Batch]:
        if size >= _LARGE:
            pace = pace._replace(**_PACE_OF_LARGE)
        if isinstance(group, PipeGroup):
            return [group.echo(size, pace)]
        assert isinstance(group, WorkerGroup)
        return [group.caller.run(time_echo, size, pace)]

    return run


# ---- in the workers ----


def time_calls(member: Member, name: str, pace: Pace) -> Batch:
    return sampling.latency(member.call(name), pace)


def time_window(member: Member, size: int, pace: Pace) -> Batch:
    return sampling.window(member.begin("noop"), size, pace)


def time_threads(member: Member, count: int, pace: Pace) -> Batch:
    return sampling.from_threads(member.call("noop"), count, pace)


def time_echo(member: Member, size: int, pace: Pace) -> Batch:
    return sampling.latency(member.echo(size), pace)

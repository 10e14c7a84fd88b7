"""Distributed backward passes on several engines, side by side: python test/bench/backward.py

One group of four workers per contestant, all alive at once; blocks of passes alternate between the groups, so that
whatever else the machine does meets all alike. Groups whose turn it is not are stopped, since the stock backend's shm
transport polls without pause. Each pass has a context and a graph of its own, of which only the pass is timed.

Prints p50 and p99 in microseconds, the median of each round's ratio to each contestant before, and how many messages a
pass takes.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import pathlib
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

WORKERS = 4
WARM_UP = 5

# Where the gradients travel: one hop and back, or three. Of the "unused" ones another result is left out, which only
# torchwire's smart mode allows.
WAYS = {"one": 1, "three": 3, "one_unused": 1, "three_unused": 3}

CONTESTANTS = ["TENSORPIPE", "TENSORPIPE/uv", "TORCHWIRE:fast", "TORCHWIRE:smart"]


class Contestant(NamedTuple):
    """A backend, the way its passes run, and the transports it is told to use."""

    text: str
    backend: str
    options: dict[str, Any]

    @classmethod
    def parse(cls, text: str) -> Contestant:
        group, _, transports = text.partition("/")
        backend, _, mode = group.partition(":")
        options: dict[str, Any] = {"_transports": transports.split(",")} if transports else {}
        if mode:
            options["backward_mode"] = mode
        return cls(text, backend, options)

    def can_run(self, way: str) -> bool:
        is_smart = self.backend == "TORCHWIRE" and self.options.get("backward_mode") != "fast"
        return is_smart or not way.endswith("unused")


# ---- in the workers ----


def _along(workers: list[str], tensor: torch.Tensor) -> torch.Tensor:
    """Doubles the tensor at the end of a way over several workers."""
    import torch.distributed.rpc as rpc

    if not workers:
        return tensor * 2
    return rpc.rpc_sync(workers[0], _along, (workers[1:], tensor))


def _loss(way: str, leaf: torch.Tensor) -> torch.Tensor:
    workers = [f"worker{rank}" for rank in range(1, WAYS[way] + 1)]
    if way.endswith("unused"):
        _along(workers, leaf)
    return _along(workers, leaf).sum()


def time_passes(way: str, count: int) -> list[float]:
    """The seconds that each of `count` passes takes."""
    import torch.distributed.autograd as dist_autograd

    leaf = torch.ones(2, requires_grad=True)
    times = []
    for _ in range(count):
        with dist_autograd.context() as context:
            loss = _loss(way, leaf)
            start = time.perf_counter()
            dist_autograd.backward(context, [loss])
            times.append(time.perf_counter() - start)
    return times


_kept: list[Any] = []


def prepare_passes(way: str) -> None:
    """Makes the graph for repeat_passes."""
    import torch.distributed.autograd as dist_autograd

    context = dist_autograd._new_context()._context_id()
    _kept[:] = [context, _loss(way, torch.ones(2, requires_grad=True))]
    repeat_passes(WARM_UP)


def repeat_passes(count: int) -> None:
    """Runs passes over one graph: nothing is sent but what they send."""
    import torch.distributed.autograd as dist_autograd

    context, loss = _kept
    for _ in range(count):
        dist_autograd.backward(context, [loss], retain_graph=True)


def release_passes() -> None:
    import torch.distributed.autograd as dist_autograd

    dist_autograd._release_context(_kept[0])
    _kept.clear()


def traffic() -> tuple[int, int]:
    """How many requests and how many frames this worker has sent."""
    import torchwire

    peers = torchwire.peers()
    return sum(peer["calls"] for peer in peers), sum(peer["frames_sent"] for peer in peers)


def _worker(rank: int, contestant: Contestant, store: str, commands) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    import torch.distributed.rpc as rpc

    if contestant.backend != "TENSORPIPE":
        import torchwire  # noqa: F401  (registers the backend)
    member = rpc.backend_registry.BackendType[contestant.backend]
    options = rpc.backend_registry.construct_rpc_backend_options(
        member, init_method=f"file://{store}", **contestant.options
    )
    rpc.init_rpc(f"worker{rank}", backend=member, rank=rank, world_size=WORKERS, rpc_backend_options=options)
    commands.send("ready")
    while (command := commands.recv()) is not None:
        function, *arguments = command
        commands.send(function(*arguments))
    rpc.shutdown()


# ---- here ----


class Worker:
    def __init__(self, rank: int, contestant: Contestant, store: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._commands, theirs = context.Pipe()
        self.process = context.Process(target=_worker, args=(rank, contestant, store, theirs), daemon=True)
        self.process.start()

    def run(self, function: Callable, *arguments) -> Any:
        self._commands.send((function, *arguments))
        return self.answer()

    def answer(self) -> Any:
        return self._commands.recv()

    def end(self) -> None:
        self._commands.send(None)

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)


class Group:
    """Four workers of one contestant. They run in a with statement, and are stopped outside of it."""

    def __init__(self, contestant: Contestant, folder: pathlib.Path) -> None:
        self.contestant = contestant
        self._workers = [Worker(rank, contestant, str(folder / f"store-{id(self)}")) for rank in range(WORKERS)]
        for worker in self._workers:
            worker.answer()
        self._signal(signal.SIGSTOP)

    def __enter__(self) -> Group:
        self._signal(signal.SIGCONT)
        return self

    def __exit__(self, *_) -> None:
        self._signal(signal.SIGSTOP)

    def block(self, way: str, count: int) -> list[float]:
        self._workers[0].run(time_passes, way, WARM_UP)
        return self._workers[0].run(time_passes, way, count)

    def messages(self, way: str, count: int) -> tuple[float, float]:
        """How many requests and frames a pass takes, over all workers."""
        root = self._workers[0]
        root.run(prepare_passes, way)
        before = [worker.run(traffic) for worker in self._workers]
        root.run(repeat_passes, count)
        after = [worker.run(traffic) for worker in self._workers]
        root.run(release_passes)
        calls, frames = (sum(new[i] - old[i] for old, new in zip(before, after, strict=True)) for i in range(2))
        return calls / count, frames / count

    def close(self) -> None:
        self._signal(signal.SIGCONT)
        for worker in self._workers:
            worker.end()
        for worker in self._workers:
            worker.process.join()

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)


def measure(groups: list[Group], way: str, blocks: int, size: int) -> list[list[list[float]]]:
    """For each group the blocks of its times; each round begins with another group."""
    times: list[list[list[float]]] = [[] for _ in groups]
    for number in range(blocks):
        for turn in range(len(groups)):
            index = (number + turn) % len(groups)
            with groups[index] as group:
                times[index].append(group.block(way, size))
    return times


def ratio(mine: list[list[float]], theirs: list[list[float]]) -> float:
    """The median of each round's."""
    return statistics.median(
        statistics.median(one) / statistics.median(other) for one, other in zip(mine, theirs, strict=True)
    )


def compare(groups: list[Group], way: str, blocks: int, size: int) -> None:
    groups = [group for group in groups if group.contestant.can_run(way)]
    times = measure(groups, way, blocks, size)
    print(f"{way}: {WAYS[way]} hop{'s' if WAYS[way] > 1 else ''}{', a result unused' if 'unused' in way else ''}")
    for index, (group, mine) in enumerate(zip(groups, times, strict=True)):
        every = sorted(itertools.chain(*mine))
        line = f"  {group.contestant.text:18} {1e6 * statistics.median(every):8.0f}"
        line += f" {1e6 * every[len(every) * 99 // 100]:8.0f}"
        if group.contestant.backend == "TORCHWIRE":
            with group:
                calls, frames = group.messages(way, size)
            line += f" {calls:9.2f} {frames:7.2f}"
        else:
            line += " " * 18
        for other, theirs in zip(groups[:index], times[:index], strict=True):
            line += f"  {ratio(mine, theirs):.2f} of {other.contestant.text}"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "contestants",
        nargs="*",
        default=CONTESTANTS,
        help=f"BACKEND[:mode][/transport,...] (default: {' '.join(CONTESTANTS)})",
    )
    parser.add_argument("--blocks", type=int, default=20, help="alternations (default 20)")
    parser.add_argument("--size", type=int, default=50, help="passes per block (default 50)")
    parser.add_argument("--ways", default=",".join(WAYS), help="default: %(default)s")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        groups = [Group(Contestant.parse(text), pathlib.Path(folder)) for text in arguments.contestants]
        print(f"{'microseconds':20} {'p50':>8} {'p99':>8} {'requests':>9} {'frames':>7}  p50 in relation to the others")
        for way in arguments.ways.split(","):
            compare(groups, way, arguments.blocks, arguments.size)
        for group in groups:
            group.close()


if __name__ == "__main__":
    main()

"""Latency of rpc_sync on two backends, side by side: python test/bench/latency.py

One group of two workers per backend, all alive at once; blocks of calls alternate between the groups, so
that whatever else the machine does meets both alike. Prints p50 and p99 in microseconds and the ratio of the
first backend to the second, per workload. A group with `;PYTHONPATH=FOLDER` runs on the build that is installed there
(pip install --target), so that two builds can be compared.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import multiprocessing
import os
import pathlib
import statistics
import sys
import tempfile
import time
from typing import NamedTuple

import torch

sys.path.append(str(pathlib.Path(__file__).parents[1] / "python"))
from network import Hosts

# noops_N: N of them under way, the time of all; echo_N: of a tensor of N KiB.
WORKLOADS = ("add", "noop", "noops_64", "echo_64", "echo_1024", "echo_16384")


class Kind(NamedTuple):
    """A backend, the transports and channels it is told to use, other options of it, and environment variables."""

    text: str
    backend: str
    transports: list[str] | None
    channels: list[str] | None
    options: dict[str, object]
    environment: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Kind:
        group, *settings = text.split(";")
        values = dict(setting.split("=") for setting in settings)
        backend, transports, channels = (group.split("/") + ["", ""])[:3]
        return cls(
            text,
            backend,
            transports.split(",") if transports else None,
            channels.split(",") if channels else None,
            {name: ast.literal_eval(value) for name, value in values.items() if name.islower()},
            {name: value for name, value in values.items() if not name.islower()},
        )


def noop() -> None:
    pass


def echo(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _call(rpc, workload: str):
    """The function that makes one call of the workload, with its arguments made beforehand."""
    if workload == "add":
        arguments = (torch.ones(2), 1)
        return lambda: rpc.rpc_sync("callee", torch.add, args=arguments)
    if workload == "noop":
        return lambda: rpc.rpc_sync("callee", noop)
    if workload.startswith("noops_"):
        count = range(int(workload.removeprefix("noops_")))
        return lambda: [future.wait() for future in [rpc.rpc_async("callee", noop) for _ in count]]
    kibibytes = int(workload.removeprefix("echo_"))
    tensor = torch.zeros(kibibytes << 10, dtype=torch.uint8)
    return lambda: rpc.rpc_sync("callee", echo, args=(tensor,))


def _options(rpc, kind: Kind, store: str):
    member = rpc.backend_registry.BackendType[kind.backend]
    return member, rpc.backend_registry.construct_rpc_backend_options(
        member, init_method=f"file://{store}", _transports=kind.transports, _channels=kind.channels, **kind.options
    )


def _worker(rank: int, kind: Kind, store: str, commands, enter_network=None) -> None:
    if enter_network:
        enter_network()
        os.environ.update(TP_SOCKET_IFNAME="net0", GLOO_SOCKET_IFNAME="net0")
    os.environ.update(kind.environment, OMP_NUM_THREADS="1")
    torch.set_num_threads(1)
    import torch.distributed.rpc as rpc

    if kind.backend != "TENSORPIPE":
        import torchwire  # noqa: F401  (registers the backend)
    member, options = _options(rpc, kind, store)
    name = "caller" if rank == 0 else "callee"
    rpc.init_rpc(name, backend=member, rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        _serve_commands(rpc, commands)
    rpc.shutdown()


def _serve_commands(rpc, commands) -> None:
    calls = {}
    while (command := commands.recv()) is not None:
        workload, count = command
        call = calls.setdefault(workload, _call(rpc, workload))
        times = []
        for _ in range(count):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        commands.send(times)


@contextlib.contextmanager
def _module_path_of(kind: Kind):
    """Processes that are started meanwhile find modules where the kind's PYTHONPATH says first: another build, say.
    They would not look at the variable, since they are given this process's path."""
    own = list(sys.path)
    sys.path[:0] = filter(None, kind.environment.get("PYTHONPATH", "").split(os.pathsep))
    try:
        yield
    finally:
        sys.path[:] = own


class Group:
    """A caller and a callee on one backend, each in its network namespace if there are some."""

    def __init__(self, kind: Kind, folder: pathlib.Path, networks=(None, None)) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = kind.text
        self._commands, theirs = context.Pipe()
        store = str(folder / f"store-{id(self)}")
        self._processes = [
            context.Process(target=_worker, args=(rank, kind, store, theirs if rank == 0 else None, networks[rank]))
            for rank in range(2)
        ]
        with _module_path_of(kind):
            for process in self._processes:
                process.start()

    def run(self, workload: str, count: int) -> list[float]:
        """The seconds that each of `count` calls took."""
        self._commands.send((workload, count))
        return self._commands.recv()

    def close(self) -> None:
        self._commands.send(None)
        for process in self._processes:
            process.join()


def compare(groups: list[Group], workload: str, blocks: int, size: int) -> None:
    times: list[list[float]] = [[] for _ in groups]
    for group in groups:
        group.run(workload, size)  # warm-up
    for _ in range(blocks):
        for group, mine in zip(groups, times, strict=True):
            mine += group.run(workload, size)
    medians = [statistics.median(mine) for mine in times]
    line = f"{workload:12}"
    for mine, median in zip(times, medians, strict=True):
        p99 = sorted(mine)[len(mine) * 99 // 100]
        line += f"  {median * 1e6:9.0f} {p99 * 1e6:9.0f}"
    for median in medians[1:]:
        line += f"  {medians[0] / median:6.2f}"
    print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "groups",
        nargs="*",
        default=["TORCHWIRE/uv", "TENSORPIPE/uv"],
        help="BACKEND[/transport,...[/channel,...]][;VARIABLE=value][;option=value]... (default: both backends on uv)",
    )
    parser.add_argument("--blocks", type=int, default=20, help="alternations (default 20)")
    parser.add_argument(
        "--size", type=int, default=100, help="calls per block (default 100); of all but add and noop, a tenth"
    )
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument(
        "--namespaces",
        action="store_true",
        help="caller and callee in network namespaces that a cable joins; needs root",
    )
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        networks = stack.enter_context(Hosts()).entrances() if arguments.namespaces else (None, None)
        groups = [Group(Kind.parse(text), pathlib.Path(folder), networks) for text in arguments.groups]
        for i, group in enumerate(groups):
            print(f"group {i}: {group.name}")
        columns = "".join(f"  {f'p50 of {i}':>9} {f'p99 of {i}':>9}" for i in range(len(groups)))
        print(f"{'microseconds':12}{columns}" + "".join(f"  {f'0/{i}':>6}" for i in range(1, len(groups))))
        for workload in arguments.workloads.split(","):
            size = arguments.size if workload in ("add", "noop") else max(arguments.size // 10, 1)
            compare(groups, workload, arguments.blocks, size)
        for group in groups:
            group.close()


if __name__ == "__main__":
    main()

"""What it costs that connections are encrypted: python test/bench/encryption.py

    between    two workers, each on a core and in a network namespace of its own (needs root): calls, tensors one way
    first      the first call of two workers, with which they connect
    many       64 workers on one host, each of which calls each other one

Groups that encrypt and groups that do not take turns. Prints the medians, the ratio of the medians, and the median
ratio of the rounds; above 1 is what encryption costs.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pathlib
import resource
import statistics
import sys
import time

import torch
import torch.distributed.rpc as rpc

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "python"))

from group import Group, HostedStore, init, results
from network import Hosts
from processes import start_fork_server

STORE = f"tcp://{Hosts.ADDRESSES[0][0]}"
LARGE = 64 << 20  # bytes
GIGABYTE = 1e9

# ---- in the workers ----


def echo(value=None):
    return value


def take(_):
    pass


def pin(core):
    os.sched_setaffinity(0, {core})


def cpu():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def calls(to, size, count):
    """The median seconds of a call that brings back so many bytes."""
    arguments = (torch.ones(size, dtype=torch.uint8),) if size else ()
    seconds = []
    for _ in range(count):
        begun = time.perf_counter()
        rpc.rpc_sync(to, echo, arguments)
        seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def stream(to, count):
    """The seconds that a gigabyte takes, in large tensors of which two are under way, and those of this side's CPU."""
    tensor = torch.ones(LARGE, dtype=torch.uint8)
    used, begun = cpu(), time.perf_counter()
    pending = [rpc.rpc_async(to, take, (tensor,))]
    for _ in range(count - 1):
        pending.append(rpc.rpc_async(to, take, (tensor,)))
        pending.pop(0).wait()
    pending.pop().wait()
    gigabytes = count * LARGE / GIGABYTE
    return (time.perf_counter() - begun) / gigabytes, (cpu() - used) / gigabytes


def to_all(others, rounds):
    begun = time.perf_counter()
    for _ in range(rounds):
        for future in [rpc.rpc_async(other, echo, (1,)) for other in others]:
            future.wait()
    return time.perf_counter() - begun


# ---- measurements: each gives its figures by name, of groups that are plain and that are encrypted ----


def between(hosts, rounds):
    with contextlib.ExitStack() as stack:
        groups = []
        for port, encryption in ((29501, False), (29502, "auto")):
            group = stack.enter_context(Group(2, {}, hosts.entrances()))
            results([worker.start(pin, core) for core, worker in enumerate(group)])
            group.all(init, f"{STORE}:{port}", world_size=2, encryption=encryption, _channels=["basic"])
            groups.append(group)
        for number in range(rounds + 1):
            for way, group in zip(("plain", "encrypted"), groups):
                figures = figures_of(group)
                if number > 0:  # the first warms up
                    yield way, figures
        for group in groups:
            group.shut_down()


def figures_of(group):
    before = group[1].run(cpu)
    seconds, sender = group[0].run(stream, "worker1", 8)
    receiver = (group[1].run(cpu) - before) / (8 * LARGE / GIGABYTE)
    return {
        "no-op, us": group[0].run(calls, "worker1", 0, 1000) * 1e6,
        "echo of 64 B, us": group[0].run(calls, "worker1", 64, 500) * 1e6,
        "echo of 64 KiB, us": group[0].run(calls, "worker1", 64 << 10, 300) * 1e6,
        "echo of 1 MiB, us": group[0].run(calls, "worker1", 1 << 20, 50) * 1e6,
        "64 MiB one way, s a GB": seconds,
        "  CPU of the sender, s a GB": sender,
        "  CPU of the receiver, s a GB": receiver,
    }


def first(rounds):
    for _ in range(rounds):
        for way, encryption in (("plain", False), ("encrypted", True)):
            store = HostedStore()
            with Group(2, store.environment) as group:
                group.all(init, store.init_method, world_size=2, encryption=encryption, _transports=["wire_tcp"])
                yield way, {"first call, us": group[0].run(calls, "worker1", 0, 1) * 1e6}
                group.shut_down()


def many(size, rounds):
    for _ in range(rounds):
        for way, encryption in (("plain", False), ("encrypted", True)):
            store = HostedStore()
            with Group(size, store.environment) as group:
                group.all(init, store.init_method, world_size=size, encryption=encryption, _transports=["wire_tcp"])
                names = [f"worker{rank}" for rank in range(size)]
                figures = {}
                for what, repeated in (("all to all, connecting, s", 1), ("all to all, 5 times, s", 5)):
                    begun = time.perf_counter()
                    results(
                        [
                            worker.start(to_all, [name for name in names if name != worker.name], repeated)
                            for worker in group
                        ]
                    )
                    figures[what] = time.perf_counter() - begun
                yield way, figures
                group.shut_down()


# ---- the table ----


def show(measured):
    found = {"plain": [], "encrypted": []}
    for way, figures in measured:
        found[way].append(figures)
    print(f"{'':32}{'plain':>10}{'encrypted':>11}{'ratio':>8}{'by round':>10}")
    for name in found["plain"][0]:
        plain, encrypted = ([figures[name] for figures in found[way]] for way in ("plain", "encrypted"))
        medians = statistics.median(plain), statistics.median(encrypted)
        by_round = statistics.median(after / before for before, after in zip(plain, encrypted))
        print(f"{name:32}{medians[0]:10.4g}{medians[1]:11.4g}{medians[1] / medians[0]:8.2f}{by_round:10.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("between", "first", "many"))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--workers", type=int, default=64, help="of many")
    chosen = parser.parse_args()
    start_fork_server()  # 64 workers that each import torch outlast the limit of a start
    if chosen.what == "between":
        with Hosts() as hosts:
            show(between(hosts, chosen.rounds))
    elif chosen.what == "first":
        show(first(chosen.rounds))
    else:
        show(many(chosen.workers, chosen.rounds))


if __name__ == "__main__":
    main()

"""What it costs calls to be traced: python test/bench/observing.py

Two workers; blocks of no-ops alternate between a trace that is on and one that is off. Prints the median time of a call
in microseconds, one after another and with 64 under way, and the median ratio of on to off.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import tempfile
import time

import torch
import torch.distributed.rpc as rpc
import torchwire
from torchwire.current_agent import agent_for

CAPACITY = 1_000_000
UNDER_WAY = 64


def noop() -> None:
    pass


def latency(calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls):
        rpc.rpc_sync("worker1", noop)
    return (time.perf_counter() - begun) / calls


def many(calls: int) -> float:
    begun = time.perf_counter()
    for _ in range(calls // UNDER_WAY):
        for future in [rpc.rpc_async("worker1", noop) for _ in range(UNDER_WAY)]:
            future.wait()
    return (time.perf_counter() - begun) / (calls // UNDER_WAY * UNDER_WAY)


def switch(on: bool) -> None:
    agent = agent_for("trace")
    if on:
        agent.start_trace(CAPACITY)
    else:
        agent.stop_trace()


def measure(blocks: int, calls: int) -> None:
    for name, run in (("one after another", latency), (f"{UNDER_WAY} under way", many)):
        times: dict[bool, list[float]] = {False: [], True: []}
        for block in range(2 * blocks):
            on = block % 2 == 1
            switch(on)
            rpc.rpc_sync("worker1", switch, (on,))
            run(calls // 10)
            times[on].append(run(calls))
        off, on_ = (statistics.median(times[on]) * 1e6 for on in (False, True))
        ratio = statistics.median(on / off for off, on in zip(times[False], times[True]))
        print(f"{name:<20} off {off:7.2f} us   on {on_:7.2f} us   on / off {ratio:.3f}")
    switch(False)


def work(rank: int, store: str, blocks: int, calls: int) -> None:
    torch.set_num_threads(1)
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{store}")
    rpc.init_rpc(f"worker{rank}", rpc.BackendType["TORCHWIRE"], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        measure(blocks, calls)
    rpc.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks", type=int, default=20, help="pairs of them (default 20)")
    parser.add_argument("--calls", type=int, default=2000, help="in each (default 2000)")
    arguments = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder:
        other = context.Process(target=work, args=(1, f"{folder}/store", arguments.blocks, arguments.calls))
        other.start()
        work(0, f"{folder}/store", arguments.blocks, arguments.calls)
        other.join()


if __name__ == "__main__":
    main()

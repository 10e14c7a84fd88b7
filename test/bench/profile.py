"""Where the time of a call goes, by perf: python test/bench/profile.py [--seconds N]

One worker calls a no-op on another, one call after the other, and both are sampled meanwhile. Each sample of the
busiest thread of a process is counted for a part (PARTS); the shares are of the time from one call to the next, so
that the parts of each side add up to it. What one side waits is what the other is busy, and the way between them.
Needs Linux' perf, and cores that nobody else uses: waiting threads yield to others.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import multiprocessing
import re
import subprocess
import tempfile
import time

import torch
import torch.distributed.rpc as rpc

# The first that fits, of "library symbol".
PARTS = (
    ("waiting", r"Loop::(drive|pollAll|keep|pauseAfter|poll)|Stream::poll|SpinGate|clock_gettime|sched_yield|schedule"),
    ("waiting", r"finish_task_switch|kernel.*(yield|_raw_spin_unlock_irq$|rseq|fdget|fput)"),
    ("the kernel, else", r"^\[kernel|^\[vdso"),
    (
        "memory: malloc, free, copies",
        r"malloc|free|operator (new|delete)|mem(move|cpy|set)|_PyObject_(Malloc|Free)",
    ),
    ("locks", r"pthread_|futex|_lll_"),
    ("Python", r"^(libpython|python)"),
    ("bindings: pybind11, libtorch_python", r"pybind11|^libtorch_python"),
    ("TensorPipe", r"tensorpipe::"),
    ("torchwire", r"^_C\."),
    ("libtorch", r"^(libtorch|libc10)"),
    ("else", r""),
)


def noop() -> None:
    pass


def work(rank: int, store: str, seconds: float, events: multiprocessing.Queue) -> None:
    import torchwire

    torch.set_num_threads(1)
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{store}")
    name = f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=2, backend=rpc.BackendType.TORCHWIRE, rpc_backend_options=options)
    if rank == 0:
        call_for(1)
        events.put(None)
        events.put(call_for(seconds))
    rpc.shutdown()


def call_for(seconds: float) -> float:
    """Microseconds from one call to the next."""
    calls, begin = 0, time.perf_counter()
    while (end := time.perf_counter()) < begin + seconds:
        rpc.rpc_sync("worker1", noop)
        calls += 1
    return (end - begin) / calls * 1e6


@contextlib.contextmanager
def recorded(process: multiprocessing.process.BaseProcess, path: str):
    command = ["perf", "record", "--quiet", "--event=cpu-clock", "--freq=4000", f"--pid={process.pid}", "-o", path]
    with subprocess.Popen(command) as recorder:
        yield
        recorder.terminate()


def shares(path: str) -> dict[str, float]:
    """Of the thread that has the most samples: part -> share."""
    command = ["perf", "script", "-i", path, "-F", "tid,dso,ip,sym"]
    output = subprocess.run(command, check=True, text=True, capture_output=True).stdout
    threads: dict[str, collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for line in output.splitlines():
        if found := re.match(r"\s*(\d+)\s+[0-9a-f]+\s+(.*) \((.*)\)$", line):
            thread, symbol, library = found.groups()
            threads[thread][part_of(f"{library.rsplit('/', 1)[-1]} {symbol}")] += 1
    busiest = max(threads.values(), key=lambda parts: parts.total())
    return {part: count / busiest.total() for part, count in busiest.items()}


def part_of(place: str) -> str:
    return next(part for part, pattern in PARTS if re.search(pattern, place))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0)
    seconds = parser.parse_args().seconds
    fork = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        events = fork.Queue()
        paths = [f"{folder}/{rank}.perf" for rank in range(2)]
        workers = [fork.Process(target=work, args=(rank, f"{folder}/store", seconds, events)) for rank in range(2)]
        for worker in workers:
            worker.start()
        events.get()
        with recorded(workers[0], paths[0]), recorded(workers[1], paths[1]):
            period = events.get()
        for worker in workers:
            worker.join()
        show(period, [shares(path) for path in paths])


def show(period: float, sides: list[dict[str, float]]) -> None:
    print(f"{period:.1f} us from one call to the next, sampled; in us:\n{'':38} caller  callee")
    for part in dict.fromkeys(part for part, _ in PARTS):
        print(f"{part:38}" + "".join(f"{period * side.get(part, 0):8.2f}" for side in sides))


if __name__ == "__main__":
    main()

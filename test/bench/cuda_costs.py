"""What CUDA's own calls cost and wait for on this machine: what the paths of tensors between devices are designed by.

    python test/bench/cuda_costs.py [--output FILE.json]

Needs a CUDA device and the package cuda-bindings, and takes half a minute. The last figure is of a process that is
killed amid its work.
"""

import argparse
import contextlib
import json
import mmap
import multiprocessing
import os
import statistics
import sys
import threading
import time

import torch
from cuda.bindings import runtime

MIB = 1 << 20
_SHORT, _LONG = 0.0005, 0.1  # seconds that kernels sleep

_costs = {}


def note(what, value):
    _costs[what] = value
    print(f"{what}: {value}", flush=True)


def check(outcome):
    """What a function of CUDA's has returned besides its error, which is raised."""
    error, *values = outcome
    if error != runtime.cudaError_t.cudaSuccess:
        raise RuntimeError(str(error))
    return values[0] if values else None


def median_of(function, rounds=15):
    """In microseconds."""
    seconds = []
    for _ in range(rounds):
        begin = time.perf_counter()
        function()
        seconds.append(time.perf_counter() - begin)
    return round(1e6 * statistics.median(seconds), 1)


def milliseconds_of(function, *args):
    begin = time.perf_counter()
    function(*args)
    return round(1e3 * (time.perf_counter() - begin), 2)


class Sleeper:
    """Kernels that sleep on a stream of their own."""

    def __init__(self):
        cycles = 20_000_000
        torch.cuda._sleep(1000)
        torch.cuda.synchronize()
        self._rate = cycles / (milliseconds_of(self._run, cycles) / 1e3)
        self.stream = torch.cuda.Stream()

    @staticmethod
    def _run(cycles):
        torch.cuda._sleep(cycles)
        torch.cuda.synchronize()

    def sleep(self, seconds):
        with torch.cuda.stream(self.stream):
            torch.cuda._sleep(int(self._rate * seconds))


# ---- one process ----


def memory(sleeper):
    for size in (2 * MIB, 64 * MIB, 512 * MIB):
        blocks = []
        took = median_of(lambda: blocks.append(check(runtime.cudaMalloc(size))), 8)
        gave = median_of(lambda: check(runtime.cudaFree(blocks.pop())), 8)
        note(f"cudaMalloc and cudaFree of {size // MIB} MiB, us", (took, gave))
    block = check(runtime.cudaMalloc(64 * MIB))
    sleeper.sleep(_LONG)
    took = milliseconds_of(runtime.cudaMalloc, 64 * MIB)
    note("the same of 64 MiB beside a kernel of 100 ms, ms", (took, milliseconds_of(runtime.cudaFree, block)))
    for size in (2 * MIB, 64 * MIB):
        blocks = []
        took = median_of(lambda: blocks.append(check(runtime.cudaHostAlloc(size, 0))), 5)
        gave = median_of(lambda: check(runtime.cudaFreeHost(blocks.pop())), 5)
        note(f"cudaHostAlloc and cudaFreeHost of {size // MIB} MiB, us", (took, gave))
    with mmap.mmap(-1, 64 * MIB) as shared:
        shared[:] = b"x" * len(shared)
        tensor = torch.frombuffer(shared, dtype=torch.uint8)
        took = milliseconds_of(runtime.cudaHostRegister, tensor.data_ptr(), 64 * MIB, 0)
        check(runtime.cudaHostUnregister(tensor.data_ptr()))
        del tensor
    note("cudaHostRegister of 64 MiB of shared memory, ms", took)


def rate_of(function, size):
    """In GB/s."""

    def whole():
        function()
        torch.cuda.synchronize()

    whole()
    return round(size / median_of(whole, 5) / 1e3, 1)


def copies(_sleeper):
    size = 256 * MIB
    device, other = (torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2))
    pinned = torch.empty(size, dtype=torch.uint8, pin_memory=True)
    pageable, second = torch.ones(size, dtype=torch.uint8), torch.ones(size, dtype=torch.uint8)
    note("to the device from pinned memory, GB/s", rate_of(lambda: device.copy_(pinned, non_blocking=True), size))
    note("to pinned memory, GB/s", rate_of(lambda: pinned.copy_(device, non_blocking=True), size))
    note("to the device from pageable memory, GB/s", rate_of(lambda: device.copy_(pageable), size))
    note("to pageable memory, GB/s", rate_of(lambda: pageable.copy_(device), size))
    note("on the device, GB/s", rate_of(lambda: other.copy_(device), size))
    note("on the host, by one thread, GB/s", rate_of(lambda: second.copy_(pageable), size))
    for piece in (256 << 10, MIB, 2 * MIB, 8 * MIB):

        def in_pieces(piece=piece):
            for begin in range(0, size, piece):
                pinned[begin : begin + piece].copy_(device[begin : begin + piece], non_blocking=True)

        note(f"to pinned memory in pieces of {piece >> 10} KiB, GB/s", rate_of(in_pieces, size))


def events(sleeper):
    for name, flags in (("spinning", 2), ("blocking", 3)):  # without timing
        event = check(runtime.cudaEventCreateWithFlags(flags))
        sleeper.sleep(_LONG)
        check(runtime.cudaEventRecord(event, sleeper.stream.cuda_stream))
        used = time.thread_time()
        took = milliseconds_of(runtime.cudaEventSynchronize, event)
        note(f"{name} event: a wait of 100 ms, and its CPU, ms", (took, round(1e3 * (time.thread_time() - used), 1)))

        def wait(event=event):
            sleeper.sleep(_SHORT)
            check(runtime.cudaEventRecord(event, sleeper.stream.cuda_stream))
            check(runtime.cudaEventSynchronize(event))

        note(f"{name} event: a kernel of 500 us, us", median_of(wait, 100))
    note("cudaEventRecord, us", median_of(lambda: runtime.cudaEventRecord(event, sleeper.stream.cuda_stream), 200))
    note("cudaEventQuery, us", median_of(lambda: runtime.cudaEventQuery(event), 200))


def captures(_sleeper):
    """What a thread may call while another captures a graph, in the mode that torch.cuda.graph has by default."""
    stream = torch.cuda.Stream().cuda_stream
    event = check(runtime.cudaEventCreateWithFlags(2))
    check(runtime.cudaEventRecord(event, stream))
    torch.cuda.synchronize()
    calls = {
        "cudaEventRecord": lambda: runtime.cudaEventRecord(event, stream),
        "cudaEventQuery": lambda: runtime.cudaEventQuery(event),
        "cudaEventSynchronize": lambda: runtime.cudaEventSynchronize(event),
        "cudaStreamSynchronize": lambda: runtime.cudaStreamSynchronize(stream),
        "cudaMalloc": lambda: runtime.cudaMalloc(4 * MIB),
        "cudaHostAlloc": lambda: runtime.cudaHostAlloc(4 * MIB, 0),
    }
    for name, call in calls.items():
        for relaxed in (False, True):
            note(f"{name} beside a capture{', relaxed' if relaxed else ''}", beside_capture(call, relaxed))


def beside_capture(call, relaxed):
    """What the call returns, and what the end of the capture."""
    modes, returned = runtime.cudaStreamCaptureMode, []

    def run():
        if relaxed:
            runtime.cudaThreadExchangeStreamCaptureMode(modes.cudaStreamCaptureModeRelaxed)
        returned.append(call()[0].name)

    captured = torch.cuda.Stream().cuda_stream
    check(runtime.cudaStreamBeginCapture(captured, modes.cudaStreamCaptureModeGlobal))
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ended = runtime.cudaStreamEndCapture(captured)[0].name
    runtime.cudaGetLastError()
    return returned[0], ended


# ---- two processes ----


class Owner:
    """Lends memory and an event, and works when it is told to."""

    SIZE = 256 * MIB

    def __init__(self, pipe):
        sleeper = Sleeper()
        block = check(runtime.cudaMalloc(self.SIZE))
        flags = runtime.cudaEventDisableTiming | runtime.cudaEventInterprocess
        event = check(runtime.cudaEventCreateWithFlags(flags))
        torch.cuda.synchronize()
        handles = check(runtime.cudaIpcGetMemHandle(block)), check(runtime.cudaIpcGetEventHandle(event))
        pipe.send([bytes(handle.reserved) for handle in handles])
        while True:
            sleeper.sleep(pipe.recv())
            check(runtime.cudaEventRecord(event, sleeper.stream.cuda_stream))
            pipe.send(None)


def borrow(pipe, owner):
    sleeper = Sleeper()
    memory_handle, event_handle = runtime.cudaIpcMemHandle_t(), runtime.cudaIpcEventHandle_t()
    memory_handle.reserved, event_handle.reserved = pipe.recv()
    opened = []
    took = median_of(lambda: opened.append(check(runtime.cudaIpcOpenMemHandle(memory_handle, 1))), 1)
    gave = median_of(lambda: check(runtime.cudaIpcCloseMemHandle(opened.pop())), 1)
    note("cudaIpcOpenMemHandle and cudaIpcCloseMemHandle, us", (took, gave))
    block = check(runtime.cudaIpcOpenMemHandle(memory_handle, 1))
    copies_of(block)
    event = check(runtime.cudaIpcOpenEventHandle(event_handle))

    def work(seconds):
        pipe.send(seconds)
        pipe.recv()

    work(3 * _LONG)
    begin = time.perf_counter()
    torch.zeros(1, device="cuda").cpu()
    note(
        "a fill and its copy beside another process's kernel of 300 ms, ms",
        round(1e3 * (time.perf_counter() - begin), 1),
    )
    check(runtime.cudaStreamWaitEvent(sleeper.stream.cuda_stream, event, 0))
    note("a wait for that process's event, ms", milliseconds_of(sleeper.stream.synchronize))
    sleeper.sleep(_LONG)
    note("cudaIpcCloseMemHandle beside a kernel of 100 ms, ms", milliseconds_of(runtime.cudaIpcCloseMemHandle, block))
    work(2.0)
    check(runtime.cudaStreamWaitEvent(sleeper.stream.cuda_stream, event, 0))
    owner.kill()
    time.sleep(5.0)
    note("a stream 5 s after the process was killed whose event it waits for", stream_state(sleeper.stream))


def stream_state(stream):
    return runtime.cudaStreamQuery(stream.cuda_stream)[0].name


def copies_of(block):
    target = torch.empty(Owner.SIZE, dtype=torch.uint8, device="cuda")
    kind = runtime.cudaMemcpyKind.cudaMemcpyDeviceToDevice

    def copy(size):
        check(runtime.cudaMemcpyAsync(target.data_ptr(), block, size, kind, 0))
        torch.cuda.synchronize()

    note("a copy of 64 KiB of another process's memory, us", median_of(lambda: copy(64 << 10), 50))
    note("a copy of 8 MiB of it, us", median_of(lambda: copy(8 * MIB), 50))
    note("copies of it, GB/s", rate_of(lambda: copy(Owner.SIZE), Owner.SIZE))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", help="a file for the figures, as JSON")
    output = parser.parse_args().output
    note("device", torch.cuda.get_device_name())
    sleeper = Sleeper()
    for part in (memory, copies, events, captures):
        part(sleeper)
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    owner = spawn.Process(target=Owner, args=(theirs,), daemon=True)
    owner.start()
    with contextlib.closing(ours):
        borrow(ours, owner)
    if output:
        with open(output, "w") as file:
            json.dump(_costs, file, indent=2)
    sys.stdout.flush()
    # A stream that waits for ever would keep the end of the process waiting, too.
    os._exit(0)


if __name__ == "__main__":
    main()

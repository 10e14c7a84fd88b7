"""The stand-in for CUDA's libraries between processes: handles of memory and events, and PyTorch's own backend, whose
channels for CUDA move tensors on it."""

import contextlib
import ctypes
import os
import signal
import tempfile

import cuda_stand_in
import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_bodies import on_cuda, peer
from cuda_stand_in import counts, fail_next

pytestmark = pytest.mark.long

INVALID_VALUE = 1
INVALID_CONTEXT = 201
PEER_ACCESS_UNSUPPORTED = 217
INVALID_HANDLE = 400
LAZY_PEER_ACCESS = 1
INTERPROCESS_EVENT = 0x4 | 0x2  # without time
SIZE = 1 << 16

# ---- what a process and its peer do ----


class Handle(ctypes.Structure):
    """Of memory or of an event: both are passed by value."""

    _fields_ = [("bytes", ctypes.c_char * 64)]


class Error(Exception):
    """With a cudaError_t."""


def call(name, *arguments):
    """Addresses and handles are numbers here, which processes can send each other."""
    is_address = [isinstance(argument, int) and argument > 1 << 20 for argument in arguments]
    passed = [ctypes.c_void_p(value) if is_one else value for value, is_one in zip(arguments, is_address)]
    if error := getattr(cuda_stand_in.library(), name)(*passed):
        raise Error(error)


def allocated(size=SIZE):
    address = ctypes.c_void_p()
    call("cudaMalloc", ctypes.byref(address), ctypes.c_size_t(size))
    return address.value


def handle_of(address):
    handle = Handle()
    call("cudaIpcGetMemHandle", ctypes.byref(handle), address)
    return bytes(handle)


def opened(handle):
    address = ctypes.c_void_p()
    call("cudaIpcOpenMemHandle", ctypes.byref(address), Handle.from_buffer_copy(handle), LAZY_PEER_ACCESS)
    return address.value


def filled(address, value, size=SIZE, stream=None):
    call("cudaMemsetAsync", address, value, ctypes.c_size_t(size), stream)


def read(address, size=SIZE):
    there = ctypes.create_string_buffer(size)
    call("cudaMemcpy", there, address, ctypes.c_size_t(size), 4)  # cudaMemcpyDefault
    return there.raw


def error_of(function, *arguments):
    with pytest.raises(Error) as error:
        function(*arguments)
    return error.value.args[0]


def serve(connection):
    """Calls functions of this module for the other process, until it closes the connection."""
    with contextlib.suppress(EOFError):
        while True:
            function, *arguments = connection.recv()
            try:
                connection.send(globals()[function](*arguments))
            except Error as error:
                connection.send(error)


def asked(connection, function, *arguments):
    connection.send((function, *arguments))
    return answer(connection)


def answer(connection):
    assert connection.poll(30)
    value = connection.recv()
    if isinstance(value, Error):
        raise value
    return value


# ---- handles of memory ----


@on_cuda()
def test_memory_of_another_process_is_the_same_memory():
    other = peer(serve)
    here = allocated()
    filled(here, 7)
    call("cudaDeviceSynchronize")
    there = asked(other, "opened", handle_of(here))
    assert asked(other, "read", there) == b"\7" * SIZE
    asked(other, "filled", there, 9)
    asked(other, "call", "cudaDeviceSynchronize")
    assert read(here) == b"\11" * SIZE
    assert asked(other, "counts")["ipc_copies"] == 1


@on_cuda()
def test_a_handle_is_of_the_whole_allocation():
    other = peer(serve)
    here = allocated()
    inside = here + 1000
    assert handle_of(inside) == handle_of(here)
    there = asked(other, "opened", handle_of(inside))
    asked(other, "filled", there, 1, SIZE)
    with pytest.raises(Error):
        asked(other, "filled", there, 1, SIZE + 1)


@on_cuda()
def test_a_handle_is_opened_once_and_counted():
    other = peer(serve)
    handle = handle_of(allocated())
    first, second = (asked(other, "opened", handle) for _ in range(2))
    assert first == second
    assert asked(other, "counts")["ipc_opens"] == 1
    asked(other, "call", "cudaIpcCloseMemHandle", first)
    assert is_full(asked(other, "read", first), 0xFF)
    asked(other, "call", "cudaIpcCloseMemHandle", first)
    with pytest.raises(Error, match=str(INVALID_VALUE)):
        asked(other, "call", "cudaIpcCloseMemHandle", first)


def is_full(found, byte):
    return set(found) == {byte}


@on_cuda()
def test_a_handle_cannot_be_opened_in_its_own_process():
    assert error_of(opened, handle_of(allocated())) == INVALID_CONTEXT


@on_cuda()
def test_memory_that_is_freed_is_poison_in_other_processes_and_cannot_be_opened():
    other = peer(serve)
    here = allocated()
    filled(here, 7)
    handle = handle_of(here)
    there = asked(other, "opened", handle)
    call("cudaFree", here)
    assert is_full(asked(other, "read", there), 0xFF)
    with pytest.raises(Error, match=str(INVALID_VALUE)):
        asked(other, "call", "cudaFree", there)
    asked(other, "call", "cudaIpcCloseMemHandle", there)
    with pytest.raises(Error, match=str(INVALID_VALUE)):
        asked(other, "opened", handle)


@on_cuda(PEER_ACCESS=0)
def test_without_peer_access_only_the_same_device_opens_a_handle():
    other = peer(serve)
    handle = handle_of(allocated())
    asked(other, "opened", handle)
    asked(other, "call", "cudaSetDevice", 1)
    with pytest.raises(Error, match=str(PEER_ACCESS_UNSUPPORTED)):
        asked(other, "opened", handle)


@on_cuda()
def test_handles_fail_as_a_test_says():
    other = peer(serve)
    here = allocated()
    filled(here, 7)
    fail_next("ipc_get")
    assert error_of(handle_of, here) == INVALID_VALUE
    handle = handle_of(here)
    asked(other, "fail_next", "ipc_open")
    with pytest.raises(Error, match=str(INVALID_HANDLE)):
        asked(other, "opened", handle)
    asked(other, "fail_next", "ipc_open", 1, INVALID_CONTEXT)
    with pytest.raises(Error, match=str(INVALID_CONTEXT)):
        asked(other, "opened", handle)
    asked(other, "fail_next", "ipc_wrong_bytes")
    assert is_full(asked(other, "read", asked(other, "opened", handle)), 0x5A)


# ---- handles of events ----


def event_opened(handle):
    event = ctypes.c_void_p()
    call("cudaIpcOpenEventHandle", ctypes.byref(event), Handle.from_buffer_copy(handle))
    return event.value


def event_shared():
    event, handle = ctypes.c_void_p(), Handle()
    call("cudaEventCreateWithFlags", ctypes.byref(event), INTERPROCESS_EVENT)
    call("cudaIpcGetEventHandle", ctypes.byref(handle), event)
    return event.value, bytes(handle)


@on_cuda(MAX_DELAY_US=20000)
def test_an_event_orders_processes():
    other = peer(serve)
    here = allocated()
    event, handle = event_shared()
    there, event_there = asked(other, "opened", handle_of(here)), asked(other, "event_opened", handle)
    for value in range(10):  # as TensorPipe does: one event, recorded in turn by both
        call("cudaStreamWaitEvent", None, event, 0)
        filled(here, value)
        call("cudaEventRecord", event, None)
        asked(other, "call", "cudaStreamWaitEvent", None, event_there, 0)
        assert is_full(asked(other, "read", there), value)
        asked(other, "call", "cudaEventRecord", event_there, None)


@on_cuda()
def test_what_a_dead_process_has_recorded_is_not_waited_for():
    other = peer(serve)
    event, handle = event_shared()
    event_there = asked(other, "event_opened", handle)
    asked(other, "hold", 0)
    asked(other, "call", "cudaEventRecord", event_there, None)
    assert error_of(call, "cudaEventQuery", event) == 600  # cudaErrorNotReady
    process = asked(other, "process")
    os.kill(process, signal.SIGKILL)  # nobody waits for it yet
    call("cudaEventSynchronize", event)


def hold(device):
    cuda_stand_in.library().torchwire_test_cuda_hold(device)


def process():
    return os.getpid()


# ---- torch.multiprocessing ----


@on_cuda()
def test_torch_shares_tensors():
    other = peer(receive)
    tensor = torch.arange(5).cuda(1)
    rebuild, arguments = torch.multiprocessing.reductions.reduce_tensor(tensor)
    other.send((rebuild, arguments))
    assert answer(other) == [0, 1, 2, 3, 4]
    assert tensor.tolist() == [7, 7, 7, 7, 7]
    other.send("end")  # the memory may go only after the other process has done with it


def receive(connection):
    rebuild, arguments = connection.recv()
    tensor = rebuild(*arguments)
    values = tensor.tolist()
    tensor.copy_(torch.full((5,), 7))
    torch.cuda.synchronize(1)
    connection.send(values)
    connection.recv()


# ---- PyTorch's own backend ----

SIZES = [4, 4096, 1 << 20, 16 << 20]


def run_agent(name, rank, path):
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file://{path}")
    if rank == 0:
        options.set_device_map("worker1", {0: 0} if name == "same" else {0: 1})
    rpc.init_rpc(f"worker{rank}", rank=rank, world_size=2, rpc_backend_options=options)


def serve_agent(connection, path):
    run_agent(None, 1, path)
    connection.recv()
    connection.send(counts())
    rpc.shutdown()


def travel(name):
    """Tensors to worker1 and back, 20 times; returns the counts of both processes."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_agent, path)
        run_agent(name, 0, path)
        numbers = torch.Generator().manual_seed(1)
        for turn in range(20):
            expected = torch.randn(SIZES[turn % len(SIZES)] // 4, generator=numbers)
            there = rpc.rpc_async("worker1", torch.clone, args=(expected.to("cuda:0"),), timeout=30)
            # Two at a time, so that they meet.
            more = rpc.rpc_sync("worker1", torch.clone, args=(expected.flip(0).to("cuda:0"),), timeout=30)
            assert there.wait().device == torch.device("cuda:0")
            assert there.wait().cpu().equal(expected)
            assert more.cpu().equal(expected.flip(0))
        other.send("end")
        both = counts(), answer(other)
        rpc.shutdown()
    return both


@on_cuda()
def test_stock_rpc_moves_tensors_by_cuda_ipc():
    for found in travel("other"):
        assert found["ipc_opens"] == 1  # of TensorPipe's staging area
        assert found["ipc_copies"] >= 40
        assert found["peer_copies"] >= 40
        assert found["callbacks"] == 0


@on_cuda(PEER_ACCESS=0)
def test_stock_rpc_moves_tensors_of_the_same_device_by_cuda_ipc():
    for found in travel("same"):
        assert found["ipc_opens"] == 1
        assert found["ipc_copies"] >= 40
        assert found["peer_copies"] == 0


@on_cuda(PEER_ACCESS=0)
def test_stock_rpc_moves_tensors_by_way_of_the_host_without_peer_access():
    for found in travel("other"):
        assert found["ipc_opens"] == 0
        assert found["callbacks"] >= 80  # of cuda_basic: a copy to pinned memory, or from it, has come to its end


@on_cuda(EXCLUSIVE=1)
def test_stock_rpc_moves_tensors_by_way_of_the_host_without_ipc():
    for found in travel("same"):
        assert found["ipc_opens"] == 0
        assert found["callbacks"] >= 80


@on_cuda()
def test_stock_rpc_shows_other_bytes_where_memory_is_not_what_it_should_be():
    fail_next("ipc_wrong_bytes", -1)
    with pytest.raises(AssertionError):
        travel("other")

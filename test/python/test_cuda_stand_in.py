"""The stand-in for CUDA's libraries (cuda_stand_in.py): PyTorch's CUDA is right on it, and who forgets to synchronize
is wrong."""

import ctypes
import os
import subprocess
import sys

import cuda_stand_in
import pytest
import torch
from cuda_bodies import is_poison, on_cuda, peer
from cuda_stand_in import counts, fail_next, held

pytestmark = pytest.mark.long

SLOW = {"MAX_DELAY_US": 20000}


def pinned(*values):
    return torch.tensor(values, dtype=torch.float32).pin_memory()


def on_device(values, device="cuda:0"):
    return torch.tensor(values, dtype=torch.float32).to(device)


# ---- devices ----


@on_cuda()
def test_there_are_two_devices_by_default():
    assert torch.cuda.is_available()
    assert torch.cuda.device_count() == 2
    properties = [torch.cuda.get_device_properties(device) for device in (0, 1)]
    assert [each.name for each in properties] == ["stand-in", "stand-in"]
    assert properties[0].uuid != properties[1].uuid
    assert torch.cuda.get_device_capability(1) == (9, 0)
    assert torch.cuda.can_device_access_peer(0, 1)
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        torch.empty(1, device="cuda:2")


@on_cuda()
def test_visible_devices_are_renumbered():
    uuid = subprocess.check_output(
        [
            sys.executable,
            "-c",
            "import torch; print(torch.cuda.device_count(), torch.cuda.get_device_properties(0).uuid)",
        ],
        env={**os.environ, "CUDA_VISIBLE_DEVICES": "1"},
        text=True,
    )
    assert uuid.split() == ["1", str(torch.cuda.get_device_properties(1).uuid)]


@on_cuda(PEER_ACCESS=0)
def test_devices_may_not_reach_each_other():
    assert not torch.cuda.can_device_access_peer(0, 1)
    assert on_device([1.0, 2.0]).to("cuda:1").tolist() == [1, 2]  # CUDA copies by way of the host then


# ---- values ----


@on_cuda()
def test_values_survive_copies():
    expected = torch.arange(1000)
    here = expected.cuda(0)
    there = here.to("cuda:1")
    assert there.cpu().equal(expected)
    assert there.clone().cpu().equal(expected)
    assert here[100:200].cpu().equal(expected[100:200])
    same = torch.empty_like(here)
    same.copy_(there, non_blocking=True)
    assert same.cpu().equal(expected)
    assert counts()["peer_copies"] == 2


@on_cuda(MEMORY_MB=64)
def test_memory_ends():
    assert torch.cuda.mem_get_info(0) == (64 << 20, 64 << 20)
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(65 << 20, dtype=torch.uint8, device="cuda:0")
    fits = torch.empty(40 << 20, dtype=torch.uint8, device="cuda:0")
    assert torch.cuda.mem_get_info(0)[0] <= 24 << 20
    del fits
    torch.cuda.empty_cache()
    assert torch.cuda.mem_get_info(0)[0] == 64 << 20


@on_cuda()
def test_a_kernel_is_an_error():
    tensor = on_device([1.0])
    with pytest.raises(RuntimeError, match="no kernel image is available"):
        tensor + 1
    assert tensor.item() == 1  # the device is not lost
    assert counts()["launches"] == 1


@on_cuda()
def test_the_cpu_cannot_touch_memory_of_a_device():
    tensor = on_device([1.0])

    def touch(_):
        ctypes.string_at(tensor.data_ptr(), 4)

    process = peer(touch)  # CUDA is in use here, but this does without
    with pytest.raises(EOFError):
        process.recv()
    assert os.waitstatus_to_exitcode(os.wait()[1]) == -11


@on_cuda(HOST_ACCESS=1)
def test_the_cpu_may_touch_memory_of_a_device_if_a_test_says_so():
    tensor = on_device([1.0])
    assert ctypes.c_float.from_address(tensor.data_ptr()).value == 1


# ---- who waits, and who does not ----


@on_cuda(**SLOW)
def test_fresh_memory_is_poison():
    assert is_poison(torch.empty(100, device="cuda:1"))


@on_cuda()
def test_a_copy_from_pinned_memory_is_late():
    source = pinned(1.0, 2.0)
    assert source.is_pinned()
    with held(0):
        target = source.to("cuda:0", non_blocking=True)
        assert not torch.cuda.current_stream(0).query()
        source.fill_(5)  # which CUDA forbids
    assert target.tolist() == [5, 5]


@on_cuda()
def test_a_copy_from_other_memory_has_been_read():
    source = torch.tensor([1.0, 2.0])
    with held(0):
        target = source.to("cuda:0", non_blocking=True)
        source.fill_(5)
    assert target.tolist() == [1, 2]


@on_cuda()
def test_a_copy_to_pinned_memory_is_late():
    source = on_device([1.0, 2.0])
    torch.cuda.synchronize()
    target = pinned(0.0, 0.0)
    with held(0):
        target.copy_(source, non_blocking=True)
        event = torch.cuda.current_stream(0).record_event()
        assert not event.query()
        assert target.tolist() == [0, 0]
    event.synchronize()
    assert target.tolist() == [1, 2]
    assert counts()["event_synchronize"] == 1


@on_cuda()
def test_another_stream_does_not_wait_without_an_event():
    source, target = pinned(1.0, 2.0), pinned(0.0, 0.0)
    with held(0):
        tensor = source.to("cuda:0", non_blocking=True)
    other = torch.cuda.Stream(1)
    torch.cuda.synchronize()
    with held(0):
        tensor.copy_(pinned(3.0, 4.0), non_blocking=True)
        with torch.cuda.stream(other):
            target.copy_(tensor.to("cuda:1", non_blocking=True), non_blocking=True)
            assert not torch.cuda.current_stream(0).query()
    torch.cuda.synchronize(0)
    torch.cuda.synchronize(1)
    assert target.tolist() in ([1, 2], [3, 4])


@on_cuda(**SLOW)
def test_an_event_orders_streams():
    for value in range(20):
        first, second = torch.cuda.Stream(0), torch.cuda.Stream(0)
        with torch.cuda.stream(first):
            tensor = pinned(value).to("cuda:0", non_blocking=True)
        target = pinned(-1.0)
        with torch.cuda.stream(second):
            second.wait_event(first.record_event())
            target.copy_(tensor, non_blocking=True)
            tensor.record_stream(second)
        second.synchronize()
        assert target.item() == value


@on_cuda()
def test_a_wait_is_for_the_last_record_before_it():
    event, other = torch.cuda.Event(), torch.cuda.Stream(1)
    event.record(torch.cuda.current_stream(0))
    torch.cuda.synchronize(0)
    other.wait_event(event)
    with held(0):
        event.record(torch.cuda.current_stream(0))
        other.synchronize()  # not for this one
        assert not event.query()
    event.synchronize()


@on_cuda()
def test_an_event_measures_time():
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    end.record()
    end.synchronize()
    assert 0 <= start.elapsed_time(end) < 1000


@on_cuda(**SLOW)
def test_the_default_stream_waits_for_streams_that_block():
    library = cuda_stand_in.library()
    stream = ctypes.c_void_p()
    source, tensor = pinned(1.0), on_device([0.0])
    torch.cuda.synchronize()
    assert library.cudaStreamCreate(ctypes.byref(stream)) == 0
    for value in range(20):
        source.fill_(value)
        copy = [ctypes.c_void_p(tensor.data_ptr()), ctypes.c_void_p(source.data_ptr()), ctypes.c_size_t(4), 1]
        assert library.cudaMemcpyAsync(*copy, stream) == 0
        assert tensor.item() == value
    assert library.cudaStreamDestroy(stream) == 0
    assert library.cudaStreamDestroy(stream) == 400  # cudaErrorInvalidResourceHandle


# ---- failures ----


@on_cuda()
def test_allocations_fail_as_often_as_a_test_says():
    fail_next("malloc", 2)  # the allocator tries again after it has emptied its cache
    with pytest.raises(torch.OutOfMemoryError):
        torch.empty(1, device="cuda:0")
    assert on_device([1.0]).item() == 1
    fail_next("host_alloc", -1)
    with pytest.raises(RuntimeError, match="out of memory"):
        torch.empty(1000, pin_memory=True)


@on_cuda()
def test_a_device_that_is_lost_stays_so():
    tensor = on_device([1.0])
    fail_next("work")
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        tensor.cpu()
    with pytest.raises(RuntimeError, match="unspecified launch failure"):
        torch.cuda.synchronize()


@on_cuda()
def test_a_copy_beyond_the_end_of_memory_is_an_error():
    library, address = cuda_stand_in.library(), ctypes.c_void_p()
    assert library.cudaMalloc(ctypes.byref(address), ctypes.c_size_t(100)) == 0
    assert library.cudaMemset(address, 0, ctypes.c_size_t(100)) == 0
    assert library.cudaMemset(address, 0, ctypes.c_size_t(101)) == 1  # cudaErrorInvalidValue
    assert library.cudaFree(address) == 0
    assert library.cudaFree(address) == 1


@on_cuda()
def test_a_process_that_is_forked_after_cuda_was_used_has_none():
    on_device([1.0])

    def use(connection):
        connection.send(cuda_stand_in.library().cudaDeviceSynchronize())

    assert peer(use).recv() == 3  # cudaErrorInitializationError


@pytest.mark.parametrize("wait", [True, False])
def test_a_process_ends_with_work_that_it_has_still_to_do(cuda_processes, wait):
    program = f"""
import cuda_stand_in, torch
tensor = torch.ones(3).pin_memory().to("cuda:0")
cuda_stand_in.library().torchwire_test_cuda_hold({1 if wait else 0})
tensor.to("cuda:0", non_blocking=True).copy_(tensor, non_blocking=True)
"""
    environment = {**os.environ, **cuda_stand_in.environment(), "PYTHONPATH": os.path.dirname(__file__)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, timeout=60)
    assert done.returncode == 0

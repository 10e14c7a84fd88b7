"""Copies from and to the stand-in accelerator: when they run, who waits for them, and whose memory they need."""

import ctypes

import torch
from accelerator import held
from accelerator_bodies import on_devices, waits


def bytes_at(address, count):
    """What the host finds there."""
    return ctypes.string_at(address, count)


@on_devices
def test_pinned_memory_is_the_host_s():
    pinned = torch.zeros(5, pin_memory=True)
    assert pinned.is_pinned() and pinned[1:].is_pinned() and pinned.tolist() == [0] * 5
    assert torch.ones(3).pin_memory().is_pinned()
    assert not torch.ones(3).is_pinned()


@on_devices
def test_freed_pinned_memory_is_poison():
    pinned = torch.zeros(5, pin_memory=True)
    address = pinned.data_ptr()
    del pinned
    assert bytes_at(address, 20) == b"\xff" * 20


@on_devices
def test_pinned_memory_outlives_a_copy_that_does_not_block():
    pinned = torch.full((1000,), 3.0).pin_memory()
    address = pinned.data_ptr()
    with held(0):
        copy = pinned.to("standin", non_blocking=True)
        del pinned
        assert bytes_at(address, 4000) != b"\xff" * 4000
    assert copy.cpu().eq(3).all()
    assert bytes_at(address, 4000) == b"\xff" * 4000


@on_devices
def test_pinned_memory_is_read_when_the_copy_runs():
    pinned = torch.zeros(3, pin_memory=True)
    with held(0):
        copy = pinned.to("standin", non_blocking=True)
        pinned.fill_(1)
    assert copy.tolist() == [1, 1, 1]


@on_devices
def test_pinned_memory_has_stale_bytes_until_the_copy_has_run():
    pinned = torch.zeros(3, pin_memory=True)
    source = torch.ones(3, device="standin")
    with held(0):
        pinned.copy_(source, non_blocking=True)
        assert pinned.tolist() == [0, 0, 0]
    torch.standin.synchronize(0)
    assert pinned.tolist() == [1, 1, 1]


@on_devices
def test_pageable_memory_is_read_when_the_copy_is_called():
    pageable = torch.zeros(3)
    with held(0):
        copy = pageable.to("standin", non_blocking=True)
        pageable.fill_(1)
    assert copy.tolist() == [0, 0, 0]
    assert list(waits().values()) == [{"copy": 1}]  # that of tolist()


@on_devices
def test_copies_to_pageable_memory_wait():
    pageable = torch.zeros(3)
    pageable.copy_(torch.ones(3, device="standin"), non_blocking=True)
    assert pageable.tolist() == [1, 1, 1]
    assert list(waits().values()) == [{"copy": 1}]


@on_devices
def test_copies_between_devices_wait_for_both_and_the_host_for_none():
    with held(0):
        source = torch.ones(3, device="standin:0")
        copy = source.to("standin:1")
        result = copy + 1
        assert not torch.standin.current_stream(1).query()
        del source
    assert result.tolist() == [2, 2, 2]
    destination = torch.zeros(3, device="standin:1")
    with held(1):
        before = destination + 1  # reads what the copy is to overwrite
        destination.copy_(torch.full((3,), 5.0, device="standin:0"))
        assert not torch.standin.current_stream(0).query()
    assert before.tolist() == [1, 1, 1] and destination.tolist() == [5, 5, 5]


@on_devices
def test_copies_convert_and_broadcast():
    matrix = torch.arange(6, device="standin").reshape(2, 3)
    assert matrix.t().to(torch.float64).cpu().tolist() == [[0, 3], [1, 4], [2, 5]]
    assert matrix.copy_(torch.tensor([7, 8, 9])).tolist() == [[7, 8, 9]] * 2
    columns = torch.zeros(3, 2)
    columns.t().copy_(matrix)
    assert columns.tolist() == [[7, 7], [8, 8], [9, 9]]

"""The stand-in accelerator (accelerator.py): who forgets to synchronize gets poison, all others what is right."""

import ctypes
import threading

import accelerator
import pytest
import torch
from accelerator import held
from accelerator_bodies import is_poison, on_devices, stream_on, waits
from processes import WorkerError, WorkerProcess

# ---- devices ----


@on_devices
def test_tensors_are_on_the_device_that_was_asked_for():
    assert torch.standin.device_count() == 4
    tensors = [torch.arange(3, device=f"standin:{index}") for index in range(4)]
    assert [tensor.device for tensor in tensors] == [torch.device("standin", index) for index in range(4)]
    assert tensors[3].to("standin:1").tolist() == [0, 1, 2]
    with torch.standin.device("standin:2"):
        assert torch.empty(1, device="standin").device.index == 2
    assert torch.standin.current_device() == 0


@on_devices
def test_there_is_no_fifth_device():
    with pytest.raises(RuntimeError, match="there is no device standin:4"):
        torch.empty(1, device="standin:4")


@on_devices
def test_an_operator_does_not_mix_devices():
    with pytest.raises(RuntimeError, match="same device.*standin:0 and standin:1"):
        torch.ones(1, device="standin:0") + torch.ones(1, device="standin:1")


@on_devices
def test_current_devices_and_streams_are_those_of_a_thread():
    there = []
    with torch.standin.stream(stream_on(1)):
        assert torch.standin.current_device() == 1
        thread = threading.Thread(
            target=lambda: there.extend([torch.standin.current_device(), torch.standin.current_stream(1).stream_id])
        )
        thread.start()
        thread.join()
    assert there == [0, 0]


# ---- streams and events ----


@on_devices
def test_a_kernel_runs_later_than_its_call():
    with held(0):
        result = torch.ones(3, device="standin") + 1
        event = torch.standin.current_stream(0).record_event()
        assert not event.query()
        assert not torch.standin.current_stream(0).query()
    assert result.tolist() == [2, 2, 2]
    assert event.query()


@on_devices
def test_who_reads_on_another_stream_without_an_event_reads_poison():
    writer, reader = stream_on(0), stream_on(0)
    with held(0, writer):
        with torch.standin.stream(writer):
            written = torch.ones(3, device="standin")
        with torch.standin.stream(reader):
            result = written + 1
        reader.synchronize()
    assert is_poison(result.cpu())


@on_devices
def test_who_waits_for_an_event_reads_what_was_written():
    writer, reader = stream_on(0), stream_on(0)
    with held(0, writer):
        with torch.standin.stream(writer):
            written = torch.ones(3, device="standin")
        reader.wait_event(writer.record_event())
        with torch.standin.stream(reader):
            result = written + 1
        assert not reader.query()
    reader.synchronize()
    assert result.tolist() == [2, 2, 2]


@on_devices
def test_an_event_is_that_of_its_last_record_before_the_wait():
    recorded, other = stream_on(0), stream_on(0)
    event = torch.Event("standin:0")
    assert event.query()  # never recorded
    recorded.record_event(event)
    other.wait_event(event)
    with held(0, recorded):
        recorded.record_event(event)
        other.synchronize()  # would hang if it waited for what came later
        assert not event.query()
    event.synchronize()
    assert event.query()


@on_devices
def test_one_stream_can_be_held_while_others_run():
    late, early = stream_on(1), stream_on(1)
    with held(1, late):
        with torch.standin.stream(late):
            torch.ones(3, device="standin")
        with torch.standin.stream(early):
            assert torch.ones(3, device="standin").tolist() == [1, 1, 1]
        assert not late.query()


@on_devices
def test_waits_of_the_host_are_counted_by_thread():
    tensor = torch.ones(3, device="standin")
    torch.standin.current_stream(0).synchronize()
    torch.standin.current_stream(0).record_event().synchronize()
    torch.accelerator.synchronize(0)
    tensor.cpu()
    tensor[0].item()
    torch.standin.current_stream(0).wait_event(torch.standin.current_stream(0).record_event())  # no host waits
    name = open("/proc/self/comm").read().strip()
    assert waits() == {name: {"stream": 1, "event": 1, "device": 1, "copy": 1, "item": 1}}


# ---- memory ----


def touch_device_memory():
    return ctypes.string_at(torch.ones(3, device="standin").data_ptr(), 4)


def test_the_host_cannot_touch_device_memory(accelerator_file):
    worker = WorkerProcess("toucher", accelerator.ENVIRONMENT, prepare=accelerator.load)
    with pytest.raises(WorkerError, match="exit code -11"):
        worker.run(touch_device_memory)
    worker.close()


@on_devices
def test_fresh_memory_is_poison():
    assert is_poison(torch.empty(1000, device="standin").cpu())
    assert (torch.empty(1000, device="standin", dtype=torch.int32).cpu() == -1).all()


@on_devices
def test_memory_that_is_freed_while_another_stream_has_still_to_read_it_is_poison():
    reader = stream_on(0)
    freed = torch.ones(3, device="standin")
    torch.standin.synchronize(0)
    with held(0, reader):
        with torch.standin.stream(reader):
            result = freed + 1
        del freed
    reader.synchronize()
    assert is_poison(result.cpu())


@on_devices
def test_memory_that_is_recorded_on_the_other_stream_is_not():
    reader = stream_on(0)
    freed = torch.ones(3, device="standin")
    torch.standin.synchronize(0)
    with held(0, reader):
        with torch.standin.stream(reader):
            result = freed + 1
        freed.record_stream(reader)
        del freed
    reader.synchronize()
    assert result.tolist() == [2, 2, 2]


@on_devices
def test_memory_can_be_freed_while_its_own_stream_has_still_to_read_it():
    with held(0):
        freed = torch.ones(3, device="standin")
        result = freed + 1
        del freed
    assert result.tolist() == [2, 2, 2]


@on_devices
def test_writes_to_freed_memory_are_counted():
    writer = stream_on(0)
    freed = torch.ones(3, device="standin")
    torch.standin.synchronize(0)
    before = accelerator.load().stats()["writes_after_free"]
    with held(0, writer):
        with torch.standin.stream(writer):
            freed.fill_(3)
        del freed
    writer.synchronize()
    assert accelerator.load().stats()["writes_after_free"] == before + 1


@on_devices
def test_allocated_bytes_are_counted():
    before = accelerator.load().stats()["allocated_bytes"]
    tensor = torch.empty(1000, dtype=torch.uint8, device="standin:2")
    during = accelerator.load().stats()["allocated_bytes"]
    del tensor
    assert [now - then for now, then in zip(during, before)] == [0, 0, 1024, 0]
    assert accelerator.load().stats()["allocated_bytes"] == before


@on_devices
def test_resized_memory_keeps_what_it_had():
    tensor = torch.arange(4.0, device="standin")
    assert tensor.resize_(1000)[:4].tolist() == [0, 1, 2, 3]
    assert tensor.set_().numel() == 0


# ---- futures ----


@on_devices
def test_who_waits_for_a_future_waits_on_its_stream_for_the_value():
    future = torch.futures.Future(devices=["standin:0"])
    writer = stream_on(0)
    with held(0, writer):
        with torch.standin.stream(writer):
            future.set_result(torch.ones(3, device="standin"))
        result = future.wait() + 1  # the host does not wait
        assert waits() == {}
    assert result.tolist() == [2, 2, 2]


@on_devices
def test_a_future_s_callback_runs_on_streams_that_wait_for_the_value():
    future = torch.futures.Future(devices=["standin:0", "standin:1"])
    after = future.then(lambda done: done.value() * 2)
    writer = stream_on(1)
    with held(1, writer):
        with torch.standin.stream(writer):
            future.set_result(torch.ones(3, device="standin:1"))
        result = after.wait()
    assert result.tolist() == [2, 2, 2]


@on_devices
def test_a_future_s_value_on_another_device_is_refused():
    future = torch.futures.Future(devices=["standin:0"])
    with pytest.raises(ValueError, match="standin:1"):
        future.set_result(torch.ones(3, device="standin:1"))
        future.wait()

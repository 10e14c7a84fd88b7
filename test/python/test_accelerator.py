"""The stand-in accelerator (accelerator.py): who forgets to synchronize gets poison, who does not gets what is right."""

import ctypes
import importlib
import math
import os
import sys
import threading

import accelerator
import pytest
import torch
from accelerator import held
from accelerator_programs import Program
from processes import WorkerError, WorkerProcess, run_script


@pytest.fixture(scope="module")
def module_file():
    return accelerator.build()


@pytest.fixture(scope="module")
def devices(module_file):
    worker = WorkerProcess("devices", prepare=accelerator.load)
    yield worker
    worker.close()


def on_devices(body):
    """A test whose body runs in a process that has the devices, as it would find them if it were the first."""

    def test(devices):
        __tracebackhide__ = True
        devices.run(_run_body, body.__module__, body.__name__)

    test.__name__, test.__doc__, test.__module__, test.body = body.__name__, body.__doc__, body.__module__, body
    return test


def _run_body(module, name):
    extension = accelerator.load()
    for device in range(extension.device_count()):
        extension.recover(device)
        extension.synchronize(device)
    extension.reset_waits()
    getattr(importlib.import_module(module), name).body()


def stream_on(device):
    return torch.Stream(f"standin:{device}")


def is_poison(tensor):
    return bool(tensor.isnan().all())


def bytes_at(address, count):
    """What the host finds there."""
    return ctypes.string_at(address, count)


def waits():
    return accelerator.load().stats()["waits"]


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
    return bytes_at(torch.ones(3, device="standin").data_ptr(), 4)


def test_the_host_cannot_touch_device_memory(module_file):
    worker = WorkerProcess("toucher", prepare=accelerator.load)
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


# ---- pinned memory and copies ----


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


# ---- operators ----


@on_devices
def test_operators_give_what_the_cpu_gives():
    torch.manual_seed(1)
    cpu = torch.randn(6, 6)
    there = cpu.to("standin:1")
    index = torch.tensor([2, 0, 5])
    for function in (
        lambda x: x @ x.t() + 1,
        lambda x: torch.softmax(x, 1).max(0).values,
        lambda x: torch.cat([x, x.relu()], 1)[:, ::2],
        lambda x: x[index.to(x.device)].cumsum(0),
        lambda x: x.masked_fill(x > 0, 2).sort(1).indices,
        lambda x: x[x > 0],
        lambda x: torch.nn.functional.layer_norm(x, (6,)).view(-1),
        lambda x: torch.split(x, 2)[1].unsqueeze(0).expand(3, 2, 6),
        lambda x: torch.linalg.inv(x + 9 * torch.eye(6, device=x.device)),
        lambda x: torch.view_as_real(torch.complex(x, x.flip(0)).conj().mul(2)),
        lambda x: torch.where(x > 0, x, 0).nonzero(),
        lambda x: x.double().std(dim=0, keepdim=True),
    ):
        torch.testing.assert_close(function(there).cpu(), function(cpu))
    assert torch.equal(there, there.clone())


@on_devices
def test_wrong_arguments_raise_at_the_call():
    with pytest.raises(RuntimeError, match="must match the size"):
        torch.ones(2, device="standin") + torch.ones(3, device="standin")


def run_training(device):
    torch.manual_seed(7)
    model = torch.nn.Sequential(torch.nn.Linear(5, 4), torch.nn.Tanh(), torch.nn.Linear(4, 3)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), 0.05)
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(
            model(torch.arange(10.0).reshape(2, 5).to(device)), torch.tensor([0, 2], device=device)
        )
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    return [parameter.detach().cpu() for parameter in model.parameters()]


@on_devices
def test_a_model_trains_as_on_the_cpu():
    torch.testing.assert_close(run_training("standin:2"), run_training("cpu"))


@on_devices
def test_gradients_are_right_across_devices_and_streams():
    first = torch.arange(3.0, device="standin:0", requires_grad=True)
    here, there = stream_on(0), stream_on(1)
    here.wait_stream(torch.standin.current_stream(0))
    with torch.standin.stream(there), torch.standin.stream(here):
        squared = (first * first).to("standin:1")
    with torch.standin.stream(there):
        loss = (squared * squared).sum()
    torch.standin.current_stream(1).wait_stream(there)
    loss.backward()
    assert first.grad.tolist() == [0, 4, 32]


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


# ---- failures ----


@on_devices
def test_an_allocation_fails_on_request_once():
    accelerator.load().fail_next("allocation", 1)
    torch.empty(3, device="standin:0")
    with pytest.raises(torch.OutOfMemoryError, match="standin:1 is out of memory"):
        torch.empty(3, device="standin:1")
    torch.empty(3, device="standin:1")
    accelerator.load().fail_next("pinned_allocation")
    with pytest.raises(torch.OutOfMemoryError, match="no pinned memory"):
        torch.empty(3, pin_memory=True)


@on_devices
def test_a_device_whose_work_failed_is_lost():
    stream = torch.standin.current_stream(1)
    accelerator.load().fail_next("work", 1)
    lost = torch.ones(3, device="standin:1")
    for use in (
        stream.synchronize,
        lost.cpu,
        lambda: lost + 1,
        stream.record_event,
        lambda: torch.empty(3, device="standin:1"),
        lambda: lost.to("standin:0"),
        lambda: torch.ones(3, device="standin:0").to("standin:1"),
    ):
        with pytest.raises(torch.AcceleratorError, match="standin:1 is lost"):
            use()
    assert torch.ones(3, device="standin:0").tolist() == [1, 1, 1]


@on_devices
def test_a_kernel_that_throws_loses_the_device():
    values = torch.zeros(3, device="standin")
    wrong = torch.tensor([7], device="standin")
    with pytest.raises(torch.AcceleratorError, match="standin:0 is lost.*out of (bounds|range)"):
        values.gather(0, wrong).cpu()


# ---- processes ----


_SCRIPT = """
import os, sys
import torch
import accelerator
module = accelerator.load()
"""


def run_program(module_file, folder, program, **environment):
    script = folder / "program.py"
    script.write_text(_SCRIPT + program)
    environment = {
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path[1:]]),
        "TORCHWIRE_TEST_ACCELERATOR": str(module_file),
        **environment,
    }
    return run_script(script, environment=environment)


def assert_ends(module_file, folder, program, **environment):
    done = run_program(module_file, folder, program, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_that_uses_no_device_starts_no_thread(module_file, tmp_path):
    program = """
before = len(os.listdir("/proc/self/task"))
torch.standin.device_count(), torch.standin.current_stream(0), torch.ones(3)
print(len(os.listdir("/proc/self/task")) - before, module.stats()["threads"])
"""
    assert assert_ends(module_file, tmp_path, program) == "0 0\n"


def test_the_number_of_devices_is_that_of_the_environment(module_file, tmp_path):
    program = "print(torch.standin.device_count())"
    assert assert_ends(module_file, tmp_path, program, TORCHWIRE_TEST_ACCELERATOR_DEVICES="2") == "2\n"


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("", id="with work under way"),
        pytest.param("module.hold(0)", id="with held streams"),
        pytest.param("other.wait_event(torch.Event('standin:0')); module.hold(0, 1)", id="with streams that wait"),
    ],
)
def test_a_process_ends_cleanly(module_file, tmp_path, left):
    program = f"""
other = torch.Stream("standin:0")
{left}
kept = torch.ones(1000, device="standin", requires_grad=True)
other.wait_stream(torch.standin.current_stream(0))
with torch.standin.stream(other):
    also_kept = kept * 2
pinned = torch.ones(3, pin_memory=True).to("standin:1", non_blocking=True)
module.fail_next("work", 1)
lost = torch.ones(3, device="standin:1")
"""
    assert assert_ends(module_file, tmp_path, program, TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US="100000") == ""


def test_a_forked_process_cannot_use_devices_and_ends_cleanly(module_file, tmp_path):
    program = """
tensor = torch.ones(3, device="standin")
torch.standin.synchronize(0)
child = os.fork()
if child == 0:
    try:
        tensor + 1
    except torch.AcceleratorError as error:
        assert "forked" in str(error)
        del tensor
        sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), tensor.tolist())
"""
    assert assert_ends(module_file, tmp_path, program) == "3 [1.0, 1.0, 1.0]\n"


def test_a_process_forked_from_one_that_used_no_device_can_use_them(module_file, tmp_path):
    program = """
child = os.fork()
if child == 0:
    assert torch.ones(3, device="standin").tolist() == [1, 1, 1]
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert assert_ends(module_file, tmp_path, program) == "3\n"


# ---- random programs ----


def run_programs(seeds, careful):
    """The errors of each program, by its seed, where it has any."""
    found = {}
    for seed in seeds:
        program = Program(seed, careful)
        program.run()
        if errors := program.errors():
            found[seed] = errors
    return found


@pytest.fixture(scope="module")
def slow_devices(module_file):
    worker = WorkerProcess(
        "slow devices", {"TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US": "5000"}, prepare=accelerator.load
    )
    yield worker
    worker.close()


def test_programs_with_events_compute_what_the_cpu_does(slow_devices):
    assert slow_devices.run(run_programs, range(50), careful=True) == {}


def test_programs_without_events_do_not(slow_devices):
    assert len(slow_devices.run(run_programs, range(50), careful=False)) > 10


def test_sixteen_bits_of_poison_are_no_number():
    """So that a half, too, shows it."""
    assert math.isnan(torch.tensor([-1], dtype=torch.int16).view(torch.float16).item())
    assert math.isnan(torch.tensor([-1], dtype=torch.int16).view(torch.bfloat16).item())

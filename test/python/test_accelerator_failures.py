"""The stand-in accelerator fails on request; processes that have it end cleanly."""

import os
import sys

import accelerator
import pytest
import torch
from accelerator_bodies import on_devices
from processes import run_script

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


def run_program(accelerator_file, folder, program, **environment):
    script = folder / "program.py"
    script.write_text(_SCRIPT + program)
    environment = {
        **accelerator.ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path[1:]]),
        "TORCHWIRE_TEST_ACCELERATOR": str(accelerator_file),
        **environment,
    }
    return run_script(script, environment=environment)


def assert_ends(accelerator_file, folder, program, **environment):
    done = run_program(accelerator_file, folder, program, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_a_process_that_uses_no_device_starts_no_thread(accelerator_file, tmp_path):
    program = """
before = len(os.listdir("/proc/self/task"))
torch.standin.device_count(), torch.standin.current_stream(0), torch.ones(3)
print(len(os.listdir("/proc/self/task")) - before, module.stats()["threads"])
"""
    assert assert_ends(accelerator_file, tmp_path, program) == "0 0\n"


def test_the_number_of_devices_is_that_of_the_environment(accelerator_file, tmp_path):
    program = "print(torch.standin.device_count())"
    assert assert_ends(accelerator_file, tmp_path, program, TORCHWIRE_TEST_ACCELERATOR_DEVICES="2") == "2\n"


@pytest.mark.parametrize(
    "left",
    [
        pytest.param("", id="with work under way"),
        pytest.param("module.hold(0)", id="with held streams"),
        pytest.param("other.wait_event(torch.Event('standin:0')); module.hold(0, 1)", id="with streams that wait"),
    ],
)
def test_a_process_ends_cleanly(accelerator_file, tmp_path, left):
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
    assert assert_ends(accelerator_file, tmp_path, program, TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US="100000") == ""


def test_a_forked_process_cannot_use_devices_and_ends_cleanly(accelerator_file, tmp_path):
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
    assert assert_ends(accelerator_file, tmp_path, program) == "3 [1.0, 1.0, 1.0]\n"


def test_a_process_forked_from_one_that_used_no_device_can_use_them(accelerator_file, tmp_path):
    program = """
child = os.fork()
if child == 0:
    assert torch.ones(3, device="standin").tolist() == [1, 1, 1]
    sys.exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert assert_ends(accelerator_file, tmp_path, program) == "3\n"

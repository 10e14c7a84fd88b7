"""Each synchronization around tensors of devices is needed: where it is left out (cuda/mutation.h), a program that is
right otherwise gets wrong values. The programs are those of test_devices.py and test_cuda_paths.py."""

import contextlib
import pathlib
import re

import device_bodies
import pytest
import test_cuda_paths
import test_devices
import test_nccl_lane
from processes import WorkerError

MUTATION = pathlib.Path(__file__).parents[3] / "cuda" / "mutation.h"
NAMES = re.findall(r"^  (\w+), //", MUTATION.read_text(), re.MULTILINE)
ON_CUDA = {
    "blockBehindFilling": test_cuda_paths.notice_block_behind_filling,
    "blockFilled": test_cuda_paths.notice_block_filled,
    "blocksDoneAfterCopy": test_cuda_paths.notice_blocks_done_after_copy,
    "laneBehindFilling": test_nccl_lane.notice_lane_behind_filling,
    "laneKeptLent": test_nccl_lane.notice_lane_kept_lent,
}
PROGRAMS = (
    *device_bodies.ORDERED_HOLDING_PROGRAMS,
    *device_bodies.HOLDING_PROGRAMS,
    *device_bodies.PROGRAMS,
    *device_bodies.ORDERED_PROGRAMS,
)
ROUNDS = 6  # a busy machine hides some of them for a while


@contextlib.contextmanager
def pair_without(name, folder):
    """Two workers that leave it out, on devices that take their time."""
    environment = {"TORCHWIRE_TEST_LEAVE_OUT": name, "TORCHWIRE_TEST_ACCELERATOR_MAX_DELAY_US": "20000"}
    options = [
        {
            "device_maps": test_devices.maps_for(rank, "crossing"),
            "device_stream_order": "default_stream",
            "rpc_timeout": 20,
        }
        for rank in range(2)
    ]
    with test_devices.processes_with_devices(**environment) as group:
        for one in test_devices.begin_init(group, folder, options):
            one.result()
        yield group


def programs():
    for _ in range(ROUNDS):
        for program in PROGRAMS:
            for to in ("worker1", "worker0"):
                yield program.__name__, to


def test_the_names_are_all_there():
    assert len(NAMES) > 10
    assert set(ON_CUDA) <= set(NAMES)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_CUDA])
def test_a_synchronization_that_is_left_out_is_noticed(tmp_path, accelerator_file, name):
    with pair_without(name, tmp_path) as group:
        for program, to in programs():
            try:
                group[0].run(device_bodies.run, program, to)
            except WorkerError:
                return
    pytest.fail(f"no program has noticed that {name} is left out")


@pytest.mark.parametrize("name", ON_CUDA)
def test_a_synchronization_on_cuda_that_is_left_out_is_noticed(cuda_processes, name):
    ON_CUDA[name](cuda_processes)

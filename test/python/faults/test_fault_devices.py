"""Requests with tensors of devices that wait, before they run, for the owner of an RRef among their arguments."""

import device_bodies
import faulty
import pytest
import test_devices
from group import file_in
from torchwire.testing import Plan, Rule

LATE_CONFIRMATION = Plan([Rule("delay", messages="RREF_FORK_REQUEST", seconds=0.3)])


@pytest.fixture
def pair(tmp_path, accelerator_file):
    with test_devices.processes_with_devices() as group:
        starts = [
            worker.start(
                faulty.init,
                file_in(tmp_path),
                name=f"worker{rank}",
                rank=rank,
                world_size=2,
                device_maps=test_devices.maps_for(rank, "crossing"),
                device_stream_order="default_stream",
                fault_plan=LATE_CONFIRMATION,
            )
            for rank, worker in enumerate(group)
        ]
        for start in starts:
            start.result()
        yield group
        group.all(faulty.shut_down)


@pytest.mark.parametrize("program", [program.__name__ for program in device_bodies.WAITING_PROGRAMS])
def test_a_request_that_has_waited_begins_and_ends_at_the_default_streams(pair, program):
    pair[0].run(device_bodies.run, program, "worker1")

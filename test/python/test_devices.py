"""Calls whose tensors are on devices, on the stand-in accelerator (accelerator.py)."""

import accelerator
import device_bodies
import pytest
from group import Group

SEEDS = range(3)


def maps_for(rank):
    other = f"worker{1 - rank}"
    there = device_bodies.MAPS
    back = {target: source for source, target in there.items()}
    return {other: there if rank == 0 else back, f"worker{rank}": there}


def joined(group, folder):
    pending = [
        worker.start(init_worker, f"file://{folder}/store", rank, maps_for(rank)) for rank, worker in enumerate(group)
    ]
    for one in pending:
        one.result()
    return group


def init_worker(init_method, rank, maps):
    from group import init

    init(init_method, name=f"worker{rank}", rank=rank, world_size=2, device_maps=maps)


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def pair(request, tmp_path_factory, accelerator_file):
    environment = {**accelerator.ENVIRONMENT, "TORCHWIRE_TEST_ACCELERATOR_SEED": str(request.param)}
    with Group(2, environment, [accelerator.load] * 2) as group:
        yield joined(group, tmp_path_factory.mktemp("devices"))
        group.shut_down()


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("program", [program.__name__ for program in device_bodies.PROGRAMS])
def test_tensors_of_devices_come_whole(pair, program, to):
    pair[0].run(device_bodies.run, program, to)

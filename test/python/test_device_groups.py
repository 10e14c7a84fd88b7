"""Device maps in dynamic groups, whose workers come one after another, and in workers that have none."""

import os
import tempfile

import accelerator
import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_bodies import on_cuda, peer
from cuda_stand_in import counts
from device_bodies import double, expect, filled
from group import Group, file_in, init
from processes import WorkerError
from test_devices import processes_with_devices


@pytest.fixture
def workers(accelerator_file):
    with processes_with_devices() as group:
        yield group


def call(worker, device):
    expect(rpc.rpc_sync(worker, double, (filled(1, device),)), 2, device)


def send_to(worker, device):
    call(worker, device)
    expect(rpc.remote(worker, double, (filled(2, device),)).to_here(), 4, device)


@pytest.mark.standin
def test_a_worker_that_joins_brings_its_map(workers, tmp_path):
    first, second = workers
    first.run(join, file_in(tmp_path), 0, {"worker1": {"standin:0": "standin:1"}})  # which is not there yet
    second.run(join, file_in(tmp_path), 1, {"worker0": {"standin:2": "standin:0"}})
    first.run(send_to, "worker1", "standin:0")
    second.run(send_to, "worker0", "standin:2")
    workers.shut_down()


@pytest.mark.standin
def test_a_worker_with_a_wrong_map_does_not_get_in_and_harms_nobody(workers, tmp_path):
    first, second = workers
    first.run(join, file_in(tmp_path), 0, {"worker0": {"standin:0": "standin:1"}})
    with pytest.raises(WorkerError, match="Node worker1 has target devices with invalid indices"):
        second.run(join, file_in(tmp_path), 1, {"worker0": {"standin:0": "standin:9"}})
    first.run(call, "worker0", "standin:0")
    assert first.run(used_devices) == ["standin:0", "standin:1"]
    first.run(rpc.shutdown)


@pytest.mark.standin
@pytest.mark.long
def test_the_map_of_a_worker_that_has_left_binds_nobody(accelerator_file, tmp_path):
    with processes_with_devices(size=3) as workers:
        first, second, third = workers
        first.run(join, file_in(tmp_path), 0, {})
        second.run(join, file_in(tmp_path), 1, {"worker2": {"standin:0": "standin:9"}})
        second.run(rpc.shutdown)
        third.run(join, file_in(tmp_path), 2, {"worker0": {"standin:0": "standin:1"}})
        third.run(call, "worker0", "standin:0")
        third.run(rpc.shutdown)
        first.run(rpc.shutdown)


def place_of_double(tensor):
    return str(tensor.device), tensor * 2


@pytest.mark.standin
def test_a_worker_without_an_accelerator_may_map_its_cpu_to_a_peers(accelerator_file, tmp_path):
    with Group(2, accelerator.ENVIRONMENT, [accelerator.load, None]) as workers:
        first, second = workers
        started = first.start(join_static, file_in(tmp_path), 0, {})
        second.run(join_static, file_in(tmp_path), 1, {"worker0": {"cpu": "privateuseone:1"}})
        started.result()
        place, result = second.run(rpc.rpc_sync, "worker0", place_of_double, (torch.ones(3),))
        assert (place, result.tolist()) == ("standin:1", [2, 2, 2])
        workers.shut_down()


def join_static(init_method, rank, maps):
    init(init_method, name=f"worker{rank}", rank=rank, world_size=2, rpc_timeout=20, device_maps=maps)


def join(init_method, rank, maps):
    init(init_method, name=f"worker{rank}", rank=rank, rpc_timeout=20, device_maps=maps)


def used_devices():
    return [str(device) for device in rpc._get_current_rpc_agent().devices]


# ---- workers without device maps, where there is CUDA ----


def start_without_maps(rank, path):
    import torchwire

    rpc.init_rpc(
        f"worker{rank}",
        backend=rpc.BackendType.TORCHWIRE,
        rank=rank,
        world_size=2,
        rpc_backend_options=torchwire.TorchwireRpcBackendOptions(init_method=f"file://{path}"),
    )


def serve_without_maps(connection, path):
    start_without_maps(1, path)
    connection.poll(60)
    rpc.shutdown()


@on_cuda()
def test_a_worker_without_maps_leaves_cuda_alone():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_without_maps, path)
        start_without_maps(0, path)
        assert rpc.rpc_sync("worker1", torch.add, (torch.ones(1 << 20), 1)).sum() == 2 << 20
        assert rpc.rpc_sync("worker1", counts) == counts()
        assert not torch.cuda.is_initialized()
        assert set(counts().values()) == {0}
        with open("/proc/self/maps") as maps:
            assert "libtorchwire_cuda.so" not in maps.read()
        other.close()
        rpc.shutdown()

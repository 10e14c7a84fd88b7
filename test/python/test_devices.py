"""Calls whose tensors are on devices, on the stand-in accelerator (accelerator.py)."""

import contextlib
import os

import accelerator
import device_bodies
import pytest
from group import Group, errors, file_in

# Of the delays of devices. TORCHWIRE_TEST_DEVICE_SEEDS=50 for many.
SEEDS = range(int(os.environ.get("TORCHWIRE_TEST_DEVICE_SEEDS", "3")))


def maps_for(rank):
    other = f"worker{1 - rank}"
    there = device_bodies.MAPS
    back = {target: source for source, target in there.items()}
    return {other: there if rank == 0 else back, f"worker{rank}": there}


def init_worker(init_method, rank, **options):
    from group import init

    init(init_method, name=f"worker{rank}", rank=rank, world_size=2, **options)


def begin_init(group, folder, options):
    return [
        worker.start(init_worker, file_in(folder), rank, **options_of)
        for rank, (worker, options_of) in enumerate(zip(group, options))
    ]


@contextlib.contextmanager
def pair_with(folder, *options, seed=0):
    """Two workers with devices; `options` of each."""
    environment = {**accelerator.ENVIRONMENT, "TORCHWIRE_TEST_ACCELERATOR_SEED": str(seed)}
    with Group(2, environment, [accelerator.load] * 2) as group:
        for one in begin_init(group, folder, options):
            one.result()
        yield group
        group.shut_down()


@pytest.fixture(scope="module", params=SEEDS, ids=lambda seed: f"seed{seed}")
def pair(request, tmp_path_factory, accelerator_file):
    options = [{"device_maps": maps_for(rank)} for rank in range(2)]
    with pair_with(tmp_path_factory.mktemp("devices"), *options, seed=request.param) as group:
        yield group


@pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])
@pytest.mark.parametrize("program", [program.__name__ for program in device_bodies.PROGRAMS])
def test_tensors_of_devices_come_whole(pair, program, to):
    pair[0].run(device_bodies.run, program, to)


def test_a_tensor_without_a_mapping_is_refused_on_the_side_that_sends_it(pair):
    *requests, response, value = pair[0].run(device_bodies.send_unmapped, "worker1")
    for error in requests:
        assert "Request device mapping is not available" in error
        assert "tensor 0" in error and "standin:3" in error and "worker1" in error
        assert 'options.set_device_map("worker1", {' in error
    assert "Response device mapping is not available" in response
    assert "standin:3" in response and "options of worker0" in response
    assert "standin:3 which are not among the expected device" in value  # PyTorch's words, of the owner's future
    pair[0].run(device_bodies.run, "call_functions", "worker1")


def test_a_device_without_memory_fails_only_the_call(pair):
    error = pair[0].run(device_bodies.send_to_full_device, "worker1")
    assert "worker 'worker1' cannot put tensor 0" in error
    assert "standin:1" in error and "out of memory" in error and "Free memory" in error


def test_calls_to_oneself_stay_on_the_devices(pair):
    assert pair[0].run(device_bodies.wait_count_of_a_call_to_oneself) == 0


def test_late_results_of_calls_to_oneself_are_dropped(pair):
    assert pair[0].run(device_bodies.tensors_kept_after_a_late_result) == "0"


def test_explain_tells_the_path_of_each_pair_of_devices(pair):
    to_peer, to_self = pair[0].run(device_bodies.explanations)
    assert to_peer.splitlines()[0] == "to worker 'worker1'"
    assert "standin:0 -> standin:1  by host     (only CUDA devices' memory can be opened by another process)" in to_peer
    assert "standin:2 -> standin:2  by process  (both are this process's)" in to_self
    assert len(to_self.splitlines()) == 2 + len(device_bodies.MAPS)


def test_a_map_may_lead_to_the_cpu(tmp_path, accelerator_file):
    with pair_with(tmp_path, {"device_maps": {"worker1": {"standin:3": "cpu"}}}, {}) as group:
        group[0].run(device_bodies.to_cpu_and_back, "worker1")


def test_a_map_may_lead_from_the_cpu(tmp_path, accelerator_file):
    with pair_with(tmp_path, {"device_maps": {"worker1": {"cpu": "standin:3"}}}, {}) as group:
        group[0].run(device_bodies.to_device_and_back, "worker1")


def test_automatic_maps_lead_to_the_same_index(tmp_path, accelerator_file):
    with pair_with(tmp_path, {"device_maps": "auto"}, {}) as group:
        for index in range(4):
            assert group[0].run(device_of_echo, f"standin:{index}") == (f"standin:{index}", f"standin:{index}")


def device_of_echo(device):
    import torch
    import torch.distributed.rpc as rpc

    there, back = rpc.rpc_sync("worker1", device_bodies.where, (torch.ones(3, device=device),))
    return there, str(back.device)


@pytest.mark.parametrize(
    ("maps", "phrase", "remedy"),
    [
        ({"worker1": {"standin:0": "standin:7"}}, "target devices with invalid indices", "standin:0 to standin:3"),
        ({"worker1": {"standin:9": "standin:0"}}, "source devices with invalid indices", "standin:0 to standin:3"),
        ({"worker2": {"standin:0": "standin:0"}}, "invalid target node names", "worker1"),
    ],
    ids=["target", "source", "name"],
)
def test_all_workers_refuse_a_wrong_map_with_the_same_words(tmp_path, accelerator_file, maps, phrase, remedy):
    with Group(2, accelerator.ENVIRONMENT, [accelerator.load] * 2) as group:
        said = [str(error) for error in errors(begin_init(group, tmp_path, [{"device_maps": maps}, {}]))]
    texts = {one.split(":", 1)[1].split("Traceback")[0].strip() for one in said}
    assert len(texts) == 1
    assert f"Node worker0 has {phrase}" in said[0] and remedy in said[0]


def test_pytorchs_own_options_work(tmp_path, accelerator_file):
    with Group(2, accelerator.ENVIRONMENT, [accelerator.load] * 2) as group:
        pending = [
            worker.start(init_with_stock_options, file_in(tmp_path), maps)
            for worker, maps in zip(group, ({"worker1": {0: 1}}, {}))
        ]
        for one in pending:
            one.result()
        assert group[0].run(device_of_echo, "standin:0") == ("standin:1", "standin:0")
        group.shut_down()


def init_with_stock_options(init_method, device_maps):
    import multiprocessing

    import torch.distributed.rpc as rpc

    name = multiprocessing.current_process().name
    options = rpc.TensorPipeRpcBackendOptions(init_method=init_method, device_maps=device_maps)
    rpc.init_rpc(
        name,
        rank=int(name[-1]),
        world_size=2,
        backend=rpc.BackendType.TORCHWIRE,
        rpc_backend_options=options,
    )

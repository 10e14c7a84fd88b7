"""Calls whose tensors are on devices: on the stand-in accelerator (accelerator.py), or, with
TORCHWIRE_TEST_DEVICE_TYPE=cuda, on as many real ones as there are (device_kind.py)."""

import contextlib
import time

import accelerator
import device_bodies
import device_kind
import device_load
import pytest
from group import Group, errors, file_in
from processes import wait_until


def need(devices):
    if why := device_kind.why_missing(devices):
        pytest.skip(why)


@pytest.fixture(scope="module", autouse=True)
def _devices_are_there(request):
    need(1)
    if device_kind.IS_STANDIN:
        request.getfixturevalue("accelerator_file")


def maps_for(rank, name):
    other = f"worker{1 - rank}"
    there = device_kind.maps(name)
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


def processes_with_devices(seed=0, maps="crossing", size=2, **environment):
    environment |= {"TORCHWIRE_TEST_ACCELERATOR_SEED": str(seed), "TORCHWIRE_TEST_DEVICE_MAPS": maps}
    if device_kind.IS_STANDIN:
        return Group(size, {**accelerator.ENVIRONMENT, **environment}, [accelerator.load] * size)
    return Group(size, environment, [device_load.start] * size)


@contextlib.contextmanager
def pair_with(folder, *options, **devices):
    """Two workers with devices; `options` of each."""
    with processes_with_devices(**devices) as group:
        for one in begin_init(group, folder, options):
            one.result()
        yield group
        group.shut_down()


def maps_and_seeds():
    """The maps that lead to the same device are what a machine with one has; where there are more, they are only tried
    once. Those between devices are skipped there, which once is enough to say."""
    seeds = device_kind.seeds()
    one = device_kind.count() < 2
    return [("crossing", seed) for seed in (seeds[:1] if one else seeds)] + [
        ("same", seed) for seed in (seeds if one else seeds[:1])
    ]


@pytest.fixture(scope="module", params=maps_and_seeds(), ids=lambda param: f"{param[0]}-seed{param[1]}")
def maps_and_seed(request):
    return request.param


@pytest.fixture(scope="module")
def pair(maps_and_seed, tmp_path_factory):
    maps, seed = maps_and_seed
    need(2 if maps == "crossing" else 1)
    options = [{"device_maps": maps_for(rank, maps)} for rank in range(2)]
    with pair_with(tmp_path_factory.mktemp("devices"), *options, seed=seed, maps=maps) as group:
        yield group


@pytest.fixture(scope="module")
def ordered_pair(maps_and_seed, tmp_path_factory):
    """Whose requests and default streams wait for each other."""
    maps, seed = maps_and_seed
    need(2 if maps == "crossing" else 1)
    options = [{"device_maps": maps_for(rank, maps), "device_stream_order": "default_stream"} for rank in range(2)]
    with pair_with(tmp_path_factory.mktemp("devices"), *options, seed=seed, maps=maps) as group:
        yield group


TO_EACH = pytest.mark.parametrize("to", ["worker1", "worker0"], ids=["peer", "self"])


def each_of(*programs):
    return pytest.mark.parametrize("program", [program.__name__ for program in programs])


@TO_EACH
@each_of(*device_bodies.PROGRAMS)
def test_tensors_of_devices_come_whole(pair, program, to):
    pair[0].run(device_bodies.run, program, to)


@TO_EACH
@each_of(*device_bodies.PROGRAMS, *device_bodies.ORDERED_PROGRAMS)
def test_tensors_come_whole_where_default_streams_are_waited_for(ordered_pair, program, to):
    ordered_pair[0].run(device_bodies.run, program, to)


def test_a_tensor_without_a_mapping_is_refused_on_the_side_that_sends_it(pair, maps_and_seed):
    unmapped = device_kind.without_mapping(maps_and_seed[0])
    if unmapped is None:
        need(device_kind.count() + 1)
    *requests, response, value, builtin, script = pair[0].run(device_bodies.send_unmapped, "worker1")
    for error in requests:
        assert "Request device mapping is not available" in error
        assert "tensor 0" in error and unmapped in error and "worker1" in error
        assert 'options.set_device_map("worker1", {' in error
    for error in (response, script):
        assert "Response device mapping is not available" in error
        assert unmapped in error and "options of worker0" in error
    for error in (value, builtin):  # PyTorch's words, of the owner's future
        assert f"{unmapped} which are not among the expected device" in error
        assert 'options of worker0, add:\n    options.set_device_map("worker1", {' in error
    pair[0].run(device_bodies.run, "call_functions", "worker1")


def test_a_device_without_memory_fails_only_the_call(pair, maps_and_seed):
    maps = device_kind.maps(maps_and_seed[0])
    error = pair[0].run(device_bodies.send_to_full_device, "worker1")
    assert "worker 'worker1' cannot put tensor 0" in error
    assert maps[device_kind.device(0)] in error and "out of memory" in error and "Free memory" in error


@pytest.mark.standin
def test_calls_to_oneself_stay_on_the_devices(pair):
    assert pair[0].run(device_bodies.wait_count_of_a_call_to_oneself) == 0


@pytest.mark.standin
@TO_EACH
@each_of(*device_bodies.HOLDING_PROGRAMS)
def test_what_is_held_is_waited_for(pair, program, to):
    pair[0].run(device_bodies.run, program, to)


@pytest.mark.standin
@TO_EACH
@each_of(*device_bodies.HOLDING_PROGRAMS, *device_bodies.ORDERED_HOLDING_PROGRAMS)
def test_default_streams_that_are_held_are_waited_for(ordered_pair, program, to):
    ordered_pair[0].run(device_bodies.run, program, to)


@pytest.mark.standin
@TO_EACH
@each_of(*device_bodies.UNORDERED_HOLDING_PROGRAMS)
def test_default_streams_that_are_held_hold_up_nobody(pair, program, to):
    pair[0].run(device_bodies.run, program, to)


def test_late_results_of_calls_to_oneself_are_dropped(pair):
    assert pair[0].run(device_bodies.tensors_kept_after_a_late_result) == "0"


def test_explain_tells_the_path_of_each_pair_of_devices(pair):
    to_peer, to_self = pair[0].run(device_bodies.explanations)
    assert to_peer.splitlines()[0] == "to worker 'worker1'"
    first = device_kind.device(0)
    assert f"{first} -> " in to_peer
    if device_kind.IS_STANDIN:
        assert "by host     (only CUDA devices' memory can be opened by another process)" in to_peer
    assert to_self.count("by process  (both are this process's)") == len(to_self.splitlines()) - 2


def test_a_map_may_lead_to_the_cpu(tmp_path):
    with pair_with(tmp_path, {"device_maps": {"worker1": {device_kind.last(): "cpu"}}}, {}) as group:
        group[0].run(device_bodies.to_cpu_and_back, "worker1")


def test_a_map_may_lead_from_the_cpu(tmp_path):
    with pair_with(tmp_path, {"device_maps": {"worker1": {"cpu": device_kind.last()}}}, {}) as group:
        group[0].run(device_bodies.to_device_and_back, "worker1")


def test_automatic_maps_lead_to_the_same_index(tmp_path):
    with pair_with(tmp_path, {"device_maps": "auto"}, {}) as group:
        for device in map(device_kind.device, range(device_kind.count())):
            assert group[0].run(device_of_echo, device) == (device, device)


def device_of_echo(device):
    import torch
    import torch.distributed.rpc as rpc

    there, back = rpc.rpc_sync("worker1", device_bodies.where, (torch.ones(3, device=device),))
    return there, str(back.device)


def range_in_words():
    last = device_kind.count() - 1
    return f"{device_kind.device(0)} to {device_kind.device(last)}" if last else device_kind.device(0)


@pytest.mark.parametrize(
    ("worker", "entry", "phrase"),
    [
        ("worker1", (0, 17), "target devices with invalid indices"),
        ("worker1", (19, 0), "source devices with invalid indices"),
        ("worker2", (0, 0), "invalid target node names"),
    ],
    ids=["target", "source", "name"],
)
def test_all_workers_refuse_a_wrong_map_with_the_same_words(tmp_path, worker, entry, phrase):
    source, target = map(device_kind.device, entry)
    maps = {worker: {source: target}}
    with processes_with_devices() as group:
        said = [str(error) for error in errors(begin_init(group, tmp_path, [{"device_maps": maps}, {}]))]
    texts = {one.split(":", 1)[1].split("Traceback")[0].strip() for one in said}
    assert len(texts) == 1
    assert f"Node worker0 has {phrase}" in said[0]
    assert (range_in_words() if worker == "worker1" else "worker1") in said[0]


def test_pytorchs_own_options_work(tmp_path):
    other = min(1, device_kind.count() - 1)
    with processes_with_devices() as group:
        pending = [
            worker.start(init_with_stock_options, file_in(tmp_path), maps)
            for worker, maps in zip(group, ({"worker1": {0: other}}, {}))
        ]
        for one in pending:
            one.result()
        assert group[0].run(device_of_echo, device_kind.device(0)) == (
            device_kind.device(other),
            device_kind.device(0),
        )
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


@pytest.fixture
def pair_that_inherits(tmp_path):
    options = [{"device_maps": maps_for(rank, "same"), "inherit_deadline": True} for rank in range(2)]
    with pair_with(tmp_path, *options, maps="same") as group:
        yield group


def test_a_request_that_waits_for_a_device_carries_its_deadline(pair_that_inherits):
    pair_that_inherits[0].run(call_by, 1.0)
    wait_until(lambda: pair_that_inherits[1].run(waits))
    assert pair_that_inherits[1].run(waits)[0] < 3.0


_waits = []


def waits():
    return _waits


def call_by(seconds):
    import torch
    import torch.distributed.rpc as rpc
    import torchwire

    tensor = torch.ones(3, device=device_kind.first())
    rpc.rpc_sync("worker1", torch.add, (tensor, tensor))  # the deadline is for no dial
    with torchwire.deadline(seconds):
        call = rpc.rpc_async("worker1", call_back, (tensor,), timeout=60)
    with pytest.raises(torchwire.CallTimedOut):
        call.wait()


def call_back(_tensor):
    """How long its call takes, which ends with the call that it serves."""
    import torch.distributed.rpc as rpc
    import torchwire

    begun = time.monotonic()
    with contextlib.suppress(torchwire.CallTimedOut):
        rpc.rpc_sync("worker0", time.sleep, (4,), timeout=60)
    _waits.append(time.monotonic() - begun)

"""What of a tensor's storage travels, what stays shared on the other side, and through which channel."""

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import running

MIB = 2**20

# ---- what the workers run ----


def swallow(tensors):
    return None


def echo(value):
    return value


def bytes_to_worker1():
    return next(peer["bytes_sent"] for peer in torchwire.peers() if peer["name"] == "worker1")


def bytes_for(make):
    """How many bytes more it takes to send the tensors than to send none."""
    rpc.rpc_sync("worker1", swallow, ([],))
    before = bytes_to_worker1()
    rpc.rpc_sync("worker1", swallow, ([],))
    without = bytes_to_worker1()
    rpc.rpc_sync("worker1", swallow, (make(),))
    return bytes_to_worker1() - without - (without - before)


# ---- only what is needed travels ----

BIG = 10_000_000  # elements of one byte

# What to send, and how many bytes of storage are needed for it.
SENT = {
    "a slice of a big storage": (lambda: [torch.zeros(BIG, dtype=torch.uint8)[500:1500]], 1000),
    "a large slice of a bigger storage": (
        lambda: [torch.zeros(BIG, dtype=torch.uint8)[500 : BIG // 2]],
        BIG // 2 - 500,
    ),
    "one row of a matrix": (lambda: [torch.zeros(1000, 1000)[17]], 4000),
    "one column of a matrix": (lambda: [torch.zeros(1000, 1000)[:, 17]], 4000),
    "one element of many": (lambda: [torch.zeros(BIG)[5]], 4),
    "an expanded tensor": (lambda: [torch.zeros(1000, 1).expand(1000, 1000)], 4000),
    "an expanded number": (lambda: [torch.tensor(1.0).expand(1000, 1000)], 4),
    "two views far apart in one storage": (lambda: _both_ends(torch.zeros(BIG, dtype=torch.uint8)), 200),
    "the same tensor twice": (lambda: [torch.zeros(100_000)] * 2, 400_000),
    "two overlapping views": (lambda: _overlapping(torch.zeros(100_000)), 400_000),
    "a sparse tensor of slices": (lambda: [_sparse_of_slices()], 800 + 400),
    "nothing of a big storage": (lambda: [torch.zeros(BIG)[7:7]], 0),
    "a quantized slice": (lambda: [torch.quantize_per_tensor(torch.zeros(BIG), 1, 0, torch.qint8)[:100]], 100),
}


def _both_ends(tensor):
    return [tensor[:100], tensor[-100:]]


def _overlapping(tensor):
    return [tensor[:60_000], tensor[40_000:]]


def _sparse_of_slices():
    return torch.sparse_coo_tensor(
        torch.arange(BIG)[None, :100], torch.zeros(BIG)[:100], (BIG,), check_invariants=False
    )


def bytes_for_case(name):
    return bytes_for(SENT[name][0])


@pytest.mark.parametrize("name", SENT)
def test_only_the_needed_part_of_a_storage_travels(pair, name):
    needed = SENT[name][1]
    overhead = pair[0].run(bytes_for_case, name) - needed
    assert 0 <= overhead < 1000


# ---- sharing ----


def change_first_and_show_all(tensors):
    tensors[0].fill_(7)
    return [tensor.tolist() for tensor in tensors]


def views():
    base = torch.arange(6.0)
    return [base, base[2:4], base.view(2, 3), base]


def large_views():
    base = torch.zeros(MIB)
    return [base[:-1], base[1:5], base[5:7].view(1, 2)]


def send_views():
    return rpc.rpc_sync("worker1", change_first_and_show_all, (views(),))


def send_large_views():
    return rpc.rpc_sync("worker1", change_first_and_show_all, (large_views(),))[1:]


def receive_views():
    return change_first_and_show_all(rpc.rpc_sync("worker1", views))


def send_separate():
    return rpc.rpc_sync("worker1", change_first_and_show_all, ([torch.zeros(2), torch.zeros(2)],))


def send_tied_module():
    """Two layers that share a parameter, as language models do."""
    module = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    module[1].weight = module[0].weight
    returned = rpc.rpc_sync("worker1", echo, (module,))
    return returned[0].weight is returned[1].weight, len(list(returned.parameters()))


def test_tensors_that_share_a_storage_share_it_on_the_other_side(pair):
    shared = [[7.0] * 6, [7.0] * 2, [[7.0] * 3] * 2, [7.0] * 6]
    assert pair[0].run(send_views) == shared
    assert pair[0].run(receive_views) == shared


def test_large_tensors_that_share_a_storage_share_it_on_the_other_side(pair):
    assert pair[0].run(send_large_views) == [[7.0] * 4, [[7.0, 7.0]]]


def test_tensors_of_their_own_stay_apart(pair):
    assert pair[0].run(send_separate) == [[7, 7], [0, 0]]


def test_a_module_keeps_its_tied_parameters(pair):
    assert pair[0].run(send_tied_module) == (True, 3)


# ---- channels and transports ----


def link_to(name):
    peer = next(peer for peer in torchwire.peers() if peer["name"] == name)
    return peer["transport"], peer["channel"]


def echo_large(size):
    """Sends `size` bytes there and back, as a whole, as strided views, and in a message with others."""
    torch.manual_seed(1)
    tensor = torch.randint(0, 256, (size,), dtype=torch.uint8)
    assert torch.equal(rpc.rpc_sync("worker1", echo, (tensor,)), tensor)
    view = tensor.view(8, -1).t()[: size // 16]
    returned = rpc.rpc_sync("worker1", echo, (view,))
    assert torch.equal(returned, view) and returned.stride() == view.stride()
    pieces = [tensor[: size // 4].clone(), torch.ones(3), tensor[size // 2 :].clone()]
    assert all(map(torch.equal, rpc.rpc_sync("worker1", echo, (pieces,)), pieces))
    return link_to("worker1")


def echo_at_once(count, size):
    tensors = [torch.full((size,), i, dtype=torch.uint8) for i in range(count)]
    futures = [rpc.rpc_async("worker1", echo, (tensor,)) for tensor in tensors]
    return all(torch.equal(future.wait(), tensor) for future, tensor in zip(futures, tensors))


WAYS = [
    ("wire_shm", ["cma"]),
    ("wire_shm", ["basic"]),
    ("wire_tcp", ["cma"]),
    ("wire_tcp", ["mpt_wire_tcp", "basic"]),
    ("wire_tcp", ["basic"]),
    ("uv", ["cma"]),
    ("uv", ["mpt_uv", "basic"]),
    ("uv", ["basic"]),
]
every_way = pytest.mark.parametrize("transport, channels", WAYS, ids=[f"{t}-{c[0]}" for t, c in WAYS])


@every_way
def test_64_mib_travel_through_each_channel(tmp_path, transport, channels):
    with running(2, tmp_path, _transports=[transport], _channels=channels) as group:
        assert group[0].run(echo_large, 64 * MIB) == (transport, channels[0])
        assert group[0].run(echo_at_once, 16, MIB)


def test_64_mib_travel_through_the_shared_memory_of_tensorpipe(tmp_path):
    with running(2, tmp_path, _transports=["shm", "uv"], _channels=["basic"]) as group:
        assert group[0].run(echo_large, 64 * MIB) == ("shm", "basic")


def test_both_directions_carry_large_tensors_at_once(pair):
    pending = [pair[0].start(echo_at_once_to, "worker1"), pair[1].start(echo_at_once_to, "worker0")]
    assert [one.result() for one in pending] == [True, True]


@every_way
def test_the_first_calls_of_two_workers_to_each_other_carry_large_tensors(tmp_path, transport, channels):
    # Both open a link at the same time, and one of the two has to give way.
    with running(2, tmp_path, _transports=[transport], _channels=channels) as group:
        pending = [group[0].start(echo_at_once_to, "worker1"), group[1].start(echo_at_once_to, "worker0")]
        assert [one.result() for one in pending] == [True, True]


def echo_at_once_to(name):
    tensors = [torch.full((200_000 + i,), float(i)) for i in range(30)]
    futures = [rpc.rpc_async(name, echo, (tensor,)) for tensor in tensors]
    return all(torch.equal(future.wait(), tensor) for future, tensor in zip(futures, tensors))

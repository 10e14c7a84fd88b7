"""Memory in which large tensors are received, and which is kept for the next ones."""

import gc
import time

import torch
import torch.distributed.rpc as rpc
from group import Group, file_in, running
from processes import LIMIT

MIB = 1 << 20


def bytes_in(what):
    return int(rpc.api._get_current_rpc_agent().get_debug_info()[f"agent.receive_buffers.bytes_{what}"])


def echo(tensor):
    return tensor


def await_bytes(what, expected):
    """Until it is so: frames let go of memory where they end."""
    end = time.monotonic() + LIMIT
    while bytes_in(what) != expected:
        assert time.monotonic() < end, f"{bytes_in(what)} bytes {what}, not {expected}"
        time.sleep(0.001)


def receive():
    assert bytes_in("lent") == bytes_in("kept") == 0
    tensor = torch.arange(MIB, dtype=torch.float32)  # 4 MiB
    kept = rpc.rpc_sync("worker1", echo, (tensor,))
    assert bytes_in("lent") == 4 * MIB
    where = kept.data_ptr()
    view = kept[10:20]
    del kept
    gc.collect()
    assert bytes_in("lent") == 4 * MIB  # for the view
    assert torch.equal(view, tensor[10:20])
    del view
    assert bytes_in("lent") == 0
    assert bytes_in("kept") == 4 * MIB
    again = rpc.rpc_sync("worker1", echo, (tensor + 1,))
    assert again.data_ptr() == where
    assert torch.equal(again, tensor + 1)
    del again
    await_bytes("kept", 0)  # nobody needs it any more


def test_memory_is_used_again_and_then_given_back(tmp_path):
    with running(2, tmp_path) as group:
        group[0].run(receive)
        group[1].run(await_bytes, "lent", 0)


def receive_without_cache():
    rpc.rpc_sync("worker1", echo, (torch.ones(MIB),))
    assert bytes_in("kept") == 0


def test_nothing_is_kept_where_nothing_may_be(tmp_path):
    with running(2, tmp_path, receive_cache=0) as group:
        group[0].run(receive_without_cache)


def outlive():
    tensor = rpc.rpc_sync("worker1", echo, (torch.ones(MIB),))
    rpc.shutdown()
    return tensor.sum().item()


def test_a_tensor_outlives_the_group(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        pending = group[0].start(outlive)
        group[1].run(rpc.shutdown)
        assert pending.result() == MIB

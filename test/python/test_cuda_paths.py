"""Which way CUDA tensors take between two processes, on the stand-in for CUDA's libraries (cuda_stand_in.py): values
that are only copied, since it runs no kernels."""

import contextlib
import os
import signal
import tempfile
import threading
import time

import pytest
import torch
import torch.distributed.rpc as rpc
from cuda_bodies import on_cuda, peer
from cuda_stand_in import counts, fail_next, held, library

KIB, MIB = 1 << 10, 1 << 20
LARGE = 64 * KIB  # from here on memory is opened
LIMIT = 30

# ---- the two workers ----


def start(rank, path, **options):
    import torchwire

    given = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{path}", rpc_timeout=LIMIT, **options)
    backend = rpc.BackendType.TORCHWIRE
    rpc.init_rpc(f"worker{rank}", backend=backend, rank=rank, world_size=2, rpc_backend_options=given)


def serve_worker1(connection, path, failures):
    """Until worker0 has shut down, or is gone."""
    for kind in failures:
        fail_next(kind, -1)
    start(1, path)
    with contextlib.suppress(EOFError):
        connection.recv()
    rpc.shutdown()


@contextlib.contextmanager
def two_workers(failures=()):
    """This process as worker0, and worker1, whose uses of CUDA of these kinds fail."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_worker1, path, failures)
        start(0, path, device_maps={"worker1": {0: 1}, "worker0": {0: 1}})
        yield
        other.close()
        rpc.shutdown()


def there(function, *arguments):
    return rpc.rpc_sync("worker1", function, arguments)


# ---- what they do ----


def numbers(size, seed=0):
    """So many bytes, on the host."""
    return torch.randint(-1000, 1000, (size // 4,), dtype=torch.int32, generator=torch.Generator().manual_seed(seed))


def die(tensor):
    os.kill(os.getpid(), signal.SIGKILL)


def itself(tensor):
    return tensor


def place_and_values(tensor):
    return str(tensor.device), tensor.cpu()


def echo(expected, to="worker1", place="cuda:1"):
    """There and back again; both at once."""
    tensor = expected.to("cuda:0")
    futures = [rpc.rpc_async(to, function, (tensor,)) for function in (place_and_values, itself)]
    device, values = futures[0].wait()
    assert (device, values.equal(expected)) == (place, True)
    back = futures[1].wait()
    assert (str(back.device), back.cpu().equal(expected)) == ("cuda:0", True)


def path_to(worker):
    import torchwire

    entries = torchwire.explain(worker).devices
    return entries[0].path, entries[0].reason


def try_ipc():
    """Sends a tensor that is large enough, and waits for what comes of the trial."""
    echo(numbers(LARGE))
    wait_until(lambda: path_to("worker1")[1] != "ipc is being tried")
    return path_to("worker1")


def wait_until(condition):
    end = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def blocks():
    """(lent, bytes) of this process."""
    info = rpc._get_current_rpc_agent().get_debug_info()
    return int(info["agent.device_blocks_lent"]), int(info["agent.device_block_bytes"])


def await_no_block_lent():
    wait_until(lambda: blocks()[0] == 0)


# ---- ipc ----


@on_cuda()
def test_large_tensors_are_copied_from_the_senders_memory():
    with two_workers():
        echo(numbers(KIB))
        assert path_to("worker1")[0] == "host"
        assert there(counts)["ipc_opens"] == 0
        assert try_ipc() == ("ipc", "bytes have come through it")
        for turn, size in enumerate([4, LARGE - 4, LARGE, MIB, 5 * MIB + 4, 70 * MIB, 3 * MIB] * 2):
            echo(numbers(size, turn))
        assert there(counts)["ipc_copies"] >= 20
        await_no_block_lent()


@on_cuda(MAX_DELAY_US=20000)
def test_a_tensor_that_has_been_sent_may_be_changed():
    with two_workers():
        try_ipc()
        first, second = numbers(MIB, 1), numbers(MIB, 2).to("cuda:0")
        tensor = first.to("cuda:0")
        future = rpc.rpc_async("worker1", itself, (tensor,))
        tensor.copy_(second)
        assert future.wait().cpu().equal(first)


@on_cuda()
def test_many_tensors_at_a_time():
    with two_workers():
        try_ipc()
        sent = [numbers(MIB, seed) for seed in range(24)]
        futures = [rpc.rpc_async("worker1", itself, (tensor.to("cuda:0"),)) for tensor in sent]
        for tensor, future in zip(sent, futures):
            assert future.wait().cpu().equal(tensor)
        given = {str(size): numbers(size, size).to("cuda:0") for size in (4, KIB, MIB, 2 * MIB)}
        for key, tensor in there(itself, given).items():
            assert tensor.equal(given[key]) if not tensor.is_cuda else tensor.cpu().equal(given[key].cpu())
        await_no_block_lent()


@on_cuda()
def test_views_and_values_of_rrefs():
    with two_workers():
        try_ipc()
        columns = numbers(MIB).reshape(-1, 64)
        for given in (columns.t(), columns.reshape(8, 16, -1, 2).to(memory_format=torch.channels_last)):
            back = there(itself, given.to("cuda:0"))
            assert back.stride() == given.stride() and back.cpu().equal(given)
        assert there(itself, columns.to("cuda:0").reshape(-1)[64:]).cpu().equal(columns.reshape(-1)[64:])
        rref = rpc.remote("worker1", itself, (columns.to("cuda:0"),))
        assert rref.to_here().cpu().equal(columns)
        assert rpc.RRef(columns.to("cuda:0")).to_here().cpu().equal(columns)


@on_cuda()
def test_the_host_waits_for_no_device_on_the_way():
    with two_workers():
        try_ipc()
        tensor = numbers(MIB).to("cuda:0")
        there(itself, tensor)
        with held(0):
            future = rpc.rpc_async("worker1", place_and_values, (tensor,))
            assert not future.done()  # and this process goes on
        assert future.wait()[0] == "cuda:1"


@on_cuda()
def test_the_receivers_host_waits_for_no_device_either():
    with two_workers(failures=["ipc_open"]):
        try_ipc()  # so that tensors come by way of the host
        tensor = numbers(5 * MIB).to("cuda:0")
        there(place_and_size, tensor)  # which needs memory, and asking for that may wait
        before = there(counts)["copy_waits"]
        there(hold)
        assert there(place_and_size, tensor) == ("cuda:1", 5 * MIB)
        there(let_go)
        assert there(counts)["copy_waits"] == before
        echo(numbers(5 * MIB))


def place_and_size(tensor):
    return str(tensor.device), tensor.nbytes


_holding = contextlib.ExitStack()


def hold():
    _holding.enter_context(held(1))


def let_go():
    _holding.close()


# ---- where it does not work ----


@on_cuda()
def test_memory_that_cannot_be_opened_goes_by_way_of_the_host():
    expect_host_instead("ipc_open", "cudaIpcOpenMemHandle failed")


@on_cuda()
def test_events_that_cannot_be_opened_go_by_way_of_the_host():
    expect_host_instead("ipc_open_event", "cudaIpcOpenEventHandle failed")


@on_cuda()
def test_memory_that_is_not_what_was_lent_goes_by_way_of_the_host():
    expect_host_instead("ipc_wrong_bytes", "other bytes came than were sent")


def expect_host_instead(failure, reason):
    with two_workers(failures=[failure]):
        path, why = try_ipc()
        assert (path, reason in why) == ("host", True), why
        for size in (KIB, MIB, 5 * MIB):
            echo(numbers(size))


@on_cuda(PEER_ACCESS=0)
def test_devices_that_cannot_reach_each_other_go_by_way_of_the_host():
    with two_workers():
        assert try_ipc()[0] == "host"
        echo(numbers(MIB))


@on_cuda()
def test_memory_that_cannot_be_lent_goes_by_way_of_the_host():
    fail_next("ipc_get", -1)
    with two_workers():
        path, why = try_ipc()
        assert (path, "cudaIpcGetMemHandle failed" in why) == ("host", True)
        echo(numbers(MIB))


@on_cuda()
def test_a_device_without_memory_for_a_block_goes_by_way_of_the_host():
    with two_workers():
        try_ipc()
        tensor = numbers(9 * MIB).to("cuda:0")
        fail_next("malloc", 2)
        assert there(place_and_values, tensor)[1].equal(tensor.cpu())
        assert path_to("worker1")[0] == "ipc"  # the next one finds memory
        echo(numbers(9 * MIB))


@on_cuda()
def test_checksums_keep_tensors_in_frames():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_with_checksums, path)
        start(0, path, device_maps={"worker1": {0: 1}}, checksums=True)
        echo(numbers(MIB))
        path, why = path_to("worker1")
        assert (path, "checksums" in why) == ("host", True)
        other.close()
        rpc.shutdown()


def serve_with_checksums(connection, path):
    start(1, path, checksums=True)
    with contextlib.suppress(EOFError):
        connection.recv()
    rpc.shutdown()


@on_cuda()
def test_a_block_that_cannot_be_read_fails_only_its_call():
    with two_workers():
        try_ipc()
        there(fail_next, "ipc_open", 1)
        large = numbers(70 * MIB).to("cuda:0")  # whose block is opened anew each time
        with pytest.raises(
            RuntimeError, match="worker 'worker1' cannot put tensor 0 of worker 'worker0' on its cuda:1"
        ):
            there(itself, large)
        wait_until(lambda: path_to("worker1")[0] == "host")  # worker1 says so, a moment later
        assert there(itself, large).cpu().equal(large.cpu())
        await_no_block_lent()


@on_cuda()
def test_a_receiver_without_memory_keeps_the_path():
    with two_workers():
        try_ipc()
        tensor = numbers(30 * MIB).to("cuda:0")
        there(fail_next, "malloc", 2)
        with pytest.raises(RuntimeError, match="out of memory.* Free memory on that device, or map"):
            there(place_and_size, tensor)
        assert there(itself, tensor).cpu().equal(tensor.cpu())
        assert path_to("worker1")[0] == "ipc"
        await_no_block_lent()


@on_cuda()
def test_a_request_that_takes_too_long_to_copy_gives_its_block_back():
    with two_workers():
        try_ipc()
        large, small = numbers(MIB).to("cuda:0"), numbers(KIB).to("cuda:0")
        library().torchwire_test_cuda_hold(0)
        threading.Timer(0.5, library().torchwire_test_cuda_release, (0,)).start()
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            rpc.rpc_sync("worker1", place_and_size, (large, small), timeout=0.1)
        await_no_block_lent()


# ---- whose peer dies, and to oneself ----


@on_cuda()
def test_blocks_of_a_dead_peer_stay_out_of_use():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_worker1, path, ())
        start(0, path, device_maps={"worker1": {0: 1}, "worker0": {0: 1}})
        try_ipc()
        lent = blocks()[1]
        tensor = numbers(MIB).to("cuda:0")
        with held(0):
            with pytest.raises(RuntimeError):
                there(die, tensor)
        await_no_block_lent()
        assert blocks()[1] >= lent  # for a minute
        echo(numbers(MIB), to="worker0")
        rpc.shutdown(graceful=False)
        other.close()


@on_cuda()
def test_tensors_to_oneself_stay_on_devices():
    with two_workers():
        before = counts()["ipc_copies"]
        for size in (4, MIB):
            echo(numbers(size), to="worker0")
        assert path_to("worker0") == ("process", "both are this process's")
        assert counts()["ipc_copies"] == before


# ---- what faults/test_device_mutations.py leaves out ----


def expect_noticed(left_out):
    os.environ["TORCHWIRE_TEST_LEAVE_OUT"] = left_out
    with two_workers():
        if try_ipc()[0] == "host":
            return  # the trial has found other bytes
        for turn in range(20):
            sent = [numbers(MIB, seed) for seed in range(turn, turn + 8)]
            futures = [rpc.rpc_async("worker1", itself, (tensor.to("cuda:0"),)) for tensor in sent]
            if not all(future.wait().cpu().equal(tensor) for tensor, future in zip(sent, futures)):
                return
    pytest.fail(f"no tensor was another than the one that was sent, though {left_out} is left out")


@on_cuda(MAX_DELAY_US=20000)
def notice_block_behind_filling():
    expect_noticed("blockBehindFilling")


@on_cuda(MAX_DELAY_US=20000)
def notice_block_filled():
    expect_noticed("blockFilled")


@on_cuda(MAX_DELAY_US=20000)
def notice_blocks_done_after_copy():
    expect_noticed("blocksDoneAfterCopy")

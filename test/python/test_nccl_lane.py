"""Tensors between CUDA devices of two processes by NCCL (option `nccl`), where neither can open the other's memory: on
the stand-in for CUDA's libraries and NCCL (cuda_stand_in.py)."""

import concurrent.futures
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
from test_cuda_paths import (
    KIB,
    LARGE,
    MIB,
    echo,
    itself,
    numbers,
    path_to,
    place_and_size,
    place_and_values,
    start,
    there,
    wait_until,
)

NO_IPC = "cudaIpcOpenMemHandle failed: invalid resource handle (cudaErrorInvalidResourceHandle)"

# ---- the two workers ----


def serve_worker1(connection, path, nccl, failures, options=None):
    """Until worker0 has shut down, or is gone."""
    for kind in failures:
        fail_next(kind, -1)
    start(1, path, nccl=nccl, device_maps={"worker0": {0: 1}}, **(options or {}))
    with contextlib.suppress(EOFError):
        connection.recv()
    rpc.shutdown()


@contextlib.contextmanager
def two_workers(here=True, there=True, failures=("ipc_open",), failures_here=("ipc_open",), maps=None, **options):
    """This process as worker0, and worker1, with the option or without; what of their uses of CUDA fails; `options`: of
    both."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_worker1, path, there, failures, options)
        for kind in failures_here:  # not before, which worker1's process would inherit
            fail_next(kind, -1)
        start(0, path, nccl=here, device_maps=maps or {"worker1": {0: 1}}, **options)
        yield
        other.close()
        rpc.shutdown()


def try_paths():
    """Sends a tensor that is large enough, and waits for what comes of the trials."""
    echo(numbers(LARGE))
    wait_until(lambda: not path_to("worker1")[1].endswith("is being tried"))
    return path_to("worker1")


def use_nccl():
    """In both directions: the way back is worker1's to try."""
    assert try_paths() == ("nccl", "bytes have come through it")

    def comes_back_by_nccl():
        before = counts()["nccl_receives"]
        echo(numbers(LARGE))
        return counts()["nccl_receives"] > before

    wait_until(comes_back_by_nccl)


def kept():
    return int(rpc._get_current_rpc_agent().get_debug_info()["agent.device_lane_tensors"])


def await_nothing_kept():
    wait_until(lambda: kept() == 0 and there(kept) == 0)


@contextlib.contextmanager
def log_lines():
    """What this process writes to standard error meanwhile, as a list that is filled at the end."""
    lines, saved = [], os.dup(2)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield lines
        finally:
            os.dup2(saved, 2)
            file.seek(0)
            lines += file.read().decode(errors="replace").splitlines()


def fallbacks(lines):
    return [line for line in lines if "go by way of the host" in line]


# ---- where it works ----


@on_cuda()
def test_values_of_all_sizes_arrive():
    with two_workers():
        use_nccl()
        before = there(counts)["nccl_receives"]
        sizes = [4, LARGE - 4, LARGE, MIB, 5 * MIB + 4, 33 * MIB, 3 * MIB] * 2
        for turn, size in enumerate(sizes):
            echo(numbers(size, turn))
        assert there(counts)["nccl_receives"] == before + 2 * sum(size >= LARGE for size in sizes)
        assert path_to("worker1")[0] == "nccl"
        await_nothing_kept()


@on_cuda()
def test_strides_survive():
    with two_workers():
        use_nccl()
        columns = numbers(MIB).reshape(-1, 64)
        for given in (columns.t(), columns.reshape(8, 16, -1, 2).to(memory_format=torch.channels_last)):
            back = there(itself, given.to("cuda:0"))
            assert back.stride() == given.stride() and back.cpu().equal(given)


def echo_from_several_threads(to="worker1"):
    def send(thread):
        for turn in range(6):
            sent = [numbers(size, 100 * thread + turn) for size in (MIB, LARGE, 2 * MIB + 4)]
            futures = [rpc.rpc_async(to, itself, (tensor.to("cuda:0"),)) for tensor in sent]
            assert all(future.wait().cpu().equal(tensor) for tensor, future in zip(sent, futures))

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(send, range(4)))  # raises what they have raised


@on_cuda()
def test_both_directions_at_once_from_several_threads():
    with two_workers():
        use_nccl()
        echo_from_several_threads()
        await_nothing_kept()


def worker1_sends_by_nccl():
    echo(numbers(LARGE), to="worker0")
    return path_to("worker0")[0] == "nccl"


background = []


def begin_echoes(to):
    background.append(concurrent.futures.ThreadPoolExecutor(1).submit(echo_from_several_threads, to))


def await_echoes():
    background.pop().result()


@on_cuda()
def test_workers_that_wait_with_all_their_threads_send_all_the_same():
    with two_workers(num_worker_threads=1):
        use_nccl()
        wait_until(lambda: there(worker1_sends_by_nccl))
        there(begin_echoes, "worker0")
        echo_from_several_threads()
        there(await_echoes)
        await_nothing_kept()


@on_cuda()
def test_several_tensors_of_one_message():
    with two_workers():
        use_nccl()
        given = {str(size): numbers(size, size).to("cuda:0") for size in (4, KIB, MIB, 2 * MIB, 3 * MIB)}
        for key, tensor in there(itself, given).items():
            assert tensor.cpu().equal(given[key].cpu())
        await_nothing_kept()


@on_cuda(MAX_DELAY_US=20000)
def test_a_tensor_that_has_been_sent_may_be_changed():
    with two_workers():
        use_nccl()
        for turn in range(5):
            first, second = numbers(MIB, turn), numbers(MIB, 100 + turn).to("cuda:0")
            tensor = first.to("cuda:0")
            future = rpc.rpc_async("worker1", itself, (tensor,))
            tensor.copy_(second)
            assert future.wait().cpu().equal(first)


@on_cuda()
def test_the_sender_waits_for_no_device():
    with two_workers():
        use_nccl()
        tensor = numbers(MIB).to("cuda:0")
        with held(0):
            future = rpc.rpc_async("worker1", itself, (tensor,))
            assert not future.done()  # and this process goes on
        assert future.wait().cpu().equal(tensor.cpu())


@on_cuda()
def test_values_of_rrefs():
    with two_workers():
        use_nccl()
        value = numbers(MIB)
        rref = rpc.remote("worker1", itself, (value.to("cuda:0"),))
        assert rref.to_here().cpu().equal(value)
        await_nothing_kept()


# ---- where it does not work ----


@on_cuda()
def test_a_communicator_that_cannot_be_made_at_the_receiver():
    expect_host(["nccl_init"], [], "nccl: ncclCommInitRankConfig failed: unhandled system error")


@on_cuda()
def test_a_communicator_that_cannot_be_made_at_the_sender():
    expect_host([], ["nccl_init"], "nccl: ncclCommInitRankConfig failed: unhandled system error")


@on_cuda()
def test_wrong_bytes_in_the_trial():
    expect_host(["nccl_wrong_bytes"], [], "nccl: other bytes came than were sent")


@on_cuda()
@pytest.mark.long
def test_a_first_transfer_that_fails():
    expect_host(["nccl_transfer"], [], "nccl: NCCL failed: remote process exited")


def expect_host(failures, failures_here, reason):
    with two_workers(failures=["ipc_open", *failures], failures_here=["ipc_open", *failures_here]):
        with log_lines() as lines:
            path, why = try_paths()
            assert (path, why.startswith(NO_IPC), reason in why) == ("host", True, True), why
            for size in (KIB, MIB, 5 * MIB):
                echo(numbers(size))
        assert len(fallbacks(lines)) == 1, lines
        await_nothing_kept()


@on_cuda()
def test_two_processes_on_one_gpu():
    with two_workers(maps={"worker1": {0: 0}}):
        tensor = numbers(LARGE).to("cuda:0")
        assert there(itself, tensor).cpu().equal(tensor.cpu())
        wait_until(lambda: not path_to("worker1")[1].endswith("is being tried"))
        assert path_to("worker1") == ("host", NO_IPC + "; nccl: both devices are one GPU")


@on_cuda()
def test_a_worker_without_the_option():
    with two_workers(there=False):
        assert try_paths() == ("host", NO_IPC + "; nccl: worker 'worker1' does not have the option nccl")
        echo(numbers(MIB))
        assert (counts()["nccl_loads"], there(counts)["nccl_loads"]) == (0, 0)


def remedies():
    import torchwire

    return {each.name: each.remedy for each in torchwire.explain("worker1").devices[0].not_taken}


@on_cuda()
def test_explain_says_what_would_help():
    with two_workers(there=False):
        try_paths()
        assert remedies() == {
            "ipc": "in containers share the host's IPC and PID namespaces (--ipc=host --pid=host)",
            "nccl": "give it nccl=True",
        }


@on_cuda()
def test_explain_says_how_to_have_a_path_that_was_left_out():
    with two_workers(_device_paths=["host"]):
        assert remedies() == dict.fromkeys(("ipc", "nccl"), "name it there, for both workers")


@on_cuda()
def test_this_worker_without_the_option():
    with two_workers(here=False):
        assert try_paths() == ("host", NO_IPC + "; nccl: worker 'worker0' does not have the option nccl")
        assert (counts()["nccl_loads"], there(counts)["nccl_loads"]) == (0, 0)


@on_cuda()
def test_nobody_has_the_option():
    with two_workers(here=False, there=False):
        assert try_paths() == ("host", NO_IPC)
        assert (counts()["nccl_loads"], there(counts)["nccl_loads"]) == (0, 0)


@on_cuda()
def test_where_ipc_works_it_is_used():
    with two_workers(failures=(), failures_here=()):
        assert try_paths() == ("ipc", "bytes have come through it")
        echo(numbers(MIB))
        assert (counts()["nccl_loads"], there(counts)["nccl_loads"]) == (0, 0)


# ---- what fails later ----


@on_cuda()
def test_a_transfer_that_fails_fails_its_calls_and_ends_the_lane():
    with two_workers():
        use_nccl()
        tensor = numbers(MIB).to("cuda:0")
        there(fail_next, "nccl_transfer", 1)
        with pytest.raises(
            RuntimeError, match="worker 'worker1' cannot put tensor 0 of worker 'worker0' on its cuda:1: NCCL failed"
        ):
            there(itself, tensor)
        wait_until(lambda: path_to("worker1")[0] == "host")
        assert there(itself, tensor).cpu().equal(tensor.cpu())
        await_nothing_kept()


@on_cuda()
def test_a_receiver_without_memory_keeps_the_path():
    with two_workers():
        use_nccl()
        tensor = numbers(30 * MIB).to("cuda:0")
        there(fail_next, "malloc", 2)
        with pytest.raises(RuntimeError, match="out of memory.* Free memory on that device, or map"):
            there(place_and_size, tensor)
        assert there(itself, tensor).cpu().equal(tensor.cpu())
        assert path_to("worker1")[0] == "nccl"
        await_nothing_kept()


@on_cuda()
def test_a_sender_without_memory_for_a_copy_goes_by_way_of_the_host():
    with two_workers():
        use_nccl()
        tensor = numbers(30 * MIB).to("cuda:0")
        fail_next("malloc", 2)
        before = there(counts)["nccl_receives"]
        assert there(place_and_values, tensor)[1].equal(tensor.cpu())
        assert there(counts)["nccl_receives"] == before
        assert path_to("worker1")[0] == "nccl"  # the next one finds memory
        echo(numbers(30 * MIB))
        await_nothing_kept()


@on_cuda()
def test_a_request_that_takes_too_long_to_copy_takes_its_ticket_back():
    with two_workers():
        use_nccl()
        await_nothing_kept()
        large, small = numbers(MIB).to("cuda:0"), numbers(KIB).to("cuda:0")
        library().torchwire_test_cuda_hold(0)
        threading.Timer(0.5, library().torchwire_test_cuda_release, (0,)).start()
        with pytest.raises(RuntimeError, match="RPC ran for more than set timeout"):
            rpc.rpc_sync("worker1", place_and_size, (large, small), timeout=0.1)
        await_nothing_kept()
        assert path_to("worker1")[0] == "nccl"


@contextlib.contextmanager
def worker1_to_be_killed():
    """This process as worker0; gives worker1's process."""
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_worker1, path, True, ["ipc_open"])
        fail_next("ipc_open", -1)
        start(0, path, nccl=True, device_maps={"worker1": {0: 1}, "worker0": {0: 1}})
        use_nccl()
        yield there(os.getpid)
        begun = time.monotonic()
        rpc.shutdown(graceful=False)
        assert time.monotonic() - begun < 10
        other.close()


def expect_devices_to_go_on():
    """All streams of both devices, the lanes' too."""
    for device in range(2):
        torch.cuda.synchronize(device)
    echo(numbers(MIB), to="worker0")
    assert kept() == 0


@on_cuda()
def test_a_receiver_that_is_killed_amid_a_transfer():
    with worker1_to_be_killed() as process:
        tensor = numbers(64 * MIB).to("cuda:0")
        with held(0):
            future = rpc.rpc_async("worker1", itself, (tensor,))
            time.sleep(0.3)  # the lane's stream is about to send
            os.kill(process, signal.SIGKILL)
            with pytest.raises(RuntimeError, match="worker1"):
                future.wait()
        wait_until(lambda: kept() == 0)
        expect_devices_to_go_on()


def held_answer(tensor):
    """The tensor, which this process's devices do not send for as long as it lives."""
    import cuda_stand_in

    cuda_stand_in.library().torchwire_test_cuda_hold(tensor.device.index)
    return tensor


@on_cuda()
def test_a_sender_that_is_killed_amid_a_transfer():
    with worker1_to_be_killed() as process:
        before = counts()["nccl_receives"]
        future = rpc.rpc_async("worker1", held_answer, (numbers(MIB).to("cuda:0"),))
        wait_until(lambda: counts()["nccl_receives"] > before)  # this worker's device waits for the elements
        time.sleep(0.1)
        assert not future.done()
        os.kill(process, signal.SIGKILL)
        with pytest.raises(
            RuntimeError, match="worker 'worker0' cannot put tensor 0 of worker 'worker1' on its cuda:0"
        ):
            future.wait()
        expect_devices_to_go_on()


@on_cuda()
def test_a_shutdown_amid_a_transfer():
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "store")
        other = peer(serve_worker1, path, True, ["ipc_open"])
        fail_next("ipc_open", -1)
        start(0, path, nccl=True, device_maps={"worker1": {0: 1}})
        use_nccl()
        before = counts()["nccl_receives"]
        process = there(os.getpid)
        future = rpc.rpc_async("worker1", held_answer, (numbers(MIB).to("cuda:0"),))
        wait_until(lambda: counts()["nccl_receives"] > before)
        begun = time.monotonic()
        rpc.shutdown(graceful=False)
        assert time.monotonic() - begun < 10
        with pytest.raises(RuntimeError):
            future.wait()
        torch.cuda.synchronize(0)
        os.kill(process, signal.SIGKILL)
        other.close()


# ---- what faults/test_device_mutations.py leaves out ----


def expect_noticed(left_out):
    os.environ["TORCHWIRE_TEST_LEAVE_OUT"] = left_out
    with two_workers():
        path, why = try_paths()
        if path == "host":
            assert "other bytes came than were sent" in why, why  # the trial has noticed
            return
        for turn in range(20):
            sent = [numbers(MIB, seed) for seed in range(turn, turn + 8)]
            futures = [rpc.rpc_async("worker1", itself, (tensor.to("cuda:0"),)) for tensor in sent]
            if not all(future.wait().cpu().equal(tensor) for tensor, future in zip(sent, futures)):
                return
    pytest.fail(f"no tensor was another than the one that was sent, though {left_out} is left out")


@on_cuda(MAX_DELAY_US=20000)
def notice_lane_behind_filling():
    expect_noticed("laneBehindFilling")


@on_cuda(MAX_DELAY_US=20000)
def notice_lane_kept_lent():
    expect_noticed("laneKeptLent")

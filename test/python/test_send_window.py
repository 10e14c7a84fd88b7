"""What is under way to one worker has a bound; what comes on top waits on the sender."""

import threading

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import wait_until

MIB = 1 << 20
BOUND = 8 * MIB  # fewer calls than a worker has threads
CALLS = 500

gate = threading.Event()  # of the worker that is called
calls = []  # of the worker that calls


def info(key):
    return int(rpc.api._get_current_rpc_agent().get_debug_info()[f"agent.{key}"])


def open_gate():
    gate.set()


def pass_gate(tensor):
    gate.wait()
    return int(tensor[0])


def begin(to, count, timeout=0):
    for number in range(count):
        tensor = torch.full((MIB // 8,), number)
        calls.append(rpc.rpc_async(to, pass_gate, (tensor,), timeout=timeout))


def results():
    return [call.wait() for call in calls]


@pytest.fixture
def group(tmp_path):
    with running(2, tmp_path, max_bytes_in_flight=BOUND) as workers:
        yield workers


def test_a_receiver_that_sleeps_gets_no_more_than_the_bound(group):
    group[0].run(begin, "worker1", CALLS)
    assert group[0].run(info, "requests_waiting") >= CALLS - BOUND // MIB
    assert group[0].run(info, "bytes_in_flight") <= BOUND
    assert group[1].run(info, "receive_buffers.bytes_lent") <= BOUND + MIB
    assert group[0].run(count_small_calls, "worker1") == 100  # which do not wait
    group[1].run(open_gate)
    assert group[0].run(results) == list(range(CALLS))
    assert group[0].run(info, "bytes_in_flight") == group[0].run(info, "requests_waiting") == 0


def count_small_calls(to):
    return sum(rpc.rpc_sync(to, len, ([1],)) for _ in range(100))


def first_results(count):
    return [call.wait() for call in calls[:count]]


def errors(first=0):
    texts = []
    for call in calls[first:]:
        with pytest.raises(RuntimeError) as raised:
            call.wait()
        texts.append(str(raised.value))
    return texts


def test_the_time_out_runs_while_a_request_waits(group):
    sent = BOUND // MIB - 1  # a request is larger than its tensor
    group[0].run(begin, "worker1", sent)
    group[0].run(begin, "worker1", 100, 0.5)
    texts = group[0].run(errors, sent)
    assert all("RPC ran for more than set timeout (500 ms)" in text for text in texts)
    assert all("has not been sent" in text and "max_bytes_in_flight" in text for text in texts)
    assert group[0].run(info, "requests_waiting") == 0
    group[1].run(open_gate)
    assert group[0].run(first_results, sent) == list(range(sent))
    assert group[0].run(info, "bytes_in_flight") == 0


def test_calls_fail_with_their_worker(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path), max_bytes_in_flight=BOUND)
        group[0].run(begin, "worker1", 100)
        group[1].kill()
        assert all("worker1" in text for text in group[0].run(errors))
        assert group[0].run(info, "requests_waiting") == 0
        group.kill()


def call_back(to, tensor):
    """Calls the caller with as much as the bound."""
    return rpc.rpc_sync(to, torch.sum, (tensor,)).item()


def sum_by_detour(count):
    tensor = torch.ones(BOUND // 4)
    futures = [rpc.rpc_async("worker1", call_back, ("worker0", tensor)) for _ in range(count)]
    return [future.wait() for future in futures]


def test_what_a_handler_sends_does_not_wait(group):
    assert group[0].run(sum_by_detour, 8) == [BOUND // 4] * 8


def sum_of_own(count):
    tensor = torch.ones(MIB)
    futures = [rpc.rpc_async("worker0", torch.sum, (tensor,)) for _ in range(count)]
    return sum(future.wait().item() for future in futures)


def test_calls_to_oneself_wait_too(group):
    assert group[0].run(sum_of_own, 50) == 50 * MIB


def test_no_bound(tmp_path):
    with running(2, tmp_path, max_bytes_in_flight=0) as group:
        group[0].run(begin, "worker1", 50)
        wait_until(lambda: group[1].run(info, "receive_buffers.bytes_lent") >= 50 * MIB)
        assert "agent.requests_waiting" not in group[0].run(keys)
        group[1].run(open_gate)
        assert group[0].run(results) == list(range(50))


def test_programs_with_options_of_pytorch_have_none():
    stock = rpc.TensorPipeRpcBackendOptions(init_method="env://")
    assert torchwire.options.from_any(stock).max_bytes_in_flight == 0


def keys():
    return list(rpc.api._get_current_rpc_agent().get_debug_info())

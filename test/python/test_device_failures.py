"""What fails around tensors on devices fails where it should, in words, and nothing else does. On the stand-in
accelerator."""

import contextlib
import time

import accelerator
import device_kind
import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from device_bodies import double, expect, filled
from raising_function import Raises
from test_devices import maps_for, pair_with

pytestmark = pytest.mark.skipif(not device_kind.IS_STANDIN, reason="provokes failures of the stand-in accelerator")

OPTIONS = [{"device_maps": maps_for(rank, "crossing"), "rpc_timeout": 20} for rank in range(2)]


@pytest.fixture(scope="module")
def shared(tmp_path_factory, accelerator_file):
    with pair_with(tmp_path_factory.mktemp("devices"), *OPTIONS) as group:
        yield group


@pytest.fixture
def pair(tmp_path, accelerator_file):
    """A group of its own, which must be able to shut down."""
    with pair_with(tmp_path, *OPTIONS) as group:
        yield group


def message_of(function, *arguments):
    try:
        result = function(*arguments)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return f"no error, but {result}"


# ---- backward passes ----


def raise_in_function(tensor):
    return Raises.apply(tensor, "the user's function raised")


def raise_in_hook(tensor):
    def hook(gradient):
        raise ValueError("the user's hook raised")

    result = tensor * 2
    result.register_hook(hook)
    return result


def backward_through(function, where):
    """What a pass raises whose graph on `where` has such a function."""
    weight = torch.ones(3, device="standin:0", requires_grad=True)
    with dist_autograd.context() as context:
        there = rpc.rpc_sync("worker1", double, (function(weight),)) if where == "here" else None
        there = rpc.rpc_sync("worker1", function, (weight,)) if there is None else there
        return message_of(dist_autograd.backward, context, [there.sum()])


@pytest.mark.parametrize("where", ["here", "there"])
@pytest.mark.parametrize("function", [raise_in_function, raise_in_hook])
def test_what_raises_on_a_device_ends_the_pass(shared, function, where):
    message = shared[0].run(backward_through, function, where)
    raised = "the user's function raised" if function is raise_in_function else "the user's hook raised"
    assert raised in message
    assert f"on worker '{'worker0' if where == 'here' else 'worker1'}'" in message


class LosesDevice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor):
        return tensor * 2

    @staticmethod
    def backward(ctx, gradient):
        rpc.rpc_sync("worker0", lose, (2,))
        return gradient * 2


def lose(device):
    accelerator.load().fail_next("work", device)
    with contextlib.suppress(RuntimeError):
        torch.ones(3, device=f"standin:{device}").cpu()


def recover(device):
    accelerator.load().recover(device)


def lose_device_in_other_backward(tensor):
    return LosesDevice.apply(tensor)


def backward_that_loses_a_device():
    weight = torch.ones(3, device="standin:0", requires_grad=True)
    other = torch.ones(3, device="standin:2", requires_grad=True)
    with dist_autograd.context() as context:
        with torch.standin.stream(torch.Stream("standin:2")):
            here = (other * 2).sum().cpu()
        there = rpc.rpc_sync("worker1", lose_device_in_other_backward, (weight,)).sum().cpu()
        message = message_of(dist_autograd.backward, context, [there + here])
    recover(2)
    return message


def test_a_device_lost_in_a_backward_pass_ends_it(pair):
    message = pair[0].run(backward_that_loses_a_device)
    assert "standin:2 is lost" in message and "Exception raised from" not in message
    pair[0].run(call_with_other_devices)


def call_with_other_devices():
    for device in ("standin:0", "standin:1"):
        expect(rpc.rpc_sync("worker1", double, (filled(1, device),)), 2, device)
    assert rpc.rpc_sync("worker1", torch.add, (torch.ones(2), 1)).tolist() == [2, 2]


def test_gradients_find_the_device_of_their_tensor(tmp_path, accelerator_file):
    with pair_with(tmp_path, {"device_maps": {"worker1": {"cpu": "standin:0"}}}, {}) as group:
        assert group[0].run(gradient_of_tensor_kept_on_cpu) == [3, 3]


kept = None


def multiply_by_kept(tensor):
    """The argument has come to a device; the result is on the CPU, as what is kept."""
    return kept_here() * tensor.cpu()


def kept_here():
    global kept
    if kept is None:
        kept = torch.full((2,), 3.0, requires_grad=True)
    return kept


def gradient_of_tensor_kept_on_cpu():
    weight = torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync("worker1", multiply_by_kept, (weight,)).sum()])
        return dist_autograd.get_gradients(context)[weight].tolist()


# ---- requests ----


def calls_on_a_device_that_is_lost():
    """The callee's device is lost as the request comes; each kind of call must end."""
    messages = []
    for call in (
        lambda tensor: rpc.rpc_sync("worker1", double, (tensor,)),
        lambda tensor: rpc.rpc_async("worker1", double, (tensor,)).wait(),
        lambda tensor: rpc.rpc_sync("worker1", torch.mul, (tensor, 2)),
    ):
        tensor = filled(1, "standin:0")
        tensor.cpu()
        rpc.rpc_sync("worker1", fail_next_work, (1,))
        messages.append(message_of(call, tensor))
        rpc.rpc_sync("worker1", recover, (1,))
    return messages


def fail_next_work(device):
    accelerator.load().fail_next("work", device)


def test_a_device_lost_during_a_request_fails_that_request(pair):
    for message in pair[0].run(calls_on_a_device_that_is_lost):
        assert "standin:1 is lost" in message or "has no result for the call" in message
    pair[0].run(call_with_other_devices)


def remote_without_memory(in_context, function):
    with dist_autograd.context() if in_context else contextlib.nullcontext():
        given = filled(1, "standin:0").requires_grad_(in_context)
        rpc.rpc_sync("worker1", fail_next_allocation, (1,))
        return message_of(rpc.remote("worker1", function, (given,), timeout=5).to_here, 5)


def fail_next_allocation(device):
    accelerator.load().fail_next("allocation", device)


@pytest.mark.parametrize("function", [double, torch.neg], ids=["python", "builtin"])
@pytest.mark.parametrize("in_context", [False, True], ids=["alone", "in_context"])
def test_an_rref_without_memory_for_its_arguments_fails_and_shutdown_works(pair, in_context, function):
    message = pair[0].run(remote_without_memory, in_context, function)
    assert "worker 'worker1' cannot put tensor 0" in message and "out of memory" in message
    pair[0].run(call_with_other_devices)


def nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])
    message = message_of(rpc.rpc_sync, "worker1", torch.add, (nested, 1))
    return message, rpc._get_current_rpc_agent().get_debug_info()["agent.client_active_calls"]


def test_a_request_that_cannot_be_encoded_leaves_no_trace(pair):
    message, active = pair[0].run(nested_tensor_is_refused)
    assert "cannot send a nested tensor over RPC" in message
    assert active == "0"


@rpc.functions.async_execution
def drop_the_future():
    return torch.futures.Future()


def test_a_future_that_is_dropped_is_answered(pair):
    message = pair[0].run(message_of, rpc.rpc_sync, "worker1", drop_the_future)
    assert "worker 'worker1' has no result for the call" in message


# ---- time ----

calls_served = 0


def count_call(tensor):
    global calls_served
    calls_served += 1


def count_of_calls():
    return calls_served


def calls_that_time_out_while_their_copies_wait():
    tensors = [filled(1, "standin:0") for _ in range(3)]
    with accelerator.held(0):
        futures = [rpc.rpc_async("worker1", count_call, (tensor,), timeout=0.2) for tensor in tensors]
        messages = [message_of(future.wait) for future in futures]
    rpc.rpc_sync("worker1", double, (filled(1, "standin:0"),))  # the copies have ended by then
    return messages, rpc.rpc_sync("worker1", count_of_calls)


def test_a_call_that_has_timed_out_is_not_sent(pair):
    messages, served = pair[0].run(calls_that_time_out_while_their_copies_wait)
    assert all("RPC ran for more than set timeout (200 ms)" in message for message in messages)
    assert served == 0


def sync_call_behind_a_busy_device():
    tensor = filled(1, "standin:0")
    accelerator.load().hold(0)
    try:
        releaser = torch.futures.Future()
        rpc.rpc_async("worker1", time.sleep, (0.5,)).then(lambda done: release(releaser))
        return message_of(lambda: rpc.rpc_sync("worker1", double, (tensor,), timeout=0.1))
    finally:
        releaser.wait()


def release(done):
    accelerator.load().release(0)
    done.set_result(None)


def test_the_time_that_a_device_takes_counts(pair):
    assert "RPC ran for more than set timeout (100 ms)" in pair[0].run(sync_call_behind_a_busy_device)


def calls_beside_a_busy_device():
    tensors = [filled(1, "standin:0") for _ in range(16)]
    free = filled(1, "standin:2")
    with accelerator.held(0):
        behind = [rpc.rpc_async("worker1", double, (tensor,)) for tensor in tensors]
        expect(rpc.rpc_async("worker1", double, (free,)).wait(), 2, "standin:2")
    for future in behind:
        expect(future.wait(), 2, "standin:0")


def test_calls_with_other_devices_do_not_wait_for_a_busy_one(shared):
    shared[0].run(calls_beside_a_busy_device)


# ---- what tensors are made of ----


def views_and_bits():
    base = filled(1, "standin:0", 8)
    complexes = torch.complex(base, base)
    for tensor in (base.expand(4, 8), base[::2], complexes.conj(), complexes.conj().imag, base[:0]):
        back = rpc.rpc_sync("worker1", torch.clone, (tensor,))
        assert back.shape == tensor.shape
        assert back.cpu().resolve_conj().resolve_neg().equal(tensor.cpu().resolve_conj().resolve_neg())


def test_views_and_lazy_bits_come_whole(shared):
    shared[0].run(views_and_bits)


def bytes_of_an_expanded_tensor():
    agent = rpc._get_current_rpc_agent()
    tensor = torch.ones(1, device="standin:0").expand(1 << 20)
    before = int(agent.peers()[0]["bytes_sent"])
    rpc.rpc_sync("worker1", count_call, (tensor,))
    return int(agent.peers()[0]["bytes_sent"]) - before


def test_what_an_expanded_tensor_repeats_is_not_sent(shared):
    assert shared[0].run(bytes_of_an_expanded_tensor) < 10_000

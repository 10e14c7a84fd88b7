"""What workers do in test_devices.py: calls whose tensors are on devices, with results that are poison where somebody
has not waited for a stream. On the stand-in accelerator, or on CUDA (device_kind.py)."""

import contextlib
import threading
import time

import accelerator
import device_kind
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from device_load import late
from torch import nn
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.optim import DistributedOptimizer

SIZE = 1024  # a power of two: what is computed with it is exact
_TOO_MUCH = SIZE if device_kind.IS_STANDIN else 1 << 24  # more than CUDA's allocator keeps for small tensors
MAPS = device_kind.maps()
FIRST, SECOND, LAST = device_kind.first(), device_kind.second(), device_kind.last()


def filled(value, device, size=SIZE):
    """Written some time later, by the device."""
    late(device, size)
    return torch.zeros(size, device=device) + value


def expect(tensor, value, device):
    assert str(tensor.device) == device, tensor.device
    got = tensor.cpu()
    assert got.eq(value).all(), f"{got[got != value][:3]} and not {value}"


@contextlib.contextmanager
def on_stream_of_its_own(device):
    with device_kind.module().stream(device_kind.module().Stream(device)):
        yield


# ---- functions that others call ----


def double(tensor):
    late(tensor.device)
    return tensor * 2


def where(tensor):
    late(tensor.device)
    return str(tensor.device), tensor + 1


def on_other_stream(tensor):
    """Returns what a stream of this function's own has computed, behind the one that the tensor came on."""
    stream = device_kind.module().Stream(tensor.device)
    stream.wait_stream(device_kind.module().current_stream(tensor.device))
    with device_kind.module().stream(stream):
        late(tensor.device)
        result = tensor * 2
    device_kind.module().current_stream(tensor.device).wait_stream(stream)
    tensor.record_stream(stream)
    return result


def back_and_forth(tensor, to, hops):
    if hops == 0:
        return tensor + 1
    me = rpc.get_worker_info().name
    return rpc.rpc_sync(to, back_and_forth, (tensor * 2, me, hops - 1))


@rpc.functions.async_execution
def double_later(tensor, to):
    return rpc.rpc_async(to, double, (tensor,)).then(lambda done: done.wait() + 1)


@torch.jit.script
def scripted(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 3


class Cell:
    def __init__(self, tensor):
        late(tensor.device)
        self.tensor = tensor + 1

    def times(self, other):
        return self.tensor * other


class Layer(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 2.0, device=device))

    def forward(self, tensor):
        late(tensor.device)
        return tensor * self.weight


def weight_of(layer):
    return layer.local_value().weight.detach()


# ---- programs of worker0 ----


def call_functions(to):
    for device, there in MAPS.items():
        value = filled(3, device)
        expect(rpc.rpc_sync(to, double, (value,)), 6, device)
        name, result = rpc.rpc_sync(to, where, (value,))
        assert name == there
        expect(result, 4, device)
        expect(rpc.rpc_sync(to, on_other_stream, (value,)), 6, device)
        expect(rpc.rpc_sync(to, torch.add, (value, 1)), 4, device)
        expect(rpc.rpc_sync(to, scripted, (value,)), 9, device)
        expect(rpc.rpc_sync(to, double_later, (value, "worker0")), 7, device)
        expect(rpc.rpc_sync(to, back_and_forth, (value, "worker0", 3)), 25, device)


def call_from_other_streams(to):
    futures = []
    for number in range(8):
        device = (FIRST, SECOND)[number % 2]
        with on_stream_of_its_own(device):
            futures.append((device, number, rpc.rpc_async(to, double, (filled(number, device),))))
    for device, number, future in futures:
        with on_stream_of_its_own(device):
            expect(future.wait() + 1, 2 * number + 1, device)


def chain_futures(to):
    future = rpc.rpc_async(to, double, (filled(3, SECOND),)).then(lambda done: done.wait() + 1)
    expect(future.wait(), 7, SECOND)


def use_rrefs(to):
    value = filled(3, FIRST)
    rref = rpc.remote(to, double, (value,))
    # The owner itself has the value where it is.
    here = MAPS[FIRST] if to == rpc.get_worker_info().name else FIRST
    expect(rref.to_here(), 6, here)
    expect(rpc.remote(to, torch.add, (value, 1)).to_here(), 4, here)
    expect(rpc.remote(to, scripted, (value,)).to_here(), 9, here)
    cell = rpc.remote(to, Cell, (value,))
    expect(cell.rpc_sync().times(filled(2, FIRST)), 8, FIRST)
    expect(cell.rpc_async().times(filled(3, FIRST)).wait(), 12, FIRST)
    expect(cell.remote().times(filled(4, FIRST)).to_here(), 16, here)


def use_remote_module(to):
    module = RemoteModule(f"{to}/{SECOND}", Layer, (SIZE, SECOND))
    expect(module.forward(filled(3, FIRST)), 6, FIRST)
    expect(module.forward_async(filled(4, FIRST)).wait(), 8, FIRST)


def backward(to):
    for device in (FIRST, SECOND):
        weight = filled(3, device).requires_grad_()
        with dist_autograd.context() as context:
            there = rpc.rpc_sync(to, double, (weight,))
            twice = rpc.rpc_sync(to, torch.mul, (there, weight))
            loss = twice.sum()
            dist_autograd.backward(context, [loss])
            expect(dist_autograd.get_gradients(context)[weight], 12, device)


def backward_with_one_gradient_for_two(to):
    """Of a sum, whose inputs get the same tensor as their gradient."""
    first, second = filled(3, FIRST).requires_grad_(), filled(4, FIRST).requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync(to, torch.add, (first, second)).sum()])
        gradients = dist_autograd.get_gradients(context)
        expect(gradients[first], 1, FIRST)
        expect(gradients[second], 1, FIRST)


def backward_through_three(to):
    weight = filled(3, FIRST).requires_grad_()
    with dist_autograd.context() as context:
        result = rpc.rpc_sync(to, back_and_forth, (weight, "worker0", 2))
        dist_autograd.backward(context, [result.sum()])
        expect(dist_autograd.get_gradients(context)[weight], 4, FIRST)


def train(to):
    """A parameter server: what comes of it is what the same steps make here."""
    module = RemoteModule(f"{to}/{SECOND}", Layer, (SIZE, SECOND))
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.5 / SIZE)
    expected = 2.0
    for step in range(4):
        with dist_autograd.context() as context:
            output = module.forward(filled(step, FIRST))
            dist_autograd.backward(context, [(output * SIZE).sum()])
            optimizer.step(context)
        expected -= 0.5 * step
    expect(rpc.rpc_sync(to, weight_of, (module.get_module_rref(),)), expected, FIRST)


def send_tensors_that_share(to):
    base = filled(1, FIRST, 64)
    views = (base[:32], base[32:], base.view(8, 8).t(), base[::2])
    for view, result in zip(views, rpc.rpc_sync(to, list, (views,))):
        assert view.shape == result.shape
        expect(result, 1, FIRST)


def fill_up(device):
    """The next tensor of _TOO_MUCH elements that is to be put there finds no memory."""
    if device_kind.IS_STANDIN:
        import accelerator

        accelerator.load().fail_next("allocation", torch.device(device).index)
    else:
        torch.cuda.empty_cache()
        torch.cuda.set_per_process_memory_fraction(0.0, device)


def make_room(device):
    if not device_kind.IS_STANDIN:
        torch.cuda.set_per_process_memory_fraction(1.0, device)


def to_cpu_and_back(to):
    """With a map from a device to the CPU: the callee sees CPU tensors, and what it returns comes to the device."""
    name, result = rpc.rpc_sync(to, where, (filled(3, LAST),))
    assert name == "cpu"
    expect(result, 4, LAST)
    weight = filled(3, LAST).requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync(to, double, (weight,)).sum()])
        expect(dist_autograd.get_gradients(context)[weight], 2, LAST)


def to_device_and_back(to):
    """With a map from the CPU to a device."""
    name, result = rpc.rpc_sync(to, where, (torch.ones(3),))
    assert name == LAST
    assert str(result.device) == "cpu" and result.tolist() == [2, 2, 2]
    weight = torch.ones(3, requires_grad=True)
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync(to, double, (weight,)).sum()])
        assert dist_autograd.get_gradients(context)[weight].tolist() == [2, 2, 2]


def error_of(call):
    try:
        call()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def return_unmapped():
    return torch.ones(3, device=LAST)


@torch.jit.script
def make_on(device: str) -> torch.Tensor:
    return torch.ones(3, device=device)


def send_unmapped(to):
    unmapped = torch.ones(3, device=LAST)
    return [
        error_of(lambda: rpc.rpc_sync(to, double, (unmapped,))),
        error_of(lambda: rpc.rpc_async(to, torch.add, (unmapped, 1))),
        error_of(lambda: rpc.remote(to, double, (unmapped,))),
        error_of(lambda: rpc.rpc_sync(to, return_unmapped)),
        error_of(lambda: rpc.remote(to, return_unmapped).to_here()),
        error_of(lambda: rpc.rpc_sync(to, torch.ones, ([3],), {"device": torch.device(LAST)})),
        error_of(lambda: rpc.rpc_sync(to, make_on, (LAST,))),
    ]


def send_to_full_device(to):
    full = MAPS[FIRST]
    value = filled(3, FIRST, _TOO_MUCH)
    rpc.rpc_sync(to, fill_up, (full,))
    error = error_of(lambda: rpc.rpc_sync(to, double, (value,)))
    rpc.rpc_sync(to, make_room, (full,))
    call_functions(to)  # the others are unharmed
    return error


PROGRAMS = (
    call_functions,
    call_from_other_streams,
    chain_futures,
    use_rrefs,
    use_remote_module,
    backward,
    backward_with_one_gradient_for_two,
    backward_through_three,
    send_tensors_that_share,
)

# With device_stream_order="default_stream" only.
ORDERED_PROGRAMS = (train,)


# ---- memory that is given back while somebody still reads it ----

_held = []


def double_on_held_stream(tensor):
    """Returns at once; the device begins when release_held() says so."""
    stream = device_kind.module().current_stream(tensor.device)
    accelerator.load().hold(tensor.device.index, stream.stream_id)
    _held.append((tensor.device, stream.stream_id, tensor * 2))


def release_held(in_order=False):
    device, stream, result = _held.pop()
    accelerator.load().release(device.index, stream)
    if not in_order:
        device_kind.module().synchronize(device)  # this function's stream is another one
    expect(result, 6, str(device))


def drop_what_a_request_still_reads(to, in_order=False):
    with on_stream_of_its_own(FIRST), on_stream_of_its_own(MAPS[FIRST]):
        rpc.rpc_sync(to, double_on_held_stream, (filled(3, FIRST),))
        for _ in range(8):
            filled(9, MAPS[FIRST]).cpu()
    rpc.rpc_sync(to, release_held, (in_order,))


def read_what_a_request_still_writes(to):
    drop_what_a_request_still_reads(to, in_order=True)


# ---- what has to wait for what a held stream has still to do ----

_state = []  # of which nothing is dropped, since streams that its memory does not know read it


def hold_stream(device, stream):
    accelerator.load().hold(torch.device(device).index, stream)


def release_stream(device, stream):
    accelerator.load().release(torch.device(device).index, stream)


def hold_default_stream(device):
    """What is in the state then is only written once release_default_stream() has said so."""
    hold_stream(device, device_kind.module().default_stream(device).stream_id)
    _state.append(torch.zeros(SIZE, device=device) + 5)


def release_default_stream(device):
    release_stream(device, device_kind.module().default_stream(device).stream_id)


def add_state(tensor):
    return tensor + _state[-1]


def give_it_time(is_over):
    """Who does not wait has a moment to go wrong."""
    end = time.monotonic() + 0.3
    while not is_over() and time.monotonic() < end:
        time.sleep(0.005)


def call_beside_a_held_default_stream(to):
    """As one that waits in a collective, which the caller joins after its call."""
    if to == rpc.get_worker_info().name:
        return  # the caller's current stream is the one that is held, and what it sends is copied behind that
    given = filled(3, FIRST)
    rpc.rpc_sync(to, hold_default_stream, (MAPS[FIRST],))
    future = rpc.rpc_async(to, double, (given,))
    expect(future.wait(), 6, FIRST)
    rpc.rpc_sync(to, release_default_stream, (MAPS[FIRST],))


def use_what_an_earlier_request_has_left(to):
    given = filled(1, FIRST)
    rpc.rpc_sync(to, hold_default_stream, (MAPS[FIRST],))
    future = rpc.rpc_async(to, add_state, (given,))
    give_it_time(future.done)
    rpc.rpc_sync(to, release_default_stream, (MAPS[FIRST],))
    expect(future.wait(), 6, FIRST)


def drop_what_is_not_copied_yet(to):
    if to == rpc.get_worker_info().name:
        return  # the default streams wait for the copy, so that nobody writes where the tensor was
    value = filled(3, FIRST)
    module, device = device_kind.module(), torch.device(FIRST)
    module.synchronize(device)
    with on_stream_of_its_own(FIRST):
        stream = module.current_stream(FIRST).stream_id
        accelerator.load().hold(device.index, stream)
        future = rpc.rpc_async(to, double, (value,))
        del value
    others = [filled(9, FIRST) for _ in range(8)]  # where the dropped tensor was, unless its memory is still in use
    assert all((other.cpu() == 9).all() for other in others)
    accelerator.load().release(device.index, stream)
    expect(future.wait(), 6, FIRST)


def use_gradients_on_another_stream(_to):
    weight = filled(1, FIRST).requires_grad_()
    loss = (weight * 3).sum()
    with dist_autograd.context() as context, on_stream_of_its_own(FIRST):
        hold_default_stream(FIRST)
        dist_autograd.backward(context, [loss])
        result = dist_autograd.get_gradients(context)[weight] * 2
        give_it_time(device_kind.module().current_stream(FIRST).record_event().query)
        release_default_stream(FIRST)
        expect(result, 6, FIRST)


# ---- requests that wait for the owner of an RRef; see faults/test_fault_devices.py ----


def not_confirmed(owner):
    """An RRef that is new to whoever gets it as an argument, whose owner hears of it late."""
    rref = rpc.remote(owner, int, (5,))
    rref.to_here()
    return rref


def times_state(tensor, _rref):
    return tensor * _state[-1]


def write_state_on_held_stream(tensor, _rref):
    stream = device_kind.module().current_stream(tensor.device).stream_id
    hold_stream(tensor.device, stream)
    _state[-1].copy_(tensor)
    return stream


def read_what_a_request_that_has_waited_writes(owner):
    me, here = rpc.get_worker_info().name, device_kind.module()
    _state.append(filled(2, MAPS[FIRST]))
    here.synchronize(MAPS[FIRST])
    stream = rpc.rpc_sync(me, write_state_on_held_stream, (filled(3, FIRST), not_confirmed(owner)))
    read = _state[-1] + 0
    give_it_time(here.default_stream(MAPS[FIRST]).query)
    release_stream(MAPS[FIRST], stream)
    expect(read, 3, MAPS[FIRST])


def write_what_a_request_that_waits_reads(owner):
    _state.append(filled(2, MAPS[FIRST]))
    device_kind.module().synchronize(MAPS[FIRST])
    future = rpc.rpc_async(rpc.get_worker_info().name, times_state, (filled(3, FIRST), not_confirmed(owner)))
    wait_for_debug_info(lambda info: info["agent.server_active_async_calls"] == "1")
    hold_stream(MAPS[FIRST], device_kind.module().default_stream(MAPS[FIRST]).stream_id)
    _state[-1].add_(1)
    give_it_time(future.done)
    release_default_stream(MAPS[FIRST])
    expect(future.wait(), 9, FIRST)


WAITING_PROGRAMS = (read_what_a_request_that_has_waited_writes, write_what_a_request_that_waits_reads)

# On the stand-in accelerator only.
HOLDING_PROGRAMS = (
    drop_what_a_request_still_reads,
    drop_what_is_not_copied_yet,
    use_gradients_on_another_stream,
)
UNORDERED_HOLDING_PROGRAMS = (call_beside_a_held_default_stream,)
ORDERED_HOLDING_PROGRAMS = (use_what_an_earlier_request_has_left, read_what_a_request_still_writes)


def run(name, to):
    return globals()[name](to)


# ---- calls to oneself, and what is said of paths ----


def wait_count_of_a_call_to_oneself():
    """How often the host has waited for a device while a tensor went to this worker and back."""
    me = rpc.get_worker_info().name
    given = filled(1, FIRST)
    module = accelerator.load()
    torch.standin.synchronize(0)
    module.reset_waits()
    back = rpc.rpc_async(me, double, (given,)).wait()
    given.zero_()  # what has been sent is what it was
    waits = sum(count for kinds in module.stats()["waits"].values() for count in kinds.values())
    expect(back, 2, FIRST)
    return waits


_may_end = threading.Event()
_has_ended = threading.Event()


def double_when_told(tensor):
    _may_end.wait(60)
    _has_ended.set()
    return tensor * 2


def tensors_kept_after_a_late_result():
    me = rpc.get_worker_info().name
    future = rpc.rpc_async(me, double_when_told, (filled(1, FIRST),), timeout=0.1)
    with contextlib.suppress(RuntimeError):
        future.wait()
    _may_end.set()
    _has_ended.wait(60)
    rpc.rpc_sync(me, double, (filled(1, FIRST),))
    info = wait_for_debug_info(lambda info: is_idle(info) and info["agent.device_tensors_kept"] == "0")
    _may_end.clear()
    _has_ended.clear()
    return info["agent.device_tensors_kept"]


def is_idle(info):
    """Whether all requests have ended: of one whose function has returned, the result may be yet to come."""
    return info["agent.num_idle_threads"] == info["agent.thread_pool_size"]


def wait_for_debug_info(condition):
    """The agent's, when it is so, or as it is after 30 s."""
    agent = rpc._get_current_rpc_agent()
    deadline = time.monotonic() + 30
    while not condition(info := agent.get_debug_info()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return info


def explanations():
    return [str(torchwire.explain(worker)) for worker in ("worker1", "worker0")]

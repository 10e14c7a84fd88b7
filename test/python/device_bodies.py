"""What workers with the stand-in accelerator do in test_devices.py: calls whose tensors are on devices, with results
that are poison where somebody has not waited for a stream."""

import contextlib
import threading
import time

import accelerator
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from torch import nn
from torch.distributed.nn.api.remote_module import RemoteModule
from torch.distributed.optim import DistributedOptimizer

import torchwire

SIZE = 1024  # a power of two: what is computed with it is exact
MAPS = {"standin:0": "standin:1", "standin:1": "standin:0", "standin:2": "standin:2"}


def filled(value, device, size=SIZE):
    """Written some time later, by the device."""
    return torch.zeros(size, device=device) + value


def expect(tensor, value, device):
    assert str(tensor.device) == device, tensor.device
    got = tensor.cpu()
    assert got.eq(value).all(), f"{got[got != value][:3]} and not {value}"


@contextlib.contextmanager
def on_stream_of_its_own(device):
    with torch.standin.stream(torch.Stream(device)):
        yield


# ---- functions that others call ----


def double(tensor):
    return tensor * 2


def where(tensor):
    return str(tensor.device), tensor + 1


def on_other_stream(tensor):
    """Returns what a stream of this function's own has computed, behind the one that the tensor came on."""
    stream = torch.Stream(tensor.device)
    stream.wait_stream(torch.standin.current_stream(tensor.device))
    with torch.standin.stream(stream):
        result = tensor * 2
    torch.standin.current_stream(tensor.device).wait_stream(stream)
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
        self.tensor = tensor + 1

    def times(self, other):
        return self.tensor * other


class Layer(nn.Module):
    def __init__(self, size, device):
        super().__init__()
        self.weight = nn.Parameter(torch.full((size,), 2.0, device=device))

    def forward(self, tensor):
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
        device = f"standin:{number % 2}"
        with on_stream_of_its_own(device):
            futures.append((device, number, rpc.rpc_async(to, double, (filled(number, device),))))
    for device, number, future in futures:
        with on_stream_of_its_own(device):
            expect(future.wait() + 1, 2 * number + 1, device)


def chain_futures(to):
    future = rpc.rpc_async(to, double, (filled(3, "standin:1"),)).then(lambda done: done.wait() + 1)
    expect(future.wait(), 7, "standin:1")


def use_rrefs(to):
    value = filled(3, "standin:0")
    rref = rpc.remote(to, double, (value,))
    # The owner itself has the value where it is.
    here = MAPS["standin:0"] if to == rpc.get_worker_info().name else "standin:0"
    expect(rref.to_here(), 6, here)
    expect(rpc.remote(to, torch.add, (value, 1)).to_here(), 4, here)
    expect(rpc.remote(to, scripted, (value,)).to_here(), 9, here)
    cell = rpc.remote(to, Cell, (value,))
    expect(cell.rpc_sync().times(filled(2, "standin:0")), 8, "standin:0")
    expect(cell.rpc_async().times(filled(3, "standin:0")).wait(), 12, "standin:0")
    expect(cell.remote().times(filled(4, "standin:0")).to_here(), 16, here)


def use_remote_module(to):
    module = RemoteModule(f"{to}/standin:1", Layer, (SIZE, "standin:1"))
    expect(module.forward(filled(3, "standin:0")), 6, "standin:0")
    expect(module.forward_async(filled(4, "standin:0")).wait(), 8, "standin:0")


def backward(to):
    for device in ("standin:0", "standin:1"):
        weight = filled(3, device).requires_grad_()
        with dist_autograd.context() as context:
            there = rpc.rpc_sync(to, double, (weight,))
            twice = rpc.rpc_sync(to, torch.mul, (there, weight))
            loss = twice.sum()
            dist_autograd.backward(context, [loss])
            expect(dist_autograd.get_gradients(context)[weight], 12, device)


def backward_through_three(to):
    weight = filled(3, "standin:0").requires_grad_()
    with dist_autograd.context() as context:
        result = rpc.rpc_sync(to, back_and_forth, (weight, "worker0", 2))
        dist_autograd.backward(context, [result.sum()])
        expect(dist_autograd.get_gradients(context)[weight], 4, "standin:0")


def train(to):
    """A parameter server: what comes of it is what the same steps make here."""
    module = RemoteModule(f"{to}/standin:1", Layer, (SIZE, "standin:1"))
    optimizer = DistributedOptimizer(torch.optim.SGD, module.remote_parameters(), lr=0.5 / SIZE)
    expected = 2.0
    for step in range(4):
        with dist_autograd.context() as context:
            output = module.forward(filled(step, "standin:0"))
            dist_autograd.backward(context, [(output * SIZE).sum()])
            optimizer.step(context)
        expected -= 0.5 * step
    expect(rpc.rpc_sync(to, weight_of, (module.get_module_rref(),)), expected, "standin:0")


def send_tensors_that_share(to):
    base = filled(1, "standin:0", 64)
    views = (base[:32], base[32:], base.view(8, 8).t(), base[::2])
    for view, result in zip(views, rpc.rpc_sync(to, list, (views,))):
        assert view.shape == result.shape
        expect(result, 1, "standin:0")


def fail_next(kind, device):
    torchwire_accelerator().fail_next(kind, device)


def torchwire_accelerator():
    import accelerator

    return accelerator.load()


def to_cpu_and_back(to):
    """With a map from a device to the CPU: the callee sees CPU tensors, and what it returns comes to the device."""
    name, result = rpc.rpc_sync(to, where, (filled(3, "standin:3"),))
    assert name == "cpu"
    expect(result, 4, "standin:3")
    weight = filled(3, "standin:3").requires_grad_()
    with dist_autograd.context() as context:
        dist_autograd.backward(context, [rpc.rpc_sync(to, double, (weight,)).sum()])
        expect(dist_autograd.get_gradients(context)[weight], 2, "standin:3")


def to_device_and_back(to):
    """With a map from the CPU to a device."""
    name, result = rpc.rpc_sync(to, where, (torch.ones(3),))
    assert name == "standin:3"
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
    return torch.ones(3, device="standin:3")


def send_unmapped(to):
    unmapped = torch.ones(3, device="standin:3")
    return [
        error_of(lambda: rpc.rpc_sync(to, double, (unmapped,))),
        error_of(lambda: rpc.rpc_async(to, torch.add, (unmapped, 1))),
        error_of(lambda: rpc.remote(to, double, (unmapped,))),
        error_of(lambda: rpc.rpc_sync(to, return_unmapped)),
        error_of(lambda: rpc.remote(to, return_unmapped).to_here()),
    ]


def send_to_full_device(to):
    rpc.rpc_sync(to, fail_next, ("allocation", 1))
    error = error_of(lambda: rpc.rpc_sync(to, double, (filled(3, "standin:0"),)))
    call_functions(to)  # the others are unharmed
    return error


PROGRAMS = (
    call_functions,
    call_from_other_streams,
    chain_futures,
    use_rrefs,
    use_remote_module,
    backward,
    backward_through_three,
    train,
    send_tensors_that_share,
)


def run(name, to):
    return globals()[name](to)


# ---- calls to oneself, and what is said of paths ----


def wait_count_of_a_call_to_oneself():
    """How often the host has waited for a device while a tensor went to this worker and back."""
    me = rpc.get_worker_info().name
    given = filled(1, "standin:0")
    module = accelerator.load()
    torch.standin.synchronize(0)
    module.reset_waits()
    back = rpc.rpc_async(me, double, (given,)).wait()
    given.zero_()  # what has been sent is what it was
    waits = sum(count for kinds in module.stats()["waits"].values() for count in kinds.values())
    expect(back, 2, "standin:0")
    return waits


_may_end = threading.Event()
_has_ended = threading.Event()


def double_when_told(tensor):
    _may_end.wait(60)
    _has_ended.set()
    return tensor * 2


def tensors_kept_after_a_late_result():
    me = rpc.get_worker_info().name
    future = rpc.rpc_async(me, double_when_told, (filled(1, "standin:0"),), timeout=0.1)
    with contextlib.suppress(RuntimeError):
        future.wait()
    _may_end.set()
    _has_ended.wait(60)
    rpc.rpc_sync(me, double, (filled(1, "standin:0"),))
    agent = rpc._get_current_rpc_agent()
    deadline = time.monotonic() + 30
    while agent.get_debug_info()["agent.device_tensors_kept"] != "0" and time.monotonic() < deadline:
        time.sleep(0.01)
    _may_end.clear()
    _has_ended.clear()
    return agent.get_debug_info()["agent.device_tensors_kept"]


def explanations():
    return [str(torchwire.explain(worker)) for worker in ("worker1", "worker0")]

"""What workers do in tests of those who look at them: calls that take long, and answers of observers."""

import contextlib
import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from processes import wait_until
from torchwire.observe import answers

_pending = []
_lock = threading.Lock()


def add(a, b):
    return a + b


def fails():
    raise ValueError("on purpose")


def nap_in_a_handler(seconds):
    time.sleep(seconds)


@rpc.functions.async_execution
def never():
    _pending.append(torch.futures.Future())
    return _pending[-1]


def speak_another_version():
    """From now on this worker answers observers as none of this version does."""
    for question in ("status", "dump"):
        answers._ANSWERS[question] = lambda _agent, _asked: {"worker": {"name": "worker1", "rank": 1}}


def call_many(to, count):
    return [rpc.rpc_sync(to, add, (1, i)) for i in range(count)][-1]


def call_failing(to):
    with contextlib.suppress(ValueError):
        rpc.rpc_sync(to, fails)


def begin(to, function, args, timeout=0):
    _pending.append(rpc.rpc_async(to, function, args, timeout=timeout))


def begin_nap(to, seconds, timeout=0):
    begin(to, nap_in_a_handler, (seconds,), timeout)


def begin_never(to, timeout=0):
    begin(to, never, (), timeout)


def error_of_pending():
    try:
        _pending.pop().wait()
    except Exception as error:
        return str(error)
    return None


def end_pending():
    """Lets calls of never() end, on the callee."""
    for future in _pending:
        if not future.done():
            future.set_result(None)
    _pending.clear()


def wait_for_pending():
    while _pending:
        _pending.pop().wait()


def await_death(name):
    wait_until(lambda: any(peer["name"] == name and peer["state"] == "dead" for peer in torchwire.peers()))


def backward_of_four(path):
    """Traces a product that goes through three others, and back."""
    with torchwire.trace(path), dist_autograd.context() as context:
        x = torch.ones(2, requires_grad=True)
        for worker in ("worker1", "worker2", "worker3"):
            x = rpc.rpc_sync(worker, torch.mul, (x, 2))
        dist_autograd.backward(context, [x.sum()])

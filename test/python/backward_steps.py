"""What workers run in the tests of backward passes, and what they are asked afterwards."""

import threading
import time

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from processes import wait_until

# ---- functions to call ----


def along(workers, function, *arguments):
    """Calls `function` at the end of a way over several workers, each of which doubles the result."""
    if not workers:
        return function(*arguments)
    return 2 * rpc.rpc_sync(workers[0], along, (workers[1:], function, *arguments))


def doubled(tensor):
    return tensor * 2


class Failing(torch.autograd.Function):
    """Passes its input on. Its backward raises, unless told to relent()."""

    relented = False

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        if not Failing.relented:
            raise ValueError("no gradient today")
        return gradient


def fail_in_backward(tensor):
    return Failing.apply(tensor)


def relent(relented=True):
    Failing.relented = relented


def fail_in_hook(tensor):
    result = tensor * 3

    def hook(gradient):
        raise ValueError("no gradient today")

    result.register_hook(hook)
    return result


def fail_in_forward(tensor):
    raise ValueError("no result today")


class Waiting(torch.autograd.Function):
    """Passes its input on. Its backward waits until it is told to go on."""

    entered = threading.Event()
    released = threading.Event()

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        Waiting.entered.set()
        Waiting.released.wait()
        return gradient


def wait_in_backward(tensor):
    return Waiting.apply(tensor)


def wait_until_entered():
    Waiting.entered.wait()


def release():
    Waiting.released.set()


# ---- errors ----


def error_of(function, *arguments):
    """The text of the RuntimeError, and the seconds until it came."""
    begin = time.monotonic()
    try:
        function(*arguments)
    except RuntimeError as error:
        return str(error), time.monotonic() - begin
    raise AssertionError("it did not fail")


# ---- what is left ----


def running_passes():
    return int(dist_autograd._get_debug_info()["num_current_backward_passes"])


def contexts():
    return int(dist_autograd._get_debug_info()["num_autograd_contexts"])


def expect_no_passes(group):
    """No worker has a running pass, soon."""
    wait_until(lambda: group.all(running_passes) == [0] * len(group), 10)


def expect_nothing_left(group):
    """No worker has a running pass or a context, soon."""
    expect_no_passes(group)
    wait_until(lambda: group.all(contexts) == [0] * len(group), 10)

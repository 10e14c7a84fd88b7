"""Operations that go wrong on purpose, to see that a round finds out. They are performed only where they are named."""

import os
import threading

import services
import torch.distributed.rpc as rpc
from operations import expect_tensor, operation


def defect(function):
    return operation(waits=0, defect=True)(function)


def wait_for_ever():
    threading.Event().wait()


def refuse():
    raise RuntimeError("on purpose")


@defect
def defect_wrong_data(caller):
    sent = services.piece(0, 100)
    _, back = caller.call(caller.anyone(), services.echo, sent)
    back[50] ^= 1
    expect_tensor(back, sent, "what came back")


@defect
def defect_error(caller):
    caller.call(caller.anyone(), refuse)


@defect
def defect_odd_error(caller):
    caller.call(caller.anyone(), int, "no number")


@defect
def defect_crash(caller):
    os.abort()


@defect
def defect_hang(caller):
    wait_for_ever()


@defect
def defect_lateness(caller):
    threading.Event().wait(1)


@defect
def defect_endless_call(caller):
    """A graceful shutdown waits for it."""
    rpc.rpc_async(caller.anyone(), wait_for_ever, timeout=0)


_kept = []


@defect
def defect_leak(caller):
    _kept.append(caller.remote(caller.anyone(), services.piece, 0, 1))

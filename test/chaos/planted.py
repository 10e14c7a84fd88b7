"""Operations that go wrong on purpose, to see the verdicts. They are performed only where they are named."""

import os
import threading

import services
import torch.distributed.rpc as rpc
from operations import expect_tensor, operation


def planted(function):
    return operation(waits=0, planted=True)(function)


def wait_for_ever():
    threading.Event().wait()


def refuse():
    raise RuntimeError("planted")


@planted
def planted_wrong_data(caller):
    sent = services.piece(0, 100)
    _, back = caller.call(caller.anyone(), services.echo, sent)
    back[50] ^= 1
    expect_tensor(back, sent, "what came back")


@planted
def planted_error(caller):
    caller.call(caller.anyone(), refuse)


@planted
def planted_odd_error(caller):
    caller.call(caller.anyone(), int, "no number")


@planted
def planted_crash(caller):
    os.abort()


@planted
def planted_hang(caller):
    wait_for_ever()


@planted
def planted_lateness(caller):
    threading.Event().wait(1)


@planted
def planted_endless_call(caller):
    """A graceful shutdown waits for it."""
    rpc.rpc_async(caller.anyone(), wait_for_ever, timeout=0)


_kept = []


@planted
def planted_leak(caller):
    _kept.append(caller.remote(caller.anyone(), services.piece, 0, 1))

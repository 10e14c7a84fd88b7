"""Forks that never reach anybody: in a message that cannot be sent, and in one that is lost."""

import contextlib
import signal
import sys
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
from group import Group, file_in, free_port
from processes import LIMIT
from rref_counts import counts, wait_until_none_is_left
from torch.distributed.rpc import api, internal
from torchwire import calls, passed_rrefs, pickling

SOON = LIMIT / 4  # s: libtorch's own waits take 100
HELD = []  # of a worker process: RRefs
SESSION = 1.0  # s: session_timeout
STOP = 5.0  # s: longer than a session, and than a store has to say who is dead


def value():
    return torch.ones(3)


def echo(x):
    return x


def give_with_a_lambda(rref):
    return rref, lambda: None


def fail_to_pass_on(owner):
    """An RRef of this worker's, or of another one, beside what cannot be pickled: as an argument and as a result."""
    rref = rpc.remote(owner, value)
    rref.to_here()
    for call in (
        lambda: rpc.rpc_sync("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.rpc_async("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.remote("worker1", echo, ((rref, lambda: None),)),
        lambda: rpc.rpc_sync("worker1", give_with_a_lambda, (rref,)),
    ):
        with pytest.raises(Exception, match="pickle"):
            call()


@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_an_rref_beside_what_cannot_be_pickled_is_taken_back(pair, owner):
    pair[0].run(fail_to_pass_on, owner)
    wait_until_none_is_left(pair, collects=True)


class Bundle:
    """What direct calls leave to pickle."""

    def __init__(self, rref):
        self.rref = rref


def ignore(_bundle):
    pass


SENDING = {module.__file__ for module in (api, internal, calls, passed_rrefs, pickling)}


def interrupted_at(instruction, call):
    """Whether the call has had so many instructions in those modules, and SIGINT at that one."""
    seen = 0

    def trace(frame, event, _argument):
        nonlocal seen
        if frame.f_code.co_filename not in SENDING:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            seen += 1
            if seen == instruction:
                sys.settrace(None)
                signal.raise_signal(signal.SIGINT)
        return trace

    sys.settrace(trace)
    try:
        call()
    except (KeyboardInterrupt, RuntimeError) as error:  # the second where it comes as the answer is about to be read
        assert "KeyboardInterrupt" in repr(error)
        return True
    finally:
        sys.settrace(None)
    return False


def pass_on_interrupted(owner, call, in_context):
    rref = rpc.RRef(value()) if owner == "worker0" else rpc.remote(owner, value)
    rref.to_here()
    instruction = 1
    with dist_autograd.context() if in_context else contextlib.nullcontext():
        while interrupted_at(instruction, lambda: call("worker1", ignore, (Bundle(rref),))):
            instruction += 1
    assert instruction > 100


@pytest.mark.parametrize("in_context", [False, True])
@pytest.mark.parametrize("call", [rpc.rpc_sync, rpc.remote])
@pytest.mark.parametrize("owner", ["worker0", "worker1"])
def test_an_rref_is_taken_back_wherever_the_call_that_passes_it_on_is_interrupted(pair, owner, call, in_context):
    pair[0].run(pass_on_interrupted, owner, call, in_context)
    wait_until_none_is_left(pair, collects=True)


def lose_forks(owner):
    """As in messages that are lost with a session: whoever is to get the fork never hears of it."""
    for rref in (rpc.RRef(value()), rpc.remote(owner, value)):
        rref._get_future().wait() if not rref.is_owner() else None
        internal.serialize(rref)
    found = counts()
    assert found["forks"] and found["pending_children"]


def shut_down():
    began = time.monotonic()
    rpc.shutdown()
    return time.monotonic() - began


def test_a_shutdown_does_not_wait_for_forks_that_are_lost(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        group[0].run(lose_forks, "worker1")
        assert max(group.all(shut_down)) < SOON


# ---- a worker that stands still ----------------------------------------------------------------


def keep(rref):
    HELD.append(rref)
    del HELD[:-10]


def drop():
    HELD.clear()


def hand_over(seconds, other):
    """RRefs of each kind to a worker that stands still part of the time, whatever becomes of them."""
    ways = (
        lambda: rpc.rpc_sync("worker0", keep, (rpc.RRef(value()),)),
        lambda: rpc.rpc_sync("worker0", keep, (rpc.remote(other, value),)),
        lambda: rpc.remote("worker0", value).to_here(),
    )
    threads = [threading.Thread(target=hand_over_again_and_again, args=(way, seconds)) for way in ways]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def hand_over_again_and_again(way, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            way()
        except RuntimeError:
            time.sleep(0.02)


def call_all():
    for worker in range(3):
        rpc.rpc_sync(f"worker{worker}", echo, (1,))


@pytest.mark.parametrize("transport", ["wire_tcp", pytest.param("wire_shm", marks=pytest.mark.long)])
def test_forks_that_a_stopped_worker_has_not_got_are_taken_back(transport):
    """It hosts the store, too, and stands still for longer than a session."""
    with Group(3) as group:
        group.init(
            f"tcp://127.0.0.1:{free_port()}", rpc_timeout=SESSION, session_timeout=SESSION, _transports=[transport]
        )
        group.all(echo, 1)
        busy = [
            worker.start(hand_over, STOP + 3 * SESSION, other)
            for worker, other in zip(group[1:], ("worker2", "worker1"))
        ]
        time.sleep(SESSION)  # of handing over, not for anything to have happened
        group[0].signal(signal.SIGSTOP)
        time.sleep(STOP)
        group[0].signal(signal.SIGCONT)
        for one in busy:
            one.result()
        group.all(drop)
        group.all(call_all)  # in the next session each hears what the other has got
        wait_until_none_is_left(group, collects=True)
        assert max(group.all(shut_down)) < SOON

"""RRefs whose creation fails: each one is marked itself, and no other."""

import contextlib
import ctypes
import gc
import re
import signal
import threading
import time

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running
from processes import LIMIT, wait_until
from rref_counts import counts, wait_until_none_is_left
from torch.autograd import profiler_legacy

FAILED = ("RRef creation via rpc.remote() timed out", "RRef creation via rpc.remote() failed")
SOON = 0.05  # s: a time-out that passes before the owner answers
OPEN = threading.Event()  # of a worker process: its functions may return
MADE = []  # of a worker process: RRefs


@pytest.fixture
def pair_in_creation(pair):
    """A running group of two whose functions wait until the test has ended."""
    pair.all(open_gate, False)
    yield pair
    pair.all(open_gate, True)
    wait_until_none_is_left(pair)


def open_gate(is_open):
    OPEN.set() if is_open else OPEN.clear()


def when_open():
    assert OPEN.wait(LIMIT)
    return 1


def error_of_fetch(rref):
    began = time.monotonic()
    try:
        rref.to_here(LIMIT)
    except RuntimeError as error:
        return str(error), time.monotonic() - began
    return None, time.monotonic() - began


def failed_creation(to):
    rref = rpc.remote(to, when_open, timeout=SOON)
    with contextlib.suppress(RuntimeError):
        rref._get_future().wait()
    return rref


def fail_one_after_the_other(to, count):
    """What each of the RRefs says when it is asked for its value, each made once the one before is gone."""
    return [error_of_fetch(failed_creation(to)) for _ in range(count)]


@pytest.mark.parametrize("to", ["worker0", "worker1"], ids=["self", "peer"])
def test_each_rref_whose_creation_times_out_says_so(pair_in_creation, to):
    for text, seconds in pair_in_creation[0].run(fail_one_after_the_other, to, 3):
        assert text is not None and text.startswith(FAILED)
        assert seconds < LIMIT / 2


def errors_of_own():
    """Of each way to the value of an own RRef whose creation has timed out, and how long they took."""
    rref = failed_creation("worker0")
    began = time.monotonic()
    found = []
    for use in (rref.to_here, rref.local_value, lambda: rref.rpc_sync(timeout=SOON).bit_length()):
        with pytest.raises(RuntimeError) as raised:
            use()
        found.append((type(raised.value).__name__, str(raised.value)))
    return found, time.monotonic() - began


def test_an_own_rref_whose_creation_has_failed_says_why_each_way(pair_in_creation):
    found, seconds = pair_in_creation[0].run(errors_of_own)
    for kind, text in found:
        assert kind == "CallTimedOut"
        assert text.startswith(FAILED) and "Its creation failed: " in text
    assert seconds < LIMIT / 2


def proxy_of_unmade():
    rref = rpc.remote("worker0", when_open)
    began = time.monotonic()
    with pytest.raises(torchwire.CallTimedOut):
        rref.rpc_sync(timeout=SOON).bit_length()
    return time.monotonic() - began


def test_a_proxy_of_an_own_rref_waits_as_long_as_it_is_told(pair_in_creation):
    assert pair_in_creation[0].run(proxy_of_unmade) < LIMIT / 2


def fail_under_a_profiler(to):
    with profiler_legacy.profile():  # which wraps the request in another
        return error_of_fetch(failed_creation(to))


def test_an_rref_whose_profiled_creation_times_out_says_so(pair_in_creation):
    text, _ = pair_in_creation[0].run(fail_under_a_profiler, "worker1")
    assert text is not None and text.startswith(FAILED)


def fail_beside_others(to):
    """Whether RRefs whose creation succeeds stay usable while others fail around them."""
    before = rpc.remote(to, torch.add, (torch.ones(2), 1))
    fail_one_after_the_other(to, 2)
    after = rpc.remote(to, torch.add, (torch.ones(2), 2))
    return before.to_here(LIMIT).tolist(), after.to_here(LIMIT).tolist()


def test_rrefs_that_have_been_created_are_not_marked_for_others(pair_in_creation):
    assert pair_in_creation[0].run(fail_beside_others, "worker1") == ([2, 2], [3, 3])


def blocks_of_freed_size(libc):
    """Zeroed memory as it was that of an RRef a moment ago, most likely."""
    blocks = []
    for size in range(72, 264, 16):
        for _ in range(30):
            block = libc.malloc(size)
            ctypes.memset(block, 0, size)
            blocks.append((block, size))
    return blocks


def changed_memory(to):
    """Blocks of this program's own memory that a failed creation has written to, as (size, content)."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
    libc.free.argtypes = [ctypes.c_void_p]
    failed_creation(to)
    gc.collect()
    wait_until(lambda: counts()["pending_users"] == 0)
    blocks = blocks_of_freed_size(libc)
    failed_creation(to)
    changed = [(size, ctypes.string_at(block, size)) for block, size in blocks]
    for block, _ in blocks:
        libc.free(block)
    return [(size, content) for size, content in changed if any(content)]


def test_a_creation_that_fails_writes_to_no_memory_that_has_been_freed(tmp_path):
    with running(2, tmp_path) as group:  # a new process: it is the first failure that counts
        assert group[0].run(changed_memory, "worker1") == []
        group.all(open_gate, True)


def make(to, count):
    MADE.extend(rpc.remote(to, when_open) for _ in range(count))


def fetch_all():
    return [error_of_fetch(rref) for rref in MADE]


def end_of_creations():
    return [rref._get_future().done() for rref in MADE]


@pytest.mark.parametrize("transports", [None, ["wire_tcp"]], ids=["default", "wire_tcp"])
def test_rrefs_whose_owner_dies_during_their_creation_all_say_so(tmp_path, transports):
    with Group(2) as group:
        group.init(file_in(tmp_path), _transports=transports)
        group[0].run(make, "worker1", 4)
        group[1].signal(signal.SIGKILL)
        wait_until(lambda: all(group[0].run(end_of_creations)))
        for text, seconds in group[0].run(fetch_all):
            assert text is not None and text.startswith(FAILED)
            assert seconds < LIMIT / 2
        group.kill()


def backward(rref):
    with dist_autograd.context() as context:
        rref.backward(context)


USES = {
    "to_here": lambda rref: rref.to_here(),
    "passed by rpc_sync": lambda rref: rpc.rpc_sync("worker2", type, (rref,)),
    "passed by rpc_async": lambda rref: rpc.rpc_async("worker2", type, (rref,)).wait(),
    "passed by remote": lambda rref: rpc.remote("worker2", type, (rref,)).to_here(),
    "passed to oneself": lambda rref: rpc.rpc_sync("worker0", type, (rref,)),
    "passed in a list": lambda rref: rpc.rpc_sync("worker2", len, ([rref],)),
    "proxy, rpc_sync": lambda rref: rref.rpc_sync().tolist(),
    "proxy, rpc_async": lambda rref: rref.rpc_async().tolist().wait(),
    "proxy, remote": lambda rref: rref.remote().tolist().to_here(),
    "backward": backward,
}


def errors_of_uses(to):
    """What each use of an RRef raises whose owner has died before its creation."""
    rref = rpc.remote(to, torch.add, (torch.ones(2), 1))
    with contextlib.suppress(torchwire.WorkerDied):
        rref._get_future().wait()
    return {name: error_of(use, rref) for name, use in USES.items()}


def error_of(use, *args):
    try:
        use(*args)
    except Exception as error:
        return type(error).__name__, getattr(error, "worker", None), str(error)
    return None


def drop_what_is_to_be_fetched(to):
    """The owner has one thread for the creation and, in a context, for the fetch; it has others for the delete."""
    MADE.append(rpc.rpc_async(to, when_open))
    with dist_autograd.context(), contextlib.suppress(RuntimeError):
        rpc.remote(to, torch.add, args=(1, 1), timeout=SOON).to_here(SOON)
    gc.collect()  # the error has a frame with the RRef
    wait_until(lambda: active_calls("client") == 1)


def active_calls(side):
    return int(rpc._get_debug_info()[f"agent.{side}_active_calls"])


def test_a_fetch_that_the_delete_of_its_rref_has_overtaken_ends(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path), num_worker_threads=1)
        group[0].run(drop_what_is_to_be_fetched, "worker1")
        group[1].run(open_gate, True)
        wait_until(lambda: group[1].run(active_calls, "server") == 0)
        group.shut_down()


def test_each_use_of_an_rref_that_was_not_created_says_why(tmp_path):
    with Group(3) as group:
        group.init(file_in(tmp_path))
        group[1].kill()
        errors = group[0].run(errors_of_uses, "worker1")
        group.kill()
    for name, (kind, worker, text) in errors.items():
        assert (kind, worker) == ("WorkerDied", "worker1"), name
        assert re.fullmatch(
            r"(?!.*failed.*failed).*Its creation failed: .*worker 'worker1' \(rank 1\) has died.*", text
        ), name

"""Why calls fail, in types: the same by every way in which a program waits for one."""

import contextlib
import copy
import pickle
import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import Group, file_in, running

TIMEOUT = 0.3
MIB = 1 << 20

# ---- what the workers run ----

_event = threading.Event()
_kept = {}


def wait_for_event(*_):
    _event.wait()


def set_event():
    _event.set()


def name():
    return rpc.get_worker_info().name


def name_of(to):
    return rpc.rpc_sync(to, name)


@rpc.functions.async_execution
def name_of_soon(to):
    return rpc.rpc_async(to, name)


def connect(*workers):
    for worker in workers:
        rpc.rpc_sync(worker, name)


def caught(function):
    """What is to be known of the exception that the function raises, and of a copy and after a pickle as well."""
    try:
        function()
    except Exception as error:
        described = describe(error)
        assert describe(pickle.loads(pickle.dumps(error))) == described
        assert describe(copy.copy(error)) == described
        return described
    raise AssertionError("it did not fail")


def describe(error):
    return {
        "kind": type(error).__name__,
        "is_torchwires": type(error) is getattr(torchwire, type(error).__name__, None),
        "is_runtime_error": isinstance(error, RuntimeError),
        "text": str(error),
        "worker": getattr(error, "worker", None),
        "executed": getattr(error, "executed", None),
    }


# ---- the ways to wait ----


def synchronously(to, function, args=(), timeout=0):
    rpc.rpc_sync(to, function, args, timeout=timeout)


def waiting(to, function, args=(), timeout=0):
    rpc.rpc_async(to, function, args, timeout=timeout).wait()


def waiting_for_all(to, function, args=(), timeout=0):
    torch.futures.wait_all([rpc.rpc_async(to, function, args, timeout=timeout)])


def waiting_elsewhere(to, function, args=(), timeout=0):
    """In another thread than the one that has sent the call."""
    future = rpc.rpc_async(to, function, args, timeout=timeout)
    errors = []

    def wait():
        try:
            future.wait()
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join()
    raise errors[0]


def fetching(to, function, args=(), timeout=0):
    rpc.remote(to, function, args).to_here(timeout)


def in_an_autograd_context(to, function, args=(), timeout=0):
    with dist_autograd.context():
        rpc.rpc_sync(to, function, args, timeout=timeout)


WAYS = [synchronously, waiting, waiting_for_all, waiting_elsewhere, fetching, in_an_autograd_context]
each_way = pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)


def failure(way, *args, **kwargs):
    return caught(lambda: way(*args, **kwargs))


# ---- groups ----


@pytest.fixture
def trio(tmp_path):
    """Three workers, of which a test may kill some; the others shut down without waiting for the dead."""
    with Group(3) as group:
        group.init(file_in(tmp_path))
        yield group
        for worker in group:
            if worker.is_alive():
                worker.run(rpc.shutdown, graceful=False)


@pytest.fixture
def pair(tmp_path):
    with running(2, tmp_path) as group:
        yield group


def kill(victim, *, for_worker):
    """The worker has noticed when this returns: its next call is never sent."""
    victim.kill()
    for_worker.run(failure, synchronously, victim.name, name)


def has_died(rank):
    return f"worker 'worker{rank}' (rank {rank}) has died: its process "


def expect(found, kind, worker, executed, text):
    """`text`: with which it begins; or a tuple of them."""
    assert found["text"].startswith(text), found["text"]
    assert (found["kind"], found["worker"], found["executed"]) == (kind, worker, executed)
    assert found["is_torchwires"] and found["is_runtime_error"]


# ---- time-outs ----


@each_way
def test_a_call_that_takes_too_long(pair, way):
    found = pair[0].run(failure, way, "worker1", wait_for_event, timeout=TIMEOUT)
    pair[1].run(set_event)
    text = "RPCErr:1:RPC ran for more than set timeout (300 ms) and will now be marked with an error"
    expect(found, "CallTimedOut", "worker1", "unknown", text)
    assert found["text"] == text


def sum_of(tensor):
    return tensor.sum().item()


def fill_the_window(to):
    _kept["first"] = rpc.rpc_async(to, wait_for_event, (torch.ones(MIB),))


def failure_behind_it(to):
    return caught(lambda: rpc.rpc_async(to, sum_of, (torch.ones(MIB),), timeout=TIMEOUT).wait())


def test_a_call_that_never_finds_room_to_be_sent(tmp_path):
    with running(2, tmp_path, max_bytes_in_flight=MIB) as pair:
        pair[0].run(fill_the_window, "worker1")
        found = pair[0].run(failure_behind_it, "worker1")
        pair[1].run(set_event)
    expect(found, "Overloaded", "worker1", "no", "RPCErr:1:RPC ran for more than set timeout (300 ms)")
    assert issubclass(torchwire.Overloaded, torchwire.CallTimedOut)  # who handles time-outs handles these


# ---- workers that are gone ----


@each_way
def test_a_call_to_a_worker_that_is_gone_has_not_run(trio, way):
    trio[0].run(connect, "worker1")
    kill(trio[1], for_worker=trio[0])
    found = trio[0].run(failure, way, "worker1", name)
    texts = [has_died(1)]
    if way is fetching:  # that is all libtorch says where the creation has failed before the fetch begins
        texts.append("RRef creation via rpc.remote() timed out")
    expect(found, "WorkerDied", "worker1", "no", tuple(texts))


def begin_call(to):
    connect(to)
    _kept["call"] = rpc.rpc_async(to, wait_for_event)


def failure_of_begun():
    return caught(_kept.pop("call").wait)


def test_whether_a_call_has_run_whose_worker_dies_is_unknown(trio):
    trio[0].run(begin_call, "worker1")
    trio[1].kill()
    found = trio[0].run(failure_of_begun)
    expect(found, "WorkerDied", "worker1", "unknown", has_died(1))


def keep_rref(to):
    _kept["rref"] = rpc.remote(to, name)
    _kept["rref"]._get_future().wait()  # else its creation may still fail
    _kept["rref"].to_here()


def failure_of_kept_rref():
    return caught(_kept["rref"].to_here)


def failures_of_new_rref(to):
    rref = rpc.remote(to, name)
    return caught(rref._get_future().wait), caught(rref.to_here)


def test_rrefs_of_a_worker_that_is_gone(trio):
    trio[0].run(keep_rref, "worker1")
    kill(trio[1], for_worker=trio[0])
    expect(trio[0].run(failure_of_kept_rref), "WorkerDied", "worker1", "no", has_died(1))
    of_creation, of_fetch = trio[0].run(failures_of_new_rref, "worker1")
    expect(of_creation, "WorkerDied", "worker1", "no", f"RPCErr:1:{has_died(1)}")
    expect(of_fetch, "WorkerDied", "worker1", "no", "RRef creation via rpc.remote() timed out")
    assert f"Its creation failed: RPCErr:1:{has_died(1)}" in of_fetch["text"]


def failure_of_call_over_the_end(to):
    begin_call(to)
    rpc.shutdown(graceful=False)
    return failure_of_begun()


def test_a_call_that_the_caller_leaves_behind(tmp_path):
    with Group(2) as group:
        group.init(file_in(tmp_path))
        found = group[0].run(failure_of_call_over_the_end, "worker1")
        group[1].run(set_event)
        group[1].run(rpc.shutdown, graceful=False)
    expect(found, "RpcError", "worker1", "unknown", "worker 'worker0' shut its RPC agent down")


# ---- backward passes ----


def double(tensor):
    return tensor * 2


def double_there(to, tensor):
    return rpc.rpc_sync(to, double, (tensor,)) * 3


def double_with_a_hook_that_waits(tensor):
    result = tensor * 2
    result.register_hook(wait_for_event)
    return result


def begin_pass(to, function, *args):
    """The forward part."""
    context = dist_autograd._new_context()
    _kept["pass"] = context, rpc.rpc_sync(to, function, (*args, torch.ones(2, requires_grad=True))).sum()


def failure_of_pass(timeout=60):
    context, loss = _kept.pop("pass")
    with default_timeout(timeout):
        found = caught(lambda: dist_autograd.backward(context._context_id(), [loss]))
    dist_autograd._release_context(context._context_id())
    return found


@contextlib.contextmanager
def default_timeout(seconds):
    before = rpc.get_rpc_timeout()
    rpc._set_rpc_timeout(seconds)
    yield
    rpc._set_rpc_timeout(before)


def test_a_backward_pass_that_takes_too_long(pair):
    pair[0].run(begin_pass, "worker1", double_with_a_hook_that_waits)
    found = pair[0].run(failure_of_pass, TIMEOUT)
    pair[1].run(set_event)
    expect(found, "CallTimedOut", "worker1", "unknown", "RPCErr:1:RPC ran for more than set timeout (300 ms)")


def test_a_backward_pass_to_a_worker_that_is_gone(trio):
    trio[0].run(begin_pass, "worker1", double)
    kill(trio[1], for_worker=trio[0])
    expect(trio[0].run(failure_of_pass), "WorkerDied", "worker1", "no", has_died(1))


def test_a_backward_pass_names_a_worker_that_only_another_calls(trio):
    trio[0].run(begin_pass, "worker1", double_there, "worker2")
    kill(trio[2], for_worker=trio[1])
    expect(trio[0].run(failure_of_pass), "WorkerDied", "worker2", "no", has_died(2))


# ---- errors that are passed on ----


@each_way
def test_an_error_that_a_handler_lets_pass(trio, way):
    kill(trio[2], for_worker=trio[1])
    found = trio[0].run(failure, way, "worker1", name_of, ("worker2",))
    assert (found["kind"], found["worker"], found["executed"]) == ("WorkerDied", "worker2", "no")
    assert found["is_runtime_error"]
    assert "On WorkerInfo(id=1, name=worker1):" in found["text"] and has_died(2) in found["text"]


@pytest.mark.parametrize("way", [synchronously, waiting], ids=lambda way: way.__name__)
def test_an_error_in_the_future_that_a_handler_returns(trio, way):
    kill(trio[2], for_worker=trio[1])
    found = trio[0].run(failure, way, "worker1", name_of_soon, ("worker2",))
    expect(found, "WorkerDied", "worker2", "no", has_died(2))


@torch.jit.script
def double_in_a_script(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 2


@torch.jit.script
def called_in_a_script(to: str, tensor: torch.Tensor):
    return rpc.rpc_sync(to, double_in_a_script, (tensor,), {}, 5.0)


def failure_in_a_script(to):
    return caught(lambda: called_in_a_script(to, torch.ones(2)))


def test_torchscript_knows_words_only(trio):
    kill(trio[1], for_worker=trio[0])
    found = trio[0].run(failure_in_a_script, "worker1")
    assert found["is_runtime_error"] and has_died(1) in found["text"]


# ---- the classes ----


@pytest.mark.parametrize(
    "kind",
    [
        torchwire.RpcError,
        torchwire.WorkerDied,
        torchwire.WorkerUnreachable,
        torchwire.CallTimedOut,
        torchwire.Overloaded,
        torchwire.CallCancelled,
    ],
)
def test_an_error_is_made_of_a_text_a_worker_and_whether_it_has_run(kind):
    error = kind("it failed", "ps", "no")
    assert isinstance(error, torchwire.RpcError) and isinstance(error, RuntimeError)
    assert (str(error), error.args, error.worker, error.executed) == ("it failed", ("it failed",), "ps", "no")
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.worker, again.executed) == (kind, "it failed", "ps", "no")
    bare = kind("it failed")
    assert (bare.worker, bare.executed) == (None, "unknown")

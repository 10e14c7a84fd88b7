"""Calls in autograd contexts, and with RRefs among their arguments, that are written without pickle."""

import contextlib
import threading

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import running
from processes import LIMIT, wait_until
from torch.distributed.nn import RemoteModule
from torch.distributed.rpc import internal

gate = threading.Event()


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with running(3, tmp_path_factory.mktemp("forward")) as workers:
        yield workers


@contextlib.contextmanager
def counting_pickles():
    """The pickles that this worker makes meanwhile, one number each."""
    pickler, counted = internal._internal_rpc_pickler, []
    original = pickler.serialize
    pickler.serialize = lambda value: counted.append(1) or original(value)
    try:
        yield counted
    finally:
        del pickler.serialize


# ---- contexts ----


def scale(tensor, by=2.0):
    return tensor * by


@rpc.functions.async_execution
def scale_later(tensor, to):
    return rpc.rpc_async(to, scale, (tensor,)).then(lambda done: done.wait() + tensor)


def scale_twice(tensor, to):
    return rpc.rpc_sync(to, scale, (tensor * 3,))


def split(values):
    return {"sum": values["x"] + values["y"], "parts": [values["x"] * 2, 7]}


def gradient_of(call, expected):
    tensor = torch.tensor([1.0, 2.0], requires_grad=True)
    other = torch.tensor([3.0, 4.0], requires_grad=True)
    with dist_autograd.context() as context:
        with counting_pickles() as pickles:
            result = call(tensor, other)
        dist_autograd.backward(context, [result.sum()])
        gradients = dist_autograd.get_gradients(context)
    expected(tensor, other).sum().backward()
    assert torch.equal(gradients[tensor], tensor.grad)
    if other.grad is not None:
        assert torch.equal(gradients[other], other.grad)
    return len(pickles)


def sum_of(result):
    return result["sum"] + result["parts"][0] + result["parts"][1]


PROGRAMS = {
    "function": (lambda x, y: rpc.rpc_sync("worker1", scale, (x,), {"by": 5.0}), lambda x, y: x * 5),
    "future": (lambda x, y: rpc.rpc_async("worker1", scale, (x,)).wait(), lambda x, y: x * 2),
    "chained": (
        lambda x, y: rpc.rpc_sync("worker2", scale, (rpc.rpc_sync("worker1", scale, (x,)),)),
        lambda x, y: x * 4,
    ),
    "nested call": (lambda x, y: rpc.rpc_sync("worker1", scale_twice, (x, "worker2")), lambda x, y: x * 6),
    "call back": (lambda x, y: rpc.rpc_sync("worker1", scale_twice, (x, "worker0")), lambda x, y: x * 6),
    "async function": (lambda x, y: rpc.rpc_sync("worker1", scale_later, (x, "worker2")), lambda x, y: x * 3),
    "containers": (
        lambda x, y: sum_of(rpc.rpc_sync("worker1", split, ({"x": x, "y": y},))),
        lambda x, y: x * 3 + y + 7,
    ),
    "oneself": (lambda x, y: rpc.rpc_sync("worker0", scale, (x,)), lambda x, y: x * 2),
    "mixed with pickles": (
        lambda x, y: rpc.rpc_sync("worker1", scale, (rpc.rpc_sync("worker2", torch.mul, (x, y)),)),
        lambda x, y: x * y * 2,
    ),
}


def run_program(name):
    return gradient_of(*PROGRAMS[name])


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_those_of_local_programs_and_nothing_is_pickled(group, name):
    for _ in range(3):
        assert group[0].run(run_program, name) == 0


def context_ids(depth):
    mine = dist_autograd._current_context()._context_id()
    return [mine, *rpc.rpc_sync(f"worker{depth % 3}", context_ids, (depth - 1,))] if depth else [mine]


def ids_seen():
    with dist_autograd.context() as context:
        return context, context_ids(5)


def no_context():
    with pytest.raises(RuntimeError, match="valid context"):
        dist_autograd._current_context()


def test_functions_run_in_the_callers_context(group):
    context, seen = group[0].run(ids_seen)
    assert seen == [context] * 6
    group[1].run(no_context)


def without_gradients():
    constant, variable = torch.ones(2), torch.ones(2, requires_grad=True)
    with dist_autograd.context() as context:
        plain = rpc.rpc_sync("worker1", scale, (constant,))
        with torch.no_grad():
            ungraded = rpc.rpc_sync("worker1", scale, (variable,))
        graded = rpc.rpc_sync("worker1", scale, (variable,))
        status = next(one for one in torchwire.autograd_contexts() if one["id"] == context)
        return plain.requires_grad, ungraded.grad_fn, graded.grad_fn.name(), status


def test_only_what_needs_gradients_gets_functions(group):
    plain, ungraded, graded, status = group[0].run(without_gradients)
    assert (plain, ungraded) == (False, None)
    assert "RecvRpcBackward" in graded
    assert status["recv_functions"] == 1


def fail(kind):
    raise {"value": ValueError, "key": KeyError}[kind]("what went wrong")


def errors_in_context():
    texts = []
    with dist_autograd.context():
        for call in (
            lambda: rpc.rpc_sync("worker1", fail, ("value",)),
            lambda: rpc.rpc_async("worker1", fail, ("key",)).wait(),
            lambda: rpc.rpc_sync("worker1", pass_gate, (torch.ones(1, requires_grad=True),), timeout=0.1),
        ):
            try:
                call()
            except Exception as error:
                texts.append(f"{type(error).__name__}: {error}")
    return texts


def pass_gate(tensor):
    gate.wait(LIMIT)
    gate.clear()
    return tensor * 2


def open_gate():
    gate.set()


def contexts_here():
    return len(torchwire.autograd_contexts())


def test_errors_are_those_of_calls_without_a_context(group):
    value, key, late = group[0].run(errors_in_context)
    assert value.startswith("ValueError") and "what went wrong" in value
    assert key.startswith("KeyError") and "what went wrong" in key
    assert "RPC ran for more than set timeout (100 ms)" in late
    group[1].run(open_gate)
    for worker in group:
        wait_until(lambda worker=worker: worker.run(contexts_here) == 0)


pending = []


def leave_context_while_a_call_runs():
    with dist_autograd.context():
        pending.append(rpc.rpc_async("worker1", pass_gate, (torch.ones(1, requires_grad=True),)))


def end_call():
    return pending.pop().wait().item()


def test_a_context_that_is_left_while_a_call_of_it_runs_leaves_nothing(group):
    for _ in range(5):
        group[0].run(leave_context_while_a_call_runs)
        group[1].run(open_gate)
        assert group[0].run(end_call) == 2
        for worker in group:
            wait_until(lambda worker=worker: worker.run(contexts_here) == 0)


# ---- RRefs ----


class Counter:
    def __init__(self, start):
        self.value = start

    def add(self, number):
        self.value += number
        return self.value


def add_to(rref, number):
    return rref.local_value().add(number)


def proxies(count):
    """How many pickles calls by proxy take, from the second on."""
    rref = rpc.remote("worker1", Counter, (10,))
    assert rref.rpc_sync().add(1) == 11
    with counting_pickles() as pickles:
        results = [rref.rpc_sync().add(1) for _ in range(count)]
        results += [rref.rpc_async().add(1).wait() for _ in range(count)]
        results.append(rpc.rpc_sync("worker1", add_to, (rref,), {"number": 1}))
    assert results == list(range(12, 13 + 2 * count))
    return len(pickles)


def test_calls_by_proxy_pickle_nothing(group):
    assert group[0].run(proxies, 5) == 0


def use_given(rref, count):
    return [rref.rpc_sync().add(1) for _ in range(count)]


def pass_on():
    """A worker that has not created the RRef calls by it."""
    return rpc.rpc_sync("worker2", use_given, (rpc.remote("worker1", Counter, (0,)), 5))


def test_workers_that_were_given_an_rref_call_by_it(group):
    assert group[0].run(pass_on) == [1, 2, 3, 4, 5]


def drop_at_once(count):
    """The last use of each RRef here is its call: it has to live as long."""
    futures = []
    for number in range(count):
        rref = rpc.remote("worker1", Counter, (number,))
        rref._get_future().wait()
        futures.append(rpc.rpc_async("worker1", add_to, (rref, 1)))
        del rref
    return [future.wait() for future in futures]


def rrefs_here():
    return int(rpc._rref_context_get_debug_info()["num_owner_rrefs"])


def test_an_rref_lives_as_long_as_the_call_that_it_is_an_argument_of(group):
    assert group[0].run(drop_at_once, 300) == list(range(1, 301))
    wait_until(lambda: group[1].run(rrefs_here) == 0)


def note_slowly(rref, path):
    threading.Event().wait(0.02)
    with open(path, "a") as file:
        file.write("x" if rref.is_owner() else "-")


def call_and_forget(path, count):
    rref = rpc.remote("worker1", Counter, (0,))
    rref._get_future().wait()
    for _ in range(count):
        rpc.rpc_async("worker1", note_slowly, (rref, path))


def test_a_graceful_shutdown_lets_calls_by_rref_run(tmp_path):
    """Also those that wait for a thread, and whose caller has dropped the RRef."""
    path = tmp_path / "notes"
    with running(2, tmp_path, num_worker_threads=2) as workers:
        workers[0].run(call_and_forget, str(path), 20)
    assert path.read_text() == "x" * 20


def race_with_creation(count):
    """Passes on RRefs whose creation is under way, which reach their owner by either way."""
    futures = []
    for number in range(count):
        rref = rpc.remote("worker1", Counter, (number,))
        futures.append(rpc.rpc_async("worker2", use_given, (rref, 1)))
        futures.append(rpc.rpc_async("worker1", add_to, (rref, 1)))
    return [future.wait() for future in futures]


def test_rrefs_may_be_used_before_they_are_created(group):
    results = group[0].run(race_with_creation, 100)
    assert len(results) == 200


def train_remotely(steps):
    torch.manual_seed(0)
    module = RemoteModule("worker1/cpu", torch.nn.Linear, (2, 1))
    inputs = torch.ones(1, 2)
    module.get_module_rref()._get_future().wait()  # until then its RRef is pickled
    with counting_pickles() as pickles:
        for _ in range(steps):
            with dist_autograd.context() as context:
                dist_autograd.backward(context, [module.forward(inputs).sum()])
    return len(pickles)


def test_a_remote_module_forwards_without_pickle(group):
    assert group[0].run(train_remotely, 5) == 0

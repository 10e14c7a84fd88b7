"""Calls of every kind, to other workers and to the worker itself; time-outs; callbacks; many calls at once."""

import threading

import pytest
import torch
import torch.distributed.rpc as rpc
import torchwire
from group import running
from processes import WorkerError

TARGETS = ["worker1", "worker0"]  # the tests call from worker0, so the second is a call to itself
KINDS = ["sync", "async", "remote"]


def call(kind, to, function, args=(), kwargs=None):
    if kind == "sync":
        return rpc.rpc_sync(to, function, args, kwargs)
    if kind == "async":
        return rpc.rpc_async(to, function, args, kwargs).wait()
    return rpc.remote(to, function, args, kwargs).to_here()


# ---- what the workers run ----


def scaled(tensor, factor=1, *, shift=0):
    return tensor * factor + shift


def my_name():
    return rpc.get_worker_info().name


@torch.jit.script
def scripted_sum(a, b):
    return a + 2 * b


def call_with_arguments(kind, to):
    return call(kind, to, scaled, (torch.arange(3), 10), {"shift": 1}).tolist()


def call_builtin(kind, to):
    return call(kind, to, torch.add, (torch.arange(3), torch.ones(3))).tolist()


def call_script(kind, to):
    return call(kind, to, scripted_sum, (torch.arange(3), torch.ones(3))).tolist()


def names_by(targets):
    return [rpc.rpc_sync(to, my_name) for to in targets]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", TARGETS)
class TestEveryKindOfCallToEveryTarget:
    def test_a_python_function_gets_its_arguments(self, pair, kind, to):
        assert pair[0].run(call_with_arguments, kind, to) == [1, 11, 21]

    def test_a_builtin_operator_runs(self, pair, kind, to):
        assert pair[0].run(call_builtin, kind, to) == [1, 2, 3]

    def test_a_torchscript_function_runs(self, pair, kind, to):
        pair[1].run(my_name)  # imports this module, so that worker1 has the function as well
        assert pair[0].run(call_script, kind, to) == [2, 3, 4]

    def test_an_exception_keeps_its_type_and_names_the_worker(self, pair, kind, to):
        with pytest.raises(WorkerError) as caught:
            pair[0].run(call, kind, to, raise_value_error)
        assert caught.value.type_name == "ValueError"
        assert to in caught.value.message and "no such row" in caught.value.message


def raise_value_error():
    raise ValueError("no such row")


def test_a_worker_is_addressed_by_name_rank_or_info(pair):
    assert pair[0].run(names_by_all_addresses) == ["worker1"] * 3


def names_by_all_addresses():
    return names_by(["worker1", 1, rpc.get_worker_info("worker1")])


# ---- calls to oneself ----


def zero_in_place(tensor):
    tensor.zero_()
    return tensor


_kept = None


def keep(tensor):
    global _kept
    _kept = tensor
    return _kept


def kept_sum():
    return _kept.sum().item()


def change_own_argument(size):
    mine = torch.ones(size)
    rpc.rpc_sync("worker0", zero_in_place, (mine,))
    return mine.sum().item()


def change_own_result(size):
    result = rpc.rpc_sync("worker0", keep, (torch.ones(size),))
    result.zero_()
    return kept_sum()


# Small tensors travel inside the frame, large ones beside it; neither may be shared.
@pytest.mark.parametrize("size", [10, 100_000])
class TestACallToOneselfCopies:
    def test_a_change_by_the_callee_is_not_seen_by_the_caller(self, pair, size):
        assert pair[0].run(change_own_argument, size) == size

    def test_a_change_of_the_result_is_not_seen_by_the_callee(self, pair, size):
        assert pair[0].run(change_own_result, size) == size


# ---- nested calls ----


def bounce(targets):
    """Calls the first target, which calls the next, and so on; returns the names on the way."""
    if not targets:
        return [my_name()]
    return [my_name(), *rpc.rpc_sync(targets[0], bounce, (targets[1:],))]


def test_calls_nest_deeply(pair):
    way = ["worker1", "worker0"] * 5
    assert pair[0].run(bounce, way) == ["worker0", *way]


def test_with_one_thread_a_handler_can_call_back_its_caller(tmp_path):
    with running(2, tmp_path, num_worker_threads=1) as group:
        assert group[0].run(bounce, ["worker1", "worker0"]) == ["worker0", "worker1", "worker0"]


# ---- async_execution ----


@rpc.functions.async_execution
def add_on(to, a, b):
    return rpc.rpc_async(to, torch.add, (a, b)).then(lambda done: done.wait() * 10)


@rpc.functions.async_execution
def fail_later(to):
    return rpc.rpc_async(to, raise_value_error)


@rpc.functions.async_execution
def forget_the_future():
    return 5


class Methods:
    @staticmethod
    @rpc.functions.async_execution
    def static(a):
        return rpc.rpc_async("worker0", torch.neg, (a,))

    @classmethod
    @rpc.functions.async_execution
    def of_class(cls, a):
        return rpc.rpc_async("worker0", torch.neg, (a,))

    @rpc.functions.async_execution
    def bound(self, a):
        return rpc.rpc_async("worker0", torch.neg, (a,))


def call_async_function(kind):
    return call(kind, "worker1", add_on, ("worker0", torch.ones(2), 1)).tolist()


def call_async_methods():
    one, rref = torch.ones(1), rpc.remote("worker1", Methods)
    return [
        rpc.rpc_sync("worker1", Methods.static, (one,)).item(),
        rpc.rpc_sync("worker1", Methods.of_class, (one,)).item(),
        rref.rpc_sync().bound(one).item(),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_an_async_function_answers_once_its_future_is_complete(pair, kind):
    assert pair[0].run(call_async_function, kind) == [20, 20]


def test_async_methods_run(pair):
    assert pair[0].run(call_async_methods) == [-1, -1, -1]


def test_the_error_of_an_async_functions_future_reaches_the_caller(pair):
    with pytest.raises(WorkerError, match="no such row"):
        pair[0].run(rpc.rpc_sync, "worker1", fail_later, ("worker0",))


def test_an_async_function_without_a_future_is_an_error_that_says_so(pair):
    with pytest.raises(WorkerError, match="must return a torch.futures.Future object, but got builtins.int"):
        pair[0].run(rpc.rpc_sync, "worker1", forget_the_future)


# ---- time-outs: the callee waits for an event, so that nothing depends on speed ----

_event = threading.Event()


def wait_for_event():
    _event.wait()
    return "late"


def set_event():
    _event.set()


def clear_event():
    _event.clear()


def error_of(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except RuntimeError as error:
        return str(error)


def time_out_once(call_it):
    rpc.rpc_sync("worker1", clear_event)
    try:
        return error_of(call_it)
    finally:
        rpc.rpc_sync("worker1", set_event)


def time_out_of_its_own(kind):
    def call_it():
        if kind == "sync":
            return rpc.rpc_sync("worker1", wait_for_event, timeout=0.1)
        if kind == "async":
            return rpc.rpc_async("worker1", wait_for_event, timeout=0.1).wait()
        return rpc.remote("worker1", wait_for_event).to_here(timeout=0.1)

    return time_out_once(call_it)


def count_frames_from(name):
    return next(peer["frames_received"] for peer in torchwire.peers() if peer["name"] == name)


def late_answer_is_dropped():
    rpc.rpc_sync("worker1", clear_event)
    before = count_frames_from("worker1")
    timed_out = error_of(rpc.rpc_sync, "worker1", wait_for_event, timeout=0.1)
    rpc.rpc_sync("worker1", set_event)
    answers = [rpc.rpc_sync("worker1", torch.add, (torch.ones(1), i)).item() for i in range(50)]
    # What set_event and the additions brought, and the late answer. Every further call brings one more.
    calls = 51
    while count_frames_from("worker1") - before == calls:
        rpc.rpc_sync("worker1", my_name)
        calls += 1
    return timed_out, answers


@pytest.mark.parametrize("kind", KINDS)
def test_a_call_times_out_in_the_words_of_pytorch(pair, kind):
    assert "RPC ran for more than set timeout (100 ms)" in pair[0].run(time_out_of_its_own, kind)


def test_a_late_answer_is_dropped_and_disturbs_no_other_call(pair):
    timed_out, answers = pair[0].run(late_answer_is_dropped)
    assert timed_out.startswith("RPCErr:1:RPC ran for more than")
    assert answers == [1 + i for i in range(50)]


def default_and_no_time_out():
    rpc.rpc_sync("worker1", clear_event)
    patient = rpc.rpc_async("worker1", wait_for_event, timeout=0)
    impatient = rpc.rpc_async("worker1", wait_for_event)
    error = error_of(impatient.wait)
    still_waiting = not patient.done()  # by now it is older than the default time-out
    rpc.rpc_sync("worker1", set_event)
    return rpc.get_rpc_timeout(), error, still_waiting, patient.wait()


def test_the_default_time_out_comes_from_the_options_and_zero_means_none(tmp_path):
    # Long enough for the calls that are to succeed, even on a busy machine.
    with running(2, tmp_path, rpc_timeout=2) as group:
        timeout, error, still_waiting, answer = group[0].run(default_and_no_time_out)
        assert timeout == 2
        assert "RPC ran for more than set timeout (2000 ms)" in error
        assert still_waiting and answer == "late"


# ---- futures and their callbacks ----


def call_from_callback(blocking):
    first = rpc.rpc_async("worker1", torch.add, (torch.ones(1), 1))
    if blocking:
        second = first.then(lambda done: rpc.rpc_sync("worker1", torch.mul, (done.wait(), 10)))
        return second.wait().item()
    second = first.then(lambda done: rpc.rpc_async("worker1", torch.mul, (done.wait(), 10)))
    return second.wait().wait().item()


_held = []
_held_changed = threading.Condition()


@rpc.functions.async_execution
def hold():
    with _held_changed:
        _held.append(torch.futures.Future())
        _held_changed.notify_all()
        return _held[-1]


def release(count):
    with _held_changed:
        _held_changed.wait_for(lambda: len(_held) == count)  # requests run in any order
        futures = list(_held)
        _held.clear()
    for future in futures:
        future.set_result(1)


def call_from_callbacks(count):
    # All answers come once every callback is in place, so that none runs on the caller's own thread.
    firsts = [rpc.rpc_async("worker1", hold) for _ in range(count)]
    seconds = [first.then(lambda done: rpc.rpc_sync("worker1", increment, (done.wait(),))) for first in firsts]
    rpc.rpc_sync("worker1", release, (count,))
    return [second.wait() for second in seconds]


def error_in_callback():
    def fail(done):
        raise ValueError(f"cannot use {done.wait().item()}")

    return error_of(rpc.rpc_async("worker1", torch.neg, (torch.ones(1),)).then(fail).wait)


def collect():
    futures = [rpc.rpc_async("worker1", torch.add, (torch.ones(1), i)) for i in range(5)]
    return [done.wait().item() for done in torch.futures.collect_all(futures).wait()]


def wait_all():
    with rpc.api._wait_all():
        futures = [rpc.rpc_async("worker1", torch.add, (torch.ones(1), i)) for i in range(5)]
    return all(future.done() for future in futures)


@pytest.mark.parametrize("blocking", [False, True])
def test_a_callback_makes_a_call(pair, blocking):
    assert pair[0].run(call_from_callback, blocking) == 20


def test_many_callbacks_wait_for_calls(pair):
    assert pair[0].run(call_from_callbacks, 15) == [2] * 15


def test_an_exception_in_a_callback_is_the_error_of_its_future(pair):
    assert "cannot use -1" in pair[0].run(error_in_callback)


def test_futures_are_collected_and_waited_for_together(pair):
    assert pair[0].run(collect) == [1, 2, 3, 4, 5]
    assert pair[0].run(wait_all)


# ---- much at once ----


def increment(number):
    return number + 1


def many_calls(to, count):
    python = [rpc.rpc_async(to, increment, (i,)) for i in range(count)]
    builtin = [rpc.rpc_async(to, torch.add, (torch.tensor([i]), 1)) for i in range(count)]
    return [f.wait() for f in python] == [f.wait().item() for f in builtin] == list(range(1, count + 1))


def calls_from_threads(to, threads, count):
    wrong = []

    def work(start):
        for i in range(start, start + count):
            if rpc.rpc_sync(to, increment, (i,)) != i + 1:
                wrong.append(i)

    workers = [threading.Thread(target=work, args=(t * count,)) for t in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return wrong


def echo(value):
    return value


def echo_bytes(size):
    data = bytes(range(256)) * (size // 256)
    return rpc.rpc_sync("worker1", echo, (data,)) == data


def test_thousands_of_calls_are_on_their_way_at_once_in_both_directions(pair):
    pending = [pair[0].start(many_calls, "worker1", 2000), pair[1].start(many_calls, "worker0", 2000)]
    assert all(one.result() for one in pending)


def test_many_threads_call_at_once(pair):
    assert pair[0].run(calls_from_threads, "worker1", 8, 50) == []


def test_large_python_values_travel_whole(pair):
    assert pair[0].run(echo_bytes, 10 * 2**20)


def echo_values(values):
    return [rpc.rpc_sync("worker1", echo, (value,)) for value in values]


def test_python_values_of_all_kinds_come_back_equal(pair):
    values = [None, True, 2**100, 1.5, 1j, "ü\0", b"\0\xff", (1, [2, {"three": {4}}]), frozenset({5}), slice(1, 2), ...]
    assert pair[0].run(echo_values, values) == values

"""Futures of calls know them (plugin/torchwire/call_future.py), whatever the call is of."""

import asyncio
import enum
import threading
import types

import pytest
import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torchwire
from group import running
from processes import LIMIT, wait_until
from test_picklers import enter, leave

_gate = threading.Event()
_kept = {}


@torch.jit.script
def script_add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


class Unreadable:
    """Has to be pickled."""


def pass_gate(*_):
    return _gate.wait(LIMIT)


def open_gate():
    _gate.set()


def answer(*_):
    return "answer"


def fail(*_):
    raise KeyError("lost")


@pytest.fixture(scope="module")
def group(tmp_path_factory):
    with running(2, tmp_path_factory.mktemp("futures"), num_worker_threads=2) as workers:
        yield workers
        workers.all(open_gate)


ONES = torch.ones(3)
# Of each kind: what is called, with what, and whether in an autograd context, and with a pickler of the program's.
CALLS = {
    "direct": (answer, (1,), False, False),
    "pickled": (answer, (Unreadable(),), False, False),
    "operator": (torch.add, (ONES, ONES), False, False),
    "TorchScript": (script_add, (ONES, ONES), False, False),
    "direct in a context": (answer, (1,), True, False),
    "pickled in a context": (answer, (Unreadable(),), True, False),
    "operator in a context": (torch.add, (ONES, ONES.clone().requires_grad_()), True, False),
    "TorchScript in a context": (script_add, (ONES, ONES.clone().requires_grad_()), True, False),
    "by the program's pickler": (answer, (1,), False, True),
}


def under(kind, use):
    """What `use` returns for the future of a call of the kind."""
    function, args, in_context, with_pickler = CALLS[kind]
    if with_pickler:
        enter()
    try:
        if not in_context:
            return use(rpc.rpc_async("worker1", function, args))
        with dist_autograd.context():
            return use(rpc.rpc_async("worker1", function, args))
    finally:
        if with_pickler:
            leave()


def is_right(kind):
    def check(future):
        assert type(future) is torchwire.CallFuture and isinstance(future, torch.futures.Future)
        seen = []
        future.add_done_callback(seen.append)
        then = future.then(lambda done: (done is future, done.value()))
        value = future.wait()
        is_same, from_callback = then.wait()
        wait_until(lambda: seen)  # where the call has ended meanwhile, another thread runs it
        assert is_same and seen[0] is future and future.done()
        for got in (value, from_callback, future.value(), torch.futures.collect_all([future]).wait()[0].wait()):
            assert torch.equal(got, ONES + 1) if isinstance(got, torch.Tensor) else got == "answer"
        assert not future.cancel()  # it has ended
        return True

    return under(kind, check)


@pytest.mark.parametrize("kind", CALLS)
def test_a_call_returns_a_future_that_knows_it(group, kind):
    assert group[0].run(is_right, kind)


def occupy():
    """Has both threads of worker1 wait, so that what is called next does not begin."""
    _kept["held"] = [rpc.rpc_async("worker1", pass_gate) for _ in range(2)]
    return [future.done() for future in _kept["held"]]


def cancel_from_another_thread(kind):
    def cancel(future):
        ended = []
        thread = threading.Thread(target=lambda: ended.append(torchwire.cancel(future)))
        thread.start()
        thread.join()
        with pytest.raises(torchwire.CallCancelled):
            future.wait()
        return ended

    return under(kind, cancel)


def is_busy():
    return int(rpc.api._get_current_rpc_agent().get_metrics()["agent.server_active_calls"]) >= 2


def release():
    for held in _kept.pop("held"):
        held.wait()


def close_gate():
    _gate.clear()


@pytest.mark.parametrize("kind", CALLS)
def test_any_call_can_be_given_up_by_any_thread(group, kind):
    group[1].run(close_gate)
    group[0].run(occupy)
    wait_until(lambda: group[1].run(is_busy))
    assert group[0].run(cancel_from_another_thread, kind) == [True]
    group[1].run(open_gate)
    group[0].run(release)


# ---- in coroutines ----


def awaited(kind):
    async def main(future):
        return await future

    return under(kind, lambda future: asyncio.run(main(future)))


@pytest.mark.parametrize("kind", ["direct", "operator", "TorchScript", "pickled in a context"])
def test_a_coroutine_awaits_a_call(group, kind):
    value = group[0].run(awaited, kind)
    assert torch.equal(value, ONES + 1) if isinstance(value, torch.Tensor) else value == "answer"


def await_many():
    async def main():
        return await asyncio.gather(
            *(rpc.rpc_async("worker1", torch.add, (torch.full((2,), n), 1)) for n in range(200))
        )

    return [int(value[0]) for value in asyncio.run(main())]


def test_a_loop_awaits_many_calls_at_once(group):
    assert group[0].run(await_many) == list(range(1, 201))


def await_failure():
    async def main():
        with pytest.raises(KeyError, match="lost"):
            await rpc.rpc_async("worker1", fail)

    asyncio.run(main())


def test_a_coroutine_gets_the_error_of_a_call(group):
    group[0].run(await_failure)


def await_creation():
    async def main():
        rref = rpc.remote("worker1", answer)
        await rref._get_future()
        await rref._get_future()  # which has ended
        return rref.to_here()

    return asyncio.run(main())


def test_a_coroutine_awaits_the_creation_of_an_rref(group):
    assert group[0].run(await_creation) == "answer"


def cancel_task():
    async def main():
        future = rpc.rpc_async("worker1", pass_gate)

        async def wait():
            return await future

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return future

    with pytest.raises(torchwire.CallCancelled):
        asyncio.run(main()).wait()


def test_where_a_task_is_cancelled_so_is_its_call(group):
    group[1].run(close_gate)
    group[0].run(cancel_task)
    group[1].run(open_gate)


def leave_loop():
    async def main():
        _kept["unawaited"] = rpc.rpc_async("worker1", pass_gate)
        awaiting = asyncio.ensure_future(asyncio.wait_for(asyncio.shield(_wrapped(_kept["unawaited"])), LIMIT))
        await asyncio.sleep(0)
        awaiting.cancel()

    asyncio.run(main())


async def _wrapped(future):
    return await future


def unawaited():
    try:
        return _kept.pop("unawaited").wait()
    except torchwire.CallCancelled:
        return "cancelled"


def test_a_loop_may_end_before_the_call(group):
    group[1].run(close_gate)
    group[0].run(leave_loop)
    group[1].run(open_gate)
    assert group[0].run(unawaited) == "cancelled"  # asyncio.run() cancels what is left


# ---- bad input ----


def test_nobody_else_makes_such_a_future():
    with pytest.raises(TypeError, match="torch.futures.Future"):
        torchwire.CallFuture()
    with pytest.raises(ValueError, match="future of a call"):
        torchwire.CallFuture.__new__(torchwire.CallFuture).cancel()


def unknown_operands():
    with pytest.raises(RuntimeError, match="failed to match any schema"):
        rpc.rpc_async("worker1", torch.add, (ONES, "two"))
    with pytest.raises(RuntimeError, match="failed to match any schema"):
        rpc.rpc_sync("worker1", torch.add, (ONES,))
    with pytest.raises(RuntimeError, match="expected at most 2 argument"):
        rpc.rpc_sync("worker1", script_add, (ONES, ONES, ONES))
    with pytest.raises(TypeError):
        rpc.remote("worker1", answer).to_here(1, 2)


def test_arguments_that_do_not_fit_are_errors_of_the_caller(group):
    group[0].run(unknown_operands)


# ---- which overload an operator's arguments choose ----

ONE = torch.ones(1)
NUMBER = torch.tensor(2.0)
OPERANDS = [
    (torch.add, (ONES, ONES), {}),
    (torch.add, (ONES, 1), {}),
    (torch.add, (ONES, 1.5), {}),
    (torch.add, (ONES, True), {}),
    (torch.add, (ONES, ONES), {"alpha": 2}),
    (torch.add, (ONES, NUMBER), {}),
    (torch.add, (NUMBER, ONES), {}),
    (torch.add, (ONE, ONE), {}),
    (torch.mul, (2 * ONES, 3), {}),
    (torch.div, (ONES, 2), {"rounding_mode": "floor"}),
    (torch.sum, (ONES,), {}),
    (torch.sum, (ONES, 0), {}),
    (torch.sum, (ONES, [0]), {}),
    (torch.sum, (ONES,), {"dim": 0, "keepdim": True}),
    (torch.sum, (ONES,), {"dtype": torch.float64}),
    (torch.pow, (ONES, 2), {}),
    (torch.pow, (2, ONES), {}),
    (torch.clamp, (ONES, 0, None), {}),
    (torch.clamp, (ONES,), {"max": 0.5}),
    (torch.ones, ([2, 2],), {}),
    (torch.full, ([2], 7), {}),
    (torch.cat, ([ONES, ONES],), {}),
    (torch.full_like, (ONES, 2**40), {}),
]


def operated():
    for _ in range(3):  # also those whose overload is known by then
        for function, args, kwargs in OPERANDS:
            for got in (
                rpc.rpc_sync("worker1", function, args, kwargs),
                rpc.rpc_async("worker1", function, args, kwargs).wait(),
            ):
                expected = function(*args, **kwargs)
                assert torch.equal(got, expected) and got.dtype == expected.dtype, (function, args, kwargs)


def list_of_operator():
    future = rpc.rpc_async("worker1", torch.split, (torch.arange(4), 2))
    return future.wait() is future.wait(), [part.tolist() for part in future.wait()]


def test_a_future_of_an_operator_holds_one_object(group):
    assert group[0].run(list_of_operator) == (True, [[0, 1], [2, 3]])


class Counted:
    pass


def call_in_lost_context():
    """An RRef is pickled for a call that its context, which another thread has released, refuses."""
    rref = rpc.remote("worker1", Counted)
    rref.to_here()
    with pytest.raises(RuntimeError, match="autograd context"), dist_autograd.context() as context:
        dist_autograd._release_context(context)
        rpc.rpc_sync("worker1", answer, (Unreadable(), rref))


def held():
    return len(torchwire.rrefs())


def test_rrefs_in_a_call_that_its_context_refuses_are_taken_back(group):
    group[0].run(call_in_lost_context)
    wait_until(lambda: group[1].run(held) == 0)


def call_with_an_iterable():
    """The arguments of operators and TorchScript functions may come in any iterable, and any mapping."""
    named = types.MappingProxyType({"alpha": 2})
    return [
        isinstance(rpc.rpc_async("worker1", torch.add, [ONES, ONES]), torchwire.CallFuture),
        rpc.rpc_sync("worker1", torch.add, [ONES, ONES]).tolist(),
        rpc.rpc_sync("worker1", torch.add, (ONES, ONES), named).tolist(),
        rpc.rpc_sync("worker1", script_add, iter((ONES, ONES))).tolist(),
    ]


def test_arguments_come_in_any_iterable(group):
    assert group[0].run(call_with_an_iterable) == [True, [2, 2, 2], [3, 3, 3], [2, 2, 2]]


class Worker(str, enum.Enum):
    other = "worker1"


class Rank(enum.IntEnum):
    other = 1


@pytest.mark.parametrize("to", [Worker.other, Rank.other])
def test_a_worker_may_be_named_by_an_enumeration(group, to):
    assert group[0].run(name_of_future, to) == "CallFuture"


def name_of_future(to):
    future = rpc.rpc_async(to, answer)
    assert future.wait() == "answer"
    return type(future).__name__


def await_under_a_profiler():
    async def call():
        return await rpc.rpc_async("worker1", answer)

    with torch.autograd.profiler.profile():
        return asyncio.run(call())


def test_a_coroutine_awaits_a_call_under_a_profiler(group):
    assert group[0].run(await_under_a_profiler) == "answer"


def profiled_names():
    rref = rpc.remote("worker1", answer)
    with torch.autograd.profiler.profile() as profile:
        assert rref.to_here() == "answer"
    return [event.name for event in profile.function_events]


def test_a_profiler_records_fetches_as_pytorch_names_them(group):
    assert "to_here#(worker0)->(worker1)" in group[0].run(profiled_names)


def test_an_operator_gets_the_overload_that_takes_the_arguments(group):
    group[0].run(operated)
